// compression.rules: an ordered list, presets of one's own as files, and what is said of what is wrong in either.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/run/config/key_table.h"
#include "engine/run/config/presets.h"
#include "engine/run/config/resolved_json.h"
#include "tests/config/config_test_support.h"

namespace thinwire::rule_list_test {
namespace {

const ConfigOptions kFour{.ranks = 4};

std::string rules(const std::string& list, const std::string& also = "") {
  return with(also + "\"compression\": {\"rules\": [\n" + list + "]}");
}

CompressionConfig load_rules(const std::string& text, const std::vector<std::string>& overrides = {},
                             const ConfigOptions& options = kFour) {
  return load_config_text({{"a.json", text}}, overrides, options).run.compression;
}

void expect_line(const std::string& message, const std::string& line) {
  EXPECT_NE((message + "\n").find("\n" + line + "\n"), std::string::npos) << "wanted:\n"
                                                                          << line << "\ngot:\n"
                                                                          << message;
}

// The object of a site is the short form of a list of one.
TEST(RuleList, OneRuleIsTheObject) {
  const CompressionConfig object =
      load_rules(with("\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 4, \"sum\": \"cast\", "
                      "\"select\": {\"tensor_classes\": [\"mlp\"], \"stages\": [0]}}, \"zero.parameter\": \"cast\"}"));
  EXPECT_EQ(load_rules(rules("{\"site\": \"dp.gradient\", \"codec\": \"block_int\", \"bits\": 4, \"sum\": \"cast\", "
                             "\"select\": {\"tensor_classes\": [\"mlp\"], \"stages\": [0]}},\n"
                             "{\"site\": [\"zero.parameter\"], \"codec\": \"cast\"}"))
                .rules,
            object.rules);
}

TEST(RuleList, TheFirstThatMatchesWins) {
  const CompressionConfig c =
      load_rules(rules("{\"site\": [\"dp.gradient\", \"embedding\"], \"codec\": \"block_int\", \"bits\": 4},\n"
                       "{\"site\": \"all\", \"codec\": \"cast\"}"));
  EXPECT_EQ(c.at(Site::kDpGradient).front().codec.codec, "block_int");
  EXPECT_EQ(c.at(Site::kEmbedding).front().codec.codec, "block_int");
  EXPECT_EQ(c.at(Site::kTpForward).front().codec.codec, "cast");
  EXPECT_EQ(c.rules.size(), compression_sites().size());
}

// In front of a preset's rules; a site's object writes over whatever rule its site has.
TEST(RuleList, OverPresets) {
  const CompressionConfig c = load_rules(
      with("\"compression\": {\"preset\": \"thinwire\", \"rules\": [{\"site\": \"dp.gradient\", \"codec\": \"cast\"}], "
           "\"dp.gradient\": {\"min_bytes\": 64}, \"pp.forward\": {\"block\": 256}}"));
  EXPECT_EQ(c.at(Site::kDpGradient).front().codec.codec, "cast");
  EXPECT_EQ(c.at(Site::kDpGradient).front().min_bytes, 64);
  EXPECT_EQ(c.at(Site::kPpForward).front().codec.integer("block"), 256);
  EXPECT_EQ(c.at(Site::kZeroParameter).front().codec.codec, "ecsq");
}

// What timing decides is asked for by name: a seed and a preset are one run.
TEST(RuleList, NoPresetLetsTimingDecide) {
  for (const std::string& preset : preset_names()) {
    const RunConfig run = load_config_text({{"a.json", with("\"compression\": \"" + preset + "\"")}}, {}, kFour).run;
    EXPECT_FALSE(run.compression.adapt) << preset;
    EXPECT_NE(run.layout.partition, PartitionMethod::kTime) << preset;
  }
  EXPECT_TRUE(load_rules(with("\"compression\": {\"preset\": \"thinwire\", \"adapt\": true}")).adapt);
}

// What an earlier rule leaves nothing to is dropped, and identity at the end says nothing.
TEST(RuleList, OnlyRulesThatSelectSomethingStay) {
  const std::vector<SiteRule> by_class =
      load_rules(rules("{\"site\": \"dp.gradient\", \"select\": {\"tensor_classes\": [\"norm\", \"bias\"]}, \"codec\": "
                       "\"identity\"},\n{\"site\": \"dp.gradient\", \"codec\": \"block_int\"}"))
          .at(Site::kDpGradient);
  ASSERT_EQ(by_class.size(), 2u);
  EXPECT_EQ(by_class[0].codec.codec, "identity");
  EXPECT_EQ(by_class[1].select, SelectSpec());
  const std::vector<SiteRule> three =
      load_rules(rules("{\"site\": \"dp.gradient\", \"select\": {\"stages\": [0]}, \"codec\": \"low_rank\"},\n"
                       "{\"site\": \"dp.gradient\", \"codec\": \"block_int\"}, {\"site\": \"dp.gradient\", \"codec\": "
                       "\"cast\"}, {\"site\": \"embedding\", \"codec\": \"identity\"}",
                       "\"pipe_parallel_size\": 2,\n"))
          .at(Site::kDpGradient);
  ASSERT_EQ(three.size(), 2u);
  EXPECT_EQ(three[0].codec.codec, "low_rank");
  EXPECT_EQ(three[1].codec.codec, "block_int");
  // A checksum is more than nothing.
  const std::vector<SiteRule> proved =
      load_rules(
          rules("{\"site\": \"dp.gradient\", \"select\": {\"tensor_classes\": [\"mlp\"]}, \"codec\": \"cast\"},\n"
                "{\"site\": \"dp.gradient\", \"checksum\": true}"))
          .at(Site::kDpGradient);
  ASSERT_EQ(proved.size(), 2u);
  EXPECT_TRUE(proved[1].codec.checksum);
}

// Several rules of a site are printed as a list that shuts out the preset's.
TEST(RuleList, SeveralSurviveTheRoundTrip) {
  const std::string text = with(
      "\"pipe_parallel_size\": 2, \"compression\": {\"preset\": \"thinwire\", \"rules\": [\n{\"site\": "
      "\"dp.gradient\", "
      "\"select\": {\"tensor_classes\": [\"mlp\"]}, \"codec\": \"block_int\", \"bits\": 4},\n"
      "{\"site\": \"dp.gradient\", \"select\": {\"stages\": [1]}, \"codec\": \"identity\"},\n"
      "{\"site\": \"pp.forward\", \"select\": {\"stages\": [0]}, \"codec\": \"cast\"}], "
      "\"dp.gradient\": {\"min_bytes\": 64}}");
  const ResolvedConfig first = load_config_text({{"a.json", text}}, {}, kFour);
  const std::vector<SiteRule>& gradient = first.run.compression.at(Site::kDpGradient);
  ASSERT_EQ(gradient.size(), 3u);  // the preset's behind the two
  for (const SiteRule& rule : gradient) EXPECT_EQ(rule.min_bytes, 64);
  EXPECT_EQ(first.run.compression.at(Site::kPpForward).size(), 2u);
  const ResolvedConfig second = load_config_text({{"b.json", resolved_json(first).dump()}}, {}, kFour);
  EXPECT_EQ(second.run.compression, first.run.compression);
  const ResolvedConfig third = load_config_text({{"c.json", resolved_json(second).dump()}}, {}, kFour);
  EXPECT_EQ(resolved_json(third), resolved_json(second));
}

TEST(RuleList, WhatWasResolvedSurvivesTheRoundTrip) {
  const std::string text = rules(
      "{\"site\": \"dp.gradient\", \"when\": {\"data\": \"even\", \"two_level\": false}, \"codec\": \"low_rank\", "
      "\"residual\": \"error_feedback\", \"warmup_steps\": 0.5, \"select\": {\"stages\": 0.5}},\n"
      "{\"site\": [\"zero.parameter\", \"pp.forward\"], \"codec\": \"cast\"}",
      "\"pipe_parallel_size\": 2,\n");
  const ResolvedConfig first = load_config_text({{"a.json", text}}, {}, kFour);
  const SiteRule& gradient = first.run.compression.rules.at(Site::kDpGradient).front();
  EXPECT_EQ(gradient.codec.codec, "low_rank");
  EXPECT_EQ(gradient.warmup_steps, 5);  // of 10
  EXPECT_EQ(gradient.select.stages, std::vector<int>{0});
  const ResolvedConfig second = load_config_text({{"b.json", resolved_json(first).dump()}}, {}, kFour);
  EXPECT_EQ(second.run.compression, first.run.compression);
}

TEST(RuleList, ASitesOwnObjectTakesSharesToo) {
  const std::string text = rules("{\"site\": \"dp.gradient\", \"codec\": \"cast\"}", "\"pipe_parallel_size\": 2,\n");
  const ResolvedConfig config = load_config_text(
      {{"a.json", text}}, {"compression.dp.gradient.warmup_steps=0.5", "compression.dp.gradient.select.stages=0.5"},
      kFour);
  const SiteRule& gradient = config.run.compression.rules.at(Site::kDpGradient).front();
  EXPECT_EQ(gradient.warmup_steps, 5);  // of 10
  EXPECT_EQ(gradient.select.stages, std::vector<int>{0});
}

TEST(RuleList, NullTakesBack) {
  const std::string text = rules("{\"site\": \"all\", \"codec\": \"cast\"}");
  EXPECT_TRUE(load_rules(text, {"compression.rules=null"}).rules.empty());
  EXPECT_TRUE(load_rules(text, {"compression=null"}).rules.empty());
  EXPECT_EQ(load_rules(text, {"compression.rules=[{\"site\": \"embedding\", \"codec\": \"cast\"}]"}).rules.size(), 1u);
}

TEST(RuleList, WrongOnesAreRefusedAtTheirPlace) {
  struct Bad {
    std::string list, line;
  };
  const std::string fields = "two_level, weights_persist, pipeline, data, tensor, ranks_per_node, data_per_node";
  for (const Bad& bad : std::vector<Bad>{
           {"{\"site\": \"dp.gradient\",\n \"codec\": \"block_int\", \"bitz\": 4}",
            "a.json:5:24: compression.rules[0].bitz: unknown key (nearest key: compression.rules[0].bits)"},
           {"{\"site\": \"dp.gradient\", \"codec\": \"cast\"},\n{\"site\": \"embedding\", \"codec\": \"block_int\", "
            "\"bits\": 9}",
            "a.json:5:53: compression.rules[1].bits: 9 is out of bounds (at least 2, at most 8)"},
           {"{\"site\": \"dp.gradient\", \"codec\": \"cast\", \"select\":\n{\"stagez\": [0]}}",
            "a.json:5:2: compression.rules[0].select.stagez: unknown key (nearest key: "
            "compression.rules[0].select.stages)"},
           {"{\"codec\": \"cast\"}",
            "a.json:4:1: compression.rules[0]: missing: site, one of the sites of compression, a list of them, or "
            "\"all\""},
           {"{\"site\": \"dp.gradeint\", \"codec\": \"cast\"}",
            "a.json:4:10: compression.rules[0].site: \"dp.gradeint\" is not an allowed value, nearest: dp.gradient "
            "(allowed: tp.forward | tp.backward | pp.forward | pp.backward | dp.gradient | zero.parameter | embedding "
            "| "
            "sequence.forward | outer | sequence.backward | all | sequence)"},
           {"\"cast\"", "a.json:4:1: compression.rules[0]: must be an object { ... }, not a string"},
           {"{\"site\": \"dp.gradient\", \"codec\": \"cast\", \"when\": {\"moon\": 1}}",
            "a.json:4:51: compression.rules[0].when.moon: no such condition (" + fields + ")"},
           {"{\"site\": \"dp.gradient\", \"codec\": \"cast\", \"when\": {\"data\": \"many\"}}",
            "a.json:4:59: compression.rules[0].when.data: \"many\" is not an allowed value (allowed: even | odd)"},
           {"{\"site\": \"tp.forward\", \"codec\": \"block_int\", \"residual\": \"ema\"}",
            "a.json:4:58: compression.rules[0].residual: residual ema cannot be at tp.forward: what a layer sends must "
            "come out the same when it is computed again (recompute), and a residual moves on; say none"}}) {
    SCOPED_TRACE(bad.list);
    expect_line(refusal(rules(bad.list), {}, kFour), bad.line);
  }
}

class OwnPreset : public ::testing::Test {
 protected:
  OwnPreset() : folder_(::testing::TempDir() + "own_preset_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~OwnPreset() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string folder_;
};

// By its path as compression.preset, or as a configuration behind another: the same run.
TEST_F(OwnPreset, ByPathOrAsAConfiguration) {
  const std::string base = write("base.json", with("\"compression\": \"zhybrid\""));
  const std::string mine = write(
      "mine.json",
      "{\"preset\": \"Mine.\", \"embedding_sync\": \"two_step\",\n\"placement\": [{\"when\": "
      "{\"data\": \"odd\"}, \"weights\": \"pair\"}, {\"weights\": \"replicated\", \"gradients\": \"global\", "
      "\"optimizer\": \"global\"}],\n\"rules\": [{\"site\": \"dp.gradient\", \"codec\": \"block_int\", \"bits\": 4}]}");
  const ResolvedConfig c = load_config({base, mine}, {"compression.dp.gradient.block=64"}, kFour);
  EXPECT_EQ(c.run.compression.preset, mine);
  EXPECT_EQ(c.run.compression.rules.size(), 1u);
  EXPECT_EQ(c.run.compression.rules.at(Site::kDpGradient).front().codec.integer("block"), 64);
  EXPECT_EQ(c.run.layout.embedding_sync, EmbeddingSyncKind::kTwoStep);
  EXPECT_EQ(c.run.layout.placement.gradients, Level::kGlobal);
  const ResolvedConfig named = load_config({base}, {"compression=" + mine, "compression.dp.gradient.block=64"}, kFour);
  EXPECT_EQ(named.run.compression, c.run.compression);
  // A later file or override names another one, as ever.
  EXPECT_EQ(load_config({base, mine}, {"compression.preset=zeropp"}, kFour).run.compression.preset, "zeropp");
}

// A shipped file that somebody changed is what it says now, not what was built in.
TEST_F(OwnPreset, AChangedCopyOfAShippedOne) {
  const std::string base = write("base.json", with("\"seed\": 1"));
  std::string text;
  for (const ShippedPreset& p : shipped_presets())
    if (p.name == std::string("bf16_wire")) text = p.text;
  const std::string same = write("bf16_wire.json", text);
  EXPECT_EQ(load_config({base, same}, {}, kFour).run.compression.preset, "bf16_wire");
  text.replace(text.rfind("bf16"), 4, "fp16");
  const std::string other = write("bf16_wire.json", text);
  const CompressionConfig c = load_config({base, other}, {}, kFour).run.compression;
  EXPECT_EQ(c.preset, other);
  EXPECT_EQ(c.at(Site::kDpGradient).front().codec.text("format"), "fp16");
}

TEST_F(OwnPreset, WhatIsWrongInsideIsNamedThere) {
  const std::string bad = write("bad.json",
                                "{\"preset\": \"Bad.\",\n\"rules\": [{\"site\": \"dp.gradient\", \"codec\": "
                                "\"block_int\", \"bitz\": 4}],\n\"seed\": 3}");
  const std::string message = refusal(with("\"compression\": \"" + bad + "\""), {}, kFour);
  expect_line(message, bad + ":2:57: rules[0].bitz: unknown key (nearest key: rules[0].bits)");
  expect_line(message, bad + ":3:1: seed: no key of a preset (preset, rules, placement, embedding_sync, sends)");
  EXPECT_NE(refusal(with("\"compression\": \"nowhere/x.json\"")).find("a.json:3:16: compression: cannot be read: "),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire::rule_list_test
