// Fills the rotary tables on the host and copies them to the device.
#include "model/rotary_tables.h"

#include <cmath>
#include <vector>

namespace thinwire {

RotaryTables make_rotary_tables(const ModelConfig& config, int64_t positions, Arena& arena, Device* device,
                                Stream* stream) {
  const int64_t rot = config.rotary_dim(), half = rot / 2;
  if (rot == 0) return {};
  RotaryTables tables{arena.take(MemoryCategory::kWorkspace, DType::f32, {positions, half}),
                      arena.take(MemoryCategory::kWorkspace, DType::f32, {positions, half})};
  if (arena.measuring()) return tables;
  std::vector<float> cosines(static_cast<size_t>(positions * half)), sines(cosines.size());
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_length());
    const float frequency = 1.0f / std::pow(config.rotary_base, exponent);
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
