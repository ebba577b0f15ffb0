// Reference values of ops in float64. `bench op` and the tests of ops compare with the same ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/base/ops/ops.h"

namespace thinwire::oracle {

struct Smooth {
  double y, slope;
};

inline double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// Written so that neither tail cancels: 1 + tanh(u) = 2 sigmoid(2 u).
inline Smooth gelu(GeluKind kind, double x) {
  if (kind == GeluKind::kExact) {
    const double below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    return {x * below, below + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
  }
  const double u2 = 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), s = sigmoid(u2);
  return {x * s, s + x * s * sigmoid(-u2) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x)};
}

struct RowStatistics {
  double mean = 0.0, rstd = 0.0, spread = 0.0;  // spread: mean of |x - mean|
};

// Of x(0) ... x(cols - 1). RMSNorm has mean 0.
template <typename At>
RowStatistics row_statistics(int64_t cols, NormKind kind, double eps, const At& x) {
  RowStatistics s;
  const double n = static_cast<double>(cols);
  if (kind == NormKind::kLayerNorm) {
    for (int64_t c = 0; c < cols; ++c) s.mean += x(c) / n;
  }
  double variance = 0.0;
  for (int64_t c = 0; c < cols; ++c) {
    const double off = x(c) - s.mean;
    variance += off * off / n;
    s.spread += std::abs(off) / n;
  }
  s.rstd = 1.0 / std::sqrt(variance + eps);
  return s;
}

// Softmax over x(0) ... x(valid - 1): probability of c is exp(x(c) - maximum) / sum.
struct SoftmaxRow {
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0.0;
  double loss(double target_logit) const { return std::log(sum) + maximum - target_logit; }
};

template <typename At>
SoftmaxRow softmax_row(int64_t valid, const At& x) {
  SoftmaxRow r;
  for (int64_t c = 0; c < valid; ++c) r.maximum = std::max(r.maximum, x(c));
  for (int64_t c = 0; c < valid; ++c) r.sum += std::exp(x(c) - r.maximum);
  return r;
}

}  // namespace thinwire::oracle
