// ModelConfig <-> JSON, exactly: the key "model" of a checkpoint's info, so that a checkpoint can be used without its
// config.
#pragma once

#include <nlohmann/json.hpp>

#include "model/model_config.h"

namespace thinwire {

// Every field under its own name; enumerations as words; floats as the shortest number that reads back to the same
// float.
nlohmann::json model_config_to_json(const ModelConfig& config);

// Throws Error(kBadData) naming the key that is missing, unknown, of the wrong type or out of range.
ModelConfig model_config_from_json(const nlohmann::json& value);

// The shortest decimal that reads back to `value`, as a double (1e-05f gives 1e-05, not 9.99999974737875e-06).
double shortest_double(float value);

}  // namespace thinwire
