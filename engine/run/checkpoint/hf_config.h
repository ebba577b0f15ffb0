// A Hugging Face config.json <-> our ModelConfig, for the families whose mathematics is ours: gpt2, gpt_neox, llama
// (mistral is a llama whose attention has a window).
#pragma once

#include <nlohmann/json.hpp>

#include "model/model_config.h"

namespace thinwire {

enum class HfFamily { kGpt2, kNeox, kLlama };

// Absent keys take the defaults of the transformers library; the sizes of the model must be there. Refused by name,
// with Error(kBadData): other model types, RoPE scaling but llama3, unknown activations, attention scaling by layer
// index, cross attention, quantised weights. The padded vocabulary is the next multiple of `vocab_multiple`. Not part
// of the file and left at our defaults: dtype, recompute, initialisation beyond its deviation.
ModelConfig model_config_from_hf(const nlohmann::json& config, int64_t vocab_multiple = 128);

// The family whose layers compute what this model computes. Error(kBadConfig) naming the feature that none can express.
HfFamily hf_family_of(const ModelConfig& config);
const char* hf_model_type(const ModelConfig& config);  // of it: "gpt2" | "gpt_neox" | "llama" | "mistral"

// The config.json that transformers loads; `torch_dtype` is "float32", "bfloat16" or "float16". end_of_document: the id
// at which its generate() stops, -1: none.
nlohmann::ordered_json hf_config_from_model(const ModelConfig& config, const char* torch_dtype = "float32",
                                            int64_t end_of_document = -1);

}  // namespace thinwire
