// Bad configurations, second half: refused features, contradictions, several keys together, overrides, several at once.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/config/config_test_support.h"

namespace thinwire {

TEST(BadConfig, RefusedByName) {
  expect_refused({
      {"experts", with("\"moe_num_experts\": 8"), {"a.json:3:20: moe_num_experts: not supported: mixture of experts"}},
      {"Megatron experts", with("\"num_experts\": 16"), {"num_experts: not supported"}},
      {"RoPE scaling",
       with("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}"),
       {"rope_scaling: not supported: this scaling of rotary", "use_rope_scaling"}},
      {"RoPE scaling of nothing",
       with("\"pos_emb\": \"rotary\", \"rope_scaling_factor\": 32"),
       {"rope_scaling_factor: has no effect without use_rope_scaling"}},
      {"RoPE scaling of learned positions",
       with("\"use_rope_scaling\": true"),
       {"use_rope_scaling: scales rotary positions, but pos_emb is learned"}},
      {"more probabilities than dropout has numbers for",
       with("\"attention_dropout\": 0.1"),
       {"heads would drop the same", "attention_dropout 0"},
       {"seq_length=16777216"}},
      {"context parallel",
       with("\"context_parallel_size\": 17, \"train_batch_size\": null"),
       {"context_parallel_size: cuts sequences of 32 tokens into 34 runs", "at most 16"}},
      {"another way to exchange keys",
       with("\"context_parallel_size\": 2, \"cp_comm_type\": \"a2a+p2p\""),
       {"cp_comm_type: \"a2a+p2p\" is not an allowed value (allowed: all_gather | a2a | p2p)"}},
      {"heads that do not divide",
       with("\"context_parallel_size\": 3, \"cp_comm_type\": \"a2a\", \"train_batch_size\": null"),
       {"a2a gives every rank a share of the KV heads", "must divide 8"}},
      {"KV heads that several ranks would share",
       with("\"context_parallel_size\": 4, \"cp_comm_type\": \"a2a\", \"num_kv_heads\": 2, \"train_batch_size\": null"),
       {"context_parallel_size 4 must divide 2 of them", "all_gather or p2p"}},
      {"KV heads of a tensor rank",
       with("\"context_parallel_size\": 4, \"cp_comm_type\": \"a2a\", \"model_parallel_size\": 4, "
            "\"train_batch_size\": null"),
       {"context_parallel_size 4 must divide 2 of them (num_kv_heads / model_parallel_size)"}},
      {"tied norms", with("\"gpt_j_tied\": true"), {"gpt_j_tied: not supported"}},
      {"qk norm", with("\"use_qk_layernorm\": true"), {"use_qk_layernorm: not supported"}},
      {"sliding window", with("\"sliding_window\": 128"), {"sliding_window: not supported", "sliding_window_width"}},
      {"layer scaling",
       with("\"apply_query_key_layer_scaling\": true"),
       {"apply_query_key_layer_scaling: not supported"}},
      {"wire dtype",
       with("\"communication_data_type\": \"bf16\""),
       {"communication_data_type: not supported", "\"compression\": \"bf16_wire\""}},
      // Switches that would change numbers: true is not taken for another key's neutral word.
      {"wire dtype as a switch", with("\"communication_data_type\": true"), {"communication_data_type: not supported"}},
      {"hysteresis at every step",
       with("\"fp16\": {\"consecutive_hysteresis\": true}"),
       {"fp16.consecutive_hysteresis: not supported: overflows that hysteresis counts"}},
      {"attention inside documents",
       with("\"eod_attention_mask\": true"),
       {"eod_attention_mask: not supported: say reset_attention_mask"}},
      {"weights by documents",
       with("\"weight_by_num_documents\": true"),
       {"weight_by_num_documents: not supported", "train_data_weights"}},
      {"labels", with("\"label_data_paths\": true"), {"label_data_paths: not supported"}},
      {"accumulate dtype",
       with("\"data_types\": {\"grad_accum_dtype\": \"bf16\"}"),
       {"data_types.grad_accum_dtype: ", "bf16 goes with precision bf16"}},
      {"bf16 gradients of several micro-batches",
       with("\"precision\": \"bf16\", \"grad_dtype\": \"bf16\""),
       {"grad_dtype: ", "bf16 is for one micro-batch per step: a sum of 4 would be rounded at each"}},
      {"bf16 gradients of several ranks",
       with("\"precision\": \"bf16\", \"grad_dtype\": \"bf16\""),
       {"grad_dtype: ", "bf16 is for one data-parallel rank"},
       {},
       {.ranks = 4}},
      {"bf16 gradients of stages",
       with("\"precision\": \"bf16\", \"main_grads_dtype\": \"bf16\", \"pipe_parallel_size\": 2"),
       {"main_grads_dtype: ", "bf16 is for one pipeline stage"}},
      {"quantised ZeRO",
       with("\"zero_optimization\": {\"zero_quantized_gradients\": true}"),
       {"zero_quantized_gradients: not supported"}},
      {"MiCS", with("\"zero_optimization\": {\"mics_shard_size\": 8}"), {"mics_shard_size: ", "placement"}},
      {"offload",
       with("\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}"),
       {"offload_optimizer: not supported"}},
      {"fill in the middle",
       with("\"fim_rate\": 0.5, \"fim-split-sample\": null"),
       {"fim_rate: not supported: fill-in-the-middle"}},
      {"fp8", with("\"fp8\": \"hybrid\""), {"fp8: not supported"}},
      {"warm-up in samples",
       with("\"lr_warmup_samples\": 16, \"lr_warmup_iters\": 2"),
       {"lr_warmup_samples: contradicts \"lr_warmup_iters\" at a.json:3:"}},
      {"warm-up in samples and as a share",
       with("\"lr_warmup_samples\": 16, \"warmup\": 0.1"),
       {"lr_warmup_samples: contradicts \"warmup\" at a.json:3:"}},
      {"epochs", with("\"train_epochs\": 2"), {"train_epochs: not supported", "train_iters"}},
      {"muP", with("\"use_mup\": true"), {"use_mup: not supported"}},
      {"half a step", with("\"extra_save_iters\": [0, 2.5]"), {"extra_save_iters: 2.5 is not a whole number"}},
      {"log checkpoints", with("\"checkpoint_scale\": \"log\""), {"checkpoint_scale: not supported", "save_interval"}},
      {"scheduler", with("\"scheduler\": {\"type\": \"WarmupLR\"}"), {"scheduler: not supported", "lr_decay_style"}},
      {"elastic", with("\"elasticity\": {\"enabled\": true}"), {"elasticity: not supported"}},
      {"squared relu", with("\"squared_relu\": true"), {"squared_relu: not supported"}},
      {"local attention",
       with("\"attention_config\": [[[\"global\", \"local\"], 2]]"),
       {"attention_config: ", "\"local\"", "global"}},
  });
}

TEST(BadConfig, Ramps) {
  const auto gradient = [](const std::string& fields) {
    return with("\"compression\": {\"dp.gradient\": {" + fields + "}}");
  };
  const std::string ecsq = "\"codec\": \"ecsq\", \"rate\": ";
  expect_refused({
      {"no beginning", gradient(ecsq + "[[10, 3]]"), {"compression.dp.gradient.rate: a ramp begins at place 0"}},
      {"empty", gradient(ecsq + "[]"), {"rate: a ramp begins at place 0"}},
      {"no pairs", gradient(ecsq + "[4, 3]"), {"rate: a ramp is a list of [place, value]"}},
      {"a share above all", gradient(ecsq + "[[0, 4], [1.5, 3]]"), {"rate: a ramp is a list of [place, value]"}},
      {"no value", gradient(ecsq + "[[0, 4], [10, null]]"), {"rate: a place of a ramp needs a value"}},
      {"a value out of bounds", gradient(ecsq + "[[0, 4], [10, 64]]"), {"rate: 64 is out of bounds"}},
      {"a value of no codec",
       gradient("\"codec\": \"block_int\", \"bits\": [[0, 8], [10, 5]]"),
       {"bits", "5; it may be"}},
      {"backwards", gradient(ecsq + "[[0, 4], [20, 3], [10, 2.5]]"), {"rate: the places of a ramp ascend"}},
      {"of what cuts messages",
       gradient("\"codec\": \"block_int\", \"block\": [[0, 64], [10, 128]]"),
       {"block: must be integer, not a list"}},
      {"of a warm start",
       gradient("\"codec\": \"low_rank\", \"rank\": [[0, 8], [10, 4]]"),
       {"rank: must be integer, not a list"}},
  });
}

TEST(BadConfig, SeveralKeysTogether) {
  expect_refused({
      {"no layers key", without("num_layers", ""), {"a.json:1:1: num_layers: missing"}},
      {"no hidden key", without("hidden_size", ""), {"hidden_size: missing"}},
      {"no lr", without("lr", ""), {"optimizer.params.lr: missing", "lr"}},
      {"no iterations", without("train_iters", ""), {"train_iters: missing"}},
      {"no vocabulary", without("vocab_size", ""), {"vocab_size: missing", "tokenizer"}},
      {"tokenizer file missing",
       without("vocab_size", "\"tokenizer\": \"bpe:nowhere/x.json\""),
       {"a.json:3:14: tokenizer: missing", "cannot be read"}},
      {"byte vocabulary",
       without("vocab_size", "\"tokenizer\": \"byte\", \"vocab_size\": 200"),
       {"vocab_size: the byte tokenizer has 256"}},
      {"hidden not divisible",
       without("hidden_size", "\"hidden_size\": 65"),
       {"a.json:3:16: hidden_size: num_attention_heads 8 must divide hidden_size 65"}},
      {"KV heads",
       with("\"num_kv_heads\": 3"),
       {"a.json:3:17: num_kv_heads: num_kv_heads 3 must divide num_attention_heads 8"}},
      {"more KV heads", with("\"num_kv_heads\": 16"), {"num_kv_heads 16 must divide"}},
      {"tensor ranks",
       with("\"model_parallel_size\": 3"),
       {"a.json:3:24: model_parallel_size: model_parallel_size 3 must divide num_attention_heads 8"}},
      {"tensor ranks and KV heads",
       with("\"model_parallel_size\": 4, \"num_kv_heads\": 2"),
       {"model_parallel_size 4 must divide num_kv_heads 2"}},
      {"stages",
       with("\"pipe_parallel_size\": 5"),
       {"a.json:3:23: pipe_parallel_size: 5 pipeline stages", "num_layers is 4"}},
      {"chunks",
       with("\"schedule\": \"interleaved\", \"pipe_parallel_size\": 2, \"virtual_pipeline_model_parallel_size\": 3"),
       {"at least 6 layers"}},
      {"chunks without schedule",
       with("\"virtual_pipeline_model_parallel_size\": 2"),
       {"virtual_pipeline_model_parallel_size: 2 chunks", "need schedule interleaved, not 1f1b"}},
      {"learned positions",
       with("\"max_position_embeddings\": 16"),
       {"a.json:3:28: max_position_embeddings: seq_length 32"}},
      {"odd rotary", with("\"pos_emb\": \"rotary\", \"rotary_pct\": 0.4"), {"rotary_pct: ", "gives 3 rotated"}},
      {"tiny rotary", with("\"pos_emb\": \"rotary\", \"rotary_pct\": 0.1"), {"rotary_pct: ", "gives 0 rotated"}},
      {"odd head", with("\"pos_emb\": \"rotary\", \"head_dim\": 7"), {"head_dim: ", "must be even"}},
      {"silu", with("\"activation\": \"silu\""), {"activation: silu", "swiglu"}},
      {"gelu in llama", with("\"activation\": \"gelu\", \"mlp_type\": \"llama\""), {"mlp_type: ", "gated"}},
      {"fusion of swiglu", with("\"activation\": \"swiglu\", \"bias_gelu_fusion\": true"), {"bias_gelu_fusion: "}},
      {"fused and not",
       with("\"bias_gelu_fusion\": true, \"no_bias_gelu_fusion\": true"),
       {"no_bias_gelu_fusion: contradicts \"bias_gelu_fusion\""}},
      {"two widths",
       with("\"intermediate_size\": 128, \"expansion_factor\": 2"),
       {"expansion_factor: contradicts \"intermediate_size\""}},
      {"two warm-ups",
       with("\"warmup\": 0.1, \"lr_warmup_iters\": 3"),
       {"lr_warmup_iters: contradicts \"warmup\" at a.json:3:11"}},
      {"long warm-up",
       with("\"lr_warmup_iters\": 11"),
       {"a.json:3:20: lr_warmup_iters: ", "longer than lr_decay_iters 10: shorten it, or say warmup=0.01"}},
      {"min above peak", with("\"min_lr\": 0.1"), {"a.json:3:11: min_lr: ", "above the peak"}},
      {"initial rate that nobody reads",
       with("\"lr_warmup_init\": 1e-5"),
       {"a.json:3:19: lr_warmup_init: ", "lr_warmup_convention"}},
      {"wsd without decay", with("\"lr_decay_style\": \"WSD\""), {"lr_wsd_decay_iters"}},
      {"wsd too long",
       with("\"lr_decay_style\": \"wsd\", \"lr_wsd_decay_iters\": 11"),
       {"lr_wsd_decay_iters: ", "longer"}},
      {"fp16 and bf16",
       with("\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}"),
       {"a.json:4:21: bf16.enabled: ", "fp16 or bf16, not both"}},
      {"precision and fp16",
       with("\"precision\": \"bf16\", \"fp16\": {\"enabled\": true}"),
       {"fp16.enabled: contradicts \"precision\""}},
      {"precision but disabled",
       with("\"precision\": \"fp16\", \"fp16\": {\"enabled\": false}"),
       {"fp16.enabled: contradicts \"precision\""}},
      {"scale not a power",
       with("\"fp16\": true, \"initial_loss_scale\": 1000"),
       {"initial_loss_scale: must be a power of two"}},
      {"smallest scale",
       with("\"fp16\": {\"enabled\": true, \"initial_scale_power\": 2, \"min_loss_scale\": 8}"),
       {"min_loss_scale: is above"}},
      {"distributed optimizer",
       with("\"use_distributed_optimizer\": true, \"zero_optimization\": {\"stage\": 2}"),
       {"use_distributed_optimizer: contradicts \"zero_optimization.stage\""}},
      {"swiglu twice", with("\"swiglu\": true, \"activation\": \"gelu\""), {"swiglu: contradicts \"activation\""}},
      {"positions and none",
       with("\"pos_emb\": \"learned\", \"no_position_embedding\": true"),
       {"no_position_embedding: contradicts \"pos_emb\""}},
      {"recompute twice",
       with("\"checkpoint_activations\": true, \"recompute_granularity\": \"selective\""),
       {"checkpoint_activations: contradicts"}},
      {"secondary",
       with("\"placement\": {\"secondary\": \"node\"}"),
       {"a.json:3:28: placement.secondary: ", "sharded weights"}},
      {"no batch",
       "{\"num_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 1, \"seq_length\": 4, \"vocab_size\": 9, "
       "\"lr\": 1, "
       "\"train_iters\": 1, \"gradient_accumulation_steps\": 2}",
       {"train_batch_size: missing"}},
      {"batch triple",
       with("\"gradient_accumulation_steps\": 3"),
       {"a.json:3:32: gradient_accumulation_steps: ", "train_batch_size 8", "= 6"},
       {},
       {.ranks = 1}},
      {"batch triple without ranks", with("\"gradient_accumulation_steps\": 3"), {"gradient_accumulation_steps: "}},
      {"batch not divisible",
       without("train_micro_batch_size_per_gpu", "\"micro_batch_size\": 3"),
       {"train_batch_size: train_batch_size 8 is not a multiple of", "3"}},
      {"batch and ranks",
       with("\"seed\": 1"),
       {"train_batch_size 8 is not a multiple of", "3 data-parallel ranks"},
       {},
       {.ranks = 3}},
      {"layout and ranks",
       with("\"pipe_parallel_size\": 2"),
       {"a.json:3:23: pipe_parallel_size: 3 ranks are not a multiple"},
       {},
       {.ranks = 3}},
      {"ramp of two", with("\"rampup_batch_size\": [4, 2]"), {"rampup_batch_size: must be three"}},
      {"ramp never arrives", with("\"rampup_batch_size\": [2, 4, 100]"), {"rampup_batch_size: ", "never becomes"}},
      {"ramp and micro", with("\"rampup_batch_size\": [1, 1, 100]"), {"rampup_batch_size: ", "multiples of 2"}},
      {"ramp, samples and steps",
       with("\"lr_decay_samples\": 100, \"lr_warmup_iters\": 2, \"rampup_batch_size\": [4, 2, 100]"),
       {"lr_warmup_iters: counts steps beside lengths in samples"}},
      {"samples and steps",
       with("\"lr_decay_samples\": 70, \"lr_warmup_iters\": 2"),
       {"lr_warmup_iters: counts steps beside lengths in samples: give lr_warmup_samples"}},
      {"samples and a final decay in steps",
       with("\"lr_decay_samples\": 100, \"lr_decay_style\": \"wsd\", \"lr_wsd_decay_iters\": 2, "
            "\"rampup_batch_size\": [4, 2, 100]"),
       {"lr_wsd_decay_iters: counts steps beside lengths in samples: give lr_wsd_decay_samples"}},
      {"two final decays",
       with("\"lr_wsd_decay_samples\": 16, \"lr_wsd_decay_iters\": 2"),
       {"lr_wsd_decay_samples: contradicts \"lr_wsd_decay_iters\" at a.json:3:"}},
      {"samples of a schedule in steps",
       with("\"lr_decay_samples\": 70, \"lr_schedule_unit\": \"steps\""),
       {"lr_decay_samples: contradicts lr_schedule_unit steps"}},
      {"a wrong ramp of samples",
       without("train_iters", "\"train_samples\": 100, \"rampup_batch_size\": [2, 0, 30]"),
       {"rampup_batch_size: must be three"}},
      {"iterations and samples", with("\"train_samples\": 100"), {"train_samples: contradicts \"train_iters\""}},
      {"few samples", without("train_iters", "\"train_samples\": 3"), {"train_samples: is less than one batch"}},
      {"split and lists", with("\"split\": \"9,1\",\n\"train_data_paths\": [\"a\"]"), {"contradicts \"split\""}},
      {"path and lists", with("\"data_path\": \"a\", \"train_data_paths\": [\"a\"]"), {"contradicts \"data_path\""}},
      {"weights short",
       with("\"train_data_paths\": [\"a\", \"b\"], \"train_data_weights\": [1]"),
       {"train_data_weights: 1 weights for 2 prefixes"}},
      {"weight of zero",
       with("\"train_data_paths\": [\"a\", \"b\"], \"train_data_weights\": [1, 0]"),
       {"train_data_weights: a weight must be positive"}},
      {"weights alone", with("\"train_data_weights\": [1]"), {"train_data_weights: there is no train_data_paths"}},
      {"valid alone", with("\"valid_data_paths\": [\"a\"]"), {"valid_data_paths: needs train_data_paths"}},
      {"blend half", with("\"data_path\": [\"0.3\", \"a\", \"0.7\"]"), {"a.json:3:14: data_path: ", "half of a pair"}},
      {"blend negative", with("\"data_path\": \"-1 a 2 b\""), {"data_path: ", "positive weight"}},
      {"blend weight", with("\"data_path\": \"1 a x b\""), {"data_path: \"x\" stands where"}},
      {"suffix", with("\"data_path\": \"data/x.bin\""), {"data_path: ", "without .bin", "data/x"}},
      {"no data named", with("\"data_path\": []"), {"data_path: names no data"}},
      {"split words", with("\"split\": \"all\""), {"a.json:3:10: split: \"all\""}},
      {"split of four", with("\"split\": \"1,1,1,1\""), {"split: ", "up to three"}},
      {"split of zeros", with("\"split\": \"0,0,0\""), {"split: "}},
      {"split negative", with("\"split\": [9, -1]"), {"split: "}},
      {"data required", with("\"seed\": 1"), {"a.json:1:1: data_path: missing"}, {}, {.data_required = true}},
      {"eod mask", with("\"eod_mask_loss\": true"), {"eod_mask_loss: needs eod_token"}},
      {"a tokenizer without an end",
       without("vocab_size", "\"tokenizer\": \"byte\", \"eod_mask_loss\": true"),
       {"eod_mask_loss: needs eod_token"}},
      {"kind's end, other ids",
       with("\"tokenizer_type\": \"HFTokenizer\", \"eod_mask_loss\": true"),
       {"eod_mask_loss: needs eod_token"}},
      {"own attention", with("\"reset_attention_mask\": true"), {"reset_attention_mask: needs eod_token"}},
      {"own positions", with("\"reset_position_ids\": true"), {"reset_position_ids: needs eod_token"}},
      {"eod outside", with("\"eod_token\": 256"), {"eod_token: eod_token 256 is not below vocab_size 256"}},
      {"finetune", with("\"finetune\": true"), {"finetune: needs load"}},
      {"finetune from where it saves",
       with("\"finetune\": true, \"load\": \"a/b\", \"save\": \"./a/b/\""),
       {"finetune: load is the same path as save"}},
      {"max_grad_norm", with("\"optimizer\": {\"params\": {\"max_grad_norm\": 1}}"), {"say gradient_clipping"}},
      {"two sources of weights", with("\"load\": \"x\", \"init_from_hf\": \"y\""), {"init_from_hf: contradicts load"}},
      {"empty run_dir", with("\"run_dir\": \"\""), {"run_dir: must not be empty"}},
      {"faults",
       with("\"faults\": [{\"at\": \"grad\", \"do\": \"nan\"}]"),
       {"a.json:3:11: faults: ", "--allow-faults"}},
  });
}

TEST(BadConfig, Overrides) {
  const std::string good = with("\"seed\": 1");
  expect_refused({
      {"unknown", good, {"command line: hiden_size=3: hiden_size: unknown key", "hidden_size"}, {"hiden_size=3"}},
      {"type", good, {"command line: num_layers=abc: num_layers: ", "integer"}, {"num_layers=abc"}},
      {"bounds", good, {"command line: num_layers=0: num_layers: 0 is out of bounds"}, {"num_layers=0"}},
      {"nested", good, {"command line: optimizer.params.lr=fast: optimizer.params.lr: "}, {"optimizer.params.lr=fast"}},
      {"codec",
       good,
       {"command line: compression.dp.gradient.codec=caste: ", "nearest: cast"},
       {"compression.dp.gradient.codec=caste"}},
      {"codec through its rule",
       good,
       {"command line: compression.dp.gradient=", "is not an allowed value"},
       {"compression.dp.gradient={\"codec\": \"gzip\"}"}},
      {"no equals", good, {"command line: seed: ", "key=value"}, {"seed"}},
      {"no key", good, {"command line: =3: ", "key=value"}, {"=3"}},
      {"section", good, {"command line: zero_optimization=2: zero_optimization: ", "object"}, {"zero_optimization=2"}},
      {"together",
       good,
       {"command line: model_parallel_size=3: model_parallel_size: ", "must divide"},
       {"model_parallel_size=3"}},
      {"split over lists",
       with("\"train_data_paths\": [\"a\"]"),
       {"command line: split=9,1: split: contradicts"},
       {"split=9,1"}},
      {"duplicate inside",
       good,
       {"command line: fp16={\"enabled\":true,\"enabled\":true}: ", "given twice"},
       {"fp16={\"enabled\":true,\"enabled\":true}"}},
  });
}

// All violations come at once, in the order of the sources and of their lines.
TEST(BadConfig, AllAtOnce) {
  const std::string text =
      "{\n\"num_layers\": 0,\n\"hiden_size\": 64,\n\"num_attention_heads\": \"8\",\n\"precision\": \"fp7\"\n}\n";
  try {
    load_config_text({{"a.json", text}, {"dir/b.json", "{\"seed\": -1}"}}, {"train_iters=x"});
    FAIL() << "was accepted";
  } catch (const Error& e) {
    const std::vector<std::string> wanted = {
        "a.json:1:1", "a.json:1:1",  "a.json:1:1",  "a.json:1:1",      "a.json:2:15",
        "a.json:3:1", "a.json:4:24", "a.json:5:14", "dir/b.json:1:10", "command line: train_iters=x"};
    const std::string what = e.what();
    std::istringstream lines(what);
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(line, "the configuration has 10 problems");
    // Every line of the message but the headline is one violation.
    for (const std::string& place : wanted) {
      ASSERT_TRUE(std::getline(lines, line)) << what;
      EXPECT_EQ(line.find(place + ": "), 0u) << line << " is not at " << place;
    }
    EXPECT_FALSE(std::getline(lines, line)) << what;
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    // hidden_size was misspelled, not left out: one message, not two.
    EXPECT_EQ(what.find("hidden_size: missing"), std::string::npos) << what;
  }
}

TEST(BadConfig, FileThatCannotBeRead) {
  try {
    load_config({"tests/config/no_such_file.json"}, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    EXPECT_NE(std::string(e.what()).find("no_such_file.json:1:1: cannot be read"), std::string::npos) << e.what();
  }
}

}  // namespace thinwire
