// How many samples each step takes, and which of them each rank's micro-batches hold.
#pragma once

#include <cstdint>

#include "data/data_config.h"

namespace thinwire {

// Megatron's rampup_batch_size "start increment samples": the batch begins with ramp_start and grows by ramp_increment
// each ramp_samples / ((global_batch - ramp_start) / ramp_increment) samples. Past ramp_samples it is global_batch.

// Throws Error(kBadConfig) unless the ramp reaches global_batch in whole increments.
void check_batch_ramp(const DataConfig& config);

// Samples of the step that begins after `consumed` samples.
int64_t global_batch_at(const DataConfig& config, int64_t consumed);

// Samples that the first `iterations` steps consume, at least done_samples. Throws Error(kBadConfig) if that does not
// fit 64 bits.
int64_t samples_after(const DataConfig& config, int64_t iterations);

// Steps that a run of so many samples has, as Megatron counts them: whole batches, but none of the ramp is left out.
int64_t iterations_of(const DataConfig& config, int64_t samples);

// Micro-step s of data-parallel rank r in a global batch of `size` samples beginning at `first` takes
// first + (s*dp + r)*micro .. + micro, cut at the batch's end where the batch is not a multiple of micro*dp
// (then the last rows may be fewer, or none).
struct SampleSpan {
  int64_t first = 0, rows = 0;
};
int64_t micro_steps(int64_t size, int64_t micro, int64_t dp);
SampleSpan micro_batch_samples(int64_t first, int64_t size, int64_t micro, int64_t dp, int64_t rank, int64_t step);

}  // namespace thinwire
