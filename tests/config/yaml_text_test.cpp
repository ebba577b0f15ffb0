// YAML read as PyYAML reads it, with places; what is refused; and a NeoX file in block and flow style.
#include "engine/run/config/yaml_text.h"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/run/config/load_config.h"

namespace thinwire::yaml_text_test {
namespace {

TEST(YamlText, AsPyYaml) {
  std::ifstream file("tests/golden/yaml_cases.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 300u);
  for (const auto& c : cases) {
    const std::string text = c.at("text");
    const JsonText parsed = parse_yaml_text(text);
    ASSERT_TRUE(parsed.problems.empty()) << text << ": " << parsed.problems.front().message;
    EXPECT_EQ(to_json(parsed.root), c.at("value")) << text;
  }
}

TEST(YamlText, Refused) {
  const struct {
    std::string text;
    int line, column;
    std::string says;
  } cases[] = {
      {"a: 1\nb: 2\na: 3\n", 3, 1, "given twice"},
      {"a:\n  b: {c: 1, c: 2}\n", 2, 13, "given twice"},
      {"a: [1, 2\nb: 3\n", 2, 2, ""},
      {"a: b: c\n", 1, 5, "not allowed"},
      {"1: a\n", 1, 1, "a key is a word, not an integer"},
      {"a: *x\n", 1, 4, "nothing before this"},
      {"a: !!str 5\n", 1, 4, "the tag"},
      {"a: &x {b: 1}\nc: {<<: *x}\n", 2, 5, "merging"},
      {"a: 1\n---\nb: 2\n", 2, 1, "second document"},
      {"a: .inf\n", 1, 4, "infinities"},
      {"\ta: 1\n", 1, 1, ""},
      {"a: \"open\n", 2, 1, ""},
      {"a: 1\nb: caf\xe9\n", 2, 7, "UTF-8"},
      {std::string(40, '['), 1, 33, "nested deeper"},
  };
  for (const auto& c : cases) {
    const JsonText parsed = parse_yaml_text(c.text);
    ASSERT_EQ(parsed.problems.size(), 1u) << c.text;
    const JsonProblem& p = parsed.problems.front();
    EXPECT_NE(p.message.find(c.says), std::string::npos) << c.text << ": " << p.message;
    EXPECT_EQ(p.at.line, c.line) << c.text << ": " << p.message;
    EXPECT_EQ(p.at.column, c.column) << c.text << ": " << p.message;
  }
  // Beyond 64 bits an integer of base 60 is text, as one of base 10 is.
  for (const char* text : {"a: 99999999999999999999:00\n", "a: -99999999999999999999:00\n"})
    EXPECT_TRUE(to_json(parse_yaml_text(text).root).at("a").is_string()) << text;
  // Aliases of aliases: 2^40 values, were they copied.
  std::string bomb = "a0: &a0 [1, 1]\n";
  for (int i = 1; i < 40; ++i) {
    const std::string before = std::to_string(i - 1), here = std::to_string(i);
    bomb += "a" + here + ": &a" + here + " [*a" + before + ", *a" + before + "]\n";
  }
  const JsonText parsed = parse_yaml_text(bomb);
  ASSERT_FALSE(parsed.syntax_ok());
  // Whatever bytes come: a problem or a tree, never a crash.
  for (int seed = 0; seed < 2000; ++seed) {
    std::string noise;
    unsigned state = static_cast<unsigned>(seed) * 2654435761u + 1;
    for (int i = 0; i < 40; ++i)
      noise += "{}[]:,-&*#\"'|> \n\tab1.%@!?~\xc3"[(state = state * 1664525u + 1013904223u) >> 27];
    parse_yaml_text(noise);
  }
}

const char* kFlow = R"({
  "num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 32, # comment
  "optimizer": {"type": "Adam", "params": {"lr": 1.0e-3, "betas": [0.9, 0.95],}},
  "train_micro_batch_size_per_gpu": 4, "gas": 2, "train-iters": 10, "no-weight-tying": True,
  "attention_config": [[["flash"], 2]], "pipe-parallel-size": 0, "vocab_file": "data/gpt2-vocab.json",
  "checkpoint_validation_with_forward_pass": False, "activation": "swiglu", "intermediate_size": 384,
})";
const char* kBlock = R"(
num-layers: 2   # comment
hidden-size: 64
num-attention-heads: 4
seq-length: 32
optimizer:
  type: Adam
  params:
    lr: 1.0e-3
    betas: [0.9, 0.95]
train_micro_batch_size_per_gpu: 4
gas: 2
train-iters: 10
no-weight-tying: yes
attention_config: [[["flash"], 2]]
pipe-parallel-size: 0
vocab_file: data/gpt2-vocab.json
checkpoint_validation_with_forward_pass: no
activation: swiglu
intermediate_size: 384
)";

TEST(YamlText, NeoxFiles) {
  const ResolvedConfig flow = load_config_text({{"n.yml", kFlow}}, {}),
                       block = load_config_text({{"n.yml", kBlock}}, {});
  EXPECT_EQ(flow.values, block.values);
  EXPECT_EQ(flow.run.accumulation, 2);
  EXPECT_EQ(flow.run.model.vocab, 50257);
  EXPECT_EQ(flow.run.model.ffn, 128);
  EXPECT_EQ(flow.run.model.activation, ActivationKind::kSwiglu);
  EXPECT_EQ(flow.run.optim.lr, 1e-3);
  const auto message = [](const std::string& text) -> std::string {
    try {
      load_config_text({{"n.yml", text}}, {});
      return "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      return e.what();
    }
  };
  // YAML takes the word for false; only where it is one of the key's own words it stays what it is.
  const ConfigSource off{"n.yml", std::string(kBlock) + "spike: off\n"};
  EXPECT_EQ(load_config_text({off}, {}).run.spike.action, SpikeAction::kOff);
  EXPECT_NE(message(std::string(kBlock) + "schedule: off\n").find("schedule: must be string, not "), std::string::npos);
  // A number that PyYAML takes for text, at its place.
  EXPECT_NE(
      message(std::string(kBlock) + "min_lr: 1e-4\n")
          .find("n.yml:21:9: min_lr: must be number, not a string \"1e-4\": YAML takes 1e-4 for text, write 1.0e-4"),
      std::string::npos)
      << message(std::string(kBlock) + "min_lr: 1e-4\n");
  EXPECT_NE(message(std::string(kBlock) + "gas: 2\n").find("n.yml:21:1: gas: given twice"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::yaml_text_test
