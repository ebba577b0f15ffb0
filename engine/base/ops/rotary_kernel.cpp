// Rotates pairs (i, i + half) of every head of a token; compiled once per instruction set.
#include "engine/base/ops/rotary_kernel.h"

#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

template <typename T, bool kInverse>
TW_INLINE void rotate_tokens(const RotaryBlock& b, int64_t first, int64_t last) {
  for (int64_t n = first; n < last; ++n) {
    const int64_t sample = n / b.length, token = n % b.length;
    const float* cos = b.cos + (b.first_position + token) * b.half;
    const float* sin = b.sin + (b.first_position + token) * b.half;
    T* at = (T*)b.data + sample * b.batch_stride + token * b.token_stride;
    for (int64_t g = 0; g < b.groups; ++g) {
      for (int64_t j = 0; j < b.heads_per_group; ++j) {
        T* low = at + g * b.group_stride + j * b.head_stride;
        T* high = low + b.half;
        for_vectors(b.half, [&](auto part, int64_t i, int64_t k) TW_INLINE_LAMBDA {
          const VecF c = load_at(part, cos + i, k);
          const VecF s = kInverse ? -load_at(part, sin + i, k) : load_at(part, sin + i, k);
          const VecF x = load_at(part, low + i, k), y = load_at(part, high + i, k);
          store_at(part, low + i, fma(x, c, -y * s), k);
          store_at(part, high + i, fma(y, c, x * s), k);
        });
      }
    }
  }
}

template <typename T>
void tokens(const RotaryBlock& block, int64_t first, int64_t last) {
  const RotaryBlock b = block;
  if (b.inverse)
    rotate_tokens<T, true>(b, first, last);
  else
    rotate_tokens<T, false>(b, first, last);
}

}  // namespace

constinit const RotaryKernels rotary_kernels = {{tokens<float>, tokens<Bf16>, tokens<Fp16>}};

}  // namespace thinwire::TW_ISA
