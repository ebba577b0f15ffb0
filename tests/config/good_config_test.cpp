// Good configurations: shipped files, the public recipes retyped, aliases, derived values, merging, overrides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <tuple>

#include "data/split.h"
#include "tests/config/config_test_support.h"

namespace thinwire::good_config_test {
namespace {

RunConfig load(const std::string& extra, const std::vector<std::string>& overrides = {},
               const ConfigOptions& options = {}) {
  return load_config_text({{"a.json", with(extra)}}, overrides, options).run;
}

// Unique parameters: embedding, positions, blocks, final norm, head.
int64_t parameters(const ModelConfig& m) {
  const int64_t norm = m.hidden * (m.bias_norm ? 2 : 1);
  const int64_t attention = m.qkv_width() * (m.hidden + (m.bias_attention ? 1 : 0)) +
                            m.hidden * (m.attention_width() + (m.bias_attention ? 1 : 0));
  const int64_t mlp = m.ffn_in_width() * (m.hidden + (m.bias_mlp ? 1 : 0)) + m.hidden * (m.ffn + (m.bias_mlp ? 1 : 0));
  const int64_t positions = m.positions == PositionKind::kLearned ? m.max_positions * m.hidden : 0;
  return m.padded_vocab * m.hidden * (m.tied_head ? 1 : 2) + positions + m.layers * (attention + mlp + 2 * norm) + norm;
}

TEST(GoodConfig, ShippedFilesLoad) {
  for (const char* name : {"quickstart", "gpt2_tiny", "neox_tiny", "llama_tiny", "gpt2_124m", "llama_1b", "gpt20b"}) {
    SCOPED_TRACE(name);
    const std::string path = std::string("configs/") + name + ".json";
    const ResolvedConfig c = load_config({path}, {}, {.data_required = true});
    EXPECT_EQ(c.run.run_dir, std::string("runs/") + name);
    EXPECT_TRUE(c.given.count("train_batch_size") == 1 && c.given.count("train_micro_batch_size_per_gpu") == 1);
    EXPECT_EQ(c.given.count("gradient_accumulation_steps"), 0u);
  }
  for (const char* name : {"gpt2_tiny", "neox_tiny", "llama_tiny"}) {
    SCOPED_TRACE(name);
    const std::string path = std::string("configs/") + name + ".json";
    const RunConfig c = load_config({path}, {}).run;
    EXPECT_GE(c.model.layers, 4);
    EXPECT_EQ(c.model.heads % 4, 0);
    EXPECT_EQ(c.model.kv_heads % 4, 0);
    EXPECT_EQ(c.model.seq_length, 128);
    EXPECT_EQ(c.model.padded_vocab, 256);
    // Every layout of up to four ranks, and one override at a time.
    for (const char* layout : {"model_parallel_size=2", "model_parallel_size=4", "pipe_parallel_size=4",
                               "pipe_parallel_size=2", "zero_optimization.stage=3"})
      EXPECT_EQ(load_config({path}, {layout}, {.ranks = 4}).run.layout.data, layout[0] == 'z'                    ? 4
                                                                             : std::string(layout).back() == '4' ? 1
                                                                                                                 : 2);
  }
  EXPECT_EQ(load_config({"configs/llama_tiny.json"}, {}).run.model.heads_per_group(), 2);
  EXPECT_EQ(load_config({"configs/neox_tiny.json"}, {}).run.model.rotary_dim(), 4);
  const int64_t quick = parameters(load_config({"configs/quickstart.json"}, {}).run.model);
  EXPECT_TRUE(quick > 1000000 && quick < 2000000) << quick;
  const ModelConfig gpt2 = load_config({"configs/gpt2_124m.json"}, {}).run.model;
  // 124,439,808 with 50257 rows; padding adds 47 rows of 768.
  EXPECT_EQ(parameters(gpt2), 124439808 + 47 * 768);
  const int64_t llama = parameters(load_config({"configs/llama_1b.json"}, {}).run.model);
  EXPECT_EQ(llama, 1100048384);  // the published count of this shape (TinyLlama 1.1B)
}

// Kernels read them as fp32, in which each of these is its bound.
TEST(GoodConfig, NumbersNextToAnOpenBoundDoNotReachItInFp32) {
  const RunConfig c = load(
      "\"hidden_dropout\": 0.99999999, \"attention_dropout\": 0.99999999, "
      "\"layernorm_epsilon\": 1e-60, \"adam_eps\": 1e-60, "
      "\"sgd_momentum\": 1e-60");
  EXPECT_LT(c.model.hidden_dropout, 1.0f);
  EXPECT_LT(c.model.attention_dropout, 1.0f);
  EXPECT_GT(c.model.norm_eps, 0.0f);
  EXPECT_GT(static_cast<float>(c.optim.eps), 0.0f);
  EXPECT_EQ(c.optim.momentum, 0.0) << "no buffer for what kernels take for no momentum";
}

TEST(GoodConfig, TwentyBillion) {
  const ResolvedConfig r = load_config({"configs/gpt20b.json"}, {}, {.dry_run = true});
  const RunConfig& c = r.run;
  EXPECT_EQ(parameters(c.model), 20554567680);  // reference count, padded
  EXPECT_EQ(c.layout.pipeline * c.layout.tensor * c.layout.data, 96);
  EXPECT_EQ(c.layout.data, 12);
  EXPECT_EQ(c.accumulation, 32);
  EXPECT_EQ(c.data.global_batch, 1536);
  EXPECT_EQ(c.model.rotary_dim(), 24);
  EXPECT_EQ(c.model.activation, ActivationKind::kGeluTanh);
  EXPECT_TRUE(c.model.parallel_residual && !c.model.tied_head);
  EXPECT_EQ(c.model.init, InitMethod::kSmallInit);
  EXPECT_EQ(c.model.output_init, InitMethod::kWangInit);
  EXPECT_EQ(c.model.dtype, DType::f16);
  EXPECT_EQ(c.model.recompute, Recompute::kFull);
  EXPECT_EQ(c.optim.warmup_iters, 1500);
  EXPECT_EQ(c.optim.decay, LrDecay::kCosine);
  EXPECT_DOUBLE_EQ(c.optim.lr, 0.97e-4);
  EXPECT_DOUBLE_EQ(c.optim.min_lr, 0.97e-5);
  EXPECT_DOUBLE_EQ(c.optim.weight_decay, 0.01);
  EXPECT_TRUE(c.optim.dynamic_loss_scale);
  EXPECT_EQ(c.optim.loss_scale, 4096.0);
  EXPECT_EQ(r.values.at("zero_optimization.stage"), 1);
  EXPECT_EQ(c.layout.placement.optimizer, Level::kGlobal);
  EXPECT_EQ(r.values.at("zero_optimization.reduce_bucket_size"), 1260000000);
  EXPECT_EQ(c.save_interval, 500);
  EXPECT_EQ(c.save_interval_minutes, 30.0);
  EXPECT_EQ(c.keep_last, 3);
  std::set<std::string> noted;
  for (const ConfigNote& n : r.notes) noted.insert(n.key);
  for (const char* key : {"tensorboard-dir", "data-impl", "rope_fusion", "distributed-backend",
                          "zero_optimization.reduce_scatter", "fp16.fp16", "gpt_j_tied"})
    EXPECT_EQ(noted.count(key), 1u) << key;
  // Other numbers of ranks: the accumulation follows.
  EXPECT_EQ(load_config({"configs/gpt20b.json"}, {}, {.ranks = 8, .dry_run = true}).run.accumulation, 384);
}

// Implementations that NeoX lets a file choose are not the model's: they load, and a note says so.
TEST(GoodConfig, ChoicesOfImplementationLoad) {
  const char* text = R"({
  "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32, "vocab_size": 257,
  "norm": "te_rmsnorm", "te_layernorm_mlp": true, "te_mha": true, "te_fp8_format": "hybrid", "use_bnb_optimizer": true,
  "override_lr_scheduler": true, "optimizer": { "type": "CPU_Adam", "params": { "lr": 1e-3 } },
  "train_batch_size": 2, "train_iters": 5 })";
  const ResolvedConfig r = load_config_text({{"te.json", text}}, {}, {.dry_run = true});
  EXPECT_EQ(r.run.model.norm, NormKind::kRmsNorm);
  std::set<std::string> noted;
  for (const ConfigNote& n : r.notes) noted.insert(n.key);
  for (const char* key : {"te_layernorm_mlp", "te_fp8_format", "use_bnb_optimizer", "override_lr_scheduler"})
    EXPECT_EQ(noted.count(key), 1u) << key;
}

// The recipe as its authors publish it: flow-style YAML that is nearly JSON. No vocabulary size, no train_batch_size.
TEST(GoodConfig, PublicRecipeRetyped) {
  const char* text = R"({
  # Tokenizer / checkpoint settings
  "vocab-file": "./20B_checkpoints/20B_tokenizer.json", "save": "./20B_checkpoints", "load": "./20B_checkpoints",
  "data-path": "./data/pile_20B_tokenizer/pile_20B_tokenizer_text_document",
  "pipe-parallel-size": 4, "model-parallel-size": 2,
  "num-layers": 44, "hidden-size": 6144, "num-attention-heads": 64, "seq-length": 2048, "max-position-embeddings": 2048,
  "norm": "layernorm", "pos-emb": "rotary", "rotary_pct": 0.25, "no-weight-tying": true, "gpt_j_residual": true,
  "output_layer_parallelism": "column", "scaled-upper-triang-masked-softmax-fusion": true, "bias-gelu-fusion": true,
  "init_method": "small_init", "output_layer_init_method": "wang_init",
  "extra-save-iters": [0, 1, 2, 4, 512],
  "optimizer": { "type": "Adam", "params": { "lr": 0.97e-4, "betas": [0.9, 0.95], "eps": 1.0e-8, } },
  "min_lr": 0.97e-5,
  # for all zero_optimization options, see the manual
  "zero_optimization": { "stage": 1, "allgather_partitions": True, "allgather_bucket_size": 1260000000, "overlap_comm": True,
    "reduce_scatter": True, "reduce_bucket_size": 1260000000, "contiguous_gradients": True, },
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32, "data-impl": "mmap", "split": "995,4,1",
  "checkpoint-activations": true, "checkpoint-num-layers": 1, "partition-activations": false, "synchronize-each-layer": true,
  "gradient_clipping": 1.0, "weight-decay": 0.01, "hidden-dropout": 0, "attention-dropout": 0,
  "fp16": { "fp16": true, "enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 12, "hysteresis": 2, "min_loss_scale": 1 },
  "train-iters": 150000, "lr-decay-iters": 150000, "distributed-backend": "nccl", "lr-decay-style": "cosine", "warmup": 0.01,
  "save-interval": 500, "eval-interval": 1000, "eval-iters": 10, "log-interval": 2, "steps_per_print": 2, "wall_clock_breakdown": false,
  ### NEW DATA: ####
  "tokenizer_type": "HFTokenizer", "tensorboard-dir": "./tensorboard", "log-dir": "./logs",
})";
  const ResolvedConfig r = load_config_text({{"20B.json", text}}, {}, {.ranks = 96, .dry_run = true});
  EXPECT_EQ(r.run.data.global_batch, 1536);
  EXPECT_EQ(r.run.extra_save_iters, (std::vector<int64_t>{0, 1, 2, 4, 512}));
  EXPECT_EQ(r.run.model.vocab, 50277);
  EXPECT_EQ(r.run.model.padded_vocab, 50304);  // 128 alone, whatever the layout
  EXPECT_EQ(r.run.load, "");                   // the same path as save: that is what a resume is
  EXPECT_EQ(r.run.tokenizer, "bpe:./20B_checkpoints/20B_tokenizer.json");
  EXPECT_EQ(load_config_text({{"20B.json", text}}, {}, {.dry_run = true}).run.data.global_batch,
            128);  // one data-parallel rank
}

// NeoX's configuration for finetuning and its file of local paths after it; a run of them is refused.
TEST(GoodConfig, ADryRunNeedsNoWeightsToFinetune) {
  const std::string tunes = with("\"finetune\": true, \"load\": \"/path/to/checkpoint\"");
  const std::string local = R"({"save": "checkpoints", "load": "checkpoints"})";
  const ResolvedConfig r = load_config_text({{"6-9B.json", tunes}, {"local.json", local}}, {}, {.dry_run = true});
  const auto found = std::ranges::find(r.notes, std::string("finetune"), &ConfigNote::key);
  ASSERT_NE(found, r.notes.end());
  EXPECT_NE(found->text.find("load is the same path as save"), std::string::npos) << found->text;
  EXPECT_TRUE(load("\"finetune\": true", {}, {.dry_run = true}).finetune);
}

// GPT-2's files by NeoX's keys: the size of the vocabulary is that of the file where it is there.
TEST(GoodConfig, VocabAndMergeFiles) {
  const std::vector<std::string> model = {
      "num_layers=1",  "hidden_size=8", "num_attention_heads=1",           "seq_length=4",
      "train_iters=1", "lr=0.1",        "train_micro_batch_size_per_gpu=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), model.begin(), model.end());
    return load_config({}, more).run;
  };
  const std::string golden = "tests/golden/bpe/gpt2_pair/";
  for (const char* type : {"seed=1", "tokenizer_type=GPT2BPETokenizer"}) {
    const auto run = with({"vocab_file=" + golden + "vocab.json", "merge_file=" + golden + "merges.txt", type});
    EXPECT_EQ(run.tokenizer, "bpe:" + golden + "vocab.json," + golden + "merges.txt");
    EXPECT_EQ(run.model.vocab, 700);
  }
  const auto absent = with({"vocab_file=data/gpt2-vocab.json", "merge_file=data/gpt2-merges.txt"});
  EXPECT_EQ(absent.tokenizer, "bpe:data/gpt2-vocab.json,data/gpt2-merges.txt");
  EXPECT_EQ(absent.model.vocab, 50257);
  EXPECT_EQ(with({"vocab_file=data/gpt2-vocab.json"}).tokenizer, "");
}

// As in Megatron and NeoX, what cuts at the end of a document asks the tokenizer which id that is.
TEST(GoodConfig, EndOfDocumentOfTheTokenizer) {
  const auto end = [](std::vector<std::string> more) {
    more.insert(more.end(), {"num_layers=1", "hidden_size=8", "num_attention_heads=1", "seq_length=4", "train_iters=1",
                             "lr=0.1", "train_micro_batch_size_per_gpu=1"});
    return load_config({}, more).run.data.documents.eod_token;
  };
  const std::string mask = "eod_mask_loss=true", golden = "tokenizer=bpe:tests/golden/bpe/";
  EXPECT_EQ(end({golden + "neox20b/tokenizer.json", mask}), 0);
  EXPECT_EQ(end({golden + "llama3/tokenizer.json", "vocab_size=999", "reset_attention_mask=true"}), 701);
  EXPECT_EQ(end({golden + "llama3/tokenizer.json", "eod_token=3", mask}), 3);
  EXPECT_EQ(end({golden + "llama3/tokenizer.json"}), -1);
  EXPECT_EQ(end({"tokenizer=byte", "vocab_size=257", mask}), 256);
  EXPECT_EQ(end({"tokenizer_type=NullTokenizer", "vocab_size=99", mask}), 99);
  EXPECT_EQ(end({"vocab_file=data/gpt2-vocab.json", "merge_file=data/gpt2-merges.txt", mask}), 50256);
}

// NeoX's Llama files, and Megatron's spelling of the same model: both must give the published widths.
TEST(GoodConfig, LlamaInThreeSpellings) {
  const char* neox =
      R"({ "num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 2048, "max-position-embeddings": 2048,
    "pos-emb": "rotary", "rotary-pct": 1, "no-weight-tying": true, "gpt-j-residual": false, "output-layer-parallelism": "column",
    "norm": "rmsnorm", "rms_norm_epsilon": 1.0e-5, "make_vocab_size_divisible_by": 1, "bias-gelu-fusion": false, "use_bias_in_norms": false,
    "use_bias_in_attn_linear": false, "mlp_type": "llama", "activation": "silu", "vocab_size": 32000, "lr": 3e-4, "train_iters": 1, "micro_batch_size": 1 })";
  const char* megatron =
      R"({ "num-layers": 32, "hidden-size": 4096, "ffn-hidden-size": 11008, "num-attention-heads": 32, "seq-length": 2048,
    "max-position-embeddings": 2048, "position-embedding-type": "rope", "untie-embeddings-and-output-weights": true, "normalization": "RMSNorm",
    "norm-epsilon": 1e-5, "swiglu": true, "disable-bias-linear": true, "group-query-attention": true, "num-query-groups": 32, "kv-channels": 128,
    "make_vocab_size_divisible_by": 1, "vocab_size": 32000, "lr": 3e-4, "train_iters": 1, "micro-batch-size": 1, "global-batch-size": 1,
    "adam-beta2": 0.95, "clip-grad": 1.0, "use-distributed-optimizer": true, "attention-backend": "flash", "tensor-model-parallel-size": 1 })";
  for (const char* text : {neox, megatron}) {
    const RunConfig c = load_config_text({{"llama.json", text}}, {}).run;
    EXPECT_EQ(c.model.ffn, 11008);
    EXPECT_EQ(parameters(c.model), 6738415616);  // Llama-7B's published count
    EXPECT_EQ(c.model.norm_eps, 1e-5f);
    EXPECT_EQ(c.model.activation, ActivationKind::kSwiglu);
  }
  EXPECT_EQ(load_config_text({{"m.json", megatron}}, {}).run.optim.beta2, 0.95);
  EXPECT_EQ(load_config_text({{"m.json", megatron}}, {}).run.optim.beta1, 0.9);
  EXPECT_EQ(load_config_text({{"m.json", megatron}}, {}).values.at("zero_optimization.stage"), 1);
}

TEST(GoodConfig, DefaultsAreNeox) {
  const RunConfig c = load("\"$schema\": \"../docs/config.schema.json\"");
  EXPECT_EQ(c.model.ffn, 256);
  EXPECT_EQ(c.model.head_dim, 8);
  EXPECT_EQ(c.model.kv_heads, 8);
  EXPECT_EQ(c.model.max_positions, 32);
  EXPECT_EQ(c.model.padded_vocab, 256);
  EXPECT_EQ(c.model.activation, ActivationKind::kGeluExact);
  EXPECT_EQ(c.model.hidden_dropout, 0.0f);
  EXPECT_TRUE(c.model.tied_head);
  EXPECT_EQ(c.optim.weight_decay, 0.1);
  EXPECT_EQ(c.optim.decay, LrDecay::kLinear);
  EXPECT_EQ(c.optim.decay_iters, 10);
  EXPECT_EQ(c.optim.warmup_iters, 0);  // floor(0.01 * 10)
  EXPECT_EQ(c.optim.loss_scale, 65536.0);
  EXPECT_EQ(c.data.split, "969, 30, 1");
  EXPECT_EQ(c.accumulation, 4);
  EXPECT_EQ(c.seed, 1234u);
  EXPECT_EQ(c.run_dir, "runs/a");
  EXPECT_EQ(c.save_dir, "runs/a/checkpoints");
  EXPECT_TRUE(c.compression.rules.empty());
  EXPECT_EQ(c.compression.preset, "none");
}

// A shared NeoX configuration keeps its sequence_parallel on one tensor-parallel rank, where it means nothing.
TEST(GoodConfig, SequenceParallelOnOneRankIsNoted) {
  const ResolvedConfig r = load_config_text({{"a.json", with("\"sequence_parallel\": true")}}, {});
  ASSERT_FALSE(r.notes.empty());
  EXPECT_EQ(r.notes.front().key, "sequence_parallel");
  EXPECT_NE(r.notes.front().text.find("no effect"), std::string::npos);
}

TEST(GoodConfig, NoBatchAheadIsReadAsOne) {
  const ResolvedConfig r = load_config_text({{"a.json", with("\"prefetch_batches\": 0")}}, {});
  EXPECT_EQ(r.run.data.prefetch_batches, 1);
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_EQ(r.notes.front().key, "prefetch_batches");
}

TEST(GoodConfig, WhatTheOptimizerDoesNotReadIsNoted) {
  const auto noted = [](const std::string& type, const std::string& params) {
    const ResolvedConfig r = load_config_text(
        {{"a.json", with("\"optimizer\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}")}}, {});
    std::string keys;
    for (const ConfigNote& n : r.notes)
      if (n.text.find("has no effect: only optimizer.type") != std::string::npos) keys += n.key + " ";
    return keys;
  };
  const std::string betas = "\"betas\": [0.9, 0.95]", momentum = "\"momentum\": 0.9";
  EXPECT_EQ(noted("adam", betas + ", " + momentum), "optimizer.params.momentum ");
  EXPECT_EQ(noted("sgd", betas + ", " + momentum), "optimizer.params.betas ");
  EXPECT_EQ(noted("sgd", "\"betas\": [0.9, 0.999], \"eps\": 1e-8"), "") << "what they are by default";
}

TEST(GoodConfig, WhatNothingReadsIsNoted) {
  const auto noted = [](const std::string& extra, const std::string& key) {
    const ResolvedConfig r = load_config_text({{"a.json", with(extra)}}, {});
    const auto found = std::ranges::find(r.notes, key, &ConfigNote::key);
    return found == r.notes.end() ? std::string() : found->text;
  };
  struct Case {
    const char *key, *value, *beside, *why;  // why: empty where somebody reads the key
  };
  const Case cases[] = {
      {"spike_window", "64", "\"spike\": \"off\"", "spike is off"},
      {"spike_budget", "2", "\"spike\": \"warn\"", "only spike skip reads it"},
      {"spike_budget", "2", "\"spike\": \"skip\"", ""},
      {"spike_threshold", "5", "\"spike\": \"off\"", "spike is off"},
      {"spike_threshold", "10", "\"spike\": \"off\"", ""},  // as it is by default
      {"straggler_ratio", "2", "\"straggler_interval\": 0", "straggler_interval is 0"},
      {"straggler_ratio", "2", "\"straggler_interval\": 5", ""},
      {"no_load_optim", "true", "\"seed\": 1", "there is no load"},
      {"no_load_optim", "true", "\"load\": \"c\"", ""},
      {"no_load_optim", "true", "\"load\": \"c\", \"save\": \"c\"",
       "load is the same path as save, where a run resumes with its optimizer; say in load which checkpoint to take, "
       "and another run_dir"},
      {"rms_norm_epsilon", "1e-4", "\"norm\": \"layernorm\"", "norm is layernorm"},
      {"layernorm_epsilon", "1e-4", "\"norm\": \"rmsnorm\"", "norm is rmsnorm"},
      {"rms_norm_epsilon", "1e-4", "\"norm\": \"rmsnorm\"", ""},
      {"rotary_pct", "0.5", "\"pos_emb\": \"learned\"", "pos_emb is learned"},
      {"rotary_pct", "0.5", "\"pos_emb\": \"rotary\"", ""},
      {"lr_wsd_decay_style", "\"cosine\"", "\"lr_decay_style\": \"cosine\"", "only lr_decay_style wsd reads it"},
      {"hysteresis", "3", "\"precision\": \"bf16\"", "precision is bf16"},
      {"hysteresis", "3", "\"precision\": \"fp16\"", ""},
      {"cp_comm_type", "\"p2p\"", "\"context_parallel_size\": 1", "there is one context-parallel rank"},
      {"pipe_partition_method", "\"parameters\"", "\"pipe_parallel_size\": 1", "there is one pipeline stage"},
      {"pipe_partition_method", "\"parameters\"", "\"pipe_parallel_size\": 2", ""},
  };
  for (const Case& c : cases) {
    const std::string key = c.key == std::string("hysteresis") ? "fp16.hysteresis" : c.key;
    const std::string why = c.why;
    EXPECT_EQ(noted("\"" + std::string(c.key) + "\": " + c.value + ", " + c.beside, key),
              why.empty() ? "" : "has no effect: " + why)
        << c.key << " beside " << c.beside;
  }
  EXPECT_EQ(noted("\"norm_epsilon\": 1e-4", "rms_norm_epsilon"), "") << "it says both";
}

TEST(GoodConfig, AFinalDecayThatTheStyleDoesNotReadIsNoted) {
  const auto noted = [](const std::string& style) {
    const ResolvedConfig r =
        load_config_text({{"a.json", with("\"lr_wsd_decay_iters\": 3, \"lr_decay_style\": \"" + style + "\"")}}, {});
    return std::ranges::any_of(r.notes, [](const ConfigNote& n) { return n.key == "lr_wsd_decay_iters"; });
  };
  EXPECT_TRUE(noted("cosine"));
  EXPECT_FALSE(noted("wsd"));
}

TEST(GoodConfig, DerivedValues) {
  // NeoX: two thirds of 4h for gate and up together. Megatron: 8h/3 for each, rounded down to 64. Llama: rounded up.
  EXPECT_EQ(load("\"activation\": \"swiglu\"").model.ffn, 85);
  EXPECT_EQ(load("\"activation\": \"swiglu\", \"mlp_multiple_of\": 64").model.ffn, 128);
  EXPECT_EQ(load("\"swiglu\": true").model.ffn, 128);
  EXPECT_EQ(load("\"mlp_type\": \"llama\", \"activation\": \"silu\"").model.ffn, 256);
  EXPECT_EQ(load("\"mlp_type\": \"llama\", \"activation\": \"silu\", \"intermediate_size\": 100").model.ffn, 100);
  EXPECT_EQ(load("\"activation\": \"swiglu\", \"intermediate_size\": 32768, \"mlp_multiple_of\": 256").model.ffn,
            11008);
  EXPECT_EQ(load("\"activation\": \"swiglu\", \"intermediate_size\": 14337").model.ffn, 4779);
  EXPECT_EQ(load("\"intermediate_size\": 100, \"mlp_multiple_of\": 32").model.ffn, 128);
  EXPECT_EQ(load("\"activation\": \"swiglu\", \"ffn_hidden_size\": 99").model.ffn, 99);
  EXPECT_EQ(load("\"expansion_factor\": 2.5").model.ffn, 160);
  EXPECT_EQ(load("\"ffn_hidden_size\": 100, \"mlp_multiple_of\": 32").model.ffn, 100);
  EXPECT_EQ(load("\"head_dim\": 16").model.attention_width(), 128);
  EXPECT_EQ(load("\"norm\": \"rmsnorm\"").model.norm_eps, 1e-8f);
  EXPECT_FALSE(load("\"norm\": \"rmsnorm\"").model.bias_norm);
  const ModelConfig bare = load("\"norm\": \"non_parametric_layernorm\", \"layernorm_epsilon\": 0.5").model;
  EXPECT_TRUE(bare.norm == NormKind::kLayerNorm && !bare.gain_norm && !bare.bias_norm && bare.norm_eps == 0.5f);
  EXPECT_TRUE(load("").model.gain_norm);
  // Files of NeoX's first year say the norm twice.
  const std::string norm = "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 0.5}}";
  EXPECT_EQ(load(norm + ", \"gradient-clipping\": 0.5").optim.clip, 0.5);
  EXPECT_EQ(load(norm).optim.clip, 0.5);
  EXPECT_EQ(load(norm, {"gradient_clipping=2"}).optim.clip, 2.0);
  EXPECT_EQ(load("\"lr_warmup_iters\": 3").optim.warmup_iters, 3);
  EXPECT_EQ(load("\"warmup\": 0.25").optim.warmup_iters, 2);
  // As in NeoX's configs/llemma.
  const std::string llemma = "\"decay_lr_to\": 0.25, \"warmup_iters\": 3, \"attention_type\": \"groupedquery\"";
  EXPECT_EQ(load(llemma).optim.warmup_iters, 3);
  EXPECT_EQ(load(llemma).optim.min_lr, 0.25 * 1e-3);
  EXPECT_EQ(load(llemma, {"min_lr=1e-4"}).optim.min_lr, 1e-4);
  EXPECT_EQ(load("\"openai_gelu\": true").model.activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(load("\"bias_gelu_fusion\": true", {"no_bias_gelu_fusion=true"}).model.activation,
            ActivationKind::kGeluExact);
  EXPECT_EQ(load("\"openai_gelu\": true, \"no_bias_gelu_fusion\": true").model.activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(load("\"initial_loss_scale\": 4294967296, \"fp16\": true").optim.loss_scale, 4294967296.0);
  EXPECT_FALSE(load("\"fp16\": {\"enabled\": true, \"loss_scale\": 128}").optim.dynamic_loss_scale);
  EXPECT_EQ(load("\"precision\": \"bfloat16\"").model.dtype, DType::bf16);
  const std::string buckets = with("\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e8}");
  EXPECT_EQ(load_config_text({{"a.json", buckets}}, {}).values.at("zero_optimization.reduce_bucket_size"), 500000000);
  const LayoutConfig zero3 =
      load("\"zero_optimization\": {\"stage\": 3}, \"placement\": {\"weights\": \"node\", \"secondary\": \"pair\"}")
          .layout;
  EXPECT_EQ(zero3.placement.weights, Level::kNode);
  EXPECT_EQ(zero3.placement.gradients, Level::kGlobal);
  EXPECT_EQ(zero3.placement.secondary, Level::kPair);
  EXPECT_EQ(load("\"pipe_parallel_size\": 0").layout.pipeline, 1);
  const RunConfig triple = load("\"gradient_accumulation_steps\": 2");
  EXPECT_EQ(triple.layout.data, 2);  // 8 / (2 * 2)
  const auto text = [](const char* batch) { return without("train_micro_batch_size_per_gpu", batch); };
  EXPECT_EQ(load_config_text({{"a", text("\"gradient_accumulation_steps\": 4")}}, {}).run.data.micro_batch, 2);
  EXPECT_EQ(load_config_text({{"a", text("\"seed\": 1")}}, {}, {.ranks = 4}).run.data.micro_batch, 2);
  const std::string samples = without("train_iters", "\"train_samples\": 100");
  EXPECT_EQ(load_config_text({{"a", samples}}, {}).run.train_iters, 12);
  const RunConfig ramp = load("\"rampup_batch_size\": \"2 2 30\"");
  EXPECT_EQ(ramp.data.ramp_start, 2);
  EXPECT_EQ(ramp.data.ramp_samples, 30);
  EXPECT_EQ(load("\"compression\": {\"dp.gradient\": {\"codec\": \"identity\", \"min_bytes\": 4096}}")
                .compression.rules.at(Site::kDpGradient)
                .front()
                .min_bytes,
            4096);
  EXPECT_EQ(load("\"faults\": [{\"at\": \"grad\"}]", {}, {.allow_faults = true}).faults_json, "[{\"at\":\"grad\"}]");
  EXPECT_EQ(load("\"context_parallel_size\": 1, \"moe_num_experts\": 1, \"gpt_j_tied\": false, \"rope_scaling\": None")
                .model.layers,
            4);
  EXPECT_EQ(load("\"attention_config\": [[[\"flash\"], 4]]").model.layers, 4);
  EXPECT_EQ(load("\"attention_config\": [[[\"flash\"], \"all\"]]").model.layers, 4);
}

// As Megatron counts: in samples, by the run's own length or by one of the schedule's.
TEST(GoodConfig, SchedulesInSamples) {
  struct Case {
    std::string text;
    bool by_samples;
    int64_t decay, warmup, final_decay;
  };
  const auto run_of = [](const std::string& extra) { return without("train_iters", "\"train_samples\": 100" + extra); };
  const std::string ramp = ", \"rampup_batch_size\": [2, 2, 30]";  // 34 samples in 10 steps
  const std::string wsd = ", \"lr_decay_style\": \"wsd\", ";
  const std::vector<Case> cases = {
      {run_of(""), true, 100, 1, 0},
      {run_of(ramp), true, 100, 1, 0},
      {run_of(", \"lr_decay_samples\": 90, \"lr_warmup_samples\": 17" + wsd + "\"lr_wsd_decay_samples\": 30"), true, 90,
       17, 30},
      {run_of(", \"lr_warmup_iters\": 0"), true, 100, 0, 0},
      {run_of(", \"lr_schedule_unit\": \"steps\""), false, 12, 0, 0},
      {run_of(", \"lr_warmup_iters\": 2"), false, 12, 2, 0},
      {run_of(ramp + wsd + "\"lr_wsd_decay_iters\": 5"), false, 18, 0, 5},
      {with("\"lr_decay_samples\": 70, \"lr_warmup_iters\": 0" + ramp), true, 70, 0, 0},
      {with("\"lr_warmup_samples\": 9"), true, 80, 9, 0},
      {with("\"lr_warmup_samples\": 9" + ramp), true, 34, 9, 0},
      {with("\"lr_warmup_samples\": 0, \"lr_decay_iters\": 9"), false, 9, 0, 0}};
  for (const Case& c : cases) {
    const OptimConfig o = load_config_text({{"a.json", c.text}}, {}).run.optim;
    EXPECT_EQ(std::tie(o.by_samples, o.decay_iters, o.warmup_iters, o.wsd_decay_iters),
              std::tie(c.by_samples, c.decay, c.warmup, c.final_decay))
        << c.text;
  }
}

// Twenty samples were taken by five steps of another batch: the length of the run and what follows from it count on.
TEST(GoodConfig, ResumesWithAnotherBatchSize) {
  const auto resumed = [](const std::string& text) {
    return load_config_text({{"a.json", text}}, {}).resumed_at(5, 20);
  };
  const ResolvedConfig samples = resumed(without("train_iters", "\"train_samples\": 100"));
  EXPECT_EQ(samples.run.train_iters, 15);
  EXPECT_EQ(samples.run.data.train_iters, 15);
  EXPECT_EQ(samples.values.at("train_iters"), 15);
  EXPECT_EQ(samples.run.optim.decay_iters, 100);
  const ResolvedConfig steps = resumed(with("\"lr_warmup_samples\": 9"));
  EXPECT_EQ(steps.run.train_iters, 10);
  EXPECT_EQ(steps.run.optim.decay_iters, 60);
}

TEST(GoodConfig, DataPaths) {
  const auto blend = [](const std::string& value) { return load("\"data_path\": " + value).data.data; };
  EXPECT_EQ(blend("\"x/y\"").size(), 1u);
  EXPECT_EQ(blend("\"dir with blanks/y\"").front().prefix, "dir with blanks/y");
  for (const char* text : {"\"0.3 a 0.7 b\"", "[\"0.3\", \"a\", \"0.7\", \"b\"]", "[0.3, \"a\", 0.7, \"b\"]"}) {
    const auto two = blend(text);
    ASSERT_EQ(two.size(), 2u) << text;
    EXPECT_EQ(two[0].prefix, "a");
    EXPECT_EQ(two[1].weight, 0.7);
  }
  EXPECT_EQ(blend("[\"a\", \"b\"]")[1].weight, std::nullopt);
  const DataConfig d =
      load("\"train_data_paths\": [\"a\", \"b\"], \"train_data_weights\": [1, 3], \"valid_data_paths\": [\"c\"]").data;
  EXPECT_EQ(d.train[1].weight, 3.0);
  EXPECT_EQ(d.valid.front().prefix, "c");
  EXPECT_EQ(d.split, "");
  // A later source that gives one way withdraws the other.
  const DataConfig over = load("\"train_data_paths\": [\"a\"]", {"data_path=z"}).data;
  EXPECT_TRUE(over.train.empty());
  EXPECT_EQ(over.data.front().prefix, "z");
}

TEST(GoodConfig, MergingAndOverrides) {
  const std::string second = "{\"optimizer\": {\"params\": {\"eps\": 1e-6}}, \"num_layers\": 2, \"warmup\": None}";
  const RunConfig c =
      load_config_text({{"a.json", with("\"optimizer\": {\"params\": {\"betas\": [0.8, 0.9]}}, \"warmup\": 0.5")},
                        {"b.json", second}},
                       {"num-layers=3", "lr=2e-3", "fp16.enabled=true", "run_dir=2024", "split=9,1",
                        "optimizer.params={\"eps\": 1e-7}"})
          .run;
  EXPECT_EQ(c.model.layers, 3);
  EXPECT_EQ(c.optim.beta1, 0.8);  // leaves of an object merge one by one
  EXPECT_EQ(c.optim.eps, 1e-7);
  EXPECT_EQ(c.optim.lr, 2e-3);
  EXPECT_EQ(c.optim.warmup_iters, 0);  // null takes a key back
  EXPECT_EQ(c.model.dtype, DType::f16);
  EXPECT_EQ(c.run_dir, "2024");
  EXPECT_EQ(c.data.split, "9,1");
  EXPECT_EQ(split_fault(load("\"split\": [0.99, 0.00999, 0.00001]").data.split), "");  // as JSON writes numbers
  // Later words win over earlier ones in other words.
  EXPECT_EQ(load("\"fp16\": {\"enabled\": true}", {"bf16.enabled=true"}).model.dtype, DType::bf16);
  EXPECT_EQ(load("\"fp16\": {\"enabled\": true}", {"fp16.enabled=false"}).model.dtype, DType::f32);
  EXPECT_EQ(load("\"fp16\": {\"enabled\": true}", {"precision=fp32"}).model.dtype, DType::f32);
  EXPECT_EQ(load("\"checkpoint_activations\": true", {"recompute_granularity=selective"}).model.recompute,
            Recompute::kSelective);
  EXPECT_EQ(load("\"intermediate_size\": 100", {"expansion_factor=2"}).model.ffn, 128);
  const std::string twice = "\"optimizer\": {\"params\": {\"betas\": [0.8, 0.9]}}, \"adam_beta1\": 0.8";
  EXPECT_EQ(load(twice).optim.beta2, 0.9) << "the same number in two words is no contradiction";
  EXPECT_EQ(load("\"lr_warmup_iters\": 5", {"warmup=0.1"}).optim.warmup_iters, 1);
  const OptimConfig steps =
      load("\"lr_warmup_samples\": 16, \"lr_decay_samples\": 40", {"warmup=0.4", "lr_decay_iters=5"}).optim;
  EXPECT_EQ(std::tuple(steps.by_samples, steps.decay_iters, steps.warmup_iters), std::tuple(false, 5, 2));
  // A warm-up of 0 in Megatron's words takes another one back only where it is said later.
  EXPECT_EQ(load("\"lr_warmup_samples\": 0, \"lr_warmup_iters\": 0, \"warmup\": 0.4").optim.warmup_iters, 4);
  EXPECT_EQ(load("\"lr_warmup_samples\": 0", {"warmup=0.4"}).optim.warmup_iters, 4);
  EXPECT_EQ(load("\"warmup\": 0.4", {"lr_warmup_samples=0"}).optim.warmup_iters, 0);
  EXPECT_EQ(load("\"seed\": 1", {"train_batch_size=16", "micro_batch_size=4"}).accumulation, 4);
  EXPECT_EQ(load("\"seed\": 1", {"compression.dp.gradient.codec=cast"})
                .compression.rules.at(Site::kDpGradient)
                .front()
                .codec.codec,
            "cast");
  EXPECT_EQ(load("\"seed\": 1", {"finetune=True", "load=runs/x"}).finetune, true);
  // Overrides alone are enough.
  EXPECT_EQ(load_config({}, {"num_layers=1", "hidden_size=8", "num_attention_heads=1", "seq_length=4", "vocab_size=9",
                             "lr=1", "train_iters=1", "micro_batch_size=1"})
                .run.run_dir,
            "runs/run");
}

// Two runs of flags alone would cut off each other's metrics in runs/run; a file that names the run counts as before.
TEST(GoodConfig, RunsOfFlagsAloneLiveWhereTheySave) {
  const std::vector<std::string> flags = {"num_layers=1",  "hidden_size=8",      "num_attention_heads=1",
                                          "seq_length=4",  "vocab_size=9",       "lr=1",
                                          "train_iters=1", "micro_batch_size=1", "save=ckpt/a"};
  const RunConfig alone = load_config({}, flags).run;
  EXPECT_EQ(alone.run_dir, "ckpt/a");
  EXPECT_EQ(alone.save_dir, "ckpt/a");
  EXPECT_EQ(load("\"save\": \"ckpt/a\"").run_dir, "runs/a");
}

// A later false, or null, takes back what the same word has said, and nothing else: what was there before holds again.
TEST(GoodConfig, WordsTakeBackWhatTheySaid) {
  const auto model = [](const std::string& first, const std::vector<std::string>& later) {
    return load(first, later).model;
  };
  for (const char* later : {"disable_bias_linear=false", "disable-bias-linear=null"}) {
    const ModelConfig biases = model("\"disable-bias-linear\": true", {later});
    EXPECT_TRUE(biases.bias_mlp && biases.bias_attention) << later;
  }
  const ModelConfig one =
      model("\"disable_bias_linear\": true", {"use_bias_in_mlp=false", "disable_bias_linear=false"});
  EXPECT_TRUE(one.bias_attention);
  EXPECT_FALSE(one.bias_mlp);
  const ModelConfig gelu = model("\"swiglu\": true", {"swiglu=false"});
  EXPECT_EQ(gelu.activation, ActivationKind::kGeluExact);
  EXPECT_EQ(gelu.ffn, 256);
  EXPECT_EQ(model("\"activation\": \"swiglu\"", {"swiglu=false"}).activation, ActivationKind::kSwiglu);
  EXPECT_EQ(model("\"openai_gelu\": true", {"openai_gelu=false"}).activation, ActivationKind::kGeluExact);
  EXPECT_EQ(model("\"bias_gelu_fusion\": true", {"openai_gelu=false"}).activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(
      model("\"bias_gelu_fusion\": true", {"openai_gelu=true", "openai_gelu=true", "openai_gelu=false"}).activation,
      ActivationKind::kGeluTanh);
  EXPECT_EQ(model("\"use_rotary_position_embeddings\": true", {"use_rotary_position_embeddings=false"}).positions,
            PositionKind::kLearned);
  EXPECT_EQ(model("\"no_position_embedding\": true", {"no_position_embedding=false"}).positions,
            PositionKind::kLearned);
  EXPECT_EQ(model("\"use_rotary_position_embeddings\": true, \"no_position_embedding\": true",
                  {"use_rotary_position_embeddings=false"})
                .positions,
            PositionKind::kNone);
  EXPECT_EQ(model("\"recompute_activations\": true", {"recompute_activations=false"}).recompute, Recompute::kNone);
  EXPECT_EQ(model("\"recompute_granularity\": \"full\"", {"recompute_activations=false"}).recompute, Recompute::kFull);
  EXPECT_EQ(model("\"ds_sequence_parallel_fpdt\": true", {"ds_sequence_parallel_fpdt=false"}).sequence_chunk, 0);
  const std::string hpz = "\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2}";
  EXPECT_EQ(load(hpz, {}, {.ranks = 4}).layout.placement.secondary, Level::kPair);
  for (const char* nothing : {"1", "null"})
    EXPECT_EQ(load(hpz, {std::string("zero_optimization.zero_hpz_partition_size=") + nothing}, {.ranks = 4})
                  .layout.placement.secondary,
              Level::kReplicated);
}

}  // namespace
}  // namespace thinwire::good_config_test
