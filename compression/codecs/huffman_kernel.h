// Inner loops of Huffman coding, which work on one frame of bytes, and of the codec entropy, which splits numbers into
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/core/dtype.h"
#include "engine/base/ops/kernel_table.h"

namespace thinwire {

inline constexpr int kHuffmanBits = 11;  // longest code

// The n symbols of a frame are coded as four streams, one per quarter: symbols [q * size, min((q + 1) * size, n)) with
// size = ceil(n / 4). Codes are written from the least significant bit on; each stream is padded to a whole byte.
struct HuffmanKernels {
  // counts[q][s]: how often quarter q has symbol s.
  void (*count)(const uint8_t* symbols, int64_t n, uint32_t (*counts)[256]);
  // codes[s] = code | length << 16. out[q], bytes[q]: where the stream of quarter q goes, and its exact size; nothing
  // beyond is written.
  void (*encode)(const uint8_t* symbols, int64_t n, const uint32_t* codes, std::byte* const* out, const size_t* bytes);
  // Halves the steps of coding where all symbols lie in [base, base + 16): two neighbours become one byte, first - base
  // in its lower half, second - base in its upper half. n is a multiple of 8, so that quarters hold whole pairs. pairs:
  // n / 2 of them.
  void (*pair)(const uint8_t* symbols, int64_t n, uint8_t base, uint8_t* pairs);
  void (*unpair)(const uint8_t* pairs, int64_t n, uint8_t base, uint8_t* symbols);  // n symbols, even
  // Writes the same streams as encode(). codes[p] = both codes, the first in the lower bits, | their length << 24;
  // longest: the largest of those lengths.
  void (*encode_pairs)(const uint8_t* pairs, int64_t n, const uint32_t* codes, uint32_t longest, std::byte* const* out,
                       const size_t* bytes);
  // lengths[s] and codes[s] of a complete prefix code, 0 for symbols without one. Returns whether the streams held
  // exactly n symbols; never reads beyond bytes[q].
  bool (*decode)(const std::byte* const* in, const size_t* bytes, const uint32_t* codes, int64_t n, uint8_t* symbols);
};
TW_DECLARE_KERNELS(HuffmanKernels, huffman_kernels)

struct EntropyKernels {
  // Symbols of n values: the exponent (fp32, bf16) or the upper byte (fp16). rest: sign and upper 7 mantissa bits, a
  // byte each, then for fp32 the lower 16 bits, two bytes each; fp16: the lower byte.
  void (*split)(const std::byte* in, DType dtype, int64_t n, uint8_t* symbols, std::byte* rest);
  void (*merge)(const uint8_t* symbols, const std::byte* rest, DType dtype, int64_t n, std::byte* out);
};
TW_DECLARE_KERNELS(EntropyKernels, entropy_kernels)

}  // namespace thinwire
