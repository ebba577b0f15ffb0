// Hugging Face files to our layout and back: element by element against loops written from the definition, and
// bit-equal round trips of files that the transformers library wrote.
#include "engine/run/checkpoint/hf_names.h"

#include <cmath>
#include <cstdlib>

#include "model/params.h"
#include "tests/checkpoint/checkpoint_test_support.h"

namespace thinwire::hf_names_test {
namespace {

using namespace checkpoint_test;
namespace fs = std::filesystem;
using Weights = std::map<std::string, std::vector<float>>;

ModelConfig tiny(HfFamily family, bool tied) {
  ModelConfig c;
  c.layers = 2;
  c.hidden = 12;
  c.heads = c.kv_heads = 3;
  c.head_dim = 4;
  c.ffn = 20;
  c.vocab = 11;
  c.padded_vocab = 16;
  c.seq_length = c.max_positions = 9;
  c.tied_head = tied;
  if (family == HfFamily::kGpt2) c.activation = ActivationKind::kGeluTanh;
  if (family == HfFamily::kNeox) {
    c.positions = PositionKind::kRotary;
    c.rotary_fraction = 0.5f;
    c.parallel_residual = true;
    c.bias_attention = !tied;
  }
  if (family == HfFamily::kLlama) {
    c.positions = PositionKind::kRotary;
    c.heads = 6;
    c.norm = NormKind::kRmsNorm;
    c.bias_norm = false;
    c.activation = ActivationKind::kSwiglu;
    c.bias_attention = tied;  // once with, once without
    c.bias_mlp = tied;
  }
  return c;
}

// Random numbers that bf16 and f16 hold exactly; padding rows zero, as ours are after an import.
Weights random_weights(const ParamList& params, uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (const ParamSpec& p : params) {
    if (!p.tied_to.empty()) continue;
    auto& values = weights[p.name];
    for (int64_t i = 0; i < p.count(); ++i) {
      values.push_back(i / p.cols < p.valid_rows ? static_cast<float>(static_cast<int>(random() % 255) - 127) / 64.0f
                                                 : 0.0f);
    }
  }
  return weights;
}

Weights read_all(const HfMapping& mapping, const std::string& path) {
  Weights weights;
  mapping.read_hf(HfTensors(path),
                  [&](const ParamSpec& p, std::vector<float> values) { weights[p.name] = std::move(values); });
  return weights;
}

TEST(HfNames, RandomWeightsMakeTheRoundTripInEveryDtypeAndShardSize) {
  for (const HfFamily family : {HfFamily::kGpt2, HfFamily::kNeox, HfFamily::kLlama}) {
    for (const bool tied : {false, true}) {
      const ModelConfig config = tiny(family, tied);
      const ParamList params = list_parameters(config);
      const Weights weights = random_weights(params, 5);
      const HfMapping mapping(config, params);
      EXPECT_EQ(mapping.family(), family);
      for (const StDtype dtype : {StDtype::kF32, StDtype::kBF16, StDtype::kF16}) {
        for (const uint64_t shard : {uint64_t{1} << 40, uint64_t{1000}}) {
          const Scratch scratch;
          mapping.write_hf(
              scratch.path(), [&](const std::string& name) { return weights.at(name); }, dtype, shard);
          EXPECT_EQ(fs::exists(scratch / "model.safetensors"), shard > 1000);
          EXPECT_EQ(fs::exists(scratch / "model.safetensors.index.json"), shard == 1000);
          EXPECT_EQ(read_all(mapping, scratch.path()), weights) << hf_model_type(config);
          EXPECT_EQ(HfTensors(scratch.path()).find("lm_head.weight") == nullptr, tied);
          const ModelConfig back = model_config_from_hf(read_hf_config(scratch.path()), 16);
          EXPECT_EQ(hf_config_from_model(back), hf_config_from_model(config));
        }
      }
    }
  }
}

// What the row order means, from the definition: head i of group g, dimension e.
TEST(HfNames, AttentionRowsLandWhereTheDefinitionSays) {
  for (const HfFamily family : {HfFamily::kGpt2, HfFamily::kLlama}) {
    const ModelConfig c = tiny(family, true);
    const ParamList params = list_parameters(c);
    const Weights weights = random_weights(params, 6);
    const Scratch scratch;
    HfMapping(c, params).write_hf(
        scratch.path(), [&](const std::string& name) { return weights.at(name); }, StDtype::kF32);
    const SafetensorsFile file(scratch / "model.safetensors");
    const auto theirs = [&](const std::string& name) {
      std::vector<float> values(static_cast<size_t>(file.at(name).count()));
      file.read_f32(name, values);
      return values;
    };
    const auto& ours = weights.at("layers.1.attention.qkv.weight");
    const auto& our_bias = weights.at("layers.1.attention.qkv.bias");
    const int64_t d = c.head_dim, h = c.hidden, r = c.heads / c.kv_heads;
    const bool gpt2 = family == HfFamily::kGpt2;
    const auto all = gpt2 ? theirs("transformer.h.1.attn.c_attn.weight") : std::vector<float>{};
    const auto all_bias = gpt2 ? theirs("transformer.h.1.attn.c_attn.bias") : std::vector<float>{};
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      for (int64_t i = 0; i < r + 2; ++i) {  // r queries, the key, the value
        const std::string kind = i < r ? "q" : i == r ? "k" : "v";
        const int64_t head = i < r ? g * r + i : g;
        const auto separate = gpt2 ? std::vector<float>{} : theirs("model.layers.1.self_attn." + kind + "_proj.weight");
        const auto separate_bias =
            gpt2 ? std::vector<float>{} : theirs("model.layers.1.self_attn." + kind + "_proj.bias");
        for (int64_t e = 0; e < d; ++e) {
          const int64_t row = (g * (r + 2) + i) * d + e;
          const int64_t column = (kind == "q"   ? 0
                                  : kind == "k" ? h
                                                : 2 * h) +
                                 head * d + e;  // gpt2: [q | k | v], h each
          for (int64_t x = 0; x < h; ++x) {
            EXPECT_EQ(ours[row * h + x], gpt2 ? all[x * 3 * h + column] : separate[(head * d + e) * h + x]);
          }
          EXPECT_EQ(our_bias[row], gpt2 ? all_bias[column] : separate_bias[head * d + e]);
        }
      }
    }
    // The feed-forward part: gpt2 transposed, llama gate above up.
    const auto& fc1 = weights.at("layers.0.mlp.fc1.weight");
    if (gpt2) {
      const auto c_fc = theirs("transformer.h.0.mlp.c_fc.weight");
      for (int64_t o = 0; o < c.ffn; ++o) {
        for (int64_t x = 0; x < h; ++x) EXPECT_EQ(fc1[o * h + x], c_fc[x * c.ffn + o]);
      }
    } else {
      const auto gate = theirs("model.layers.0.mlp.gate_proj.weight"), up = theirs("model.layers.0.mlp.up_proj.weight");
      EXPECT_TRUE(std::equal(gate.begin(), gate.end(), fc1.begin()));
      EXPECT_TRUE(std::equal(up.begin(), up.end(), fc1.begin() + c.ffn * h));
    }
    EXPECT_EQ(file.at(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight").shape,
              (std::vector<int64_t>{c.vocab, h}));
  }
}

void check_library_directory(const std::string& dir) {
  const ModelConfig config = model_config_from_hf(read_hf_config(dir));
  const ParamList params = list_parameters(config);
  const HfMapping mapping(config, params);
  for (const char* name : {"model.safetensors", "step1_gradients.safetensors", "step10_model.safetensors"}) {
    ASSERT_TRUE(fs::exists(dir + "/" + name)) << dir << "/" << name;
    const Weights weights = read_all(mapping, dir + "/" + name);
    for (const ParamSpec& p : params) {
      if (!p.tied_to.empty()) continue;
      ASSERT_EQ(static_cast<int64_t>(weights.at(p.name).size()), p.count()) << p.name;
      for (int64_t i = p.valid_rows * p.cols; i < p.count(); ++i) ASSERT_EQ(weights.at(p.name)[i], 0.0f) << p.name;
    }
    const Scratch scratch;
    mapping.write_hf(
        scratch.path(), [&](const std::string& n) { return weights.at(n); }, StDtype::kF32);
    const SafetensorsFile theirs(dir + "/" + name), ours(scratch / "model.safetensors");
    EXPECT_EQ(theirs.entries().size(), ours.entries().size());
    for (const SafetensorsEntry& entry : theirs.entries()) {
      EXPECT_EQ(ours.at(entry.name).shape, entry.shape) << entry.name;
      EXPECT_EQ(ours.read_bytes(entry.name), theirs.read_bytes(entry.name)) << entry.name;
    }
    EXPECT_EQ(hf_config_from_model(model_config_from_hf(read_hf_config(scratch.path()))), hf_config_from_model(config));
  }
}

// "config.json" alone could be the configuration of the run.
TEST(HfNames, ARefusedConfigIsNamedWithItsFolder) {
  const Scratch scratch;
  write_file_atomic(scratch / "config.json", "{\"model_type\": \"bert\"}");
  for (const std::string& source : {scratch.path(), scratch / "model.safetensors"})
    EXPECT_EQ(std::string(error_of([&] { read_hf_model(source); }).what()).find(scratch / "config.json: "), 0u);
}

TEST(HfNames, LibraryFilesComeBackBitEqual) {
  int checked = 0;
  for (const auto& entry : fs::directory_iterator("tests/golden/models")) {
    if (!entry.is_directory()) continue;
    check_library_directory(entry.path().string());
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

TEST(HfNames, SharedVectorsComeBackBitEqual) {
  const char* variable = std::getenv("THINWIRE_VECTORS");
  const std::string root = variable != nullptr ? variable : "../shared/vectors";
  if (!fs::exists(root)) GTEST_SKIP() << "neither THINWIRE_VECTORS nor ../shared/vectors is here";
  for (const char* family : {"gpt2", "neox", "llama"}) check_library_directory(root + "/models/" + family);
}

// A file of ours, changed by `edit` and written again, then read: the message of the refusal, or "" when it was
// accepted.
std::string verdict(HfFamily family, bool tied, const std::function<void(std::vector<SafetensorsItem>&)>& edit) {
  const ModelConfig config = tiny(family, tied);
  const ParamList params = list_parameters(config);
  const Weights weights = random_weights(params, 7);
  const HfMapping mapping(config, params);
  const Scratch scratch;
  mapping.write_hf(
      scratch.path(), [&](const std::string& name) { return weights.at(name); }, StDtype::kF32);
  std::vector<SafetensorsItem> items;
  {
    const SafetensorsFile file(scratch / "model.safetensors");
    for (const SafetensorsEntry& e : file.entries()) {
      items.push_back({e.name, e.dtype, e.shape, {}, [bytes = file.read_bytes(e.name)] { return bytes; }});
    }
  }
  edit(items);
  replace_safetensors(scratch / "model.safetensors", items);
  try {
    EXPECT_EQ(read_all(mapping, scratch.path()), weights) << "accepted, so it must be the same model";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadData);
    return e.what();
  }
  return "";
}

SafetensorsItem& item_named(std::vector<SafetensorsItem>& items, const std::string& name) {
  for (SafetensorsItem& item : items) {
    if (item.name == name) return item;
  }
  throw std::runtime_error("no item " + name);
}

SafetensorsItem zeros(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return {name, StDtype::kF32, std::move(shape), {}, [count] {
            return std::vector<std::byte>(static_cast<size_t>(count) * 4);
          }};
}

TEST(HfNames, TheHeadOfNeoxForTransformersFour) {
  const ModelConfig config = tiny(HfFamily::kNeox, false);
  const ParamList params = list_parameters(config);
  const Weights weights = random_weights(params, 5);
  const Scratch scratch;
  HfMapping(config, params, 4)
      .write_hf(
          scratch.path(), [&](const std::string& name) { return weights.at(name); }, StDtype::kF32);
  EXPECT_EQ(HfTensors(scratch.path()).find("lm_head.weight"), nullptr);
  EXPECT_NE(HfTensors(scratch.path()).find("embed_out.weight"), nullptr);
  EXPECT_EQ(read_all(HfMapping(config, params), scratch.path()), weights);
}

TEST(HfNames, OtherSpellingsAreUnderstood) {
  const auto strip = [](const std::string& prefix) {
    return [prefix](std::vector<SafetensorsItem>& items) {
      for (SafetensorsItem& item : items) {
        if (item.name.starts_with(prefix)) item.name = item.name.substr(prefix.size());
      }
    };
  };
  EXPECT_EQ(verdict(HfFamily::kGpt2, true, strip("transformer.")), "");
  EXPECT_EQ(verdict(HfFamily::kNeox, false, strip("gpt_neox.")), "");
  EXPECT_EQ(verdict(HfFamily::kLlama, false, strip("model.")), "");
  EXPECT_EQ(verdict(HfFamily::kNeox, false,
                    [](auto& items) { item_named(items, "lm_head.weight").name = "embed_out.weight"; }),
            "");
  EXPECT_EQ(verdict(HfFamily::kGpt2, true,
                    [](auto& items) {
                      items.push_back(zeros("transformer.h.0.attn.bias", {1, 1, 9, 9}));
                    }),
            "");
  EXPECT_EQ(verdict(HfFamily::kGpt2, true,
                    [](auto& items) {
                      SafetensorsItem head = item_named(items, "transformer.wte.weight");
                      head.name = "lm_head.weight";  // a tied head stored again
                      items.push_back(head);
                    }),
            "");
}

TEST(HfNames, FilesThatAreNotThisModelAreRefusedByName) {
  const auto refused = [](HfFamily family, bool tied, const std::string& part,
                          const std::function<void(std::vector<SafetensorsItem>&)>& edit) {
    const std::string why = verdict(family, tied, edit);
    EXPECT_NE(why.find(part), std::string::npos) << "expected " << part << " in: " << why;
  };
  refused(HfFamily::kLlama, false, "self_attn.k_proj.weight", [](auto& items) {
    std::erase_if(items, [](const auto& i) { return i.name == "model.layers.1.self_attn.k_proj.weight"; });
  });
  refused(HfFamily::kGpt2, true, "h.2.ln_1.weight",
          [](auto& items) { items.push_back(zeros("transformer.h.2.ln_1.weight", {12})); });
  refused(HfFamily::kNeox, false, "embed_in.weight", [](auto& items) {
    item_named(items, "gpt_neox.embed_in.weight") = zeros("gpt_neox.embed_in.weight", {12, 12});
  });
  refused(HfFamily::kGpt2, true, "c_fc.weight", [](auto& items) {
    item_named(items, "transformer.h.0.mlp.c_fc.weight").shape = {20, 12};
  });
  refused(HfFamily::kGpt2, true, "lm_head.weight", [](auto& items) {
    items.push_back(zeros("lm_head.weight", {11, 12}));
  });
  refused(HfFamily::kNeox, false, "I32",
          [](auto& items) { item_named(items, "lm_head.weight").dtype = StDtype::kI32; });
}

// A vocabulary of 2^40 rows, of which the files hold 11: refused before memory is taken for it.
TEST(HfNames, ShapesAreComparedBeforeMemoryIsTaken) {
  ModelConfig config = tiny(HfFamily::kGpt2, true);
  const ParamList params = list_parameters(config);
  const Weights weights = random_weights(params, 5);
  const Scratch scratch;
  HfMapping(config, params)
      .write_hf(
          scratch.path(), [&](const std::string& name) { return weights.at(name); }, StDtype::kF32);
  config.vocab = config.padded_vocab = int64_t{1} << 40;
  const Error e = error_of([&] { read_all(HfMapping(config, list_parameters(config)), scratch.path()); });
  EXPECT_EQ(e.code(), ExitCode::kBadData);
  EXPECT_NE(std::string(e.what()).find("wte.weight"), std::string::npos) << e.what();
}

TEST(HfNames, DirectoriesThatAreNotOneAreRefused) {
  const Scratch scratch;
  EXPECT_EQ(error_of([&] { HfTensors(scratch.path()); }).code(), ExitCode::kBadData);
  for (const char* index :
       {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{\"a\":\"../x\"}}",
        "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "{\"weight_map\":{\"a\":\"absent.safetensors\"}}"}) {
    spill(scratch / "model.safetensors.index.json", index);
    EXPECT_EQ(error_of([&] { HfTensors(scratch.path()); }).code(), ExitCode::kBadData) << index;
  }
  spill(scratch / "config.json", "{");
  EXPECT_EQ(error_of([&] { read_hf_config(scratch.path()); }).code(), ExitCode::kBadData);
}

TEST(HfNames, HalfPrecisionOverflowIsRefused) {
  const ModelConfig config = tiny(HfFamily::kGpt2, true);
  const ParamList params = list_parameters(config);
  Weights weights = random_weights(params, 5);
  weights["final_norm.weight"][3] = 70000.0f;
  const HfMapping mapping(config, params);
  const Scratch scratch;
  const auto source = [&](const std::string& name) { return weights.at(name); };
  EXPECT_NE(std::string(error_of([&] { mapping.write_hf(scratch.path(), source, StDtype::kF16); }).what())
                .find("final_norm.weight"),
            std::string::npos);
  EXPECT_NO_THROW(mapping.write_hf(scratch.path(), source, StDtype::kBF16));
}

}  // namespace
}  // namespace thinwire::hf_names_test
