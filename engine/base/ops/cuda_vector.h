// Vector access for kernels: N neighbouring elements of a tensor to and from registers, at most 16 bytes an access; and
// small helpers that kernels and their launches share.
#pragma once

#include <cstring>

#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

// Elements in 16 bytes.
template <typename T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

TW_DEVICE float widen(float v) {
  return v;
}
TW_DEVICE float widen(Bf16 v) {
  return float_of_bits(static_cast<uint32_t>(v.bits) << 16);
}
TW_DEVICE float widen(Fp16 v) {
  return half_to_float(v.bits);
}

// Nearest, ties to even; overflow becomes infinity, NaN stays NaN.
TW_DEVICE void narrow(float v, float& to) {
  to = v;
}
TW_DEVICE void narrow(float v, Bf16& to) {
  to.bits = float_to_bf16(v);
}
TW_DEVICE void narrow(float v, Fp16& to) {
  to.bits = float_to_half(v);
}
TW_DEVICE uint32_t pair_bits(float low, float high, Bf16) {
  return pair_of_bf16(low, high);
}
TW_DEVICE uint32_t pair_bits(float low, float high, Fp16) {
  return pair_of_half(low, high);
}

// p is aligned to the N elements' bytes, 16 at most. load_floats and store_floats convert as above.
template <int N, typename T>
TW_DEVICE void load_values(const T* p, T (&out)[N]) {
  const Raw<N * sizeof(T)> raw = load_raw<N* static_cast<int>(sizeof(T))>(p);
  memcpy(out, &raw, sizeof raw);
}
template <int N, typename T>
TW_DEVICE void store_values(T* p, const T (&in)[N]) {
  Raw<N * sizeof(T)> raw;
  memcpy(&raw, in, sizeof raw);
  store_raw<N* static_cast<int>(sizeof(T))>(p, raw);
}
template <int N, typename T>
TW_DEVICE void load_floats(const T* p, float (&out)[N]) {
  T values[N];
  load_values<N>(p, values);
  TW_UNROLL
  for (int k = 0; k < N; ++k) out[k] = widen(values[k]);
}
template <int N, typename T>
TW_DEVICE void store_floats(T* p, const float (&in)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    uint32_t words[N / 2];
    TW_UNROLL
    for (int k = 0; k < N / 2; ++k) words[k] = pair_bits(in[2 * k], in[2 * k + 1], T{});
    Raw<N * sizeof(T)> raw;
    memcpy(&raw, words, sizeof raw);
    store_raw<N* static_cast<int>(sizeof(T))>(p, raw);
  } else {
    T values[N];
    TW_UNROLL
    for (int k = 0; k < N; ++k) narrow(in[k], values[k]);
    store_values<N>(p, values);
  }
}

// a / b for a >= 0, b > 0. Divides 32-bit numbers where both fit: always, below 2^32 elements a tensor.
TW_DEVICE int64_t quotient(int64_t a, int64_t b) {
  if (((static_cast<uint64_t>(a) | static_cast<uint64_t>(b)) >> 32) == 0) {
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  return a / b;
}

// Host side: whether all pointers are aligned to 16 bytes. Null ones do not count.
template <typename... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Calls f(T{}) with the storage type of `dtype`: fp32, bf16 or fp16.
template <typename F>
void with_storage(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(Bf16{});
    case DType::f16:
      return f(Fp16{});
    default:
      TW_CHECK(false, "no kernel for ", name_of(dtype));
  }
}

}  // namespace thinwire
