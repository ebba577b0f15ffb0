// Codec chunked_top_k: the `keep` largest of every chunk of `block` elements (SparseLoCo, DeMo: 64 of 4096), short
// indices, values in 32, 16 or 2 bits.
//
// A chunk of c elements keeps kept(c) = ceil(keep c / block), which is `keep` for a whole one. Its payload:
//   format bf16, fp32: nothing; fp16: the byte of the exponent; 2bit: two bf16 magnitudes, small and large
//   the indices within the chunk, ascending, log2(block) bits each, packed least significant bit first, zero padded
//   the values (2bit: codes of 2 bits, packed alike: bit 0 large, bit 1 negative)
//   wire_bytes = sum over chunks of head + ceil(kept log2(block) / 8) + (fp32: 4 kept, bf16 and fp16: 2 kept, 2bit:
//   ceil(kept / 4)),   head = fp16: 1, 2bit: 4, else 0
// 64 of 4096 in 2bit: 116 bytes, 0.2266 bits an element (0.21875 of them indices and codes, as published).
// 2bit: |v| up to their mean decode to the mean of those, others to the mean of theirs (two steps of Lloyd's iteration
// in double, in ascending order of index), so that the error of the kept values is below their size.
#pragma once

#include <memory>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_select.h"

namespace thinwire {

class ChunkedTopK final : public Codec {
 public:
  ChunkedTopK(int64_t keep, int64_t block, ValueFormat format);
  std::string name() const override;
  Traits traits() const override { return {.contractive = true, .selects = true, .linear = true, .granule = block_}; }
  size_t wire_bytes(int64_t count, DType dtype) const override;
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState* state) const override;
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override;

 private:
  struct Layout {
    int64_t elements, kept, head, codes, bytes;  // codes: offset of the values or codes
  };
  Layout layout(int64_t elements) const;
  int64_t keep_, block_;
  int index_bits_;
  ValueFormat format_;
};

// Reads `keep` (default 64), `block` (default 4096; a power of two from 16 to 65536) and `format` (default fp32).
std::shared_ptr<const Codec> make_chunked_top_k(const CodecSpec& spec);

CodecRow chunked_top_k_row();

}  // namespace thinwire
