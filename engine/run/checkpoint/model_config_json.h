// ModelConfig <-> JSON, exactly: the key "model" of a checkpoint's info, so that a checkpoint can be used without its
// config.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model_config.h"

namespace thinwire {

// Every field under its own name; enumerations as words; floats as the shortest number that reads back to the same
// float.
nlohmann::json model_config_to_json(const ModelConfig& config);

// Throws Error(kBadData) naming the key that is missing, unknown, of the wrong type or out of range.
ModelConfig model_config_from_json(const nlohmann::json& value);

// The shortest decimal that reads back to `value`, as a double (1e-05f gives 1e-05, not 9.99999974737875e-06).
double shortest_double(float value);

// Whether weights mean in one model what they mean in another: names and shapes alone do not say it.
//
// Throws Error(kBadConfig), beginning with `where`, that names every number of the architecture in which the weights'
// model differs from this run's, with both values and the key to set. What may differ: dropout, initialisation,
// precision, recompute, weight decay, the length of sequences (but not the rows of a learned position table), and the
// vocabulary's padding. With `finetune` the padding must be the same and the vocabulary may differ, and so may base and
// scaling of the rotary frequencies and the sliding window, which a longer context asks for. Returns a line for each of
// these that does differ, beginning with a line feed: right for a longer context, and a model undone where a key was
// forgotten.
std::string require_same_model(const std::string& where, const ModelConfig& weights, const ModelConfig& here,
                               bool finetune = false);

}  // namespace thinwire
