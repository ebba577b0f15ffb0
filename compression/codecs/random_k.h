// Codec random_k: a random share `density` of every block, the same elements on all ranks; only values travel.
//
// A piece is cut into blocks of `block` elements (the last may be short). A block of b elements keeps
//   kept(b) = max(1, round(density block)) if b == block, else ceil(that * b / block),
// one from each of the strata [j b / kept, (j + 1) b / kept). Which one: word j % 4 of Philox block j / 4, keyed by
// (seed, slot, sequence, step) and counted by the block's number in the message; never by rank, so that payloads of
// different ranks hold the same elements. A slice may start anywhere: its blocks are numbered from the one in which its
// first element would lie. Over the steps every element is drawn equally often.
//   wire_bytes = sum over blocks of (fp16: 1) + kept(b) * (fp32: 4, bf16 and fp16: 2)
// Contractive in the mean over the draws: E |x - decoded|^2 = (1 - kept / b) |x|^2. With `rounding` stochastic (fp32
// only) each value is multiplied by the size of its stratum, which makes the decoded message unbiased and no longer
// contractive; a value that this takes out of fp32 raises the non-finite flag.
#pragma once

#include <memory>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_select.h"

namespace thinwire {

class RandomK final : public Codec {
 public:
  RandomK(double density, int64_t block, ValueFormat format, bool unbiased);
  std::string name() const override;
  Traits traits() const override {
    return {.unbiased = unbiased_, .contractive = !unbiased_, .selects = true, .linear = true, .granule = block_};
  }
  size_t wire_bytes(int64_t count, DType dtype) const override;
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState* state) const override;
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override;

 private:
  int64_t kept(int64_t elements) const;
  double density_;
  int64_t block_, full_;  // full_: kept of a whole block
  ValueFormat format_;
  bool unbiased_;
};

// Reads `density`, `block` (default 4096; 16 to 65536), `format` (default fp32) and `rounding`.
std::shared_ptr<const Codec> make_random_k(const CodecSpec& spec);

CodecRow random_k_row();

}  // namespace thinwire
