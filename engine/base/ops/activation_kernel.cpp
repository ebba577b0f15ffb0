// GELU and SwiGLU with one exponential each, written so that both tails keep their relative accuracy.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

// tanh GELU is x * sigmoid(2u) with 2u = x * (kLinear + kCubic x^2): 0.5 (1 + tanh(u)) would cancel for negative x.
constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 1.5957691216057308f * 0.044715f;
constexpr float kInverseSqrt2Pi = 0.3989422804014327f;
// From here on e^-x stays finite, and what is multiplied by the sigmoid is below 1e-30.
constexpr float kFlat = 80.0f;

TW_INLINE VecF gelu_tanh(VecF x) {
  const VecF minus_2u = -x * fma(x * x, splat(kCubic), splat(kLinear));
  return x / (splat(1.0f) + vexp(minus_2u));
}

// s + x s (1 - s) (2u)' where 1 - s is e^-2u * s: no cancellation where s is near 1.
TW_INLINE VecF gelu_tanh_slope(VecF x) {
  const VecF v = at_least(at_most(x, 16.0f), -16.0f);  // s is 0 or 1 beyond
  const VecF square = v * v;
  const VecF e = vexp(at_most(-v * fma(square, splat(kCubic), splat(kLinear)), kFlat));
  const VecF s = splat(1.0f) / (splat(1.0f) + e);
  return fma(v * s * (e * s), fma(square, splat(3.0f * kCubic), splat(kLinear)), s);
}

struct Normal {
  VecF cumulative;  // of the standard normal distribution at x
  VecF bell;        // e^(-x^2/2)
};

// The tail beyond a = |x| is bell(a) * mills(a), mills(a) * (1 + a) is a polynomial of degree 9 in (a - 3.5) / (a
// + 3.5): a minimax fit on [0, 14], relative error 1.4e-8. Beyond 14 the tail is below the smallest float.
TW_INLINE Normal normal_distribution(VecF x) {
  const VecF a = at_most((VecF)((VecI)x & 0x7fffffff), 14.0f);
  const VecF half = a * -0.5f;
  const VecF exponent = half * a;
  const VecF rounding = fma(half, a, -exponent);  // e^(p + r) = e^p (1 + r): the exponent is large, its rounding counts
  VecF bell = vexp(exponent);
  bell = fma(bell, rounding, bell);
  const VecF one_plus = a + 1.0f, plus = a + 3.5f;
  const VecF inverse = splat(1.0f) / (plus * one_plus);
  const VecF q = (a - 3.5f) * one_plus * inverse;
  VecF p = splat(1.454326361e-04f);
  p = fma(p, q, splat(9.087891949e-05f));
  p = fma(p, q, splat(-1.389586802e-03f));
  p = fma(p, q, splat(2.965299041e-04f));
  p = fma(p, q, splat(1.037303683e-02f));
  p = fma(p, q, splat(-3.026345092e-02f));
  p = fma(p, q, splat(3.804824078e-02f));
  p = fma(p, q, splat(7.873852184e-04f));
  p = fma(p, q, splat(-9.771258849e-02f));
  p = fma(p, q, splat(4.785531849e-01f));
  const VecF tail = bell * p * (plus * inverse);
  return {x < VecF{} ? tail : splat(1.0f) - tail, bell};
}

TW_INLINE VecF gelu_exact(VecF x) {
  return x * normal_distribution(x).cumulative;
}

TW_INLINE VecF gelu_exact_slope(VecF x) {
  const Normal normal = normal_distribution(x);
  const VecF v = at_least(at_most(x, 14.0f), -14.0f);  // the bell is 0 beyond, and infinity must not meet it
  return fma(v * splat(kInverseSqrt2Pi), normal.bell, normal.cumulative);
}

template <typename T, bool kTanh>
void gelu_forward(const void* x_start, void* y_start, int64_t first, int64_t last) {
  const T* x = (const T*)x_start + first;
  T* y = (T*)y_start + first;
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    const VecF v = load_at(part, x + i, n);
    store_at(part, y + i, kTanh ? gelu_tanh(v) : gelu_exact(v), n);
  });
}

template <typename T, bool kTanh>
void gelu_backward(const void* x_start, const void* dy_start, void* dx_start, int64_t first, int64_t last) {
  const T* x = (const T*)x_start + first;
  const T* dy = (const T*)dy_start + first;
  T* dx = (T*)dx_start + first;
  for_vectors(last - first, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
    const VecF v = load_at(part, x + i, n);
    store_at(part, dx + i, load_at(part, dy + i, n) * (kTanh ? gelu_tanh_slope(v) : gelu_exact_slope(v)), n);
  });
}

template <typename T>
void swiglu_forward(const void* x_start, void* y_start, int64_t cols, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* gate = (const T*)x_start + row * 2 * cols;
    const T* up = gate + cols;
    T* y = (T*)y_start + row * cols;
    for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      const VecF g = load_at(part, gate + i, n);
      store_at(part, y + i, g / (splat(1.0f) + vexp(-g)) * load_at(part, up + i, n), n);
    });
  }
}

template <typename T>
void swiglu_backward(const void* x_start, const void* dy_start, void* dx_start, int64_t cols, int64_t first,
                     int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* gate = (const T*)x_start + row * 2 * cols;
    const T* up = gate + cols;
    const T* dy = (const T*)dy_start + row * cols;
    T* dgate = (T*)dx_start + row * 2 * cols;
    T* dup = dgate + cols;
    for_vectors(cols, [&](auto part, int64_t i, int64_t n) TW_INLINE_LAMBDA {
      const VecF g = at_least(load_at(part, gate + i, n), -kFlat);
      const VecF u = load_at(part, up + i, n), d = load_at(part, dy + i, n);
      const VecF e = vexp(-g);
      const VecF s = splat(1.0f) / (splat(1.0f) + e);
      // silu' = s + g s (1 - s); 1 - s = e s as above, and 0 where g is so large that e is.
      const VecF rest = at_most(g, kFlat) * (e * s);
      store_at(part, dgate + i, d * u * fma(s, rest, s), n);
      store_at(part, dup + i, d * (g * s), n);
    });
  }
}

}  // namespace

constinit const ActivationKernels activation_kernels = {
    {{gelu_forward<float, true>, gelu_forward<Bf16, true>, gelu_forward<Fp16, true>},
     {gelu_forward<float, false>, gelu_forward<Bf16, false>, gelu_forward<Fp16, false>}},
    {{gelu_backward<float, true>, gelu_backward<Bf16, true>, gelu_backward<Fp16, true>},
     {gelu_backward<float, false>, gelu_backward<Bf16, false>, gelu_backward<Fp16, false>}},
    {swiglu_forward<float>, swiglu_forward<Bf16>, swiglu_forward<Fp16>},
    {swiglu_backward<float>, swiglu_backward<Bf16>, swiglu_backward<Fp16>},
};

}  // namespace thinwire::TW_ISA
