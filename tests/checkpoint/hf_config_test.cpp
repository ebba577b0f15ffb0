// config.json: every option read, everything we cannot compute refused by name, and exact JSON round trips of our own.
#include "engine/run/checkpoint/hf_config.h"

#include "engine/run/checkpoint/model_config_json.h"
#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::hf_config_test {
namespace {

using namespace checkpoint_test;
using nlohmann::json;

json gpt2() {
  return {{"model_type", "gpt2"}, {"n_layer", 3},      {"n_embd", 64},
          {"n_head", 4},          {"n_positions", 32}, {"vocab_size", 101}};
}
json neox() {
  return {{"model_type", "gpt_neox"}, {"num_hidden_layers", 3},        {"hidden_size", 64}, {"num_attention_heads", 4},
          {"intermediate_size", 256}, {"max_position_embeddings", 32}, {"vocab_size", 101}};
}
json llama() {
  return {{"model_type", "llama"},    {"num_hidden_layers", 3},        {"hidden_size", 64}, {"num_attention_heads", 4},
          {"intermediate_size", 160}, {"max_position_embeddings", 32}, {"vocab_size", 101}};
}
json with(json base, const char* key, json value) {
  base[key] = std::move(value);
  return base;
}

TEST(HfConfig, DefaultsAreThoseOfTheLibrary) {
  const ModelConfig g = model_config_from_hf(gpt2());
  EXPECT_EQ(g.ffn, 256);
  EXPECT_EQ(g.activation, ActivationKind::kGeluTanh);
  EXPECT_TRUE(g.tied_head && g.bias_attention && g.bias_mlp && g.bias_norm && !g.parallel_residual);
  EXPECT_EQ(g.padded_vocab, 128);
  EXPECT_EQ(g.norm_eps, 1e-5f);
  const ModelConfig n = model_config_from_hf(neox(), 1);
  EXPECT_EQ(n.activation, ActivationKind::kGeluExact);
  EXPECT_EQ(n.rotary_dim(), 4);
  EXPECT_EQ(n.padded_vocab, 101);
  EXPECT_TRUE(n.parallel_residual && !n.tied_head && n.bias_attention);
  const ModelConfig l = model_config_from_hf(llama());
  EXPECT_EQ(l.norm_eps, 1e-6f);
  EXPECT_EQ(l.rotary_dim(), 16);
  EXPECT_EQ(l.kv_heads, 4);
  EXPECT_TRUE(!l.bias_attention && !l.bias_mlp && !l.bias_norm && !l.tied_head && l.norm == NormKind::kRmsNorm);
}

TEST(HfConfig, EveryOptionIsRead) {
  EXPECT_EQ(model_config_from_hf(with(gpt2(), "n_inner", 100)).ffn, 100);
  EXPECT_EQ(model_config_from_hf(with(gpt2(), "n_inner", nullptr)).ffn, 256);
  EXPECT_EQ(model_config_from_hf(with(gpt2(), "layer_norm_epsilon", 1e-6)).norm_eps, 1e-6f);
  EXPECT_FALSE(model_config_from_hf(with(gpt2(), "tie_word_embeddings", false)).tied_head);
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    EXPECT_EQ(model_config_from_hf(with(gpt2(), "activation_function", name)).activation, ActivationKind::kGeluTanh);
    EXPECT_EQ(model_config_from_hf(with(neox(), "hidden_act", name)).activation, ActivationKind::kGeluTanh);
  }
  EXPECT_EQ(model_config_from_hf(with(gpt2(), "activation_function", "gelu")).activation, ActivationKind::kGeluExact);
  EXPECT_EQ(model_config_from_hf(with(neox(), "rotary_pct", 0.5)).rotary_dim(), 8);
  EXPECT_EQ(model_config_from_hf(with(neox(), "rotary_emb_base", 5000)).rotary_base, 5000.0f);
  const json rope{{"rope_type", "default"}, {"rope_theta", 777.0}, {"partial_rotary_factor", 0.75}};
  EXPECT_EQ(model_config_from_hf(with(neox(), "rope_parameters", rope)).rotary_base, 777.0f);
  EXPECT_EQ(model_config_from_hf(with(neox(), "rope_parameters", rope)).rotary_dim(), 12);
  EXPECT_FALSE(model_config_from_hf(with(neox(), "use_parallel_residual", false)).parallel_residual);
  EXPECT_FALSE(model_config_from_hf(with(neox(), "attention_bias", false)).bias_attention);
  EXPECT_EQ(model_config_from_hf(with(llama(), "num_key_value_heads", 2)).kv_heads, 2);
  EXPECT_EQ(model_config_from_hf(with(llama(), "head_dim", 24)).attention_width(), 96);
  EXPECT_EQ(model_config_from_hf(with(llama(), "rope_theta", 500000.0)).rotary_base, 500000.0f);
  EXPECT_EQ(model_config_from_hf(with(llama(), "rms_norm_eps", 1e-5)).norm_eps, 1e-5f);
  EXPECT_TRUE(model_config_from_hf(with(llama(), "attention_bias", true)).bias_attention);
  EXPECT_TRUE(model_config_from_hf(with(llama(), "mlp_bias", true)).bias_mlp);
  EXPECT_TRUE(model_config_from_hf(with(llama(), "tie_word_embeddings", true)).tied_head);
  EXPECT_NO_THROW(model_config_from_hf(with(llama(), "rope_scaling", nullptr)));
}

// transformers turns int(head_dim * fraction) elements of a head, in doubles; so do we, and so does what we export.
TEST(HfConfig, RotatedElementsAreThoseOfTheLibrary) {
  const auto turned = [](int64_t head, double fraction) {
    return static_cast<int64_t>(static_cast<double>(head) * fraction);
  };
  int wrong = 0, odd_texts = 0;
  for (int64_t head = 2; head <= 256; ++head) {
    for (int64_t k = 1; k <= head; ++k) {
      const double fraction = static_cast<double>(k) / static_cast<double>(head);
      const int64_t length = turned(head, fraction);
      if (length == 0 || (length + 1) / 2 * 2 > head) continue;  // refused
      json given = with(with(neox(), "hidden_size", 2 * head), "num_attention_heads", 2);
      const ModelConfig c = model_config_from_hf(with(given, "rotary_pct", fraction));
      const double written = hf_config_from_model(c).at("rotary_pct").get<double>();
      wrong += c.rotary_length() != length || turned(head, written) != length;
      odd_texts += turned(head, shortest_double(c.rotary_fraction)) != length;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(odd_texts, 1000);  // the shortest text of the float alone would not do
  const json hundred = with(with(neox(), "hidden_size", 400), "rotary_pct", 0.29);
  EXPECT_EQ(model_config_from_hf(hundred).rotary_length(), 28);
}

// transformers 5 writes all of it in rope_parameters, older ones rope_theta at the top and rope_scaling beside it.
TEST(HfConfig, Llama3ScalingIsReadInBothSpellingsAndWritten) {
  json scaling{{"rope_type", "llama3"},
               {"factor", 8.0},
               {"low_freq_factor", 1.5},
               {"high_freq_factor", 3.5},
               {"original_max_position_embeddings", 64}};
  const ModelConfig old = model_config_from_hf(with(with(llama(), "rope_theta", 5000.0), "rope_scaling", scaling));
  scaling["rope_theta"] = 5000.0;
  const ModelConfig now = model_config_from_hf(with(llama(), "rope_parameters", scaling));
  for (const ModelConfig& c : {old, now, model_config_from_hf(hf_config_from_model(now, "float32")),
                               model_config_from_json(model_config_to_json(now))}) {
    EXPECT_EQ(c.rotary_base, 5000.0f);
    EXPECT_EQ(c.rope_scaling.factor, 8.0f);
    EXPECT_EQ(c.rope_scaling.low_freq_factor, 1.5f);
    EXPECT_EQ(c.rope_scaling.high_freq_factor, 3.5f);
    EXPECT_EQ(c.rope_scaling.original_positions, 64);
  }
  const ModelConfig plain = model_config_from_hf(llama());
  EXPECT_FALSE(model_config_to_json(plain).contains("rope_scaling_factor"));  // as older checkpoints have it
  EXPECT_EQ(error_of([&] { require_same_model("there", now, plain); }).code(), ExitCode::kBadConfig);
  // finetune for a longer context, which may also be a forgotten key
  EXPECT_NE(require_same_model("there", plain, now, true).find("rope_scaling_factor: 1.0, here 8.0"),
            std::string::npos);
  EXPECT_EQ(require_same_model("there", plain, plain, true), "");
}

// sliding_window counts the token itself; null is none, and left out it is 4096.
TEST(HfConfig, MistralIsALlamaWithAWindow) {
  const json mistral = with(with(llama(), "model_type", "mistral"), "num_key_value_heads", 2);
  EXPECT_EQ(model_config_from_hf(mistral).window, 4095);
  EXPECT_EQ(model_config_from_hf(with(mistral, "sliding_window", nullptr)).window, kNoWindow);
  const ModelConfig c = model_config_from_hf(with(mistral, "sliding_window", 16));
  EXPECT_EQ(c.window, 15);
  EXPECT_STREQ(hf_model_type(c), "mistral");
  const json biased = with(with(mistral, "attention_bias", true), "mlp_bias", true);  // keys of llama: not read there
  EXPECT_FALSE(model_config_from_hf(biased).bias_attention || model_config_from_hf(biased).bias_mlp);
  const json out = hf_config_from_model(c, "float32");
  EXPECT_EQ(out.at("model_type"), "mistral");
  EXPECT_EQ(out.at("sliding_window"), 16);
  EXPECT_EQ(model_config_from_hf(out).window, 15);
  EXPECT_TRUE(out.at("eos_token_id").is_null());
  EXPECT_EQ(hf_config_from_model(c, "float32", 0).at("eos_token_id"), 0);
  EXPECT_EQ(model_config_from_json(model_config_to_json(c)).window, 15);
  EXPECT_FALSE(model_config_to_json(model_config_from_hf(llama())).contains("window"));  // as older checkpoints have it
  EXPECT_EQ(error_of([&] { require_same_model("there", c, model_config_from_hf(llama())); }).code(),
            ExitCode::kBadConfig);
}

// A Llama behind a configuration that says nothing of norms: the keys named are those that make it one.
TEST(HfConfig, ARefusalNamesTheKeysThatMendIt) {
  ModelConfig here = model_config_from_hf(llama());
  here.norm = NormKind::kLayerNorm, here.norm_eps = 1e-5f, here.bias_norm = true;
  const std::string message =
      error_of([&] { require_same_model("there", model_config_from_hf(llama()), here); }).what();
  EXPECT_NE(message.find("norm_eps: 1e-06, here 1e-05 (rms_norm_epsilon)"), std::string::npos) << message;
  EXPECT_EQ(message.find("use_bias_in_norms"), std::string::npos) << message;
}

// Checkpoints of norms with parameters say nothing of them, as older ones do.
TEST(HfConfig, NormsWithoutParametersAreAnotherModel) {
  const ModelConfig full = model_config_from_hf(neox());
  ModelConfig bare = full;
  bare.gain_norm = bare.bias_norm = false;
  EXPECT_FALSE(model_config_to_json(full).contains("gain_norm"));
  EXPECT_FALSE(model_config_from_json(model_config_to_json(bare)).gain_norm);
  EXPECT_EQ(require_same_model("there", bare, bare, false), "");
  const std::string message = error_of([&] { require_same_model("there", full, bare); }).what();
  EXPECT_NE(message.find("gain_norm: true, here false (norm)"), std::string::npos) << message;
  EXPECT_EQ(message.find("use_bias_in_norms"), std::string::npos) << message;
}

// Hugging Face's tables have the vocabulary's rows, a checkpoint's those of its padding.
TEST(HfConfig, TablesOfOtherRowsAreAnotherModel) {
  ModelConfig weights = model_config_from_hf(llama()), here = weights;
  here.vocab = 102, here.padded_vocab = weights.padded_vocab;
  const auto refused = [&](bool finetune) {
    return std::string(error_of([&] { require_same_model("there", weights, here, finetune); }).what());
  };
  EXPECT_NE(refused(false).find("vocab: 101, here 102 (vocab_size)"), std::string::npos);
  EXPECT_NE(require_same_model("there", weights, here, true).find("vocab: 101, here 102"), std::string::npos);
  here.padded_vocab = weights.padded_vocab + 128;
  EXPECT_NE(refused(true).find("(make_vocab_size_divisible_by, vocab_size)"), std::string::npos);
}

TEST(HfConfig, WhatWeCannotComputeIsRefusedByName) {
  const std::pair<json, const char*> cases[] = {
      {with(gpt2(), "model_type", "bert"), "bert"},
      {with(gpt2(), "scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx"},
      {with(gpt2(), "scale_attn_weights", false), "scale_attn_weights"},
      {with(gpt2(), "add_cross_attention", true), "add_cross_attention"},
      {with(gpt2(), "activation_function", "relu"), "relu"},
      {with(gpt2(), "activation_function", "quick_gelu"), "quick_gelu"},
      {with(gpt2(), "n_head", 5), "n_head"},
      {with(gpt2(), "n_layer", 0), "n_layer"},
      {with(gpt2(), "n_layer", "three"), "n_layer"},
      {with(gpt2(), "n_layer", int64_t{1} << 31), "layers"},
      {with(gpt2(), "n_embd", 64.5), "n_embd"},
      {with(gpt2(), "n_embd", -64), "n_embd"},
      {with(gpt2(), "vocab_size", nullptr), "vocab_size"},
      {with(gpt2(), "vocab_size", 1e18), "vocab_size"},
      {with(gpt2(), "layer_norm_epsilon", 0.0), "epsilon"},
      {with(gpt2(), "quantization_config", json::object()), "quantization_config"},
      {with(neox(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), "RoPE scaling"},
      {with(neox(), "rotary_pct", 0.05), "rotated"},
      {with(neox(), "rotary_emb_base", 1e300), "rotary_emb_base"},
      {with(neox(), "rotary_pct", 1.5), "rotary fraction"},
      {with(neox(), "hidden_act", "silu"), "silu"},
      {with(llama(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}), "low_freq_factor"},
      {with(llama(), "rope_parameters",
            {{"rope_type", "llama3"},
             {"factor", 8.0},
             {"low_freq_factor", 4.0},
             {"high_freq_factor", 4.0},
             {"original_max_position_embeddings", 64}}),
       "high_freq_factor"},
      {with(llama(), "rope_parameters", {{"rope_type", "yarn"}}), "yarn"},
      {with(llama(), "rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
       "partial_rotary_factor"},
      {with(llama(), "hidden_act", "gelu"), "gelu"},
      {with(llama(), "num_key_value_heads", 3), "num_key_value_heads"},
      {with(llama(), "attention_bias", "yes"), "attention_bias"},
      {json::array(), "object"},
  };
  for (const auto& [config, part] : cases) {
    const Error e = error_of([&, &config = config] { (void)model_config_from_hf(config); });
    EXPECT_EQ(e.code(), ExitCode::kBadData) << part;
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "expected " << part << " in: " << e.what();
  }
}

TEST(HfConfig, MixturesThatNoFamilyHasAreRefused) {
  const auto refused = [](ModelConfig c, const std::function<void(ModelConfig&)>& edit) {
    edit(c);
    EXPECT_EQ(error_of([&] { (void)hf_family_of(c); }).code(), ExitCode::kBadConfig);
  };
  const ModelConfig g = model_config_from_hf(gpt2()), n = model_config_from_hf(neox()),
                    l = model_config_from_hf(llama());
  refused(g, [](ModelConfig& c) { c.positions = PositionKind::kNone; });
  refused(g, [](ModelConfig& c) { c.parallel_residual = true; });
  refused(g, [](ModelConfig& c) { c.norm = NormKind::kRmsNorm; });
  refused(g, [](ModelConfig& c) { c.activation = ActivationKind::kSwiglu; });
  refused(g, [](ModelConfig& c) { c.bias_mlp = false; });
  refused(g, [](ModelConfig& c) { c.kv_heads = 2; });
  refused(g, [](ModelConfig& c) { c.head_dim = 8; });
  refused(n, [](ModelConfig& c) { c.kv_heads = 2; });
  refused(n, [](ModelConfig& c) { c.bias_mlp = false; });
  refused(n, [](ModelConfig& c) { c.bias_norm = false; });
  refused(l, [](ModelConfig& c) { c.rotary_fraction = 0.5f; });
  refused(l, [](ModelConfig& c) { c.parallel_residual = true; });
  refused(l, [](ModelConfig& c) { c.activation = ActivationKind::kGeluExact; });
  refused(l, [](ModelConfig& c) { c.bias_norm = true; });
  ModelConfig bare = n;
  bare.gain_norm = bare.bias_norm = false;
  EXPECT_NE(std::string(error_of([&] { (void)hf_family_of(bare); }).what()).find("non_parametric_layernorm"),
            std::string::npos);
}

TEST(ModelConfigJson, RoundTripIsExact) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    ModelConfig c = model_config_from_hf(round % 2 ? neox() : llama());
    c.norm_eps = std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f000000u) + 1);
    c.rotary_base = static_cast<float>(random() % 1'000'000) / 7.0f + 1.0f;
    c.init = static_cast<InitMethod>(random() % 4);
    c.recompute = static_cast<Recompute>(random() % 3);
    c.dtype = static_cast<DType>(random() % 3);
    const json value = model_config_to_json(c);
    const ModelConfig back = model_config_from_json(json::parse(value.dump()));
    EXPECT_EQ(model_config_to_json(back), value);
    EXPECT_EQ(back.norm_eps, c.norm_eps);
    EXPECT_EQ(back.rotary_base, c.rotary_base);
    EXPECT_EQ(back.init, c.init);
    EXPECT_EQ(back.dtype, c.dtype);
  }
  EXPECT_EQ(json(shortest_double(1e-5f)).dump(), "1e-05");
}

TEST(ModelConfigJson, EveryMissingOrWrongKeyIsNamed) {
  const json good = model_config_to_json(model_config_from_hf(llama()));
  for (const auto& [key, value] : good.items()) {
    json bad = good;
    bad.erase(key);
    EXPECT_NE(std::string(error_of([&] { (void)model_config_from_json(bad); }).what()).find(key), std::string::npos);
    bad[key] = json::array();
    EXPECT_NE(std::string(error_of([&] { (void)model_config_from_json(bad); }).what()).find(key), std::string::npos);
  }
  EXPECT_NE(
      std::string(error_of([&] { (void)model_config_from_json(with(good, "experts", 8)); }).what()).find("experts"),
      std::string::npos);
  EXPECT_THROW(model_config_from_json(with(good, "kv_heads", 3)), Error);
  EXPECT_THROW(model_config_from_json(with(good, "layers", -1)), Error);
  EXPECT_THROW(model_config_from_json(json()), Error);
}

}  // namespace
}  // namespace thinwire::hf_config_test
