// Bad configurations, first half: JSON syntax, unknown and duplicate keys, types, bounds, values. Each is refused at
// its place.
#include <gtest/gtest.h>

#include <sstream>

#include "engine/run/config/key_table.h"
#include "tests/config/config_test_support.h"

namespace thinwire {

std::string refusal(const std::string& text, const std::vector<std::string>& overrides, const ConfigOptions& options) {
  try {
    load_config_text({{"a.json", text}}, overrides, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "was accepted:\n" << text;
  return "";
}

std::string without(const std::string& key, const std::string& extra) {
  std::string minimal = kMinimal;
  const size_t at = minimal.find("\"" + key + "\"");
  EXPECT_NE(at, std::string::npos) << key;
  size_t end = minimal.find(',', at);
  end = end == std::string::npos ? minimal.size() : end + 1;
  minimal.erase(at, end - at);
  while (!minimal.empty() && (minimal.back() == ' ' || minimal.back() == ',')) minimal.pop_back();
  return "{\n" + minimal + (extra.empty() ? "" : ",\n") + extra + "\n}\n";
}

void expect_refused(const std::vector<BadConfig>& table) {
  for (const BadConfig& bad : table) {
    SCOPED_TRACE(bad.name);
    const std::string message = refusal(bad.text, bad.overrides, bad.options);
    bool found = false;
    std::istringstream lines(message);
    for (std::string line; std::getline(lines, line);) {
      bool all = true;
      for (const std::string& fragment : bad.fragments) all = all && line.find(fragment) != std::string::npos;
      found = found || all;
    }
    std::string wanted;
    for (const std::string& fragment : bad.fragments) wanted += " [" + fragment + "]";
    EXPECT_TRUE(found) << "wanted in one line:" << wanted << "\ngot:\n" << message;
  }
}

TEST(BadConfig, Syntax) {
  expect_refused({
      {"empty", "", {"a.json:1:1: ", "empty"}},
      {"only a comment", "// nothing\n", {"a.json:2:1: ", "empty"}},
      {"list at the top", "[1, 2]", {"a.json:1:1: ", "one object", "a list"}},
      {"number at the top", "\n 7", {"a.json:2:2: ", "one object"}},
      {"string at the top", "\"x\"", {"a.json:1:1: ", "a string"}},
      {"open object", "{\n\"num_layers\": 4,\n", {"a.json:3:1: ", "inside the object that opens at 1:1"}},
      {"open nested object", "{\"optimizer\": {\"type\": \"adam\"", {"a.json:1:30: ", "opens at 1:15"}},
      {"open list", "{\"split\": [1, 2", {"a.json:1:16: ", "inside the list that opens at 1:11"}},
      {"open string", with("\"run_dir\": \"abc"), {"a.json:3:12: ", "string is not closed"}},
      {"open comment", with("/* never closed"), {"a.json:3:1: ", "comment"}},
      {"missing colon", with("\"seed\" 1"), {"a.json:3:8: ", "colon", "seed"}},
      {"missing comma", with("\"seed\": 1\n\"finetune\": false"), {"a.json:4:1: ", "comma"}},
      {"two commas", with("\"seed\": 1,, \"finetune\": false"), {"a.json:3:11: ", "key in double quotes"}},
      {"only a comma", "{,}", {"a.json:1:2: "}},
      {"list of a comma", with("\"split\": [,]"), {"a.json:3:11: ", "value is missing"}},
      {"two trailing commas", with("\"seed\": 1,,"), {"a.json:3:11: "}},
      {"missing value", with("\"seed\": }"), {"a.json:3:9: ", "value is missing"}},
      {"unquoted key", with("seed: 1"), {"a.json:3:1: ", "double quotes"}},
      {"single quotes key", with("'seed': 1"), {"a.json:3:1: ", "double quotes, not single"}},
      {"single quotes value", with("\"precision\": 'fp32'"), {"a.json:3:14: ", "double quotes, not single"}},
      {"bare word", with("\"precision\": fp32"), {"a.json:3:14: ", "fp32", "double quotes"}},
      {"NaN", with("\"min_lr\": NaN"), {"a.json:3:11: ", "NaN"}},
      {"minus infinity", with("\"min_lr\": -Infinity"), {"a.json:3:11: ", "infinities"}},
      {"leading zero", with("\"seed\": 012"), {"a.json:3:9: ", "leading zeros"}},
      {"leading plus", with("\"seed\": +1"), {"a.json:3:9: ", "plus"}},
      {"leading point", with("\"min_lr\": .5"), {"a.json:3:11: ", "0.5"}},
      {"trailing point", with("\"min_lr\": 1."), {"a.json:3:13: ", "1.0"}},
      {"empty exponent", with("\"min_lr\": 1e"), {"a.json:3:13: ", "exponent"}},
      {"unit behind a number", with("\"seed\": 12k"), {"a.json:3:9: ", "units"}},
      {"hexadecimal", with("\"seed\": 0x10"), {"a.json:3:9: "}},
      {"huge integer", with("\"seed\": 99999999999999999999"), {"a.json:3:9: ", "64 bits"}},
      {"huge number", with("\"min_lr\": 1e999"), {"a.json:3:11: ", "too large"}},
      {"tab in a string", with("\"run_dir\": \"a\tb\""), {"a.json:3:14: ", "control character"}},
      {"line break in a string", with("\"run_dir\": \"a\nb\""), {"a.json:3:12: ", "not closed"}},
      {"bad escape", with("\"run_dir\": \"a\\q\""), {"a.json:3:15: ", "escape"}},
      {"bad unicode escape", with("\"run_dir\": \"\\u12g4\""), {"a.json:3:", "hexadecimal"}},
      {"half a surrogate", with("\"run_dir\": \"\\ud800x\""), {"a.json:3:", "surrogate"}},
      {"not UTF-8", with("\"run_dir\": \"\xff\""), {"a.json:3:13: ", "UTF-8"}},
      {"text after the end", with("\"seed\": 1") + "{}", {"a.json:5:1: ", "after the end"}},
      {"stray brace", with("\"seed\": 1") + "}", {"a.json:5:1: ", "after the end"}},
      {"zero byte", std::string("{\"seed\": 1\0}", 12), {"a.json:1:11: ", "0x00"}},
      {"deep nesting", with("\"faults\": " + std::string(5000, '[')), {"a.json:3:", "deeper than 32"}},
      {"deep objects",
       with([] {
         std::string s = "\"x\": ";
         for (int i = 0; i < 3000; ++i) s += "{\"a\":";
         return s;
       }()),
       {"a.json:3:", "deeper than 32"}},
  });
}

TEST(BadConfig, UnknownAndDuplicateKeys) {
  expect_refused({
      {"one letter off", with("\"num_layer\": 4"), {"a.json:3:1: num_layer: unknown key", "nearest key: num_layers"}},
      {"swapped letters", with("\"hidden_szie\": 4"), {"a.json:3:1: hidden_szie: ", "nearest key: hidden_size"}},
      {"with dashes", with("\"hiden-size\": 4"), {"a.json:3:1: hiden-size: ", "nearest key: hidden_size"}},
      {"alias is nearest", with("\"tensor_model_paralel_size\": 1"), {"nearest key: tensor_model_parallel_size"}},
      {"far from all",
       with("\"quux_frobnicator\": 1"),
       {"a.json:3:1: quux_frobnicator: unknown key", "docs/config.md"}},
      {"empty key", with("\"\": 1"), {"a.json:3:1: ", "unknown key"}},
      {"nested",
       with("\"optimizer\": {\"typ\": \"adam\"}"),
       {"a.json:3:15: optimizer.typ: ", "nearest key: optimizer.type"}},
      {"nested twice",
       with("\"optimizer\": {\"params\": {\"beta\": [0.9, 0.9]}}"),
       {"a.json:3:26: optimizer.params.beta: ", "optimizer.params.betas"}},
      {"in the wrong place", with("\"stage\": 1"), {"a.json:3:1: stage: ", "nearest key: zero_optimization.stage"}},
      {"zero stage misspelled",
       with("\"zero_optimization\": {\"stag\": 1}"),
       {"a.json:3:23: ", "nearest key: zero_optimization.stage"}},
      {"case matters", with("\"Seed\": 1"), {"a.json:3:1: Seed: ", "nearest key: seed"}},
      {"Hugging Face name", with("\"num_key_value_heads\": 4"), {"nearest key: num_kv_heads"}},
      {"nanoGPT name", with("\"n_embd\": 4"), {"nearest key: hidden_size"}},
      {"DeepSpeed shorthand", with("\"accumulation\": 4"), {"nearest key: gradient_accumulation_steps"}},
      {"short name", with("\"tp\": 4"), {"nearest key: model_parallel_size"}},
      {"site cut at its dot",
       with("\"compression\": {\"dp\": {\"gradient\": {\"codec\": \"identity\"}}}"),
       {"a.json:3:17: compression.dp: unknown key (nearest key: compression.dp.gradient)"}},
      {"site misspelled",
       with("\"compression\": {\"dp.gradients\": {\"codec\": \"identity\"}}"),
       {"a.json:3:17: ", "nearest key: compression.dp.gradient"}},
      {"rule field misspelled",
       with("\"compression\": {\"dp.gradient\": {\"codek\": \"identity\"}}"),
       {"nearest key: compression.dp.gradient.codec"}},
      {"field of select",
       with("\"compression\": {\"pp.forward\": {\"select\": {\"stage\": [0]}}}"),
       {"compression.pp.forward.select.stage", "stages"}},
      {"twice", with("\"seed\": 1,\n\"seed\": 1"), {"a.json:4:1: seed: given twice"}},
      {"twice in the minimal part", with("\"num_layers\": 4"), {"a.json:3:1: num_layers: given twice"}},
      {"dash and underscore",
       with("\"log_interval\": 1,\n\"log-interval\": 2"),
       {"a.json:4:1: log-interval: given twice", "a.json:3:17"}},
      {"alias and name",
       with("\"global_batch_size\": 8"),
       {"a.json:3:1: global_batch_size: given twice", "train_batch_size"}},
      {"two aliases",
       with("\"clip_grad\": 1.0, \"gradient_clipping\": 1.0"),
       {"gradient_clipping: given twice", "clip_grad"}},
      {"twice nested",
       with("\"fp16\": {\"enabled\": true, \"enabled\": true}"),
       {"a.json:3:27: fp16.enabled: given twice"}},
      {"twice in a free object",
       with("\"compression\": {\"outer\": {\"select\": {\"layers\": 1, \"layers\": 2}}}"),
       {"compression.outer.select.layers: given twice"}},
      {"section twice", with("\"optimizer\": {}, \"optimizer\": {}"), {"a.json:3:18: optimizer: given twice"}},
  });
}

TEST(BadConfig, TypesAndBounds) {
  expect_refused({
      {"string for integer",
       without("num_layers", "\"num_layers\": \"4\""),
       {"a.json:3:15: num_layers: ", "integer", "drop the quotes"}},
      {"quoted exponent", without("lr", "\"lr\": \"1e-4\""), {"a.json:3:7: lr: ", "number", "drop the quotes"}},
      {"DeepSpeed's auto", with("\"gradient_clipping\": \"auto\""), {"gradient_clipping: ", "leave the key out"}},
      {"word for integer", with("\"seed\": \"abc\""), {"a.json:3:9: seed: ", "integer", "\"abc\""}},
      {"fraction for integer", with("\"eval_iters\": 1.5"), {"a.json:3:15: eval_iters: ", "integer"}},
      {"boolean for integer", with("\"seed\": true"), {"a.json:3:9: seed: ", "a boolean"}},
      {"integer for boolean", with("\"finetune\": 1"), {"a.json:3:13: finetune: ", "boolean", "true or false"}},
      {"quoted boolean", with("\"finetune\": \"True\""), {"finetune: ", "drop the quotes"}},
      {"number for string", with("\"run_dir\": 3"), {"a.json:3:12: run_dir: ", "string", "an integer"}},
      {"list for string", with("\"precision\": [\"fp32\"]"), {"precision: ", "a list"}},
      {"object for integer", with("\"seed\": {}"), {"seed: ", "an object"}},
      {"number for section", with("\"zero_optimization\": 1"), {"a.json:3:22: zero_optimization: ", "an object"}},
      {"list for section", with("\"optimizer\": []"), {"optimizer: ", "an object"}},
      {"number for list",
       with("\"optimizer\": {\"params\": {\"betas\": 0.9}}"),
       {"optimizer.params.betas: ", "list of numbers"}},
      {"word in a list of numbers",
       with("\"optimizer\": {\"params\": {\"betas\": [0.9, \"0.95\"]}}"),
       {"a.json:3:41: ", "a string where a number"}},
      {"one beta", with("\"optimizer\": {\"params\": {\"betas\": [0.9]}}"), {"betas: must hold two"}},
      {"three betas", with("\"optimizer\": {\"params\": {\"betas\": [0.9, 0.9, 0.9]}}"), {"betas: must hold two"}},
      {"beta of one",
       with("\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}"),
       {"a.json:3:41: ", "out of bounds", "below 1"}},
      {"no layers",
       without("num_layers", "\"num_layers\": 0"),
       {"a.json:3:15: num_layers: ", "out of bounds", "at least 1"}},
      {"negative layers", without("num_layers", "\"num_layers\": -4"), {"num_layers: -4", "out of bounds"}},
      {"absurd layers", without("num_layers", "\"num_layers\": 1000000000000"), {"num_layers: ", "at most 10000"}},
      {"no hidden", without("hidden_size", "\"hidden_size\": 0"), {"hidden_size: 0 is out of bounds"}},
      {"no sequence", without("seq_length", "\"seq_length\": 0"), {"seq_length: 0 is out of bounds"}},
      {"negative lr", without("lr", "\"lr\": -1e-4"), {"lr: ", "out of bounds"}},
      {"negative weight decay", with("\"weight_decay\": -0.1"), {"weight_decay: -0.1 is out of bounds"}},
      {"negative clip", with("\"clip_grad\": -1"), {"clip_grad: -1 is out of bounds"}},
      {"dropout of one", with("\"hidden_dropout\": 1.0"), {"hidden_dropout: ", "below 1"}},
      {"dropout above one", with("\"attention_dropout\": 1.5"), {"attention_dropout: 1.5 is out of bounds"}},
      {"rotary above one",
       with("\"pos_emb\": \"rotary\", \"rotary_pct\": 1.25"),
       {"rotary_pct: 1.25 is out of bounds"}},
      {"rotary of zero", with("\"rotary_pct\": 0"), {"rotary_pct: ", "above 0"}},
      {"epsilon of zero", with("\"layernorm_epsilon\": 0"), {"layernorm_epsilon: ", "above 0"}},
      {"ZeRO 4",
       with("\"zero_optimization\": {\"stage\": 4}"),
       {"a.json:3:32: zero_optimization.stage: 4 is out of bounds", "at most 3"}},
      {"negative seed", with("\"seed\": -1"), {"seed: -1 is out of bounds"}},
      {"seed of 33 bits", with("\"seed\": 4294967296"), {"seed: ", "at most 4294967295"}},
      {"warm-up above one", with("\"warmup\": 2"), {"warmup: ", "at most 1"}},
      {"no micro-batch",
       without("train_micro_batch_size_per_gpu", "\"micro_batch_size\": 0"),
       {"micro_batch_size: 0 is out of bounds"}},
      {"log interval of zero", with("\"log_interval\": 0"), {"log_interval: 0 is out of bounds"}},
      {"tensor ranks of zero", with("\"model_parallel_size\": 0"), {"model_parallel_size: 0 is out of bounds"}},
      {"pad to zero", with("\"make_vocab_size_divisible_by\": 0"), {"make_vocab_size_divisible_by: 0"}},
  });
}

TEST(BadConfig, Values) {
  expect_refused({
      {"precision",
       with("\"precision\": \"fp64\""),
       {"a.json:3:14: precision: \"fp64\" is not an allowed value", "fp32 | fp16 | bf16"}},
      {"device", with("\"device\": \"tpu\""), {"device: \"tpu\"", "cpu | cuda"}},
      {"schedule", with("\"schedule\": \"dualpipe\""), {"schedule: ", "gpipe | 1f1b | interleaved | zb_h1"}},
      {"norm", with("\"norm\": \"scalenorm\""), {"norm: ", "layernorm | rmsnorm"}},
      {"positions", with("\"pos_emb\": \"alibi\""), {"pos_emb: \"alibi\"", "learned | rotary | none"}},
      {"activation", with("\"activation\": \"relu\""), {"activation: \"relu\"", "gelu | swiglu"}},
      {"optimizer", with("\"optimizer\": {\"type\": \"Lion\"}"), {"optimizer.type: \"Lion\"", "adam | sgd"}},
      {"optimizer as word", with("\"optimizer\": \"muon\""), {"optimizer: \"muon\"", "adam | sgd"}},
      {"decay", with("\"lr_decay_style\": \"exponential\""), {"lr_decay_style: ", "constant | linear | cosine"}},
      {"init", with("\"init_method\": \"xavier_uniform\""), {"init_method: ", "small_init"}},
      {"recompute",
       with("\"recompute_granularity\": \"some\""),
       {"recompute_granularity: ", "none | selective | full"}},
      {"level",
       with("\"placement\": {\"weights\": \"rack\"}"),
       {"a.json:3:26: placement.weights: ", "replicated | pair | node | global"}},
      {"convention", with("\"lr_warmup_convention\": \"torch\""), {"neox | megatron"}},
      {"control site",
       with("\"compression\": {\"control\": {\"codec\": \"identity\"}}"),
       {"compression.control: not supported", "never coded"}},
      {"tokenizer", with("\"tokenizer\": \"wordpiece:x\""), {"tokenizer: ", "byte | bpe:FILE | sentencepiece:FILE"}},
      {"tokenizer without file", with("\"tokenizer\": \"bpe:\""), {"tokenizer: ", "bpe:FILE"}},
  });
}

}  // namespace thinwire
