// Good compression rules: presets and what overrides them, key by key; every expansion survives a round trip through
// config.resolved.json.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "compression/codec_table.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/presets.h"
#include "engine/run/config/resolved_json.h"
#include "engine/run/config/rule_fields.h"
#include "tests/config/config_test_support.h"

namespace thinwire::good_compression_test {
namespace {

ResolvedConfig load(const std::string& extra, const std::vector<std::string>& overrides = {},
                    const ConfigOptions& options = {}) {
  return load_config_text({{"a.json", with(extra)}}, overrides, options);
}

const SiteRule& rule(const ResolvedConfig& c, Site site) {
  static const SiteRule none;
  const std::vector<SiteRule>& found = c.run.compression.at(site);
  EXPECT_EQ(found.size(), 1u) << name_of(site);
  return found.empty() ? none : found.front();
}

std::string note_at(const ResolvedConfig& c, const std::string& key) {
  for (const ConfigNote& n : c.notes)
    if (n.key == key) return n.text;
  return "";
}

TEST(GoodCompression, TheTableKnowsEveryCodecAndPreset) {
  EXPECT_EQ(key_table().find("compression.dp.gradient.codec")->allowed, codec_names());
  EXPECT_EQ(key_table().find("compression.preset")->allowed, preset_names());
}

// Default of a field in the documentation = what a rule has when nothing is said.
TEST(GoodCompression, FieldsReadWhatTheyWrite) {
  for (const KeySpec& field : rule_fields()) {
    SCOPED_TRACE(field.name);
    SiteRule rule;
    const nlohmann::json value = rule_value(rule, field.name);
    set_rule_value(rule, field.name, value);
    EXPECT_EQ(rule_value(rule, field.name), value);
    rule.has_sum_codec = false;
    EXPECT_EQ(rule, SiteRule());
  }
}

TEST(GoodCompression, EveryPresetOnEveryLayoutSurvivesTheRoundTrip) {
  for (const std::string& preset : preset_names()) {
    for (int pp : {1, 2, 4}) {
      for (int dp : {1, 2, 4}) {
        for (int tp : {1, 2, 4}) {
          for (int per_node : {0, 2}) {
            SCOPED_TRACE(preset + " " + std::to_string(pp) + "x" + std::to_string(dp) + "x" + std::to_string(tp));
            const ConfigOptions options{.ranks = pp * dp * tp};
            const std::string text =
                with("\"compression\": \"" + preset + "\", \"pipe_parallel_size\": " + std::to_string(pp) +
                     ", \"model_parallel_size\": " + std::to_string(tp) +
                     ", \"ranks_per_node\": " + std::to_string(per_node * tp));
            const ResolvedConfig first = load_config_text({{"a.json", text}}, {}, options);
            const nlohmann::json json = resolved_json(first);
            const ResolvedConfig second = load_config_text({{"b.json", json.dump(1)}}, {}, options);
            EXPECT_EQ(first.values, second.values);
            EXPECT_EQ(first.run.compression, second.run.compression);
            EXPECT_EQ(first.run.compression.preset, preset);
            // What was resolved is the expansion, and config.resolved.json holds all of it.
            for (const auto& [site, rules] : first.run.compression.rules) {
              ASSERT_EQ(rules.size(), 1u);
              const SiteRule& r = rules.front();
              EXPECT_EQ(canonical(r), r) << name_of(site);
              for (const KeySpec& field : rule_fields()) {
                if (!field_matters(r, field.name)) continue;
                const nlohmann::json* node = &json["compression"][std::string(name_of(site))];
                std::string leaf = field.name;
                if (const size_t dot = leaf.find('.'); dot != std::string::npos)
                  node = &(*node)[leaf.substr(0, dot)], leaf = leaf.substr(dot + 1);
                EXPECT_EQ(node->value(leaf, nlohmann::json()), rule_value(r, field.name)) << field.name;
              }
            }
          }
        }
      }
    }
  }
}

TEST(GoodCompression, AllThreeWaysToNameAPreset) {
  const CompressionConfig word = load("\"compression\": \"zhybrid\"").run.compression;
  EXPECT_EQ(load("\"compression\": {\"preset\": \"ZHybrid\"}").run.compression, word);
  EXPECT_EQ(load("\"seed\": 1", {"compression=zhybrid"}).run.compression, word);
  EXPECT_EQ(load("\"compression\": \"loco\"", {"compression.preset=zhybrid"}).run.compression, word);
  EXPECT_TRUE(load("\"compression\": \"loco\"", {"compression=null"}).run.compression.rules.empty());
}

TEST(GoodCompression, ExplicitRulesWinKeyByKey) {
  const ResolvedConfig c = load(
      "\"compression\": {\"preset\": \"thinwire\", \"dp.gradient\": {\"block\": 128, \"min_bytes\": 100}, "
      "\"tp.forward\": \"cast\"}");
  const SiteRule& gradient = rule(c, Site::kDpGradient);
  EXPECT_EQ(gradient.codec.integer("block"), 128);
  EXPECT_EQ(gradient.codec.real("rate"), 4.0);  // the preset's, at first
  EXPECT_EQ(gradient.residual.kind, ResidualKind::kErrorFeedback);
  EXPECT_EQ(gradient.sum_codec.integer("block"), 64);
  EXPECT_EQ(gradient.min_bytes, 100);
  EXPECT_EQ(rule(c, Site::kTpForward).codec.text("format"), "bf16");
  EXPECT_EQ(rule(c, Site::kTpBackward).codec.integer("bits"), 8);
}

// Another codec takes nothing over from the preset's but what belongs to the site.
// Megatron's switch is a rule where nothing else says how gradients travel, and says so where something does.
TEST(GoodCompression, GradientsReducedInBf16) {
  const std::string on = "\"grad_reduce_in_bf16\": true";
  const ResolvedConfig alone = load(on);
  EXPECT_EQ(rule(alone, Site::kDpGradient),
            rule(load("\"compression\": {\"dp.gradient\": \"cast\"}"), Site::kDpGradient));
  EXPECT_EQ(rule(alone, Site::kDpGradient).codec.text("format"), "bf16");
  EXPECT_EQ(alone.run.compression.rules.size(), 1u);
  EXPECT_EQ(note_at(alone, "grad_reduce_in_bf16"), "has no effect: there is one data-parallel rank");
  EXPECT_EQ(note_at(load(on, {}, {.ranks = 2}), "grad_reduce_in_bf16"), "");
  EXPECT_EQ(rule(load(on + ", \"compression\": {\"dp.gradient\": {\"min_bytes\": 64}}"), Site::kDpGradient).codec,
            codec_spec("cast"));
  EXPECT_TRUE(load("\"grad_reduce_in_bf16\": false").run.compression.rules.empty());
  for (const char* said : {"\"compression\": \"thinwire\"", "\"compression\": {\"dp.gradient\": \"identity\"}",
                           "\"compression\": {\"rules\": [{\"site\": \"all\", \"codec\": \"mpc\"}]}"}) {
    const ResolvedConfig c = load(on + ", " + said);
    EXPECT_NE(rule(c, Site::kDpGradient).codec.codec, "cast") << said;
    EXPECT_NE(note_at(c, "grad_reduce_in_bf16").find("has no effect"), std::string::npos) << said;
  }
}

// A ramp's places become steps, and a resolved configuration says them again. A plain value takes a ramp's place.
TEST(GoodCompression, ParametersMayBeRamps) {
  const std::string written =
      "\"train_iters\": 300, \"compression\": {\"dp.gradient\": {\"codec\": \"ecsq\", \"rate\": [[0, 4], [0.1, 3], "
      "[200, 2.5]], \"residual\": \"error_feedback\", \"sum\": {\"codec\": \"block_int\", \"bits\": [[0.0, 8], [0.5, "
      "4]]}}}";
  const auto load_ramp = [&](const std::vector<std::string>& overrides = {}) {
    return load_config_text({{"a.json", without("train_iters", written)}}, overrides, {.ranks = 2});
  };
  const ResolvedConfig c = load_ramp();
  const SiteRule& r = rule(c, Site::kDpGradient);
  EXPECT_EQ(r.codec.real("rate"), 4.0);
  EXPECT_EQ(r.codec.ramps.at("rate"), (Ramp{{0, 4.0}, {30, 3.0}, {200, 2.5}}));
  EXPECT_EQ(r.sum_codec.ramps.at("bits"), (Ramp{{0, int64_t{8}}, {150, int64_t{4}}}));
  EXPECT_EQ(ramp_places(r.codec), (std::set<int64_t>{30, 200}));
  for (const auto& [step, rate] : std::map<int64_t, double>{{29, 4.0}, {30, 3.0}, {199, 3.0}, {200, 2.5}, {999, 2.5}})
    EXPECT_EQ(codec_at(r.codec, step).real("rate"), rate) << step;
  EXPECT_TRUE(codec_at(r.codec, 30).ramps.empty());
  const nlohmann::json resolved = resolved_json(c);
  EXPECT_EQ(resolved["compression"]["dp.gradient"]["rate"], nlohmann::json::parse("[[0, 4.0], [30, 3.0], [200, 2.5]]"));
  const ResolvedConfig again = load_config_text({{"resolved.json", resolved.dump()}}, {}, {.ranks = 2});
  EXPECT_EQ(again.run.compression, c.run.compression);
  EXPECT_TRUE(rule(load_ramp({"compression.dp.gradient.rate=3"}), Site::kDpGradient).codec.ramps.empty());
  EXPECT_TRUE(rule(load_ramp({"compression.dp.gradient.codec=cast"}), Site::kDpGradient).codec.ramps.empty());
  // In a list, and over a preset's rule.
  const ResolvedConfig listed = load_config_text(
      {{"b.json", with("\"compression\": {\"rules\": [{\"site\": \"dp.gradient\", \"codec\": \"top_k\", \"density\": "
                       "[[0, 0.5], [10, 0.1]], \"residual\": \"error_feedback\"}], \"preset\": \"thinwire\"}")}},
      {"compression.zero.parameter.rate=[[0, 3], [7, 2.25]]"}, {.ranks = 2});
  EXPECT_EQ(rule(listed, Site::kDpGradient).codec.ramps.at("density"), (Ramp{{0, 0.5}, {10, 0.1}}));
  EXPECT_EQ(rule(listed, Site::kZeroParameter).codec.ramps.at("rate"), (Ramp{{0, 3.0}, {7, 2.25}}));
  // A preset's `light`, which knows rates up to 4, gives way to a ramp that goes beyond, as to a value.
  EXPECT_TRUE(rule(listed, Site::kZeroParameter).codec.flag("light"));
  const ResolvedConfig beyond =
      load("\"compression\": \"thinwire\"", {"compression.zero.parameter.rate=[[0, 2.25], [7, 4.5]]"}, {.ranks = 2});
  EXPECT_FALSE(rule(beyond, Site::kZeroParameter).codec.flag("light"));
  EXPECT_EQ(rule(beyond, Site::kZeroParameter).codec.ramps.at("rate"), (Ramp{{0, 2.25}, {7, 4.5}}));
}

TEST(GoodCompression, AnotherCodecStartsAnew) {
  const ResolvedConfig c =
      load("\"compression\": \"optimus_cc\", \"pipe_parallel_size\": 2",
           {"compression.pp.backward.codec=block_int", "compression.dp.gradient=identity"}, {.ranks = 4});
  const SiteRule& backward = rule(c, Site::kPpBackward);
  EXPECT_EQ(backward.codec, codec_spec("block_int"));
  EXPECT_EQ(backward.residual, ResidualSpec());
  EXPECT_EQ(backward.select.micro_batches, MicroBatches::kEpilogue);
  EXPECT_EQ(rule(c, Site::kDpGradient).codec.codec, "identity");
  EXPECT_EQ(rule(c, Site::kDpGradient).residual.kind, ResidualKind::kNone);
}

TEST(GoodCompression, SecondCoding) {
  const SiteRule like =
      rule(load("\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 4, \"residual\": "
                "\"error_feedback\", \"sum\": {\"bits\": 8}}}"),
           Site::kDpGradient);
  EXPECT_TRUE(like.has_sum_codec);
  EXPECT_EQ(like.sum_codec.codec, "block_int");
  EXPECT_EQ(like.sum_codec.integer("bits"), 8);
  EXPECT_EQ(like.sum_residual.kind, ResidualKind::kNone);
  // What `sum` leaves out is the rule's, also where the rule comes from the command line over a preset.
  const SiteRule rest =
      rule(load("\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 4, \"block\": 64, \"sum\": "
                "{\"residual\": \"error_feedback\"}}}",
                {"compression.dp.gradient.bits=2"}),
           Site::kDpGradient);
  EXPECT_EQ(rest.sum_codec.integer("bits"), 2);
  EXPECT_EQ(rest.sum_codec.integer("block"), 64);
  const SiteRule other =
      rule(load("\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 4, \"sum\": "
                "\"cast\"}}"),
           Site::kDpGradient);
  EXPECT_EQ(other.sum_codec, codec_spec("cast"));
  const SiteRule none = rule(load("\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\"}}"), Site::kDpGradient);
  EXPECT_FALSE(none.has_sum_codec);
}

TEST(GoodCompression, NullTakesBack) {
  const std::string both =
      "\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 4}, \"embedding\": \"cast\"}";
  const ResolvedConfig c = load(both, {"compression.dp.gradient=null"});
  EXPECT_TRUE(c.run.compression.at(Site::kDpGradient).empty());
  EXPECT_EQ(rule(c, Site::kEmbedding).codec.codec, "cast");
  EXPECT_EQ(rule(load(both, {"compression.dp.gradient.bits=null"}), Site::kDpGradient).codec.integer("bits"), 8);
}

TEST(GoodCompression, SelectionsAreNormalised) {
  const ResolvedConfig c = load(
      "\"compression\": {\"dp.gradient\": {\"codec\": \"cast\", \"select\": {\"stages\": [1, 0, 1], \"layers\": [3.0, "
      "2], "
      "\"tensor_classes\": [\"mlp\", \"attention\", \"mlp\"]}}}, \"pipe_parallel_size\": 2",
      {}, {.ranks = 2});
  const SelectSpec& select = rule(c, Site::kDpGradient).select;
  EXPECT_EQ(select.stages, (std::vector<int>{0, 1}));
  EXPECT_EQ(select.layers, (std::vector<int>{2, 3}));
  EXPECT_EQ(select.tensor_classes, (std::vector<TensorClass>{TensorClass::kAttention, TensorClass::kMlp}));
  EXPECT_EQ(resolved_json(c)["compression"]["dp.gradient"]["select"]["stages"], nlohmann::json({0, 1}));
}

TEST(GoodCompression, PlacementOfPresets) {
  const auto placement = [](const std::string& extra) { return load(extra, {}, {.ranks = 4}).run.layout.placement; };
  const PlacementLevels topo = placement("\"compression\": \"zero_topo\"");
  EXPECT_EQ(std::tie(topo.weights, topo.gradients, topo.optimizer),
            std::tuple(Level::kPair, Level::kNode, Level::kGlobal));
  const PlacementLevels mine =
      placement("\"compression\": \"zero_topo\", \"placement\": {\"weights\": \"replicated\"}");
  EXPECT_EQ(std::tie(mine.weights, mine.gradients), std::tuple(Level::kReplicated, Level::kNode));
  // Nodes as found, unless the key says otherwise: no pair fits into one rank.
  const auto found = [](const char* keys, int64_t each) {
    ConfigOptions options;
    options.ranks = 4, options.found_ranks_per_node = each;
    return load(keys, {}, options).run;
  };
  EXPECT_EQ(found("\"compression\": \"zero_topo\"", 1).layout.placement.gradients, Level::kPair);
  EXPECT_EQ(found("\"compression\": \"zero_topo\", \"ranks_per_node\": 2", 1).layout.placement.gradients, Level::kNode);
  EXPECT_EQ(found("\"compression\": \"zero_topo\"", 2).layout.ranks_per_node, 0) << "found is not said";
  const auto algorithm = [&](const char* keys, int64_t each) {
    return found(keys, each).compression.at(Site::kDpGradient).front().algorithm;
  };
  EXPECT_EQ(algorithm("\"compression\": \"thinwire\"", 2), RuleAlgorithm::kTwoLevel);
  EXPECT_EQ(algorithm("\"compression\": \"thinwire\"", 4), RuleAlgorithm::kDirect);
  const PlacementLevels stage = placement("\"compression\": \"zeropp\", \"zero_optimization\": {\"stage\": 1}");
  EXPECT_EQ(std::tie(stage.weights, stage.secondary), std::tuple(Level::kGlobal, Level::kNode));
  EXPECT_EQ(load("\"compression\": \"optimus_cc_cb\"").run.layout.embedding_sync, EmbeddingSyncKind::kTwoStep);
  EXPECT_EQ(load("\"compression\": \"optimus_cc_cb\", \"embedding_sync\": \"fused\"").run.layout.embedding_sync,
            EmbeddingSyncKind::kFused);
  EXPECT_TRUE(load("\"compression\": \"one_bit_adam\"").run.compression.sends_momentum);
  EXPECT_FALSE(
      load("\"compression\": {\"preset\": \"one_bit_adam\", \"sends\": \"gradient\"}").run.compression.sends_momentum);
}

// A residual of gradients is none of momenta: where momenta are sent, no rule that keeps one codes before they are.
TEST(GoodCompression, RulesOfMomentaBeginTogether) {
  const auto warm_ups = [](const std::string& sends) {
    const ResolvedConfig c =
        load("\"pipe_parallel_size\": 2, \"compression\": {\"sends\": \"" + sends +
                 "\", \"embedding\": {\"codec\": \"block_int\", \"residual\": \"error_feedback\"}, \"pp.forward\": "
                 "{\"codec\": \"cast\"}, \"rules\": ["
                 "{\"site\": \"dp.gradient\", \"codec\": \"one_bit\", \"residual\": \"error_feedback\", "
                 "\"select\": {\"layers\": [0]}}, "
                 "{\"site\": \"dp.gradient\", \"codec\": \"cast\", \"select\": {\"layers\": [1]}}, "
                 "{\"site\": \"dp.gradient\", \"codec\": \"cast\", \"warmup_steps\": 7}]}",
             {}, {.ranks = 2});
    std::vector<int64_t> steps;
    for (const Site site : {Site::kDpGradient, Site::kEmbedding, Site::kPpForward})
      for (const SiteRule& each : c.run.compression.at(site)) steps.push_back(each.warmup_steps);
    return steps;
  };
  EXPECT_EQ(warm_ups("gradient"), (std::vector<int64_t>{0, 0, 7, 0, 0}));
  EXPECT_EQ(warm_ups("momentum"), (std::vector<int64_t>{7, 0, 7, 7, 0}));
}

TEST(GoodCompression, DifferencesNeedACopy) {
  const auto weights = [](const std::string& extra) {
    return rule(load("\"compression\": \"thinwire\", " + extra, {}, {.ranks = 4}), Site::kZeroParameter);
  };
  EXPECT_EQ(weights("\"zero_optimization\": {\"stage\": 1}").residual.kind, ResidualKind::kValueDifference);
  EXPECT_EQ(weights("\"zero_optimization\": {\"stage\": 3}").residual.kind, ResidualKind::kNone);
  EXPECT_EQ(weights("\"zero_optimization\": {\"stage\": 3}").codec.integer("bits"), 8);
  EXPECT_EQ(
      weights("\"zero_optimization\": {\"stage\": 3}, \"placement\": {\"secondary\": \"node\"}").codec.integer("bits"),
      8);
}

TEST(GoodCompression, TwoLevelsWhereNodesAreKnown) {
  const auto algorithm = [](const char* preset, int per_node) {
    return rule(
               load("\"compression\": \"" + std::string(preset) + "\", \"ranks_per_node\": " + std::to_string(per_node),
                    {}, {.ranks = 4}),
               Site::kDpGradient)
        .algorithm;
  };
  for (const char* preset : {"zeropp", "loco", "sdp4bit", "thinwire", "bf16_wire"}) {
    EXPECT_EQ(algorithm(preset, 2), RuleAlgorithm::kTwoLevel) << preset;
    for (int per_node : {0, 1, 4}) EXPECT_EQ(algorithm(preset, per_node), RuleAlgorithm::kDirect) << preset;
  }
}

TEST(GoodCompression, Notes) {
  const auto note = [](const std::string& extra, const std::string& key,
                       const std::vector<std::string>& overrides = {}) { return note_at(load(extra, overrides), key); };
  EXPECT_EQ(note("\"compression\": {\"dp.gradient\": {\"codec\": \"one_bit\"}}", "compression.dp.gradient.codec"),
            "has no effect: there is one data-parallel rank");
  EXPECT_EQ(note_at(load("\"compression\": {\"dp.gradient\": {\"codec\": \"one_bit\"}}", {}, {.ranks = 2}),
                    "compression.dp.gradient.codec"),
            "one_bit without residual error_feedback does not converge");
  EXPECT_EQ(note_at(load("\"compression\": {\"dp.gradient\": {\"codec\": \"low_rank\"}}", {}, {.ranks = 2}),
                    "compression.dp.gradient.codec"),
            "low_rank without residual error_feedback loses for good what it does not send");
  // With a residual for contributions, and none for the sums that go back.
  const std::string top_k = "{\"codec\": \"top_k\", \"residual\": \"error_feedback\"";
  for (const auto& [rest, noted] :
       std::map<std::string, bool>{{"}}", true},
                                   {", \"sum\": \"identity\"}}", false},
                                   {", \"sum\": {\"residual\": \"error_feedback\"}}}", false},
                                   {"}}, \"zero_optimization\": {\"stage\": 1}", false}})
    EXPECT_EQ(note_at(load("\"compression\": {\"dp.gradient\": " + top_k + rest, {}, {.ranks = 2}),
                      "compression.dp.gradient.codec")
                      .find("top_k codes sums, too") == 0,
              noted)
        << rest;
  EXPECT_EQ(
      note("\"compression\": {\"dp.gradient\": {\"codec\": \"cast\", \"bits\": 4}}", "compression.dp.gradient.bits"),
      "has no effect beside codec cast");
  EXPECT_EQ(
      note("\"compression\": {\"dp.gradient\": {\"codec\": \"cast\", \"residual\": \"error_feedback\", \"beta\": 0.5}}",
           "compression.dp.gradient.beta"),
      "has no effect beside residual error_feedback");
  // Of a list of rules: one behind another that takes all, and one for sites that the layout has not.
  const std::string list = "\"compression\": {\"rules\": [{\"site\": ";
  const std::string after = ", \"codec\": \"cast\"}, {\"site\": \"dp.gradient\", \"codec\": \"mpc\"}]}";
  EXPECT_EQ(note(list + "\"all\"" + after, "compression.rules[1]"),
            "has no effect: rules before it select all that it does; put it in front of them");
  EXPECT_EQ(note(list + "\"embedding\"" + after, "compression.rules[1]"), "");
  EXPECT_EQ(note_at(load(list + "\"all\"" + after, {}, {.ranks = 2}), "compression.rules[0].codec"), "");
  EXPECT_EQ(note(list + "[\"pp.forward\", \"pp.backward\"]" + after, "compression.rules[0].codec"),
            "has no effect: there is one pipeline stage");
  EXPECT_EQ(note("\"compression\": {\"pp.forward\": {\"codec\": \"cast\"}}", "compression.pp.forward.codec"),
            "has no effect: there is one pipeline stage");
  EXPECT_EQ(note("\"compression\": {\"sensitivities\": [1, 0, 2, 1]}", "compression.sensitivities"),
            "has no effect without rules of dp.gradient for critical micro_batches");
  EXPECT_EQ(note("\"compression\": {\"adapt_interval\": 5}", "compression.adapt_interval"),
            "has no effect without compression.adapt");
  EXPECT_EQ(note("\"compression\": {\"adapt_interval\": 5, \"adapt\": true}", "compression.adapt_interval"), "");
  const std::string adapts = "\"compression\": {\"adapt\": true", coded = ", \"dp.gradient\": \"cast\"";
  for (const auto& [rules, ranks, undecided] :
       {std::tuple(std::string(), 2, true), std::tuple(coded, 1, true), std::tuple(coded, 2, false)})
    EXPECT_EQ(note_at(load(adapts + rules + "}", {}, {.ranks = ranks}), "compression.adapt"),
              undecided ? "has nothing to decide: nothing that this layout sends is coded" : "")
        << rules << " on " << ranks;
  EXPECT_EQ(note("\"compression\": {\"outer\": \"cast\"}", "compression.outer.codec"),
            "has no effect: nothing is sent there in this version");
  EXPECT_EQ(note("\"compression\": {\"dp.gradient\": {\"codec\": \"cast\", \"warmup_steps\": 10}}",
                 "compression.dp.gradient.warmup_steps"),
            "the rule never starts: train_iters is 10");
  const std::string zfp = "\"compression\": {\"dp.gradient\": {\"codec\": \"zfp\", \"rate\": ";
  for (const auto& [rate, noted] : std::map<std::string, bool>{
           {"2.25}}", true}, {"[[0, 8], [5, 2.6]]}}", true}, {"2.75}}", false}, {"[[0, 8], [5, 4]]}}", false}})
    EXPECT_EQ(note_at(load(zfp + rate, {}, {.ranks = 2}), "compression.dp.gradient.rate").find("decode to zero") !=
                  std::string::npos,
              noted)
        << rate;
  for (const char* site : {"zero.parameter", "tp.forward", "pp.backward", "embedding"})
    EXPECT_NE(note(std::string("\"compression\": {\"") + site + "\": {\"codec\": \"zfp\", \"rate\": 2.25}}",
                   std::string("compression.") + site + ".rate")
                  .find("decode to zero"),
              std::string::npos)
        << site;
}

TEST(GoodCompression, ShippedOverlays) {
  for (const std::string& preset : preset_names()) {
    if (preset == "none") continue;
    SCOPED_TRACE(preset);
    const ResolvedConfig c =
        load_config({"configs/gpt2_tiny.json", "configs/compression/" + preset + ".json"}, {}, {.ranks = 4});
    EXPECT_EQ(c.run.compression.preset, preset);
    EXPECT_EQ(c.run.run_dir, "runs/gpt2_tiny");  // the overlay names nothing but the preset
  }
}

TEST(GoodCompression, OptimusModels) {
  struct Model {
    const char* name;
    int64_t layers, hidden;
    double parameters;
  };
  // 52 layers of 1920 are 2.4 billion: the name is that of a model with 54.
  for (const Model& m : {Model{"optimus_cc_2p5b", 52, 1920, 2.4e9}, {"optimus_cc_8p3b", 72, 3072, 8.3e9}}) {
    SCOPED_TRACE(m.name);
    const RunConfig c = load_config({std::string("configs/") + m.name + ".json"}, {}, {.dry_run = true}).run;
    EXPECT_EQ(std::tie(c.model.layers, c.model.hidden, c.model.heads, c.model.seq_length),
              std::tuple(m.layers, m.hidden, int64_t{24}, int64_t{1024}));
    EXPECT_EQ(std::tie(c.layout.tensor, c.layout.pipeline, c.data.micro_batch, c.data.global_batch),
              std::tuple(int64_t{8}, int64_t{4}, int64_t{8}, int64_t{512}));
    EXPECT_EQ(c.train_iters, 230000);
    EXPECT_EQ(c.model.padded_vocab, 51200);
    const double blocks = 12.0 * static_cast<double>(m.layers * m.hidden * m.hidden);
    EXPECT_NEAR(blocks + 51200.0 * static_cast<double>(m.hidden), m.parameters, 0.01 * m.parameters);
    EXPECT_EQ(c.compression.preset, "optimus_cc");
    EXPECT_EQ(c.compression.rules.at(Site::kDpGradient).front().select.stages, (std::vector<int>{0, 1, 2}));
  }
}

}  // namespace
}  // namespace thinwire::good_compression_test
