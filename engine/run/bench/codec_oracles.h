// How far a decoded message may be from its input, by the formats' definitions alone, in float64. `bench codec` and the
// tests of codecs use them; they share no code with the codecs.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "compression/rule.h"

namespace thinwire {

// One message as sent and as it came out. `x` in double: with a residual, input plus what the message before lost.
struct CodedMessage {
  CodecSpec spec;
  bool hadamard = false;
  std::span<const double> x;
  std::span<const float> y;
  std::span<const std::byte> payload;
  int64_t rows = 0, cols = 0;  // of the one matrix, for matrix codecs
};

struct CodecVerdict {
  double worst = 0.0;                          // largest deviation over what is allowed: holds up to 1
  std::string oracle;                          // in words
  bool holds() const { return worst <= 1.0; }  // false for NaN
};

CodecVerdict prove(const CodedMessage& message);

// Positive levels that are optimal for a standard normal distribution, by Lloyd's iteration: 2^(bits - 1) of them.
inline std::vector<double> lloyd_levels(int64_t bits) {
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); };
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
  const size_t n = size_t{1} << (bits - 1);
  std::vector<double> level(n);
  for (size_t i = 0; i < n; ++i) level[i] = 3.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(n);
  for (int round = 0; round < 5000; ++round) {
    const std::vector<double> old = level;
    for (size_t i = 0; i < n; ++i) {
      const double low = i == 0 ? 0.0 : (old[i - 1] + old[i]) / 2, high = i + 1 == n ? 40.0 : (old[i] + old[i + 1]) / 2;
      level[i] = (density(low) - density(high)) / (below(high) - below(low));
    }
  }
  return level;
}

}  // namespace thinwire
