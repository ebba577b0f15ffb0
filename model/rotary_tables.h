// Cosines and sines of the rotary angles, computed once in fp32 as the reference libraries do.
#pragma once

#include "engine/base/device/arena.h"
#include "model/model_config.h"

namespace thinwire {

struct RotaryTables {
  View cos, sin;  // [positions, rot_dim / 2] fp32; empty when the model has no rotary positions
};

// Angle of position p and pair i: p * base^(-2i / rot_dim), every step rounded to fp32.
RotaryTables make_rotary_tables(const ModelConfig& config, int64_t positions, Arena& arena, Device* device,
                                Stream* stream);

}  // namespace thinwire
