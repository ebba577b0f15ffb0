// The first product of a step writes its gradient instead of adding to it: nothing of the step before is left in it,
// and the bits are those of adding to zeros.
#include <gtest/gtest.h>

#include <limits>

#include "engine/run/train/bare_training.h"
#include "engine/run/train/synthetic_batches.h"
#include "tests/train/small_run.h"

namespace thinwire::gradient_writes_test {
namespace {

constexpr int kSteps = 4;

RunConfig config_of(const std::vector<std::string>& more) {
  return small_run(
      {"num_layers=2", "train_batch_size=6", "lr_decay_style=constant", "run_dir=runs/gradient_writes_test"}, more);
}

// A product into fp32 that overwrites, as one that adds to zeros: how it was done before.
int overwritten = 0;
void adding_matmul(Exec& exec, const Matmul& op) {
  Matmul own = op;
  if (op.trans_a && !op.accumulate) {
    exec.ops.fill_constant(exec, {op.c, 0.0f});
    own.accumulate = true;
    ++overwritten;
  }
  cpu_ops().matmul(exec, own);
}

struct Trained {
  std::vector<double> numbers;
  std::vector<float> weights;
};

// poison: what the first products of a step write holds NaN when it begins.
Trained train(const RunConfig& config, const OpTable& ops, bool poison) {
  const std::unique_ptr<Device> device = make_cpu_device();
  Replica replica(config, device.get(), &ops, true);
  replica.set_fresh_weights();
  BareTraining training(replica);
  Trained result;
  int64_t next = 0;
  int poisoned = 0;
  for (int s = 0; s < kSteps; ++s) {
    const ParamStore& store = replica.store();
    for (size_t i = 0; poison && i < store.params().size(); ++i) {
      const std::string& name = store.params()[i].name;
      if (store.product_gradient(name) < 0) continue;
      replica.exec().ops.fill_constant(replica.exec(), {store.gradient(name), std::numeric_limits<float>::quiet_NaN()});
      ++poisoned;
    }
    const StepOutcome outcome = training.take_step(static_cast<int>(config.accumulation), [&] {
      return synthetic_batch(next++, config.data.micro_batch, config.data.seq_length, config.model.vocab);
    });
    EXPECT_FALSE(outcome.skipped) << "step " << s << ": " << outcome.non_finite;
    result.numbers.push_back(outcome.loss), result.numbers.push_back(outcome.grad_norm);
  }
  EXPECT_TRUE(!poison || poisoned >= kSteps * (2 * 4 + 1)) << "four products a layer, and the head";
  for (const OwnedPiece& piece : replica.store().owned()) {
    std::vector<float> values(static_cast<size_t>(piece.master.count()));
    replica.read(piece.master, values.data());
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

void expect_same_bits(const std::vector<std::string>& more) {
  const RunConfig config = config_of(more);
  OpTable adding = cpu_ops();
  adding.matmul = adding_matmul;
  overwritten = 0;
  const Trained want = train(config, adding, false);
  EXPECT_EQ(overwritten, kSteps * (2 * 4 + 1)) << "each matrix once a step";
  for (const Trained& got : {train(config, cpu_ops(), false), train(config, cpu_ops(), true)}) {
    EXPECT_EQ(got.numbers, want.numbers);
    EXPECT_TRUE(got.weights == want.weights);
  }
}

TEST(GradientWrites, ATiedHeadComesBeforeTheEmbedding) {
  expect_same_bits({"pos_emb=learned", "norm=layernorm"});
}

TEST(GradientWrites, UntiedInBf16) {
  expect_same_bits({"precision=bf16", "num_kv_heads=2", "pos_emb=rotary", "norm=rmsnorm", "activation=swiglu",
                    "no_weight_tying=true"});
}

TEST(GradientWrites, RecomputedAndSgd) {
  expect_same_bits({"pos_emb=rotary", "gpt_j_residual=true", "recompute_granularity=full", "optimizer.type=sgd",
                    "optimizer.params.momentum=0.9"});
}

}  // namespace
}  // namespace thinwire::gradient_writes_test
