// GELU, its slope and the sigmoid of one number, as the CPU's kernels compute them (activation_kernel.cpp): one
// exponential each, and both tails keep their relative accuracy. kFast: for results that are rounded to 16 bits; the
// exponential is then off by 2^-24 (|x| + 4) of itself and the quotient by 2 ulp, which halves the instructions.
#pragma once

#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi): tanh GELU is x * sigmoid(x * (linear + cubic x^2))
constexpr float kGeluCubic = 1.5957691216057308f * 0.044715f;
constexpr float kInverseSqrt2Pi = 0.3989422804014327f;
// From here on e^-x stays finite, and what is multiplied by the sigmoid is below 1e-30.
constexpr float kFlat = 80.0f;

// Bounds that let NaN through.
TW_DEVICE float at_most(float v, float limit) {
  return limit < v ? limit : v;
}
TW_DEVICE float at_least(float v, float limit) {
  return limit > v ? limit : v;
}

template <bool kFast>
TW_DEVICE float exponential(float x) {
  return kFast ? fast_exp2(x * 1.44269504088896341f) : expf(x);
}
template <bool kFast>
TW_DEVICE float ratio(float a, float b) {
  return kFast ? fast_divide(a, b) : a / b;
}

template <bool kFast>
TW_DEVICE float silu(float g) {
  return ratio<kFast>(g, 1.0f + exponential<kFast>(-g));
}

// silu(g) and its slope. 1 - s is e^-g s: no cancellation where s is near 1.
template <bool kFast>
TW_DEVICE void silu_and_slope(float gate, float& value, float& slope) {
  const float g = at_least(gate, -kFlat);
  const float e = exponential<kFast>(-g);
  const float s = ratio<kFast>(1.0f, 1.0f + e);
  slope = fmaf(s, at_most(g, kFlat) * (e * s), s);
  value = g * s;
}

template <bool kFast>
TW_DEVICE float gelu_tanh(float x) {
  return ratio<kFast>(x, 1.0f + exponential<kFast>(-x * fmaf(x * x, kGeluCubic, kGeluLinear)));
}

template <bool kFast>
TW_DEVICE float gelu_tanh_slope(float x) {
  const float v = at_least(at_most(x, 16.0f), -16.0f);  // s is 0 or 1 beyond
  const float square = v * v;
  const float e = exponential<kFast>(at_most(-v * fmaf(square, kGeluCubic, kGeluLinear), kFlat));
  const float s = ratio<kFast>(1.0f, 1.0f + e);
  return fmaf(v * s * (e * s), fmaf(square, 3.0f * kGeluCubic, kGeluLinear), s);
}

// The normal distribution at x: what lies below it, and e^(-x^2/2). The tail beyond a = |x| is bell(a) * mills(a),
// where mills(a) * (1 + a) is a polynomial of degree 9 in (a - 3.5) / (a + 3.5): the fit of activation_kernel.cpp.
struct NormalPoint {
  float cumulative, bell;
};
template <bool kFast>
TW_DEVICE NormalPoint normal_distribution(float x) {
  const float a = at_most(fabsf(x), 14.0f);
  const float half = a * -0.5f;
  const float exponent = half * a;
  const float rounding = fmaf(half, a, -exponent);  // the exponent is large, its rounding counts
  float bell = exponent < -87.3365f ? 0.0f : exponential<kFast>(exponent);  // subnormal tails are none
  bell = fmaf(bell, rounding, bell);
  const float one_plus = a + 1.0f, plus = a + 3.5f;
  const float inverse = ratio<kFast>(1.0f, plus * one_plus);
  const float q = (a - 3.5f) * one_plus * inverse;
  float p = 1.454326361e-04f;
  p = fmaf(p, q, 9.087891949e-05f);
  p = fmaf(p, q, -1.389586802e-03f);
  p = fmaf(p, q, 2.965299041e-04f);
  p = fmaf(p, q, 1.037303683e-02f);
  p = fmaf(p, q, -3.026345092e-02f);
  p = fmaf(p, q, 3.804824078e-02f);
  p = fmaf(p, q, 7.873852184e-04f);
  p = fmaf(p, q, -9.771258849e-02f);
  p = fmaf(p, q, 4.785531849e-01f);
  const float tail = bell * p * (plus * inverse);
  return {x < 0.0f ? tail : 1.0f - tail, bell};
}

template <bool kFast>
TW_DEVICE float gelu_exact(float x) {
  return x * normal_distribution<kFast>(x).cumulative;
}

template <bool kFast>
TW_DEVICE float gelu_exact_slope(float x) {
  const NormalPoint normal = normal_distribution<kFast>(x);
  const float v = at_least(at_most(x, 14.0f), -14.0f);  // the bell is 0 beyond, and infinity must not meet it
  return fmaf(v * kInverseSqrt2Pi, normal.bell, normal.cumulative);
}

}  // namespace thinwire
