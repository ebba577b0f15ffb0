// Codec top_k: the largest share `density` of a message, indices and values; the rest is left to the residual.
//
// Payload of n elements, k = max(1, round(density n)): the indices (sparse_select.h: a bitmap or Elias-Fano, whichever
// is shorter for this n and k; from density 0.2 on the bitmap), the byte of the exponent if format is fp16, then k
// values in ascending order of index.
//   wire_bytes = index_code(n, k, density >= 0.2).bytes + (fp16: 1) + k * (fp32: 4, bf16 and fp16: 2)
// A message is encoded whole: the threshold is the message's.
#pragma once

#include <memory>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_select.h"

namespace thinwire {

class TopK final : public Codec {
 public:
  TopK(double density, ValueFormat format) : density_(density), format_(format) {}
  std::string name() const override;
  Traits traits() const override { return {.contractive = true, .selects = true, .linear = true, .granule = 0}; }
  size_t wire_bytes(int64_t count, DType dtype) const override;
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState* state) const override;
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override;

 private:
  double density_;
  ValueFormat format_;
};

// Reads `density` and `format` (default fp32).
std::shared_ptr<const Codec> make_top_k(const CodecSpec& spec);

CodecRow top_k_row();

}  // namespace thinwire
