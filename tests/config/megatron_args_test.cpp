// Command lines of Megatron-LM: words, flags, its defaults, and what is wrong with them.
#include "engine/run/config/megatron_args.h"

#include <gtest/gtest.h>

#include "engine/run/config/load_config.h"
#include "engine/run/config/resolved_json.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::megatron_args_test {
namespace {

// Path of a file with this text, the only one at a time.
std::string args_file(const std::string& text) {
  static const test::Scratch folder;
  const std::string path = folder / "m.args";
  test::spill(path, text);
  return path;
}

std::string message_of(const std::string& text) {
  try {
    load_config({}, {}, {.dry_run = true, .args_files = {args_file(text)}});
    return "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    return e.what();
  }
}

ResolvedConfig load(const std::string& text, const std::vector<std::string>& files = {}) {
  return load_config(files, {}, {.dry_run = true, .args_files = {args_file(text)}});
}

const std::string kSmall =
    "# a model\n--num-layers 2 --hidden-size 64 \\\n--num-attention-heads 4 --seq-length 32 --max-position-embeddings "
    "32\n"
    "--vocab-size 300 --micro-batch-size 2 --global-batch-size=8 --train-iters 10 --lr .001 --split '949,50,1'\n";

TEST(MegatronArgs, WordsAndFlags) {
  EXPECT_EQ(shell_words("a 'b c' \"d e\" f\\ g\n# no\nh \\\ni"),
            (std::vector<std::string>{"a", "b c", "d e", "f g", "h", "i"}));
  // Whatever files there are.
  EXPECT_EQ(shell_words("/* conf?gs [a-z]* '' \"a\\\"b\\c\" 'a\\'#"),
            (std::vector<std::string>{"/*", "conf?gs", "[a-z]*", "", "a\"b\\c", "a\\#"}));
  std::vector<std::string> overrides;
  for (const MegatronFlag& f :
       megatron_flags({"--bf16", "--lr", "1.e-4", "--split", "99,1,0", "--data-path", "0.5", "a b", "1", "c", "--x=3"}))
    overrides.push_back(f.override);
  EXPECT_EQ(overrides, (std::vector<std::string>{"bf16=true", "lr=0.0001", "split=99,1,0",
                                                 "data_path=[0.5,\"a b\",1,\"c\"]", "x=3"}));
  EXPECT_EQ(megatron_flags({"--save", "1.10"}).front().override, "save=1.10");
}

TEST(MegatronArgs, ItsDefaultsWhereNoFileSaysOtherwise) {
  const RunConfig c = load(kSmall + "--tensor-model-parallel-size 2").run;
  EXPECT_EQ(c.model.hidden_dropout, 0.1f);
  EXPECT_EQ(c.model.activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(c.model.padded_vocab, 384);  // whatever the layout, so that a run goes on under another
  EXPECT_EQ(c.optim.weight_decay, 0.01);
  EXPECT_EQ(c.optim.warmup_iters, 0);
  EXPECT_EQ(c.data.global_batch, 8);
  EXPECT_EQ(load(kSmall, {"configs/quickstart.json"}).run.model.hidden_dropout, 0.0f);
}

// One file of flags serves several runs, told apart by --save.
TEST(MegatronArgs, ARunLivesWhereItSaves) {
  EXPECT_EQ(load(kSmall).run.run_dir, "runs/m");
  EXPECT_EQ(load(kSmall + "--save ckpt/a").run.run_dir, "ckpt/a");
  EXPECT_EQ(load(kSmall + "--save ckpt/a --run-dir runs/b").run.run_dir, "runs/b");
  EXPECT_EQ(load(kSmall + "--save ckpt/a", {"configs/quickstart.json"}).run.run_dir, "runs/quickstart");
}

// Both move samples to other places.
TEST(MegatronArgs, WhatABlendIsBuiltOf) {
  EXPECT_EQ(load(kSmall).run.data.blend_surplus, 0.005);
  EXPECT_EQ(load(kSmall + "--mid-level-dataset-surplus 0.05").run.data.blend_surplus, 0.05);
  EXPECT_NE(message_of(kSmall + "--renormalize-blend-weights").find("not supported"), std::string::npos);
}

TEST(MegatronArgs, ItsDefaultsBesideOtherFlags) {
  EXPECT_EQ(load(kSmall + "--optimizer sgd").run.optim.momentum, 0.9);
  EXPECT_EQ(load(kSmall + "--sgd-momentum 0.5 --optimizer sgd").run.optim.momentum, 0.5);
  EXPECT_EQ(load(kSmall).run.optim.momentum, 0.0);
  // No warm-up is Megatron's default: where it would start from is no length.
  const OptimConfig warm = load(kSmall + "--lr-warmup-init 0.0001 --train-iters 1000").run.optim;
  EXPECT_EQ(warm.warmup_iters, 0);
  EXPECT_EQ(warm.warmup_init, 0.0001);
  EXPECT_EQ(load(kSmall + "--lr-warmup-fraction 0.1 --train-iters 1000").run.optim.warmup_iters, 100);
  for (const char* words :
       {"--lr-warmup-fraction 0.1 --lr-warmup-iters 0", "--lr-warmup-iters 0 --lr-warmup-fraction 0.1",
        "--lr-warmup-samples 0 --lr-warmup-iters 100"})
    EXPECT_EQ(load(kSmall + words + " --train-iters 1000").run.optim.warmup_iters, 100) << words;
  EXPECT_EQ(load(kSmall + "--group-query-attention").run.model.kv_heads, 1);
  EXPECT_EQ(load(kSmall + "--group-query-attention --num-query-groups 2").run.model.kv_heads, 2);
  // Without the switch Megatron does not look at the number, and every head has keys of its own.
  const ResolvedConfig alone = load(kSmall + "--num-query-groups 2");
  EXPECT_EQ(alone.run.model.kv_heads, 4);
  EXPECT_EQ(alone.notes.front().key, "num_query_groups");
  EXPECT_EQ(load(kSmall + "--lr-decay-style WSD --lr-wsd-decay-iters 5").values.at("lr_wsd_decay_style"),
            "exponential");
  EXPECT_TRUE(load(kSmall).run.data.per_token_loss);
  EXPECT_FALSE(load(kSmall + "--eod-mask-loss --eod-token 1").run.data.per_token_loss);
  EXPECT_TRUE(load(kSmall + "--eod-mask-loss --eod-token 1 --calculate-per-token-loss").run.data.per_token_loss);
}

TEST(MegatronArgs, ScatterAndGatherInThePipeline) {
  EXPECT_TRUE(load(kSmall).run.layout.scatter_in_pipeline);
  EXPECT_FALSE(load(kSmall + "--no-scatter-gather-tensors-in-pipeline").run.layout.scatter_in_pipeline);
}

TEST(MegatronArgs, SchedulesInSamples) {
  std::string text = kSmall;
  text.replace(text.find("--train-iters 10"), 16, "--train-samples 83 --lr-decay-samples 79 --lr-warmup-samples 17");
  const RunConfig c = load(text).run;
  EXPECT_EQ(c.train_iters, 10);
  EXPECT_TRUE(c.optim.by_samples);
  EXPECT_EQ(c.optim.decay_iters, 79);
  EXPECT_EQ(c.optim.warmup_iters, 17);
  text = kSmall;
  text.replace(text.find("--train-iters 10"), 16, "--train-samples 20 --rampup-batch-size 2 2 30");
  EXPECT_NE(message_of(text).find("the ramp is longer than train_samples"), std::string::npos);
}

// The flags of the script for 175 billion parameters: lengths in samples while the batch grows. Steps by Megatron's
// loop.
TEST(MegatronArgs, SamplesUnderARampOfTheBatch) {
  std::string text = kSmall;
  text.replace(text.find("--train-iters 10"), 16,
               "--train-samples 600 --lr-decay-samples 500 --lr-warmup-samples 50 --rampup-batch-size 2 2 30");
  const RunConfig c = load(text).run;
  EXPECT_TRUE(c.optim.by_samples);
  EXPECT_EQ(c.optim.decay_iters, 500);
  EXPECT_EQ(c.optim.warmup_iters, 50);
  int64_t steps = 0, consumed = 0;
  while (consumed <= 30) consumed += std::min<int64_t>(8, 2 + consumed / 10 * 2), ++steps;
  EXPECT_EQ(c.train_iters, steps + (600 - consumed) / 8);
  // The resolved file says the same again.
  const ResolvedConfig again = load_config_text({{"r.json", resolved_json(load(text)).dump()}}, {});
  EXPECT_TRUE(again.run.optim.by_samples);
  EXPECT_EQ(again.run.train_iters, c.train_iters);
}

TEST(MegatronArgs, OlderAndRarerFlags) {
  const RunConfig c = load(kSmall +
                           "--recompute-activations --no-position-embedding --dataloader-type single "
                           "--DDP-impl local --log-timers-to-tensorboard --exit-on-missing-checkpoint "
                           "--use-rotary-position-embeddings --tp-comm-overlap --rope-type rope")
                          .run;
  EXPECT_EQ(c.model.recompute, Recompute::kSelective);
  EXPECT_EQ(c.model.positions, PositionKind::kRotary);
  EXPECT_EQ(load(kSmall + "--activations-checkpoint-method uniform").run.model.recompute, Recompute::kFull);
}

// Flags of Megatron that exist only as the negation of a default, or that were added late.
TEST(MegatronArgs, FlagsThatTakeADefaultBack) {
  for (const char* flag :
       {"--disable-tp-comm-split-ag", "--disable-tp-comm-split-rs", "--disable-tp-comm-overlap-ag",
        "--disable-tp-comm-overlap-rs", "--disable-tp-comm-bulk-dgrad", "--disable-tp-comm-bulk-wgrad",
        "--no-align-grad-reduce", "--no-align-param-gather", "--no-manual-gc-eval", "--bert-no-binary-head",
        "--no-pin-cpu-grads", "--disable-msc", "--no-gradient-reduce-div-fusion", "--check-for-spiky-loss",
        "--disable-bf16-reduced-precision-matmul", "--distributed-timeout-seconds-after-init 60"})
    EXPECT_EQ(message_of(kSmall + flag), "accepted") << flag;
  // What would change numbers, or what is trained on, is refused.
  for (const char* flag : {"--no-fp8-wgrad", "--quick-geglu", "--sample-rate 0.5", "--decrease-batch-size-if-needed",
                           "--pretrained-checkpoint x", "--qk-l2-norm"})
    EXPECT_NE(message_of(kSmall + flag).find("not supported"), std::string::npos) << flag;
}

// Of keys that nothing reads, those are noted that somebody wrote.
TEST(MegatronArgs, ItsDefaultsAreNotNoted) {
  const auto notes = [](const std::string& flags) {
    std::string keys;
    for (const ConfigNote& n : load(kSmall + flags).notes)
      if (n.text.starts_with("has no effect: ")) keys += n.key + " ";
    return keys;
  };
  EXPECT_EQ(notes("--bf16"), "");
  EXPECT_EQ(notes("--bf16 --initial-loss-scale 4096"), "fp16.initial_scale_power ");
}

// As the shell reads them: to the end of the line, wherever a word begins.
TEST(MegatronArgs, Comments) {
  EXPECT_EQ(shell_words("a # b 'c $d (e) \\\n f#g '#h' \\\n  # i\n\"#j\" #"),
            (std::vector<std::string>{"a", "f#g", "#h", "#j"}));
  const RunConfig c = load(kSmall + "--clip-grad 0.5 # don't say --bf16\n--weight-decay 0.125 # (of 2)\n").run;
  EXPECT_EQ(c.optim.weight_decay, 0.125);
  EXPECT_EQ(c.model.dtype, DType::f32);
}

TEST(MegatronArgs, ValuesOfRealScripts) {
  const RunConfig c = load(kSmall + "--eval-iters -1").run;
  EXPECT_EQ(c.eval_iters, 0);
  EXPECT_EQ(load(kSmall + "--iterations-to-skip 4 3").run.iterations_to_skip, (std::set<int64_t>{3, 4}));
  const ResolvedConfig skips = load(kSmall + "--iterations-to-skip 7");
  EXPECT_EQ(skips.run.iterations_to_skip, (std::set<int64_t>{7}));
  ASSERT_FALSE(skips.notes.empty());
  EXPECT_EQ(skips.notes.front().key, "iterations_to_skip");
  EXPECT_NE(skips.notes.front().text.find("N is N + 1 here"), std::string::npos);
  for (const char* tokenizer : {"Llama2Tokenizer", "GPTSentencePieceTokenizer"})
    EXPECT_EQ(load(kSmall + "--tokenizer-model x/tokenizer.model --tokenizer-type " + std::string(tokenizer))
                  .values.at("tokenizer"),
              "sentencepiece:x/tokenizer.model");
  // Its vocabulary is one larger than the flag says; the resolved file says all of it.
  const ResolvedConfig null = load(kSmall + "--tokenizer-type NullTokenizer");
  EXPECT_EQ(null.run.model.vocab, 301);
  EXPECT_EQ(load_config_text({{"r.json", resolved_json(null).dump()}}, {}).run.model.vocab, 301);
}

// Rope stays, whichever comes first.
TEST(MegatronArgs, NoLearnedPositionsBesideRope) {
  const auto positions = [](const std::string& flags) { return load(kSmall + flags).run.model.positions; };
  EXPECT_EQ(positions("--position-embedding-type rope --no-position-embedding"), PositionKind::kRotary);
  EXPECT_EQ(positions("--use-rotary-position-embeddings --no-position-embedding"), PositionKind::kRotary);
  EXPECT_EQ(positions("--no-position-embedding --position-embedding-type rope"), PositionKind::kRotary);
  EXPECT_EQ(positions("--no-position-embedding"), PositionKind::kNone);
  EXPECT_EQ(positions("--position-embedding-type learned_absolute --no-position-embedding"), PositionKind::kNone);
}

// Without the fused kernel, also where there are no biases, gelu is the exact one; --openai-gelu wins in any order.
TEST(MegatronArgs, UnfusedGelu) {
  const auto activation = [](const std::string& flags) { return load(kSmall + flags).run.model.activation; };
  for (const char* word : {"--no-bias-gelu-fusion", "--disable-bias-linear"}) {
    const std::string flag = word;
    EXPECT_EQ(activation(flag), ActivationKind::kGeluExact) << flag;
    EXPECT_EQ(activation(flag + " --openai-gelu"), ActivationKind::kGeluTanh) << flag;
    EXPECT_EQ(activation("--openai-gelu " + flag), ActivationKind::kGeluTanh) << flag;
    EXPECT_EQ(activation(flag + " --swiglu"), ActivationKind::kSwiglu) << flag;
  }
}

TEST(MegatronArgs, Wrong) {
  const auto expect = [](const std::string& more, const std::string& wanted) {
    const std::string message = message_of(kSmall + more);
    EXPECT_NE(message.find(wanted), std::string::npos) << message;
  };
  expect("--apply-layernorm-1p", "m.args: --apply-layernorm-1p:");
  expect("--dataloader-type cyclic", "dataloader_type: not supported");
  expect("--init-method-xavier-uniform", "init_method_xavier_uniform: not supported");
  expect("--ckpt-step 5", "ckpt_step: not supported: name the checkpoint itself");
  expect("--num-experts 8", "m.args: --num-experts: num_experts: not supported: mixture of experts");
  expect("--fp8-format hybrid --bf16", "m.args: --fp8-format: fp8_format: hybrid needs device cuda");
  expect("--tensor-model-parallel-size 9000000000000000000", "tensor_model_parallel_size: ");
  expect("--hiden-size 3", "unknown key (nearest key: hidden_size)");
  expect("--swiglu 3 4", "m.args: --swiglu:");
  expect("\n--seed $SEED # x", "holds a shell variable ($SEED in line 6)");
  EXPECT_NE(message_of("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --train-iters 10 "
                       "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --lr .001 "
                       "--tokenizer-type SomeTokenizer")
                .find("missing, and tokenizer_type \"SomeTokenizer\" stands for no size"),
            std::string::npos);
  expect("--lr 1 ; rm x", "holds a command or one of the characters");
  expect("--a `id`", "holds a command or one of the characters");
  expect("--a \"`id`\"", "holds a command or one of the characters");
  expect("--data-path ~/x", "holds a home directory");
  expect("--split '9", "a quote is not closed");
  expect("--fp16 --bf16", "--fp16 and --bf16 contradict each other");
  expect("--lr-warmup-fraction 0.1 --lr-warmup-iters 5", "--lr-warmup-iters and --lr-warmup-fraction contradict");
  expect("--lr-warmup-fraction 0 --lr-warmup-iters 5", "--lr-warmup-iters and --lr-warmup-fraction contradict");
  expect("--train-samples 80", "--train-iters and --train-samples contradict");
  expect("--data-path 1 \xff", "the values of --data-path are not UTF-8");
  EXPECT_NE(message_of("num-layers 3").find("belongs to no flag"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::megatron_args_test
