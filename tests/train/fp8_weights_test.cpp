// Weights of products in fp8 are rounded once per version: counted over whole runs, on a device that queues, with
// copies that are compared with the weights at every product.
#include "engine/base/ops/fp8_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/base/ops/product_key.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/evaluate.h"
#include "engine/run/train/synthetic_batches.h"
#include "tests/emulation/cuda_emulation.h"
#include "tests/support/fake_gpu.h"
#include "tests/train/small_run.h"

namespace thinwire::test::fp8_weights_test {
namespace {

struct Counted {
  std::unique_ptr<Fp8Weights> weights;
  int64_t products = 0, roundings = 0, stale = 0;
  std::map<const void*, size_t> bytes;  // of each weight's copies
  size_t scratch = 0;                   // of the largest product
};
Counted* counted = nullptr;

// A byte for each element stands for its rounding.
std::byte byte_of(const View& weight, int64_t i) {
  const auto each = static_cast<int64_t>(weight.bytes()) / weight.count();
  std::byte all{};
  for (int64_t j = 0; j < each; ++j)
    all = static_cast<std::byte>(31 * std::to_integer<int>(all)) ^
          static_cast<const std::byte*>(weight.data)[i * each + j];
  return all;
}

// As matmul_cuda does it.
void matmul_by_copies(Exec& exec, const Matmul& op) {
  Matmul plain = op;
  plain.fp8 = Fp8::kOff;
  if (op.fp8 != Fp8::kOff) {
    const int64_t depth = op.trans_a ? op.a.shape[0] : op.a.shape[1];
    counted->scratch =
        std::max(counted->scratch, fp8_scratch(op.c.shape[0], op.c.shape[1], depth, op.b_version >= 0).bytes);
  }
  if (op.fp8 != Fp8::kOff && op.b_version >= 0) {
    const View weight = op.b;
    const Fp8Copy copy = counted->weights->of(weight, op.b_version, [&](const Fp8Copy& to) {
      CudaQueue(exec).add([to, weight] {
        ++counted->roundings;
        for (int64_t i = 0; i < weight.count(); ++i) to.lying[i] = to.turned[i] = byte_of(weight, i);
      });
    });
    counted->bytes[weight.data] = Fp8Weights::bytes_of(weight.count());
    CudaQueue(exec).add([copy, weight, turned = !op.trans_b] {
      ++counted->products;
      const std::byte* rounded = turned ? copy.turned : copy.lying;
      bool same = true;
      for (int64_t i = 0; i < weight.count(); ++i) same = same && rounded[i] == byte_of(weight, i);
      counted->stale += same ? 0 : 1;
    });
  }
  emulated_cuda_ops().matmul(exec, plain);
}

constexpr int kSteps = 6, kEvaluations = 4,
              kWeights = 8;  // of two layers: query, key and value; out; into and out of the MLP

// micro_batches(step); evaluations behind every second step, and behind the first: parts are recorded in the second.
Counted train(const std::vector<std::string>& more, const std::function<int(int)>& micro_batches) {
  RunConfig config = small_run({"num_layers=2", "train_batch_size=4", "precision=bf16", "pos_emb=learned"}, more);
  config.model.fp8 = true;
  FakeGpu gpu;
  Counted result{.weights = std::make_unique<Fp8Weights>(gpu)};
  counted = &result;
  OpTable ops = emulated_cuda_ops();
  ops.matmul = matmul_by_copies;
  {
    Replica replica(config, &gpu, &ops, true);
    replica.set_fresh_weights();
    BareTraining training(replica);
    int64_t next = 0;
    for (int s = 1; s <= kSteps; ++s) {
      training.take_step(micro_batches(s), [&] {
        return synthetic_batch(next++, config.data.micro_batch, config.data.seq_length, config.model.vocab);
      });
      if (s % 2 != 0 && s != 1) continue;
      Ticket leaving;
      replica.traffic().begin(replica.evaluation_uses());
      run_micro_batch(replica, synthetic_batch(1000 + s, 2, config.data.seq_length, config.model.vocab), leaving);
    }
    replica.stream().synchronize();
    EXPECT_EQ(training.step.graphs().replays() > 0, config.cuda_graphs);
  }
  result.weights.reset();
  return result;
}

int two(int) {
  return 2;
}

TEST(Fp8Weights, AreRoundedOncePerStep) {
  const Counted run = train({}, two);
  EXPECT_EQ(run.stale, 0);
  // What --dry-run says they take.
  RunConfig config = small_run({"num_layers=2", "train_batch_size=4", "precision=bf16", "pos_emb=learned"});
  config.device = "cuda";
  const size_t without = process_overhead(config);
  config.model.fp8 = true;
  size_t taken = 0;
  for (const auto& [weight, bytes] : run.bytes) taken += bytes;
  EXPECT_EQ(process_overhead(config) - without, taken + run.scratch);
  // Forward and backward of two micro-batches, and evaluations.
  EXPECT_EQ(run.products, kWeights * (kSteps * 2 * 2 + kEvaluations));
  // The version behind the last step shows in the last evaluation alone; others share theirs with the step behind them.
  EXPECT_EQ(run.roundings, kWeights * (kSteps + 1));
}

TEST(Fp8Weights, AreRoundedOncePerStepOfRecordings) {
  const Counted run = train({"cuda_graphs=true"}, two);
  EXPECT_EQ(run.stale, 0);
  EXPECT_EQ(run.products, kWeights * (kSteps * 2 * 2 + kEvaluations));
  EXPECT_EQ(run.roundings, kWeights * (kSteps + kEvaluations)) << "once by each step, once by each evaluation";
  // Passes that come and go, so that parts are recorded in different steps.
  const Counted uneven = train({"cuda_graphs=true"}, [](int step) { return step % 3 == 2 ? 1 : 2; });
  EXPECT_EQ(uneven.stale, 0);
}

TEST(Fp8Weights, TakeWhatTheyAreSaidToTake) {
  FakeGpu gpu;
  Fp8Weights weights(gpu);
  void* memory = gpu.allocate(2 * 32 * 48);
  const View weight(memory, DType::bf16, {32, 48});
  int rounded = 0;
  const auto round = [&](const Fp8Copy& to) {
    ++rounded;
    EXPECT_EQ(to.turned - to.lying, 32 * 48);
    EXPECT_LE(reinterpret_cast<std::byte*>(to.words + kFp8Words) - to.lying,
              static_cast<ptrdiff_t>(Fp8Weights::bytes_of(32 * 48)));
  };
  for (int64_t version : {1, 1, 2, 2, 1}) weights.of(weight, version, round);
  EXPECT_EQ(rounded, 3);
  gpu.release(memory, 2 * 32 * 48);
}

}  // namespace
}  // namespace thinwire::test::fp8_weights_test
