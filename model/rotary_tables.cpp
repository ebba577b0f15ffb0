// Fills the rotary tables on the host and copies them to the device.
#include "model/rotary_tables.h"

#include <cmath>
#include <vector>

namespace thinwire {
namespace {

// As transformers' "llama3": waves longer than original / low are slowed down by the factor, those shorter than
// original / high stay, and between the two the frequency goes over from one to the other.
float scaled_frequency(float frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1.0f) return frequency;
  const float original = static_cast<float>(scaling.original_positions);
  const float wave = 6.283185307179586f / frequency;
  if (wave < original / scaling.high_freq_factor) return frequency;
  const float slow = frequency / scaling.factor;
  if (wave > original / scaling.low_freq_factor) return slow;
  const float part = (original / wave - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - part) * slow + part * frequency;
}

}  // namespace

RotaryTables make_rotary_tables(const ModelConfig& config, int64_t positions, Arena& arena, Device* device,
                                Stream* stream) {
  const int64_t rot = config.rotary_dim(), half = rot / 2;
  if (rot == 0) return {};
  RotaryTables tables{arena.take(MemoryCategory::kWorkspace, DType::f32, {positions, half}),
                      arena.take(MemoryCategory::kWorkspace, DType::f32, {positions, half})};
  if (device->kind() == DeviceKind::kNone) return tables;
  std::vector<float> cosines(static_cast<size_t>(positions * half)), sines(cosines.size());
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_length());
    const float frequency = scaled_frequency(1.0f / std::pow(config.rotary_base, exponent), config.rope_scaling);
    for (int64_t p = 0; p < positions; ++p) {
      const float angle = static_cast<float>(p) * frequency;
      cosines[p * half + i] = std::cos(angle);
      sines[p * half + i] = std::sin(angle);
    }
  }
  device->copy_to_device(tables.cos.data, cosines.data(), tables.cos.bytes(), *stream).wait_on_host();
  device->copy_to_device(tables.sin.data, sines.data(), tables.sin.bytes(), *stream).wait_on_host();
  return tables;
}

}  // namespace thinwire
