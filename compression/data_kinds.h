// The kinds of data that fidelity is stated on, and the decibels: shared by the tests and `bench codec`.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace thinwire {

// kGaussian: iid N(0, 1). kHeavyTail: N(0, 1) * exp(N(0, 1)). kOutliers: N(0, 1), every 128th element times 40.
// kSine: sin(0.01 i). kZeros.
enum class DataKind { kGaussian, kHeavyTail, kOutliers, kSine, kZeros };
inline constexpr DataKind kDataKinds[] = {DataKind::kGaussian, DataKind::kHeavyTail, DataKind::kOutliers,
                                          DataKind::kSine, DataKind::kZeros};
inline const char* name_of(DataKind kind) {
  const char* names[] = {"gaussian", "heavy_tail", "outliers", "sine", "zeros"};
  return names[static_cast<int>(kind)];
}

inline std::vector<float> make_data(DataKind kind, int64_t n, uint64_t seed = 1) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    double v = 0.0;
    if (kind == DataKind::kSine) v = std::sin(0.01 * static_cast<double>(i));
    if (kind == DataKind::kGaussian || kind == DataKind::kOutliers) v = normal(rng);
    if (kind == DataKind::kOutliers && i % 128 == 37) v *= 40.0;
    if (kind == DataKind::kHeavyTail) {
      const double a = normal(rng), b = normal(rng);
      v = a * std::exp(b);
    }
    x[static_cast<size_t>(i)] = static_cast<float>(v);
  }
  return x;
}

inline double square_sum(std::span<const float> x) {
  double s = 0.0;
  for (float v : x) s += static_cast<double>(v) * v;
  return s;
}
inline double square_distance(std::span<const float> x, std::span<const float> y) {
  double s = 0.0;
  for (size_t i = 0; i < x.size(); ++i) s += (static_cast<double>(x[i]) - y[i]) * (static_cast<double>(x[i]) - y[i]);
  return s;
}
// 10 log10(sum x^2 / sum (x - y)^2); +infinity where y is exact.
inline double snr_db(std::span<const float> x, std::span<const float> y) {
  const double error = square_distance(x, y);
  return error == 0.0 ? std::numeric_limits<double>::infinity() : 10.0 * std::log10(square_sum(x) / error);
}

}  // namespace thinwire
