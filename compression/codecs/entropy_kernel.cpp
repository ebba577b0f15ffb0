// Codec entropy: splits floats into Huffman symbols (exponents; of fp16 the upper byte) and the rest, and joins them.
#include "compression/codecs/huffman_kernel.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

typedef uint16_t Unaligned16 __attribute__((aligned(1), may_alias));
typedef uint32_t Unaligned32 __attribute__((aligned(1), may_alias));

void split(const std::byte* in, DType dtype, int64_t n, uint8_t* __restrict symbols, std::byte* __restrict rest_bytes) {
  uint8_t* __restrict rest = (uint8_t*)rest_bytes;
  if (dtype == DType::f32) {
    const Unaligned32* x = (const Unaligned32*)in;
    Unaligned16* __restrict low = (Unaligned16*)(rest + n);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t w = x[i];
      symbols[i] = (uint8_t)(w >> 23);
      rest[i] = (uint8_t)((w >> 16 & 0x7fu) | (w >> 24 & 0x80u));
      low[i] = (uint16_t)w;
    }
    return;
  }
  const Unaligned16* x = (const Unaligned16*)in;
  if (dtype == DType::bf16) {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t h = x[i];
      symbols[i] = (uint8_t)(h >> 7);
      rest[i] = (uint8_t)((h & 0x7f) | (h >> 8 & 0x80));
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t h = x[i];
      symbols[i] = (uint8_t)(h >> 8);
      rest[i] = (uint8_t)h;
    }
  }
}

// A bf16 value, or the upper half of an fp32 one.
TW_INLINE uint16_t upper_half(uint8_t symbol, uint8_t rest) {
  return (uint16_t)((rest & 0x80) << 8 | symbol << 7 | (rest & 0x7f));
}

void merge(const uint8_t* __restrict symbols, const std::byte* __restrict rest_bytes, DType dtype, int64_t n,
           std::byte* __restrict out) {
  const uint8_t* rest = (const uint8_t*)rest_bytes;
  if (dtype == DType::f32) {
    const Unaligned16* low = (const Unaligned16*)(rest + n);
    Unaligned32* y = (Unaligned32*)out;
    for (int64_t i = 0; i < n; ++i) y[i] = (uint32_t)upper_half(symbols[i], rest[i]) << 16 | low[i];
    return;
  }
  Unaligned16* y = (Unaligned16*)out;
  if (dtype == DType::bf16) {
    for (int64_t i = 0; i < n; ++i) y[i] = upper_half(symbols[i], rest[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (uint16_t)(symbols[i] << 8 | rest[i]);
  }
}

}  // namespace

constinit const EntropyKernels entropy_kernels = {split, merge};

}  // namespace thinwire::TW_ISA
