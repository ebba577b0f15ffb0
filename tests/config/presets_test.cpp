// Presets: each expands for every layout to codecs that exist, and says of its system what the reference pages say.
#include "engine/run/config/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "engine/base/core/error.h"

namespace thinwire::presets_test {
namespace {

// What a preset says on a layout.
struct Expanded {
  std::map<Site, SiteRule> rules;
  std::map<std::string, std::string> placement;  // by kind: weights ...
  std::string embedding_sync, sends;
};

Expanded expand(const std::string& preset, const RuleContext& context) {
  std::vector<ConfigProblem> problems;
  const Settings settings = read_preset(preset, problems);
  for (const ConfigProblem& p : problems) ADD_FAILURE() << p.text();
  Expanded e;
  const auto text = [&](const char* key) {
    return settings.contains(key) ? settings.at(key).value.get<std::string>() : "";
  };
  e.embedding_sync = text("embedding_sync"), e.sends = text("compression.sends");
  for (const auto& [kind, level] : placement_of(settings, context)) e.placement[kind] = level.value;
  if (!settings.contains("compression.rules")) return e;
  for (const WrittenRule& written : settings.at("compression.rules").rules)
    if (holds(written.when, context))
      for (const std::string& site : written.sites)  // the first wins
        e.rules.emplace(static_cast<Site>(std::ranges::find(kSiteNames, site) - kSiteNames.begin()),
                        rule_of(written, context));
  return e;
}

std::vector<RuleContext> contexts() {
  std::vector<RuleContext> all;
  for (int pipeline : {1, 2, 4})
    for (int data : {1, 2, 4})
      for (int tensor : {1, 2, 4})
        for (int per_node : {0, 1, 2, 64})
          for (bool persist : {true, false}) {
            RuleContext c;
            c.stages = pipeline, c.data = data, c.tensor = tensor, c.ranks_per_node = per_node * tensor;
            c.layers = 4, c.train_iters = per_node == 64 ? 0 : 300, c.weights_persist = persist;
            c.data_on_node = std::min(per_node, data);
            all.push_back(c);
          }
  return all;
}

SiteRule rule_of(const std::string& preset, Site site, const RuleContext& context = {}) {
  const Expanded p = expand(preset, context);
  const auto it = p.rules.find(site);
  EXPECT_NE(it, p.rules.end()) << preset << " " << name_of(site);
  return it == p.rules.end() ? SiteRule() : it->second;
}

double bits_per_value(const CodecSpec& spec) {
  constexpr int64_t kCount = int64_t{1} << 20;
  const auto codec = make_codec(spec).codec;
  if (!codec) throw std::logic_error(spec.codec + " travels in rounds only");
  return 8.0 * static_cast<double>(codec->wire_bytes(kCount, DType::f32)) / static_cast<double>(kCount);
}

TEST(Presets, AllAreThereAndExplained) {
  const std::vector<std::string> list = preset_names();
  const std::set<std::string> names(list.begin(), list.end());
  EXPECT_EQ(names.size(), list.size());
  for (const ShippedPreset& preset : shipped_presets()) {
    const std::string text = preset.text;
    const size_t at = text.find("\"preset\": \"");
    ASSERT_NE(at, std::string::npos) << preset.name;
    EXPECT_TRUE(text.find(".\",", at) != std::string::npos) << preset.name << ": no sentence";
  }
  for (const char* name : {"none",
                           "identity",
                           "bf16_wire",
                           "optimus_cc",
                           "optimus_cc_cb",
                           "optimus_cc_cb_fe",
                           "optimus_cc_cb_fe_sc",
                           "optimus_cc_cb_no_lep",
                           "optimus_cc_emb",
                           "naive_zfp",
                           "naive_mpc",
                           "mzhybrid",
                           "zhybrid",
                           "zeropp",
                           "zero_topo",
                           "loco",
                           "sdp4bit",
                           "tagc",
                           "one_bit_adam",
                           "powersgd",
                           "powersgd_16",
                           "powersgd_32",
                           "mzhybrid_ring",
                           "zhybrid_ring",
                           "one_bit_adam_20",
                           "loco_bf16_weights",
                           "optimus_cc_cb_fe_sc_16",
                           "thinwire"})
    EXPECT_EQ(names.count(name), 1u) << name;
}

// Every compression that a preset asks for can be made, with the residual around it.
TEST(Presets, ExpandToCodecsThatExist) {
  for (const RuleContext& context : contexts()) {
    for (const std::string& preset : preset_names()) {
      SCOPED_TRACE(preset);
      const Expanded p = expand(preset, context);
      for (const auto& [site, rule] : p.rules) {
        SCOPED_TRACE(name_of(site));
        EXPECT_NE(site, Site::kControl);
        const MadeCodec first = make_codec(rule.codec);
        if (first.codec != nullptr) Coder(first.codec, rule.codec, rule.residual);
        if (rule.has_sum_codec) Coder(make_codec(rule.sum_codec).codec, rule.sum_codec, rule.sum_residual);
        for (int stage : rule.select.stages) EXPECT_TRUE(stage >= 0 && stage < context.stages);
        if (rule.algorithm == RuleAlgorithm::kTwoLevel) {
          EXPECT_TRUE(context.two_level());
        }
        if (rule.residual.kind == ResidualKind::kValueDifference) {
          EXPECT_TRUE(site == Site::kZeroParameter && context.weights_persist);
        }
      }
      EXPECT_EQ(p.placement.contains("weights"), p.placement.contains("optimizer"));
      EXPECT_EQ(p.placement.contains("weights"), p.placement.contains("gradients"));
    }
  }
}

TEST(Presets, OptimusCcLadder) {
  for (int pipeline : {1, 2, 3, 4, 5, 8, 16}) {
    RuleContext c;
    c.stages = pipeline;
    const std::vector<int> stages = rule_of("optimus_cc", Site::kDpGradient, c).select.stages;
    EXPECT_EQ(static_cast<int>(stages.size()), std::max(1, static_cast<int>(0.75 * pipeline)));  // the early ones
    for (size_t i = 0; i < stages.size(); ++i) EXPECT_EQ(stages[i], static_cast<int>(i));
  }
  const SiteRule backward = rule_of("optimus_cc_cb", Site::kPpBackward);
  EXPECT_EQ(backward.codec.codec, "low_rank");
  EXPECT_EQ(backward.codec.integer("rank"), 16);
  EXPECT_EQ(backward.codec.integer("sides"), 2);
  EXPECT_EQ(backward.residual.kind, ResidualKind::kLazy);
  EXPECT_EQ(backward.select.micro_batches, MicroBatches::kEpilogue);
  EXPECT_EQ(rule_of("optimus_cc", Site::kDpGradient).codec.integer("rank"), 128);
  SiteRule without = backward;
  without.residual = {};
  EXPECT_EQ(rule_of("optimus_cc_cb_no_lep", Site::kPpBackward), without);

  const auto sites = [](const char* name) { return expand(name, {}).rules.size(); };
  EXPECT_EQ(sites("optimus_cc_cb"), 1u);
  EXPECT_EQ(sites("optimus_cc_cb_fe"), 1u);
  EXPECT_EQ(sites("optimus_cc_cb_fe_sc"), 2u);
  EXPECT_EQ(sites("optimus_cc_emb"), 3u);
  EXPECT_EQ(expand("optimus_cc_cb", {}).embedding_sync, "two_step");
  EXPECT_EQ(expand("optimus_cc_cb_fe", {}).embedding_sync, "fused");
  EXPECT_EQ(expand("optimus_cc", {}).rules, expand("optimus_cc_cb_fe_sc", {}).rules);
  // Activations are never compressed, and the word embedding's gradient is the fused synchronisation's.
  EXPECT_EQ(expand("optimus_cc_emb", {}).rules.count(Site::kPpForward), 0u);
  for (TensorClass c : rule_of("optimus_cc", Site::kDpGradient).select.tensor_classes)
    EXPECT_NE(c, TensorClass::kEmbedding);
}

TEST(Presets, HybridsAreMildWhereTheyShould) {
  for (Site site : {Site::kTpForward, Site::kTpBackward, Site::kPpForward, Site::kPpBackward, Site::kZeroParameter}) {
    EXPECT_EQ(rule_of("zhybrid", site).codec.real("rate"), 16.0);
    EXPECT_EQ(rule_of("mzhybrid", site).codec.codec, "mpc");
    EXPECT_EQ(rule_of("naive_mpc", site).codec.codec, "mpc");
  }
  EXPECT_EQ(rule_of("zhybrid", Site::kDpGradient).codec.real("rate"), 8.0);
  EXPECT_EQ(rule_of("mzhybrid", Site::kDpGradient).codec.codec, "zfp");
  EXPECT_EQ(rule_of("naive_mpc", Site::kDpGradient).codec.codec, "mpc");
  EXPECT_EQ(rule_of("naive_zfp", Site::kDpGradient).algorithm, RuleAlgorithm::kRing);
}

TEST(Presets, BitsPerValue) {
  RuleContext two_level;
  two_level.data = 4, two_level.ranks_per_node = 2, two_level.data_on_node = 2;
  EXPECT_LE(bits_per_value(rule_of("sdp4bit", Site::kZeroParameter).codec), 4.05);
  EXPECT_LE(bits_per_value(rule_of("sdp4bit", Site::kDpGradient, two_level).codec), 8.07);
  EXPECT_LE(bits_per_value(rule_of("sdp4bit", Site::kDpGradient, two_level).sum_codec), 4.26);
  EXPECT_LE(bits_per_value(rule_of("thinwire", Site::kDpGradient).codec), 4.13);
  EXPECT_LE(bits_per_value(rule_of("thinwire", Site::kDpGradient).sum_codec), 4.13);
  EXPECT_LE(bits_per_value(rule_of("thinwire", Site::kZeroParameter).codec), 4.13);
  EXPECT_LE(bits_per_value(rule_of("zeropp", Site::kZeroParameter).codec), 8.02);
  EXPECT_LE(bits_per_value(rule_of("one_bit_adam", Site::kDpGradient).codec), 1.1);
}

TEST(Presets, PlacementsAndMomentum) {
  using Levels = std::map<std::string, std::string>;
  RuleContext c;
  c.data = 4;
  const Expanded topo = expand("zero_topo", c);
  EXPECT_EQ(topo.placement, (Levels{{"weights", "pair"}, {"gradients", "node"}, {"optimizer", "global"}}));
  c.data_on_node = 1;
  const Expanded apart = expand("zero_topo", c);
  EXPECT_EQ(apart.placement, (Levels{{"weights", "pair"}, {"gradients", "pair"}, {"optimizer", "global"}}));
  c.data_on_node = 0;
  c.data = 3;
  EXPECT_EQ(expand("zero_topo", c).placement["weights"], "replicated");  // no pairs
  const Expanded pp = expand("zeropp", c);
  EXPECT_EQ(std::tie(pp.placement.at("weights"), pp.placement.at("secondary")), std::tuple("global", "node"));
  const Expanded one_bit = expand("one_bit_adam", c);
  EXPECT_EQ(one_bit.sends, "momentum");
  EXPECT_EQ(one_bit.placement.at("optimizer"), "replicated");
  EXPECT_EQ(one_bit.rules.at(Site::kDpGradient).sum_residual.kind, ResidualKind::kErrorFeedback);
  c.train_iters = 1000;
  EXPECT_EQ(rule_of("one_bit_adam", Site::kDpGradient, c).warmup_steps, 100);
  const SiteRule loco = rule_of("loco", Site::kDpGradient);
  EXPECT_EQ(loco.residual.kind, ResidualKind::kEma);
  EXPECT_EQ(loco.residual.beta, 0.8);
  EXPECT_EQ(loco.residual.reset_every, 1024);
}

}  // namespace
}  // namespace thinwire::presets_test
