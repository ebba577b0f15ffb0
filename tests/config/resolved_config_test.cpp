// The resolved JSON loads back to the same run, hashes what a checkpoint must agree on, and names what differs.
#include <gtest/gtest.h>

#include <random>

#include "engine/run/config/key_table.h"
#include "engine/run/config/resolved_json.h"
#include "tests/config/config_test_support.h"

namespace thinwire::resolved_config_test {
namespace {

void expect_same_run(const RunConfig& a, const RunConfig& b) {
  const ModelConfig &m = a.model, &n = b.model;
  EXPECT_EQ(std::tie(m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.padded_vocab, m.seq_length,
                     m.max_positions),
            std::tie(n.layers, n.hidden, n.heads, n.kv_heads, n.head_dim, n.ffn, n.vocab, n.padded_vocab, n.seq_length,
                     n.max_positions));
  EXPECT_EQ(std::tie(m.positions, m.rotary_fraction, m.rotary_base, m.norm, m.norm_eps, m.activation,
                     m.parallel_residual, m.tied_head),
            std::tie(n.positions, n.rotary_fraction, n.rotary_base, n.norm, n.norm_eps, n.activation,
                     n.parallel_residual, n.tied_head));
  EXPECT_EQ(std::tie(m.bias_attention, m.bias_mlp, m.bias_norm, m.gain_norm, m.init, m.output_init, m.init_std,
                     m.hidden_dropout, m.recompute, m.dtype),
            std::tie(n.bias_attention, n.bias_mlp, n.bias_norm, n.gain_norm, n.init, n.output_init, n.init_std,
                     n.hidden_dropout, n.recompute, n.dtype));
  const OptimConfig &o = a.optim, &p = b.optim;
  EXPECT_EQ(std::tie(o.kind, o.lr, o.min_lr, o.beta1, o.beta2, o.eps, o.momentum, o.weight_decay, o.clip, o.decay,
                     o.decay_iters, o.warmup_iters),
            std::tie(p.kind, p.lr, p.min_lr, p.beta1, p.beta2, p.eps, p.momentum, p.weight_decay, p.clip, p.decay,
                     p.decay_iters, p.warmup_iters));
  EXPECT_EQ(std::tie(o.dynamic_loss_scale, o.loss_scale, o.wsd_decay_iters, o.non_finite_budget, o.warmup_convention),
            std::tie(p.dynamic_loss_scale, p.loss_scale, p.wsd_decay_iters, p.non_finite_budget, p.warmup_convention));
  const DataConfig &d = a.data, &e = b.data;
  EXPECT_EQ(std::tie(d.split, d.seq_length, d.seed, d.micro_batch, d.global_batch, d.ramp_start, d.ramp_increment,
                     d.ramp_samples, d.train_iters),
            std::tie(e.split, e.seq_length, e.seed, e.micro_batch, e.global_batch, e.ramp_start, e.ramp_increment,
                     e.ramp_samples, e.train_iters));
  ASSERT_EQ(d.data.size() + d.train.size() + d.valid.size(), e.data.size() + e.train.size() + e.valid.size());
  for (size_t i = 0; i < d.train.size(); ++i)
    EXPECT_EQ(std::tie(d.train[i].prefix, d.train[i].weight), std::tie(e.train[i].prefix, e.train[i].weight));
  for (size_t i = 0; i < d.data.size(); ++i)
    EXPECT_EQ(std::tie(d.data[i].prefix, d.data[i].weight), std::tie(e.data[i].prefix, e.data[i].weight));
  const LayoutConfig &l = a.layout, &k = b.layout;
  EXPECT_EQ(std::tie(l.pipeline, l.tensor, l.data, l.schedule_kind, l.virtual_chunks, l.placement.weights,
                     l.placement.gradients, l.placement.optimizer, l.placement.secondary, l.hold, l.hold_given),
            std::tie(k.pipeline, k.tensor, k.data, k.schedule_kind, k.virtual_chunks, k.placement.weights,
                     k.placement.gradients, k.placement.optimizer, k.placement.secondary, k.hold, k.hold_given));
  EXPECT_EQ(std::tie(l.partition, l.costs_given, l.layer_ms, l.embedding_ms, l.head_ms, l.embedding_sync,
                     l.ranks_per_node, l.watchdog_seconds, l.link_gbps, l.overlap_communication),
            std::tie(k.partition, k.costs_given, k.layer_ms, k.embedding_ms, k.head_ms, k.embedding_sync,
                     k.ranks_per_node, k.watchdog_seconds, k.link_gbps, k.overlap_communication));
  EXPECT_EQ(std::tie(l.tuning.all_reduce, l.tuning.reduce_scatter, l.tuning.all_gather, l.tuning.chunk_bytes,
                     l.tuning.small_bytes, l.trace, l.trace_first, l.trace_steps),
            std::tie(k.tuning.all_reduce, k.tuning.reduce_scatter, k.tuning.all_gather, k.tuning.chunk_bytes,
                     k.tuning.small_bytes, k.trace, k.trace_first, k.trace_steps));
  EXPECT_EQ(std::tie(a.run_dir, a.device, a.seed, a.accumulation, a.save_dir, a.load, a.tokenizer, a.compression,
                     a.faults_json, a.eval_interval),
            std::tie(b.run_dir, b.device, b.seed, b.accumulation, b.save_dir, b.load, b.tokenizer, b.compression,
                     b.faults_json, b.eval_interval));
}

TEST(ResolvedConfig, LoadsBackToTheSameRun) {
  struct Case {
    std::string text;
    ConfigOptions options;
  };
  std::vector<Case> cases = {
      {with("\"seed\": 7"), {}},
      {with("\"mlp_type\": \"llama\", \"norm\": \"rmsnorm\", \"pos_emb\": \"rotary\", \"num_kv_heads\": 4, \"bf16\": "
            "true"),
       {}},
      {with("\"expansion_factor\": 2.7, \"lr_warmup_iters\": 2, \"lr_decay_style\": \"wsd\", \"lr_wsd_decay_iters\": "
            "3, \"optimizer\": \"sgd\""),
       {}},
      {without("train_iters", "\"train_samples\": 100, \"lr_decay_style\": \"wsd\", \"lr_wsd_decay_samples\": 30"), {}},
      {with("\"train_data_paths\": [\"a\", \"b\"], \"train_data_weights\": [0.1, 0.3], \"valid_data_paths\": \"c\""),
       {}},
      {with("\"data_path\": \"0.1 a 0.9 b\", \"split\": [90, 10], \"rampup_batch_size\": [\"2\", \"2\", \"40\"]"), {}},
      {with("\"zero_optimization\": {\"stage\": 3}, \"placement\": {\"weights\": \"node\", \"secondary\": \"pair\"}"),
       {.ranks = 4}},
      {with("\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 8}, \"hold\": \"step\", "
            "\"embedding_sync\": \"two-step\", \"ranks_per_node\": 2, \"distributed_timeout_minutes\": 0.5"),
       {.ranks = 4}},
      {with("\"trace\": true, \"trace_steps\": \"3-9\", \"pipe_partition_method\": \"time\", \"pipe_partition_costs\": "
            "[2, 0.5, 1], \"communication\": {\"all_reduce\": \"ring\", \"chunk_bytes\": 65536}, \"link_gbps\": 1"),
       {.ranks = 2}},
      {with("\"pipe_parallel_size\": 2, \"schedule\": \"interleaved\", \"num_layers_per_virtual_pipeline_stage\": 1"),
       {.ranks = 2}},
      {with("\"pipe_parallel_size\": 2, \"schedule\": \"interleaved\", \"virtual_pipeline_model_parallel_size\": 2"),
       {.ranks = 4}},
      {with("\"compression\": {\"dp.gradient\": {\"codec\": \"identity\", \"min_bytes\": 10}, \"preset\": \"none\"}"),
       {}},
      {with("\"faults\": [{\"at\": \"save.after_shard\"}], \"fp16\": {\"enabled\": true, \"loss_scale\": 64}"),
       {.allow_faults = true}},
      {with("\"tensorboard-dir\": \"x\", \"wandb\": {\"a\": 1}, \"load\": \"y\", \"lr_warmup_init\": 1e-5, "
            "\"lr_warmup_convention\": \"megatron\""),
       {}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const ResolvedConfig first = load_config_text({{"a.json", c.text}}, {}, c.options);
    const nlohmann::json json = resolved_json(first);
    const ResolvedConfig second = load_config_text({{"b.json", json.dump(1)}}, {}, c.options);
    expect_same_run(first.run, second.run);
    EXPECT_EQ(first.values, second.values);
    nlohmann::json again = resolved_json(second);
    again["_notes"] = json["_notes"];
    EXPECT_EQ(again, json);
  }
  for (const char* name : {"quickstart", "gpt2_tiny", "neox_tiny", "llama_tiny", "gpt2_124m", "llama_1b", "gpt20b"}) {
    SCOPED_TRACE(name);
    const ConfigOptions options{.dry_run = true};
    const ResolvedConfig first = load_config({std::string("configs/") + name + ".json"}, {}, options);
    const ResolvedConfig second = load_config_text({{"b.json", resolved_json(first).dump()}}, {}, options);
    expect_same_run(first.run, second.run);
    EXPECT_EQ(first.values, second.values);
  }
}

TEST(ResolvedConfig, HoldsEveryUsedKeyAndTheNotes) {
  const ResolvedConfig c = load_config_text({{"a.json", with("\"tensorboard-dir\": \"x\"")}}, {});
  const nlohmann::json json = resolved_json(c);
  EXPECT_EQ(json["zero_optimization"]["stage"], 0);
  EXPECT_EQ(json["optimizer"]["params"]["lr"], 1e-3);
  EXPECT_EQ(json["gradient_accumulation_steps"], 4);
  EXPECT_TRUE(json["_notes"].contains("tensorboard-dir"));
  for (const KeyTopic& topic : key_table().topics())
    for (const KeySpec& key : topic.keys)
      if (key.status == KeyStatus::kUsed) {
        EXPECT_EQ(c.values.count(key.name), is_rule_key(key.name) ? 0u : 1u) << key.name;
      }
}

TEST(ResolvedConfig, CheckpointComparison) {
  const auto json = [](const std::string& extra) {
    return resolved_json(load_config_text({{"a.json", with(extra)}}, {}));
  };
  const nlohmann::json base = json("\"seed\": 1");
  const auto differ = [&](const std::string& extra) { return differing_keys(base, json(extra)); };
  EXPECT_TRUE(differ("\"seed\": 1, \"run_dir\": \"other\", \"zero_optimization\": {\"stage\": 3}, \"min_lr\": 1e-5, "
                     "\"device\": \"cuda\"")
                  .empty());
  ASSERT_EQ(differ("\"seed\": 1, \"activation\": \"swiglu\"").size(), 2u);  // and the width that follows
  EXPECT_EQ(differ("\"seed\": 2").front(), "seed: 1 in the checkpoint, 2 here");
  EXPECT_EQ(differ("\"seed\": 1, \"norm\": \"rmsnorm\"").front(),
            "norm: \"layernorm\" in the checkpoint, \"rmsnorm\" here");
  nlohmann::json changed = base;
  changed["num_layers"] = 5;
  EXPECT_EQ(differing_keys(base, changed).front(), "num_layers: 4 in the checkpoint, 5 here");
  EXPECT_EQ(differing_keys(nlohmann::json::object(), base).empty(), false);
}

// Before version 2 intermediate_size was the width of gate and of up each.
TEST(ResolvedConfig, OfAnOlderVersion) {
  const std::string gated = "\"activation\": \"swiglu\", \"expansion_factor\": null, \"intermediate_size\": 100";
  const ResolvedConfig old = load_config_text({{"config.resolved.json", with(gated + ", \"_notes\": {}")}}, {});
  EXPECT_EQ(old.run.model.ffn, 100);
  nlohmann::json before = resolved_json(old);
  EXPECT_EQ(before.at("config_version"), kConfigVersion);
  EXPECT_EQ(load_config_text({{"c.json", before.dump()}}, {}).run.model.ffn, 100);
  before.erase("config_version");
  before["intermediate_size"] = before.at("ffn_hidden_size");
  before.erase("ffn_hidden_size");
  EXPECT_TRUE(differing_keys(before, resolved_json(old)).empty());
  EXPECT_EQ(
      differing_keys(before, resolved_json(load_config_text({{"c.json", with("\"activation\": \"swiglu\"")}}, {})))
          .front(),
      "ffn_hidden_size: 100 in the checkpoint, 85 here");
  // A key that is newer than the file has its default there; one that is derived from others is not compared.
  const auto here = [](const std::string& extra) {
    return resolved_json(load_config_text({{"c.json", with(extra)}}, {}));
  };
  nlohmann::json older = here("\"seed\": 1");
  for (const char* key : {"reset_attention_mask", "reset_position_ids", "calculate_per_token_loss",
                          "sliding_window_width", "head_dim", "use_bias_in_mlp"})
    EXPECT_EQ(older.erase(key), 1u) << key;
  EXPECT_EQ(differing_keys(older, here("\"seed\": 1")), std::vector<std::string>());
  EXPECT_EQ(differing_keys(older, here("\"seed\": 1, \"reset_position_ids\": true, \"eod_token\": 1, "
                                       "\"sliding_window_width\": 4")),
            (std::vector<std::string>{"eod_token: -1 in the checkpoint, 1 here",
                                      "reset_position_ids: false in the checkpoint, true here",
                                      "sliding_window_width: null in the checkpoint, 4 here"}));
  // Where tokens are left out, the loss was another one before that key.
  const std::string masked = "\"eod_mask_loss\": true, \"eod_token\": 1";
  older = here(masked);
  older.erase("calculate_per_token_loss");
  EXPECT_EQ(differing_keys(older, here(masked)),
            std::vector<std::string>{"calculate_per_token_loss: false in the checkpoint, true here"});
  EXPECT_TRUE(differing_keys(older, here(masked + ", \"calculate_per_token_loss\": false")).empty());
  for (const char* version : {"3", "\"2\""})
    EXPECT_NE(refusal(with(std::string("\"config_version\": ") + version)).find("must be an integer from 1 to 2"),
              std::string::npos);
}

}  // namespace
}  // namespace thinwire::resolved_config_test
