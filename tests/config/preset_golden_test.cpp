// The resolved rules of every preset on layouts that reach each of its conditions, and of rules written over presets,
// against committed ones: tests/golden/preset_rules.jsonl was recorded when presets were still functions in C++.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/run/config/presets.h"
#include "engine/run/config/resolved_json.h"
#include "tests/config/config_test_support.h"

namespace thinwire::preset_golden_test {
namespace {

constexpr const char* kGolden = "tests/golden/preset_rules.jsonl";

struct Layout {
  const char* name;
  int pipeline, data, tensor, ranks_per_node;
  const char* also = "";
};

constexpr Layout kLayouts[] = {
    {"one rank", 1, 1, 1, 0},
    {"4 replicas, nodes unknown", 1, 4, 1, 0},
    {"4 replicas on nodes of 1", 1, 4, 1, 1},
    {"4 replicas on nodes of 2", 1, 4, 1, 2},
    {"4 replicas on one node", 1, 4, 1, 4},
    {"3 replicas", 1, 3, 1, 0},
    {"6 replicas on nodes of 3", 1, 6, 1, 3},
    {"4 replicas x tensor 2 on nodes of 4", 1, 4, 2, 4},
    {"2 replicas x tensor 2, 1000 steps", 1, 2, 2, 0, ", \"train_iters\": 1000"},
    {"2 stages x 2 replicas, no steps", 2, 2, 1, 0, ", \"train_iters\": 0"},
    {"4 stages x 4 replicas on nodes of 2, ZeRO 1", 4, 4, 1, 2, ", \"zero_optimization\": {\"stage\": 1}"},
    {"3 stages x 2 replicas, 57 steps", 3, 2, 1, 0, ", \"train_iters\": 57"},
    {"4 replicas, ZeRO 3", 1, 4, 1, 0, ", \"zero_optimization\": {\"stage\": 3}"},
    {"4 replicas x tensor 2 on nodes of 4, ZeRO 3", 1, 4, 2, 4, ", \"zero_optimization\": {\"stage\": 3}"},
};

// The presets that the overrides below are written over.
const std::set<std::string> kOverridden = {"none", "optimus_cc", "zhybrid",      "zeropp",
                                           "loco", "sdp4bit",    "one_bit_adam", "thinwire"};
// In the order of the command line.
const std::vector<std::vector<std::string>> kOverrides = {
    {},
    {"compression.dp.gradient.bits=8"},
    {"compression.dp.gradient.rate=4.5", "compression.zero.parameter.rate=4.25"},
    {"compression.dp.gradient=cast", "compression.zero.parameter=null"},
    {"compression.dp.gradient.sum=block_int", "compression.dp.gradient.sum.bits=4"},
    {"compression.dp.gradient={\"select\": {\"stages\": [1], \"layers\": [3, 2, 3]}, \"min_bytes\": 4096}"},
    {"compression.pp.backward={\"codec\": \"block_int\", \"bits\": 4, \"residual\": \"none\"}",
     "compression.tp.forward={\"block\": 64}"},
    {"compression.adapt=true", "compression.sends=gradient", "embedding_sync=two_step", "placement.gradients=global"},
    {"compression.dp.gradient={\"codec\": \"identity\"}", "compression.embedding.residual=none"},
};

nlohmann::json resolved_of(const std::string& preset, const std::vector<std::string>& overrides, const Layout& l) {
  const std::string text =
      "{\n\"num_layers\": 8, \"hidden_size\": 64, \"num_attention_heads\": 8, \"seq_length\": 32, \"vocab_size\": 256, "
      "\"lr\": 1e-3, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4,\n" +
      std::string(std::string(l.also).find("train_iters") == std::string::npos ? "\"train_iters\": 300, " : "") +
      "\"pipe_parallel_size\": " + std::to_string(l.pipeline) +
      ", \"model_parallel_size\": " + std::to_string(l.tensor) +
      ", \"ranks_per_node\": " + std::to_string(l.ranks_per_node) + l.also + ",\n\"compression\": \"" + preset +
      "\"\n}\n";
  nlohmann::json out;
  try {
    const ResolvedConfig c = load_config_text({{"a.json", text}}, overrides, {.ranks = l.pipeline * l.data * l.tensor});
    const nlohmann::json all = resolved_json(c);
    for (const char* key : {"compression", "placement", "embedding_sync", "_notes"}) out[key] = all.at(key);
  } catch (const Error& e) {
    out["refused"] = e.what();
  }
  return out;
}

// A line per preset, overrides and result, naming the layouts that have it. Of overrides: what they change.
std::vector<std::string> lines_of_all() {
  std::vector<std::string> lines;
  for (const std::string& preset : preset_names()) {
    for (const std::vector<std::string>& overrides : kOverrides) {
      if (!overrides.empty() && !kOverridden.contains(preset)) continue;
      std::vector<std::pair<std::string, nlohmann::json>> results;  // in the order of the layouts
      for (const Layout& layout : kLayouts) {
        nlohmann::json result = resolved_of(preset, overrides, layout);
        if (!overrides.empty() && !result.contains("refused"))
          result = {{"changed", nlohmann::json::diff(resolved_of(preset, {}, layout), result)}};
        const std::string resolved = result.dump();
        auto at = std::find_if(results.begin(), results.end(), [&](const auto& r) { return r.first == resolved; });
        if (at == results.end()) at = results.insert(at, {resolved, nlohmann::json::array()});
        at->second.push_back(layout.name);
      }
      for (const auto& [resolved, layouts] : results)
        lines.push_back("{\"preset\":\"" + preset + "\",\"over\":" + nlohmann::json(overrides).dump() +
                        ",\"layouts\":" + layouts.dump() + ",\"resolved\":" + resolved + "}");
    }
  }
  return lines;
}

TEST(PresetGolden, EveryPresetOnEveryLayoutAsRecorded) {
  std::vector<std::string> golden;
  std::ifstream file(kGolden);
  for (std::string line; std::getline(file, line);) golden.push_back(line);
  const std::vector<std::string> now = lines_of_all();
  const std::string path = ::testing::TempDir() + "preset_rules.jsonl";
  if (now != golden) {
    std::ofstream out(path);
    for (const std::string& line : now) out << line << "\n";
  }
  EXPECT_EQ(now.size(), golden.size()) << "what is resolved now: " << path;
  int shown = 0;
  for (size_t i = 0; i < std::min(now.size(), golden.size()) && shown < 5; ++i) {
    if (now[i] == golden[i]) continue;
    ++shown;
    ADD_FAILURE() << "line " << i + 1 << " of " << kGolden << "\nrecorded " << golden[i] << "\nnow      " << now[i]
                  << "\nwhat is resolved now: " << path;
  }
}

}  // namespace
}  // namespace thinwire::preset_golden_test
