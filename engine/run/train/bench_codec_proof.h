// The oracles of `bench codec`: what a decoded message may differ from its input by, from the formats' definitions
// alone, in float64. They share no code with the codecs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

struct Verdict {
  double worst = 0.0;                          // largest deviation over what is allowed: holds up to 1
  std::string oracle;                          // in words
  bool holds() const { return worst <= 1.0; }  // false for NaN
};

Verdict prove(const CodedMessage& message);

}  // namespace thinwire
