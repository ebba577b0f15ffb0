// Presets: each expands for every layout to codecs that exist, and says of its system what the reference pages say.
#include "compression/presets.h"

#include <gtest/gtest.h>

#include <set>

#include "compression/coder.h"
#include "compression/make_codec.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

std::vector<PresetContext> contexts() {
  std::vector<PresetContext> all;
  for (int pipeline : {1, 2, 4})
    for (int data : {1, 2, 4})
      for (int tensor : {1, 2, 4})
        for (int per_node : {0, 1, 2, 64})
          for (bool persist : {true, false}) {
            PresetContext c;
            c.pipeline = pipeline, c.data = data, c.tensor = tensor, c.ranks_per_node = per_node * tensor;
            c.layers = 4, c.train_iters = per_node == 64 ? 0 : 300, c.weights_persist = persist;
            c.two_level = per_node > 1 && per_node < data;
            all.push_back(c);
          }
  return all;
}

SiteRule rule_of(const std::string& preset, Site site, const PresetContext& context = {}) {
  const PresetRules p = expand_preset(preset, context);
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

TEST(Presets, NamesAreUniqueAndExplained) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_TRUE(preset.doc.size() > 10 && preset.doc.back() == '.') << preset.name;
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
                           "thinwire"})
    EXPECT_EQ(names.count(name), 1u) << name;
}

TEST(Presets, UnknownNamesTheNearest) {
  try {
    expand_preset("optimuscc", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    EXPECT_NE(std::string(e.what()).find("nearest: optimus_cc;"), std::string::npos) << e.what();
  }
}

// Every coding that a preset asks for can be made, with the residual around it.
TEST(Presets, ExpandToCodecsThatExist) {
  for (const PresetContext& context : contexts()) {
    for (const Preset& preset : presets()) {
      SCOPED_TRACE(preset.name);
      const PresetRules p = expand_preset(preset.name, context);
      for (const auto& [site, rule] : p.rules) {
        SCOPED_TRACE(name_of(site));
        EXPECT_NE(site, Site::kControl);
        const MadeCodec first = make_codec(rule.codec);
        if (first.codec != nullptr) Coder(first.codec, rule.codec, rule.residual);
        if (rule.has_sum_codec) Coder(make_codec(rule.sum_codec).codec, rule.sum_codec, rule.sum_residual);
        for (int stage : rule.select.stages) EXPECT_TRUE(stage >= 0 && stage < context.pipeline);
        if (rule.algorithm == RuleAlgorithm::kTwoLevel) {
          EXPECT_TRUE(context.two_level);
        }
        if (rule.residual.kind == ResidualKind::kValueDifference) {
          EXPECT_TRUE(site == Site::kZeroParameter && context.weights_persist);
        }
      }
      EXPECT_EQ(p.weights.has_value(), p.optimizer.has_value());
      EXPECT_EQ(p.weights.has_value(), p.gradients.has_value());
    }
  }
}

TEST(Presets, OptimusCcLadder) {
  for (int pipeline : {1, 2, 3, 4, 5, 8, 16}) {
    PresetContext c;
    c.pipeline = pipeline;
    const std::vector<int> stages = rule_of("optimus_cc", Site::kDpGradient, c).select.stages;
    EXPECT_EQ(static_cast<int>(stages.size()), std::max(1, static_cast<int>(0.75 * pipeline)));  // the early ones
    for (size_t i = 0; i < stages.size(); ++i) EXPECT_EQ(stages[i], static_cast<int>(i));
  }
  const SiteRule backward = rule_of("optimus_cc_cb", Site::kPpBackward);
  EXPECT_EQ(backward.codec.codec, "low_rank");
  EXPECT_EQ(backward.codec.rank, 16);
  EXPECT_EQ(backward.codec.sides, 2);
  EXPECT_EQ(backward.residual.kind, ResidualKind::kLazy);
  EXPECT_EQ(backward.select.micro_batches, MicroBatches::kEpilogue);
  EXPECT_EQ(rule_of("optimus_cc", Site::kDpGradient).codec.rank, 128);
  SiteRule without = backward;
  without.residual = {};
  EXPECT_EQ(rule_of("optimus_cc_cb_no_lep", Site::kPpBackward), without);

  const auto sites = [](const char* name) { return expand_preset(name, {}).rules.size(); };
  EXPECT_EQ(sites("optimus_cc_cb"), 1u);
  EXPECT_EQ(sites("optimus_cc_cb_fe"), 1u);
  EXPECT_EQ(sites("optimus_cc_cb_fe_sc"), 2u);
  EXPECT_EQ(sites("optimus_cc_emb"), 3u);
  EXPECT_EQ(*expand_preset("optimus_cc_cb", {}).embedding_sync, "two_step");
  EXPECT_EQ(*expand_preset("optimus_cc_cb_fe", {}).embedding_sync, "fused");
  EXPECT_EQ(expand_preset("optimus_cc", {}).rules, expand_preset("optimus_cc_cb_fe_sc", {}).rules);
  // Activations are never compressed, and the word embedding's gradient is the fused synchronisation's.
  EXPECT_EQ(expand_preset("optimus_cc_emb", {}).rules.count(Site::kPpForward), 0u);
  for (TensorClass c : rule_of("optimus_cc", Site::kDpGradient).select.tensor_classes)
    EXPECT_NE(c, TensorClass::kEmbedding);
}

TEST(Presets, HybridsAreMildWhereTheyShould) {
  for (Site site : {Site::kTpForward, Site::kTpBackward, Site::kPpForward, Site::kPpBackward, Site::kZeroParameter}) {
    EXPECT_EQ(rule_of("zhybrid", site).codec.rate, 16.0);
    EXPECT_EQ(rule_of("mzhybrid", site).codec.codec, "mpc");
    EXPECT_EQ(rule_of("naive_mpc", site).codec.codec, "mpc");
  }
  EXPECT_EQ(rule_of("zhybrid", Site::kDpGradient).codec.rate, 8.0);
  EXPECT_EQ(rule_of("mzhybrid", Site::kDpGradient).codec.codec, "zfp");
  EXPECT_EQ(rule_of("naive_mpc", Site::kDpGradient).codec.codec, "mpc");
  EXPECT_EQ(rule_of("naive_zfp", Site::kDpGradient).algorithm, RuleAlgorithm::kRing);
}

TEST(Presets, BitsPerValue) {
  PresetContext two_level;
  two_level.data = 4, two_level.ranks_per_node = 2, two_level.two_level = true;
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
  PresetContext c;
  c.data = 4;
  const PresetRules topo = expand_preset("zero_topo", c);
  EXPECT_EQ(std::tie(*topo.weights, *topo.gradients, *topo.optimizer), std::tuple("pair", "node", "global"));
  c.data_per_node = 1;
  const PresetRules apart = expand_preset("zero_topo", c);
  EXPECT_EQ(std::tie(*apart.weights, *apart.gradients, *apart.optimizer), std::tuple("pair", "pair", "global"));
  c.data_per_node = 0;
  c.data = 3;
  EXPECT_EQ(*expand_preset("zero_topo", c).weights, "replicated");  // no pairs
  const PresetRules pp = expand_preset("zeropp", c);
  EXPECT_EQ(std::tie(*pp.weights, *pp.secondary), std::tuple("global", "node"));
  const PresetRules one_bit = expand_preset("one_bit_adam", c);
  EXPECT_EQ(*one_bit.sends, "momentum");
  EXPECT_EQ(*one_bit.optimizer, "replicated");
  EXPECT_EQ(one_bit.rules.at(Site::kDpGradient).sum_residual.kind, ResidualKind::kErrorFeedback);
  c.train_iters = 1000;
  EXPECT_EQ(rule_of("one_bit_adam", Site::kDpGradient, c).warmup_steps, 100);
  const SiteRule loco = rule_of("loco", Site::kDpGradient);
  EXPECT_EQ(loco.residual.kind, ResidualKind::kEma);
  EXPECT_EQ(loco.residual.beta, 0.8);
  EXPECT_EQ(loco.residual.reset_every, 1024);
}

}  // namespace
}  // namespace thinwire
