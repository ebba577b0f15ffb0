// Key by key through the three families, see hf_config.h. Defaults are those of transformers 4 and 5.
#include "engine/run/checkpoint/hf_config.h"

#include <cmath>
#include <string>

#include "engine/base/core/error.h"
#include "engine/run/checkpoint/model_config_json.h"

namespace thinwire {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& why) {
  throw_bad_data("config.json: " + why);
}

class Keys {
 public:
  explicit Keys(const json& config) : config_(config) {}

  bool says_null(const char* key) const { return config_.contains(key) && config_.at(key).is_null(); }
  bool has(const char* key) const {
    const auto found = config_.find(key);
    return found != config_.end() && !found->is_null();
  }
  int64_t size(const char* key) const {
    if (!has(key)) refuse(std::string("\"") + key + "\" is missing");
    return size(key, 0);
  }
  int64_t size(const char* key, int64_t fallback) const {
    if (!has(key)) return fallback;
    const json& value = config_.at(key);
    if (!value.is_number_integer() || value.get<int64_t>() <= 0 || value.get<int64_t>() > int64_t{1} << 31) {
      refuse(std::string("\"") + key + "\" is " + value.dump() + ", a positive size is expected");
    }
    return value.get<int64_t>();
  }
  double exact(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const json& value = config_.at(key);
    // (What float cannot hold is written as null, and the checkpoint could not be read again.)
    if (!value.is_number() || !std::isfinite(value.get<float>()))
      refuse(std::string("\"") + key + "\" is " + value.dump() + ", a number is expected");
    return value.get<double>();
  }
  float real(const char* key, double fallback) const { return static_cast<float>(exact(key, fallback)); }
  bool flag(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    const json& value = config_.at(key);
    if (!value.is_boolean()) refuse(std::string("\"") + key + "\" is " + value.dump() + ", true or false is expected");
    return value.get<bool>();
  }
  std::string word(const char* key, const char* fallback) const {
    if (!has(key)) return fallback;
    const json& value = config_.at(key);
    if (!value.is_string()) refuse(std::string("\"") + key + "\" is " + value.dump() + ", a text is expected");
    return value.get<std::string>();
  }
  // A switch that must have the value that we implement.
  void must_be(const char* key, bool only, bool fallback) const {
    if (flag(key, fallback) != only)
      refuse(std::string("\"") + key + "\": " + (only ? "false" : "true") + " is not supported");
  }
  const json& at(const char* key) const { return config_.at(key); }

 private:
  const json& config_;
};

ActivationKind gelu_from_name(const char* key, const std::string& name) {
  for (const char* tanh_form : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh", "gelu_accurate"}) {
    if (name == tanh_form) return ActivationKind::kGeluTanh;
  }
  for (const char* exact : {"gelu", "gelu_python"}) {
    if (name == exact) return ActivationKind::kGeluExact;
  }
  refuse(std::string("\"") + key + "\": \"" + name +
         "\" is not supported here (gelu, gelu_python, gelu_new, gelu_pytorch_tanh, gelu_fast, gelu_python_tanh, "
         "gelu_accurate)");
}

RopeScaling read_llama3_scaling(const Keys& rope, const char* key) {
  RopeScaling s;
  for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    if (!rope.has(needed)) refuse(std::string("\"") + key + "\": RoPE scaling \"llama3\" needs \"" + needed + "\"");
  s.factor = rope.real("factor", 1.0);
  s.low_freq_factor = rope.real("low_freq_factor", 1.0);
  s.high_freq_factor = rope.real("high_freq_factor", 4.0);
  s.original_positions = rope.size("original_max_position_embeddings");
  if (!(s.factor >= 1.0f && s.low_freq_factor > 0.0f && s.high_freq_factor > s.low_freq_factor))
    refuse(std::string("\"") + key + "\": RoPE scaling \"llama3\" needs factor >= 1 and 0 < low_freq_factor < " +
           "high_freq_factor");
  return s;
}

// rope_parameters (transformers 5) or the older rope_theta and rope_scaling; other scalings than llama3 are refused.
void read_rope(const Keys& keys, ModelConfig& c, const char* old_base, double default_fraction, bool partial_allowed) {
  c.positions = PositionKind::kRotary;
  c.rotary_base = keys.real(old_base, keys.real("rope_theta", 10000.0));
  double fraction = keys.exact("rotary_pct", keys.exact("partial_rotary_factor", default_fraction));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(key)) continue;
    if (!keys.at(key).is_object()) refuse(std::string("\"") + key + "\" is not an object");
    const Keys rope(keys.at(key));
    const std::string type = rope.word("rope_type", rope.word("type", "default").c_str());
    if (type != "default" && type != "llama3")
      refuse(std::string("\"") + key + "\": RoPE scaling \"" + type + "\" is not supported (default, llama3)");
    if (type == "llama3")
      c.rope_scaling = read_llama3_scaling(rope, key);
    else if (rope.has("factor") && rope.real("factor", 1.0) != 1.0f)
      refuse(std::string("\"") + key + ".factor\": RoPE scaling is not supported");
    c.rotary_base = rope.real("rope_theta", c.rotary_base);
    fraction = rope.exact("partial_rotary_factor", fraction);
  }
  if (!(fraction > 0.0 && fraction <= 1.0)) refuse("the rotary fraction is outside (0, 1]");
  if (!(c.rotary_base > 0.0f)) refuse("\"rope_theta\" must be positive");
  if (!partial_allowed && fraction != 1.0) refuse("\"partial_rotary_factor\" other than 1 is not supported for llama");
  // transformers turns int(head_dim * fraction) elements, in doubles: 28 of 100 for 0.29.
  const auto head = static_cast<double>(c.head_dim), turned = std::floor(head * fraction);
  c.rotary_fraction = static_cast<float>(fraction);
  if (static_cast<double>(c.rotary_length()) != turned) c.rotary_fraction = static_cast<float>(turned / head);
  if (c.rotary_length() == 0 || c.rotary_dim() > c.head_dim)
    refuse("the rotated part of a head has " + std::to_string(c.rotary_length()) +
           " elements; 1 or more are needed, and an even number where they are the whole head");
}

// The fraction of which transformers makes the same number of elements; the shortest text of ours may give one less
// (0.8333333 of 96).
double rotary_fraction_for_hf(const ModelConfig& c) {
  const auto head = static_cast<double>(c.head_dim), turned = static_cast<double>(c.rotary_length());
  double fraction = shortest_double(c.rotary_fraction);
  if (std::floor(head * fraction) != turned) fraction = turned / head;
  while (std::floor(head * fraction) < turned) fraction = std::nextafter(fraction, 1.0);
  return fraction;
}

void read_gpt2(const Keys& keys, ModelConfig& c) {
  c.layers = keys.size("n_layer");
  c.hidden = keys.size("n_embd");
  c.heads = keys.size("n_head");
  c.kv_heads = c.heads;
  if (c.hidden % c.heads != 0) refuse("\"n_embd\" is not a multiple of \"n_head\"");
  c.head_dim = c.hidden / c.heads;
  c.ffn = keys.size("n_inner", 4 * c.hidden);
  c.max_positions = keys.size("n_positions", keys.size("n_ctx", 1024));
  c.positions = PositionKind::kLearned;
  c.norm_eps = keys.real("layer_norm_epsilon", 1e-5);
  c.activation = gelu_from_name("activation_function", keys.word("activation_function", "gelu_new"));
  c.tied_head = keys.flag("tie_word_embeddings", true);
  c.hidden_dropout = keys.real("resid_pdrop", 0.1);
  c.attention_dropout = keys.real("attn_pdrop", 0.1);
  keys.must_be("scale_attn_weights", true, true);
  keys.must_be("scale_attn_by_inverse_layer_idx", false, false);
  keys.must_be("add_cross_attention", false, false);
}

void read_neox(const Keys& keys, ModelConfig& c) {
  c.layers = keys.size("num_hidden_layers");
  c.hidden = keys.size("hidden_size");
  c.heads = keys.size("num_attention_heads");
  c.kv_heads = c.heads;
  if (c.hidden % c.heads != 0) refuse("\"hidden_size\" is not a multiple of \"num_attention_heads\"");
  c.head_dim = c.hidden / c.heads;
  c.ffn = keys.size("intermediate_size");
  c.max_positions = keys.size("max_position_embeddings", 2048);
  read_rope(keys, c, "rotary_emb_base", 0.25, true);
  c.norm_eps = keys.real("layer_norm_eps", 1e-5);
  c.activation = gelu_from_name("hidden_act", keys.word("hidden_act", "gelu"));
  c.parallel_residual = keys.flag("use_parallel_residual", true);
  c.tied_head = keys.flag("tie_word_embeddings", false);
  c.bias_attention = keys.flag("attention_bias", true);
  c.hidden_dropout = keys.real("hidden_dropout", 0.0);
  c.attention_dropout = keys.real("attention_dropout", 0.0);
}

void read_llama(const Keys& keys, ModelConfig& c) {
  c.layers = keys.size("num_hidden_layers");
  c.hidden = keys.size("hidden_size");
  c.heads = keys.size("num_attention_heads");
  c.kv_heads = keys.size("num_key_value_heads", c.heads);
  if (c.heads % c.kv_heads != 0) refuse("\"num_attention_heads\" is not a multiple of \"num_key_value_heads\"");
  if (!keys.has("head_dim") && c.hidden % c.heads != 0)
    refuse("\"hidden_size\" is not a multiple of \"num_attention_heads\"");
  c.head_dim = keys.size("head_dim", c.hidden / c.heads);
  c.ffn = keys.size("intermediate_size");
  c.max_positions = keys.size("max_position_embeddings", 2048);
  read_rope(keys, c, "rope_theta", 1.0, false);
  c.norm = NormKind::kRmsNorm;
  c.norm_eps = keys.real("rms_norm_eps", 1e-6);
  const std::string activation = keys.word("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    refuse("\"hidden_act\": \"" + activation + "\" is not supported for llama (silu)");
  c.activation = ActivationKind::kSwiglu;
  c.tied_head = keys.flag("tie_word_embeddings", false);
  c.bias_attention = keys.flag("attention_bias", false);
  c.bias_mlp = keys.flag("mlp_bias", false);
  c.bias_norm = false;
  c.attention_dropout = keys.real("attention_dropout", 0.0);
}

// A Llama without biases, whatever keys say, whose tokens see the last sliding_window of themselves (null: all).
void read_mistral(const Keys& keys, ModelConfig& c) {
  read_llama(keys, c);
  c.bias_attention = c.bias_mlp = false;
  c.max_positions = keys.size("max_position_embeddings", 131072);
  c.kv_heads = keys.size("num_key_value_heads", 8);
  if (c.heads % c.kv_heads != 0) refuse("\"num_attention_heads\" is not a multiple of \"num_key_value_heads\"");
  if (!keys.says_null("sliding_window")) c.window = keys.size("sliding_window", 4096) - 1;
}

}  // namespace

const char* hf_model_type(const ModelConfig& c) {
  const HfFamily family = hf_family_of(c);
  if (family == HfFamily::kLlama) return c.window == kNoWindow ? "llama" : "mistral";
  return family == HfFamily::kGpt2 ? "gpt2" : "gpt_neox";
}

ModelConfig model_config_from_hf(const json& config, int64_t vocab_multiple) {
  if (!config.is_object()) refuse("not an object");
  const Keys keys(config);
  const std::string type = keys.word("model_type", "");
  ModelConfig c;
  if (keys.has("quantization_config")) refuse("\"quantization_config\": quantised weights are not supported");
  if (type == "gpt2")
    read_gpt2(keys, c);
  else if (type == "gpt_neox")
    read_neox(keys, c);
  else if (type == "llama")
    read_llama(keys, c);
  else if (type == "mistral")
    read_mistral(keys, c);
  else
    refuse("\"model_type\": \"" + type + "\" is not supported (gpt2, gpt_neox, llama, mistral)");
  c.vocab = keys.size("vocab_size");
  c.padded_vocab = (c.vocab + vocab_multiple - 1) / vocab_multiple * vocab_multiple;
  c.seq_length = c.max_positions;
  if (c.layers > 10000) refuse(std::to_string(c.layers) + " layers are more than the 10000 of num_layers");
  c.init_std = keys.real("initializer_range", 0.02);
  if (!(c.norm_eps > 0.0f) || !std::isfinite(c.norm_eps)) refuse("the norm's epsilon must be positive");
  return c;
}

HfFamily hf_family_of(const ModelConfig& c) {
  const auto need = [](bool ok, const std::string& family, const std::string& what) {
    if (!ok) throw_bad_config("export to Hugging Face: " + family + " cannot express " + what);
  };
  const bool gelu = c.activation != ActivationKind::kSwiglu, window = c.window != kNoWindow;
  need(c.gain_norm, "gpt2, gpt_neox, llama and mistral", "norms without gain (non_parametric_layernorm)");
  if (c.positions == PositionKind::kLearned) {
    need(c.norm == NormKind::kLayerNorm && c.bias_norm, "gpt2 (learned positions)", "RMSNorm or a norm without bias");
    need(gelu, "gpt2 (learned positions)", "SwiGLU");
    need(!c.parallel_residual, "gpt2 (learned positions)", "a parallel residual");
    need(c.kv_heads == c.heads, "gpt2 (learned positions)", "grouped-query attention");
    need(c.attention_width() == c.hidden, "gpt2 (learned positions)", "a head size other than hidden / heads");
    need(c.bias_attention && c.bias_mlp, "gpt2 (learned positions)", "layers without bias");
    need(!window, "gpt2 (learned positions)", "a sliding window");
    return HfFamily::kGpt2;
  }
  need(c.positions == PositionKind::kRotary, "no family", "a model without positions");
  if (c.norm == NormKind::kLayerNorm) {
    need(c.bias_norm, "gpt_neox (rotary, LayerNorm)", "a norm without bias");
    need(gelu, "gpt_neox (rotary, LayerNorm)", "SwiGLU");
    need(c.kv_heads == c.heads, "gpt_neox (rotary, LayerNorm)", "grouped-query attention");
    need(c.attention_width() == c.hidden, "gpt_neox (rotary, LayerNorm)", "a head size other than hidden / heads");
    need(c.bias_mlp, "gpt_neox (rotary, LayerNorm)", "a feed-forward part without bias");
    need(!window, "gpt_neox (rotary, LayerNorm)", "a sliding window");
    return HfFamily::kNeox;
  }
  need(!c.bias_norm, "llama (rotary, RMSNorm)", "a norm with bias");
  need(!gelu, "llama (rotary, RMSNorm)", "GELU");
  need(!c.parallel_residual, "llama (rotary, RMSNorm)", "a parallel residual");
  need(c.rotary_dim() == c.head_dim, "llama (rotary, RMSNorm)", "a partly rotated head");
  need(!window || (!c.bias_attention && !c.bias_mlp), "mistral (sliding window)", "biases");
  return HfFamily::kLlama;
}

nlohmann::ordered_json hf_config_from_model(const ModelConfig& c, const char* torch_dtype, int64_t end_of_document) {
  const HfFamily family = hf_family_of(c);
  const char* gelu = c.activation == ActivationKind::kGeluTanh ? "gelu_new" : "gelu";
  nlohmann::ordered_json out;
  // Both spellings of the rotary keys, so that transformers 4 and 5 read the same model.
  const auto rope = [&](double fraction) {
    nlohmann::ordered_json value{{"rope_type", "default"}, {"rope_theta", shortest_double(c.rotary_base)}};
    if (fraction != 1.0) value["partial_rotary_factor"] = fraction;
    if (const RopeScaling& s = c.rope_scaling; s.factor != 1.0f) {
      value["rope_type"] = "llama3";
      value["factor"] = shortest_double(s.factor);
      value["low_freq_factor"] = shortest_double(s.low_freq_factor);
      value["high_freq_factor"] = shortest_double(s.high_freq_factor);
      value["original_max_position_embeddings"] = s.original_positions;
      out["rope_scaling"] = value;
    }
    out["rope_parameters"] = value;
  };
  switch (family) {
    case HfFamily::kGpt2:
      out["architectures"] = {"GPT2LMHeadModel"};
      out["model_type"] = "gpt2";
      out["n_layer"] = c.layers;
      out["n_embd"] = c.hidden;
      out["n_head"] = c.heads;
      out["n_inner"] = c.ffn;
      out["n_positions"] = c.max_positions;
      out["activation_function"] = gelu;
      out["layer_norm_epsilon"] = shortest_double(c.norm_eps);
      out["resid_pdrop"] = shortest_double(c.hidden_dropout);
      out["embd_pdrop"] = shortest_double(c.hidden_dropout);
      out["attn_pdrop"] = shortest_double(c.attention_dropout);
      break;
    case HfFamily::kNeox: {
      const double fraction = rotary_fraction_for_hf(c);
      out["architectures"] = {"GPTNeoXForCausalLM"};
      out["model_type"] = "gpt_neox";
      out["num_hidden_layers"] = c.layers;
      out["hidden_size"] = c.hidden;
      out["num_attention_heads"] = c.heads;
      out["intermediate_size"] = c.ffn;
      out["max_position_embeddings"] = c.max_positions;
      out["hidden_act"] = gelu;
      out["layer_norm_eps"] = shortest_double(c.norm_eps);
      out["rotary_pct"] = fraction;
      out["rotary_emb_base"] = shortest_double(c.rotary_base);
      rope(fraction);
      out["use_parallel_residual"] = c.parallel_residual;
      out["attention_bias"] = c.bias_attention;
      out["hidden_dropout"] = shortest_double(c.hidden_dropout);
      out["attention_dropout"] = shortest_double(c.attention_dropout);
      break;
    }
    case HfFamily::kLlama:
      out["architectures"] = {c.window == kNoWindow ? "LlamaForCausalLM" : "MistralForCausalLM"};
      out["model_type"] = hf_model_type(c);
      out["num_hidden_layers"] = c.layers;
      out["hidden_size"] = c.hidden;
      out["num_attention_heads"] = c.heads;
      out["num_key_value_heads"] = c.kv_heads;
      out["head_dim"] = c.head_dim;
      out["intermediate_size"] = c.ffn;
      out["max_position_embeddings"] = c.max_positions;
      out["hidden_act"] = "silu";
      out["rms_norm_eps"] = shortest_double(c.norm_eps);
      out["rope_theta"] = shortest_double(c.rotary_base);
      rope(1.0);
      if (c.window == kNoWindow) {
        out["attention_bias"] = c.bias_attention;
        out["mlp_bias"] = c.bias_mlp;
      } else {
        out["sliding_window"] = c.window + 1;
      }
      out["attention_dropout"] = shortest_double(c.attention_dropout);
      break;
  }
  out["vocab_size"] = c.vocab;
  out["tie_word_embeddings"] = c.tied_head;
  out["initializer_range"] = shortest_double(c.init_std);
  out["torch_dtype"] = torch_dtype;
  out["bos_token_id"] = nullptr;
  out["eos_token_id"] = nullptr;
  if (end_of_document >= 0) out["eos_token_id"] = end_of_document;
  return out;
}

}  // namespace thinwire
