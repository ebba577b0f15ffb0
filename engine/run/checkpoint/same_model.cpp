// Compares model configurations field by field, see same_model.h.
#include "engine/run/checkpoint/same_model.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/core/error.h"
#include "engine/run/checkpoint/model_config_json.h"

namespace thinwire {
namespace {

// `weights` with this run's values wherever a difference changes nothing that the weights compute; whatever is not
// listed here, a field that is new included, must be equal.
ModelConfig with_free_fields_of(ModelConfig weights, const ModelConfig& here) {
  weights.vocab = here.vocab, weights.padded_vocab = here.padded_vocab;
  weights.seq_length = here.seq_length;
  if (here.positions != PositionKind::kLearned) weights.max_positions = here.max_positions;
  // Fractions that turn the same elements are the same.
  if (weights.rotary_length() == here.rotary_length()) weights.rotary_fraction = here.rotary_fraction;
  if (here.positions != PositionKind::kRotary) weights.rotary_base = here.rotary_base;
  if (here.norm == NormKind::kRmsNorm) weights.bias_norm = here.bias_norm;  // it has no shift
  weights.init = here.init, weights.output_init = here.output_init, weights.init_std = here.init_std;
  weights.hidden_dropout = here.hidden_dropout, weights.attention_dropout = here.attention_dropout;
  weights.recompute = here.recompute;
  weights.dtype = here.dtype;
  weights.decay_all_matrices = here.decay_all_matrices;
  return weights;
}

const char* key_of(const std::string& field, const ModelConfig& here) {
  static constexpr std::pair<const char*, const char*> kKeys[] = {{"layers", "num_layers"},
                                                                  {"hidden", "hidden_size"},
                                                                  {"heads", "num_attention_heads"},
                                                                  {"kv_heads", "num_kv_heads"},
                                                                  {"ffn", "intermediate_size"},
                                                                  {"max_positions", "max_position_embeddings"},
                                                                  {"positions", "pos_emb"},
                                                                  {"rotary_fraction", "rotary_pct"},
                                                                  {"rotary_base", "rotary_emb_base"},
                                                                  {"activation", "activation, bias_gelu_fusion"},
                                                                  {"parallel_residual", "gpt_j_residual"},
                                                                  {"tied_head", "no_weight_tying"},
                                                                  {"bias_attention", "use_bias_in_attn_linear"},
                                                                  {"bias_mlp", "use_bias_in_mlp"},
                                                                  {"bias_norm", "use_bias_in_norms"}};
  if (field == "norm_eps") return here.norm == NormKind::kRmsNorm ? "rms_norm_epsilon" : "layernorm_epsilon";
  for (const auto& [name, key] : kKeys) {
    if (field == name) return key;
  }
  return nullptr;  // a key of the same name
}

}  // namespace

void require_same_model(const std::string& where, const ModelConfig& weights, const ModelConfig& here) {
  const nlohmann::json theirs = model_config_to_json(with_free_fields_of(weights, here)),
                       ours = model_config_to_json(here);
  std::string text;
  for (const auto& [field, value] : ours.items()) {
    if (theirs.at(field) == value) continue;
    const char* key = key_of(field, here);
    text += "\n  " + field + ": " + theirs.at(field).dump() + ", here " + value.dump() +
            (key == nullptr ? "" : " (" + std::string(key) + ")");
  }
  if (text.empty()) return;
  throw_bad_config(where + ": these weights belong to another model (theirs, this configuration's):" + text +
                   "\nset these keys to the weights' values, or take weights of this model");
}

}  // namespace thinwire
