// One table of fields, walked in both directions.
#include "engine/run/checkpoint/model_config_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/config/enum_words.h"

namespace thinwire {
namespace {

using nlohmann::json;

// Calls field(name, value), word(name, value) and, for what older checkpoints lack, optional(name, value, value there)
// for every field; Config is ModelConfig or const ModelConfig.
template <typename Config, typename Visitor>
void walk(Config& c, Visitor&& v) {
  v.field("layers", c.layers);
  v.field("hidden", c.hidden);
  v.field("heads", c.heads);
  v.field("kv_heads", c.kv_heads);
  v.field("head_dim", c.head_dim);
  v.field("ffn", c.ffn);
  v.field("vocab", c.vocab);
  v.field("padded_vocab", c.padded_vocab);
  v.field("seq_length", c.seq_length);
  v.field("max_positions", c.max_positions);
  v.word("positions", c.positions);
  v.field("rotary_fraction", c.rotary_fraction);
  v.field("rotary_base", c.rotary_base);
  const RopeScaling none;
  v.optional("rope_scaling_factor", c.rope_scaling.factor, none.factor);
  v.optional("rope_low_freq_factor", c.rope_scaling.low_freq_factor, none.low_freq_factor);
  v.optional("rope_high_freq_factor", c.rope_scaling.high_freq_factor, none.high_freq_factor);
  v.optional("rope_original_max_positions", c.rope_scaling.original_positions, none.original_positions);
  v.optional("window", c.window, kNoWindow);
  v.word("norm", c.norm);
  v.field("norm_eps", c.norm_eps);
  v.word("activation", c.activation);
  v.field("parallel_residual", c.parallel_residual);
  v.field("tied_head", c.tied_head);
  v.field("bias_attention", c.bias_attention);
  v.field("bias_mlp", c.bias_mlp);
  v.field("bias_norm", c.bias_norm);
  v.optional("gain_norm", c.gain_norm, true);
  v.word("init", c.init);
  v.word("output_init", c.output_init);
  v.field("init_std", c.init_std);
  v.field("hidden_dropout", c.hidden_dropout);
  v.field("attention_dropout", c.attention_dropout);
  v.word("recompute", c.recompute);
  v.word("dtype", c.dtype);
  v.field("decay_all_matrices", c.decay_all_matrices);
}

struct Writer {
  bool all = false;  // optional fields at their defaults, too
  json out = json::object();
  template <typename T>
  void optional(const char* name, T v, T fallback) {
    if (all || v != fallback) field(name, v);
  }
  void field(const char* name, int64_t v) { out[name] = v; }
  void field(const char* name, bool v) { out[name] = v; }
  void field(const char* name, float v) { out[name] = shortest_double(v); }
  template <typename E>
  void word(const char* name, E value) {
    out[name] = word_of(value);
  }
};

struct Reader {
  const json& in;
  std::set<std::string> known;

  const json& at(const char* name) {
    known.insert(name);
    const auto found = in.find(name);
    if (found == in.end()) throw_bad_data(std::string("model config in the checkpoint: \"") + name + "\" is missing");
    return *found;
  }
  [[noreturn]] static void wrong(const char* name, const json& value, const std::string& wanted) {
    throw_bad_data(std::string("model config in the checkpoint: \"") + name + "\" is " + value.dump() + ", " + wanted +
                   " is expected");
  }
  template <typename T>
  void optional(const char* name, T& v, T) {
    if (in.contains(name)) field(name, v);
  }
  void field(const char* name, int64_t& v) {
    const json& value = at(name);
    // Sizes whose products must stay far from overflow.
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > int64_t{1} << 31)
      wrong(name, value, "a size");
    v = value.get<int64_t>();
  }
  void field(const char* name, bool& v) {
    const json& value = at(name);
    if (!value.is_boolean()) wrong(name, value, "true or false");
    v = value.get<bool>();
  }
  void field(const char* name, float& v) {
    const json& value = at(name);
    if (!value.is_number()) wrong(name, value, "a number");
    v = value.get<float>();
  }
  template <typename E>
  void word(const char* name, E& v) {
    const json& value = at(name);
    const EnumWords::List words = EnumWords::of(v);
    if (std::ranges::none_of(words, [&](const std::string& text) { return value == text; }))
      wrong(name, value, join(words, " | "));
    v = from_word<E>(value.get<std::string>());
  }
};

// `weights` with this run's values wherever a difference changes nothing that the weights compute; whatever is not
// listed here, a field that is new included, must be equal.
ModelConfig with_free_fields_of(ModelConfig weights, const ModelConfig& here, bool finetune) {
  // A checkpoint's tables have the padded rows, Hugging Face's those of the vocabulary.
  (finetune ? weights.vocab : weights.padded_vocab) = finetune ? here.vocab : here.padded_vocab;
  weights.seq_length = here.seq_length;
  if (here.positions != PositionKind::kLearned) weights.max_positions = here.max_positions;
  // Fractions that turn the same elements are the same.
  if (weights.rotary_length() == here.rotary_length()) weights.rotary_fraction = here.rotary_fraction;
  if (here.positions != PositionKind::kRotary || finetune)
    weights.rotary_base = here.rotary_base, weights.rope_scaling = here.rope_scaling;
  if (finetune) weights.window = here.window;
  if (here.norm == NormKind::kRmsNorm || weights.norm == NormKind::kRmsNorm || !here.gain_norm || !weights.gain_norm)
    weights.bias_norm = here.bias_norm;  // these have no shift
  weights.init = here.init, weights.output_init = here.output_init, weights.init_std = here.init_std;
  weights.hidden_dropout = here.hidden_dropout, weights.attention_dropout = here.attention_dropout;
  weights.recompute = here.recompute;
  weights.dtype = here.dtype;
  weights.decay_all_matrices = here.decay_all_matrices;
  return weights;
}

// The key that mends a difference: where the norms differ, too, the epsilon is that of the weights' norm.
const char* key_of(const std::string& field, const ModelConfig& weights) {
  static constexpr std::pair<const char*, const char*> kKeys[] = {
      {"layers", "num_layers"},
      {"hidden", "hidden_size"},
      {"heads", "num_attention_heads"},
      {"kv_heads", "num_kv_heads"},
      {"ffn", "ffn_hidden_size"},
      {"vocab", "vocab_size"},
      {"padded_vocab", "make_vocab_size_divisible_by, vocab_size"},
      {"max_positions", "max_position_embeddings"},
      {"positions", "pos_emb"},
      {"rotary_fraction", "rotary_pct"},
      {"rotary_base", "rotary_emb_base"},
      {"rope_scaling_factor", "use_rope_scaling, rope_scaling_factor"},
      {"rope_original_max_positions", "rope_original_max_position_embeddings"},
      {"window", "sliding_window_width"},
      {"activation", "activation, bias_gelu_fusion"},
      {"parallel_residual", "gpt_j_residual"},
      {"tied_head", "no_weight_tying"},
      {"bias_attention", "use_bias_in_attn_linear"},
      {"bias_mlp", "use_bias_in_mlp"},
      {"bias_norm", "use_bias_in_norms"},
      {"gain_norm", "norm"}};
  if (field == "norm_eps") return weights.norm == NormKind::kRmsNorm ? "rms_norm_epsilon" : "layernorm_epsilon";
  for (const auto& [name, key] : kKeys) {
    if (field == name) return key;
  }
  return nullptr;  // a key of the same name
}

// A line for each: "\n  rotary_base: 500000.0, here 10000.0 (rotary_emb_base)".
std::string differences(const ModelConfig& weights, const ModelConfig& here) {
  Writer theirs{.all = true}, ours{.all = true};
  walk(weights, theirs);
  walk(here, ours);
  std::string text;
  for (const auto& [field, value] : ours.out.items()) {
    if (theirs.out.at(field) == value) continue;
    const auto shown = [&](const json& v) { return field == "window" && v == kNoWindow ? "none" : v.dump(); };
    const char* key = key_of(field, weights);
    text += "\n  " + field + ": " + shown(theirs.out.at(field)) + ", here " + shown(value) +
            (key == nullptr ? "" : " (" + std::string(key) + ")");
  }
  return text;
}

}  // namespace

double shortest_double(float value) {
  std::array<char, 64> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  double out = 0.0;
  if (error != std::errc() || !std::isfinite(value)) return static_cast<double>(value);
  std::from_chars(text.data(), end, out);
  return out;
}

json model_config_to_json(const ModelConfig& config) {
  Writer writer;
  walk(config, writer);
  return writer.out;
}

ModelConfig model_config_from_json(const json& value) {
  if (!value.is_object()) throw_bad_data("model config in the checkpoint: not an object");
  ModelConfig config;
  Reader reader{value, {}};
  walk(config, reader);
  for (const auto& [key, item] : value.items()) {
    if (!reader.known.contains(key)) throw_bad_data("model config in the checkpoint: unknown key \"" + key + "\"");
  }
  const bool sane = config.layers > 0 && config.hidden > 0 && config.heads > 0 && config.kv_heads > 0 &&
                    config.heads % config.kv_heads == 0 && config.head_dim > 0 && config.ffn > 0 && config.vocab > 0 &&
                    config.padded_vocab >= config.vocab && config.max_positions > 0;
  if (!sane) throw_bad_data("model config in the checkpoint: its sizes do not fit together: " + value.dump());
  return config;
}

std::string require_same_model(const std::string& where, const ModelConfig& weights, const ModelConfig& here,
                               bool finetune) {
  const std::string other = differences(with_free_fields_of(weights, here, finetune), here);
  if (!other.empty()) {
    throw_bad_config(where + ": these weights belong to another model (theirs, this configuration's):" + other +
                     "\nset these keys to the weights' values, or take weights of this model");
  }
  return finetune ? differences(with_free_fields_of(weights, here, false), here) : "";
}

}  // namespace thinwire
