// The batch size ramp and the consumption order.
#include "data/batch_ramp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

bool has_ramp(const DataConfig& c) {
  return c.ramp_samples > 0 && c.ramp_start != c.global_batch;
}

// Steps from `consumed` on, one at least, that surely lie within one stage of the ramp: ramps may be long.
int64_t steps_of_the_stage(const DataConfig& c, int64_t consumed) {
  const double stage =
      static_cast<double>(c.ramp_samples) / static_cast<double>((c.global_batch - c.ramp_start) / c.ramp_increment);
  const double end = (std::floor(static_cast<double>(consumed) / stage) + 1.0) * stage;
  const double within = (std::min(end, static_cast<double>(c.ramp_samples)) - static_cast<double>(consumed)) /
                        static_cast<double>(global_batch_at(c, consumed));
  return std::max<int64_t>(1, static_cast<int64_t>(within) - 1);
}

}  // namespace

void check_batch_ramp(const DataConfig& c) {
  if (c.global_batch < 1)
    throw_bad_config("train_batch_size: " + std::to_string(c.global_batch) + " must be at least 1");
  if (c.ramp_samples == 0) return;
  const std::string where = "rampup_batch_size: [" + std::to_string(c.ramp_start) + ", " +
                            std::to_string(c.ramp_increment) + ", " + std::to_string(c.ramp_samples) +
                            "] (start, increment, samples) ";
  if (c.ramp_start < 1 || c.ramp_increment < 1 || c.ramp_samples < 0)
    throw_bad_config(where +
                     "needs a start and an increment of at least 1 and a number of samples that is not negative");
  if (c.ramp_start > c.global_batch)
    throw_bad_config(where + "starts above train_batch_size " + std::to_string(c.global_batch));
  if ((c.global_batch - c.ramp_start) % c.ramp_increment != 0)
    throw_bad_config(where + "does not reach train_batch_size " + std::to_string(c.global_batch) +
                     " in whole increments: " + std::to_string(c.global_batch) + " - " + std::to_string(c.ramp_start) +
                     " must be a multiple of " + std::to_string(c.ramp_increment));
}

int64_t global_batch_at(const DataConfig& c, int64_t consumed) {
  if (!has_ramp(c) || consumed > c.ramp_samples) return c.global_batch;
  const int64_t increments = (c.global_batch - c.ramp_start) / c.ramp_increment;
  const double samples_per_increment = static_cast<double>(c.ramp_samples) / static_cast<double>(increments);
  const auto steps = static_cast<int64_t>(static_cast<double>(consumed) / samples_per_increment);
  return std::min(c.global_batch, c.ramp_start + steps * c.ramp_increment);
}

int64_t samples_after(const DataConfig& c, int64_t iterations) {
  TW_CHECK(iterations >= 0, "iterations ", iterations);
  int64_t consumed = c.done_samples;
  iterations = std::max<int64_t>(0, iterations - c.done_iters);
  while (has_ramp(c) && iterations > 0 && consumed <= c.ramp_samples) {
    const int64_t steps = std::min(iterations, steps_of_the_stage(c, consumed));
    iterations -= steps, consumed += steps * global_batch_at(c, consumed);
  }
  if (iterations > (std::numeric_limits<int64_t>::max() - consumed) / c.global_batch)
    throw_bad_config("train_iters: " + std::to_string(iterations) + " steps of " + std::to_string(c.global_batch) +
                     " samples are too many to count");
  return consumed + iterations * c.global_batch;
}

int64_t iterations_of(const DataConfig& c, int64_t samples) {
  int64_t iterations = c.done_iters, consumed = c.done_samples;
  while (has_ramp(c) && consumed <= c.ramp_samples) {
    const int64_t steps = steps_of_the_stage(c, consumed);
    iterations += steps, consumed += steps * global_batch_at(c, consumed);
  }
  return iterations + std::max<int64_t>(0, samples - consumed) / c.global_batch;
}

int64_t micro_steps(int64_t size, int64_t micro, int64_t dp) {
  TW_CHECK(size > 0 && micro > 0 && dp > 0, "batch ", size, " micro ", micro, " dp ", dp);
  return (size + micro * dp - 1) / (micro * dp);
}

SampleSpan micro_batch_samples(int64_t first, int64_t size, int64_t micro, int64_t dp, int64_t rank, int64_t step) {
  TW_CHECK(rank >= 0 && rank < dp && step >= 0 && step < micro_steps(size, micro, dp), "rank ", rank, " step ", step);
  const int64_t begin = std::min(size, (step * dp + rank) * micro);
  return {first + begin, std::min(size, begin + micro) - begin};
}

}  // namespace thinwire
