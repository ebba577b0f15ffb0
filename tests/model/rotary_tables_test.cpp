// The rotary tables against the published formulas in double precision.
#include "model/rotary_tables.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/device/device.h"

namespace thinwire::rotary_tables_test {
namespace {

constexpr double kTurn = 6.283185307179586;

// Llama-3's rule as transformers has it, in double.
double llama3_frequency(double frequency, double factor, double low, double high, double original) {
  const double wave = kTurn / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high) return frequency;
  const double smooth = (original / wave - low) / (high - low);
  return (1.0 - smooth) * frequency / factor + smooth * frequency;
}

TEST(RotaryTables, Llama3ScalingLeavesBlendsAndDivides) {
  ModelConfig config;
  config.head_dim = 64;
  config.positions = PositionKind::kRotary;
  config.rotary_base = 5e5f;
  config.rope_scaling = {8.0f, 1.0f, 4.0f, 64};
  const int64_t positions = 300, half = 32;
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  Arena arena(device.get());
  const RotaryTables tables = make_rotary_tables(config, positions, arena, device.get(), stream.get());
  int left = 0, blended = 0, divided = 0;
  for (int64_t i = 0; i < half; ++i) {
    const double plain = std::pow(5e5, -static_cast<double>(2 * i) / 64.0);
    const double scaled = llama3_frequency(plain, 8.0, 1.0, 4.0, 64.0);
    left += scaled == plain;
    divided += scaled == plain / 8.0;
    blended += scaled != plain && scaled != plain / 8.0;
    for (int64_t p = 0; p < positions; ++p) {
      const float* c = static_cast<const float*>(tables.cos.data) + p * half + i;
      const float* s = static_cast<const float*>(tables.sin.data) + p * half + i;
      // An angle of p radians at most, each of four roundings in fp32.
      const double tolerance = 4.0 * 6e-8 * (static_cast<double>(p) * scaled + 1.0);
      EXPECT_NEAR(*c, std::cos(static_cast<double>(p) * scaled), tolerance) << i << " " << p;
      EXPECT_NEAR(*s, std::sin(static_cast<double>(p) * scaled), tolerance) << i << " " << p;
    }
  }
  EXPECT_GT(left, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(divided, 0);
}

}  // namespace
}  // namespace thinwire::rotary_tables_test
