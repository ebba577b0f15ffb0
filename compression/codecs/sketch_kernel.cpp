// Adding numbers on a grid into the tables of a sketch; compiled once per instruction set.
#include "compression/codecs/sparse_kernel.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// All ones in the lanes whose bit is set.
TW_INLINE VecI lane_mask(uint32_t bits) {
  VecI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = 1 << i;
  return (splat_i((int32_t)bits) & lane) == lane;
}

TW_INLINE VecI to_int(VecF v) {  // of a whole number
#ifdef __AVX512F__
  return (VecI)_mm512_cvtps_epi32((__m512)v);
#else
  return (VecI)_mm256_cvtps_epi32((__m256)v);
#endif
}

// The bits of up to 16 elements from i, a multiple of 8.
TW_INLINE uint32_t bits_of(const uint8_t* bits, int64_t i, int64_t n) {
  uint32_t mask = bits[i / 8];
  if (n > 8) mask |= (uint32_t)bits[i / 8 + 1] << 8;
  return mask & ((1u << n) - 1u);
}

void add(const float* x, int64_t n, const uint8_t* bits, const uint32_t* cells, float inverse, int32_t* table) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_of(bits, i, m);
    if (mask == 0) return;
    const VecU q = (VecU)(to_int(vround(load_at(part, x + i, m) * splat(inverse))) & lane_mask(mask));
    const uint32_t* rows = cells + i / kSketchLanes * 3;
    for (int j = 0; j < 3; ++j) {
      float* row = (float*)(table + rows[j] + i % kSketchLanes);  // bits only; rows are always whole
      store(row, (VecF)((VecU)load(row) + q));
    }
  });
}

void subtract(float* x, int64_t n, const uint8_t* bits, float inverse, float step) {
  for_vectors(n, [&](auto part, int64_t i, int64_t m) TW_INLINE_LAMBDA {
    const uint32_t mask = bits_of(bits, i, m);
    if (mask == 0) return;
    const VecF v = load_at(part, x + i, m);
    const VecF sent = (VecF)((VecI)(vround(v * splat(inverse)) * splat(step)) & lane_mask(mask));
    store_at(part, x + i, v - sent, m);
  });
}

}  // namespace

constinit const SketchKernels sketch_kernels = {add, subtract};

}  // namespace thinwire::TW_ISA
