// Rotates pairs (i, i + half) of every head of a token; compiled once per instruction set.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

template <typename T, bool kInverse>
TW_INLINE void rotate_tokens(const Rotary& op, int64_t first, int64_t last) {
  const HeadLayout layout = op.layout;
  const int64_t half = op.rot_dim / 2;
  for (int64_t n = first; n < last; ++n) {
    const int64_t sample = n / op.length, token = n % op.length;
    const int64_t position = op.positions.data ? ((const int32_t*)op.positions.data)[n] : op.first_position + token;
    const float* cos = (const float*)op.cos.data + position * half;
    const float* sin = (const float*)op.sin.data + position * half;
    T* at = (T*)op.data.data + layout.offset + sample * layout.batch + token * layout.token;
    for (int64_t g = 0; g < op.groups; ++g) {
      for (int64_t j = 0; j < op.heads_per_group; ++j) {
        T* low = at + g * layout.group + j * layout.head;
        T* high = low + half;
        for_vectors(half, [&](auto part, int64_t i, int64_t k) TW_INLINE_LAMBDA {
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
void tokens(const Rotary& op, int64_t first, int64_t last) {
  if (op.inverse)
    rotate_tokens<T, true>(op, first, last);
  else
    rotate_tokens<T, false>(op, first, last);
}

}  // namespace

constinit const RotaryKernels rotary_kernels = {{tokens<float>, tokens<Bf16>, tokens<Fp16>}};

}  // namespace thinwire::TW_ISA
