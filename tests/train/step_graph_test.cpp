// Steps that are queued as recordings train to the bits of steps that are queued op by op: the kernels of the CUDA
// table, emulated, on a device whose streams record launches with copies of their arguments, as CUDA graphs do.
#include <gtest/gtest.h>

#include <limits>

#include "engine/base/ops/op_watch.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/evaluate.h"
#include "engine/run/train/synthetic_batches.h"
#include "tests/emulation/cuda_emulation.h"
#include "tests/support/fake_gpu.h"
#include "tests/train/small_run.h"

namespace thinwire::test::step_graph_test {
namespace {

constexpr int kSteps = 6, kPoisoned = 4;

struct Trained {
  std::vector<double> loss, norm, scale;
  std::vector<float> weights;
  int64_t passes = 0, updates = 0, replays = 0;
};

// Everything that may differ from step to step does: tokens, dropout (by sample), the learning rate, bias corrections,
// clipping, weights of rows (one micro-batch or two, which share the slot), loss scale, a step that is skipped; and
// evaluations lie between.
RunConfig config_of(const std::vector<std::string>& more) {
  return small_run(
      {"num_layers=2", "train_batch_size=4", "lr_decay_style=cosine", "lr_warmup_iters=3", "gradient_clipping=0.5",
       "hidden_dropout=0.2", "attention_dropout=0.2", "bias_gelu_fusion=true", "run_dir=runs/step_graph_test"},
      more);
}

int step_now = 0;  // what a careless op below takes for the step's number

Trained train(const RunConfig& config, Device& device, const OpTable& ops, bool profile = false) {
  const WatchedTable table = make_watched_table(ops);
  OpProfile times;
  Replica replica(config, &device, &ops, true);
  if (profile) replica.use_exec(make_watched_exec(table, device, replica.exec(), times));
  replica.set_fresh_weights();
  BareTraining training(replica);
  Trained result;
  int64_t next = 0;
  const auto batch = [&] {
    ++result.passes;
    return synthetic_batch(next++, config.data.micro_batch, config.data.seq_length, config.model.vocab);
  };
  for (int s = 1; s <= kSteps; ++s) {
    step_now = s;
    if (s == kPoisoned) {
      const float poison = std::numeric_limits<float>::quiet_NaN();
      // (Of a tensor that passes add to: matrices are written anew.)
      replica.write(replica.store().gradient("final_norm.weight"), &poison, sizeof poison);
    }
    const StepOutcome outcome = training.take_step(config.accumulation == 1 || s % 3 == 2 ? 1 : 2, batch);
    EXPECT_EQ(outcome.skipped, s == kPoisoned) << s;
    result.loss.push_back(outcome.loss), result.scale.push_back(outcome.loss_scale);
    result.norm.push_back(outcome.skipped ? -1.0 : outcome.grad_norm);
    if (s % 2 == 0) {
      Ticket leaving;
      replica.traffic().begin(replica.evaluation_uses());
      run_micro_batch(replica, synthetic_batch(1000 + s, 2, config.data.seq_length, config.model.vocab), leaving);
    }
  }
  for (const OwnedPiece& piece : replica.store().owned()) {
    std::vector<float> values(static_cast<size_t>(piece.master.count()));
    replica.read(piece.master, values.data());
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  result.updates = training.progress.updates, result.replays = training.step.graphs().replays();
  return result;
}

void expect_equal(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.scale, b.scale);
  EXPECT_TRUE(a.weights == b.weights) << "weights differ";
}

void expect_same_bits(std::vector<std::string> more) {
  const std::unique_ptr<Device> cpu = make_cpu_device();
  FakeGpu eager_gpu, graph_gpu;
  const Trained at_once = train(config_of(more), *cpu, emulated_cuda_ops());
  const Trained eager = train(config_of(more), eager_gpu, emulated_cuda_ops());
  more.emplace_back("cuda_graphs=true");
  const Trained graphs = train(config_of(more), graph_gpu, emulated_cuda_ops());
  expect_equal(at_once, eager);
  expect_equal(eager, graphs);
  EXPECT_EQ(eager.replays, 0);
  // Of each part but two runs: the first, and the one that was recorded. A step's first passes have recordings of their
  // own.
  const int64_t of_passes = config_of(more).gradient_dtype == DType::f32 ? 2 * (graphs.passes - 4) : 0;
  EXPECT_EQ(graphs.replays, of_passes + (kSteps - 2) + (graphs.updates - 2));
  EXPECT_EQ(graphs.updates, kSteps - 1);
}

TEST(StepGraph, Gpt2InFp32) {
  expect_same_bits({"pos_emb=learned", "norm=layernorm"});
}

TEST(StepGraph, GroupedQueriesInFp16WithALossScaleThatMoves) {
  expect_same_bits({"precision=fp16", "fp16.loss_scale_window=2", "fp16.hysteresis=1", "num_kv_heads=2",
                    "pos_emb=rotary", "norm=rmsnorm", "activation=swiglu", "no_weight_tying=true",
                    "bias_gelu_fusion=false"});
}

TEST(StepGraph, ParallelResidualInBf16Recomputed) {
  expect_same_bits({"precision=bf16", "pos_emb=rotary", "gpt_j_residual=true", "no_weight_tying=true",
                    "recompute_granularity=full"});
}

// Passes are queued op by op: what rounds gradients decides between them.
TEST(StepGraph, GradientsKeptInBf16) {
  expect_same_bits({"precision=bf16", "grad_dtype=bf16", "pos_emb=rotary", "train_batch_size=2"});
}

TEST(StepGraph, SgdWithMomentum) {
  expect_same_bits({"pos_emb=learned", "optimizer.type=sgd", "optimizer.params.momentum=0.9"});
}

// Chunks that wait in the host's memory: passes are queued op by op, the rest is recorded, and no bit changes.
TEST(StepGraph, ActivationsThatWaitOutside) {
  for (const char* level : {"none", "full"}) {
    std::vector<std::string> keys = {"device=cuda",
                                     "pos_emb=rotary",
                                     "norm=rmsnorm",
                                     "activation=swiglu",
                                     "num_kv_heads=2",
                                     "precision=bf16",
                                     "bias_gelu_fusion=false",
                                     "no_weight_tying=true",
                                     "cuda_graphs=true",
                                     "sequence_chunk_size=5",
                                     std::string("recompute_granularity=") + level};
    FakeGpu kept_gpu, out_gpu;
    const Trained kept = train(config_of(keys), kept_gpu, emulated_cuda_ops());
    keys.emplace_back("activation_offload=host");
    const Trained out = train(config_of(keys), out_gpu, emulated_cuda_ops());
    expect_equal(kept, out);
    EXPECT_EQ(out.replays, (kSteps - 2) + (out.updates - 2));
    EXPECT_GT(kept.replays, out.replays);
  }
}

// The comparison has teeth: an op that takes something of the step as a number, and not from memory, is found out.
void careless_norm(Exec& exec, const NormForward& op) {
  NormForward own = op;
  own.dropout.layer += static_cast<uint32_t>(100 * step_now);
  emulated_cuda_ops().norm_forward(exec, own);
}

void careless_adamw(Exec& exec, const AdamW& op) {
  AdamW own = op;
  own.beta1 = op.beta1 - 0.01 * step_now;
  emulated_cuda_ops().adamw(exec, own);
}

TEST(StepGraph, ANumberOfTheStepInALaunchIsFoundOut) {
  OpTable norm = emulated_cuda_ops(), update = emulated_cuda_ops();
  norm.norm_forward = careless_norm;
  update.adamw = careless_adamw;
  for (const OpTable* table : {&norm, &update}) {
    FakeGpu eager_gpu, graph_gpu;
    const Trained eager = train(config_of({}), eager_gpu, *table);
    const Trained graphs = train(config_of({"cuda_graphs=true"}), graph_gpu, *table);
    EXPECT_EQ(eager.loss[0], graphs.loss[0]);
    EXPECT_NE(eager.loss.back(), graphs.loss.back());
    EXPECT_FALSE(eager.weights == graphs.weights);
  }
}

TEST(StepGraph, StepsWhoseOpsAreTimedAreQueuedOpByOp) {
  FakeGpu plain_gpu, profiled_gpu;
  const Trained plain = train(config_of({}), plain_gpu, emulated_cuda_ops());
  const Trained profiled = train(config_of({"cuda_graphs=true"}), profiled_gpu, emulated_cuda_ops(), true);
  EXPECT_EQ(profiled.replays, 0);
  expect_equal(plain, profiled);
}

TEST(StepGraph, OpsThatAreTimedAreAsDeterministicAsBefore) {
  const std::unique_ptr<Device> cpu = make_cpu_device();
  const std::unique_ptr<Stream> stream = cpu->make_stream();
  const WatchedTable table = make_watched_table(cpu_ops());
  OpProfile times;
  for (const bool deterministic : {true, false}) {
    Exec exec = make_exec(cpu_ops(), *cpu, *stream, 1);
    exec.deterministic = deterministic;
    EXPECT_EQ(make_watched_exec(table, *cpu, exec, times)->deterministic, deterministic);
  }
}

TEST(StepGraph, TheCpuTakesTheKeyAndIgnoresIt) {
  const std::unique_ptr<Device> cpu = make_cpu_device();
  const Trained plain = train(config_of({}), *cpu, cpu_ops());
  const Trained graphs = train(config_of({"cuda_graphs=true"}), *cpu, cpu_ops());
  EXPECT_EQ(graphs.replays, 0);
  EXPECT_EQ(graphs.updates, kSteps - 1);
  expect_equal(plain, graphs);
}

}  // namespace
}  // namespace thinwire::test::step_graph_test
