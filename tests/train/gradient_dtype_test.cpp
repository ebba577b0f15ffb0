// grad_dtype bf16: what the optimizer reads is the fp32 gradient, rounded once. So a run has the bits of one in fp32
// whose gradients are rounded behind its reductions, and its first step differs from fp32's by that rounding alone.
#include <gtest/gtest.h>

#include <limits>

#include "engine/run/train/bare_training.h"
#include "engine/run/train/synthetic_batches.h"
#include "tests/train/small_run.h"

namespace thinwire::gradient_dtype_test {
namespace {

constexpr int kSteps = 5, kPoisoned = 3;

RunConfig config_of(const std::vector<std::string>& more, bool narrow) {
  return small_run(
      {"num_layers=3", "precision=bf16", "train_batch_size=2", "lr_decay_style=constant", "gradient_clipping=0.5",
       "run_dir=runs/gradient_dtype_test", narrow ? "grad_dtype=bf16" : "grad_dtype=fp32"},
      more);
}

enum class Gradients { kFp32, kFp32Rounded, kBf16 };

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  int64_t gradient_bytes = 0, parameters = 0;
};

Trained train(const std::vector<std::string>& more, Gradients gradients) {
  const RunConfig config = config_of(more, gradients == Gradients::kBf16);
  const std::unique_ptr<Device> device = make_cpu_device();
  Replica replica(config, device.get(), &cpu_ops(), true);
  replica.set_fresh_weights();
  BareTraining training(replica);
  Exec& exec = replica.exec();
  if (gradients == Gradients::kFp32Rounded) {
    training.step.set_gradient_sink([&] {
      for (const OwnedPiece& piece : replica.store().owned()) {
        std::vector<Bf16> rounded(static_cast<size_t>(piece.gradient.count()));
        const View narrow(rounded.data(), DType::bf16, {piece.gradient.count()});
        exec.ops.cast(exec, {piece.gradient, narrow});
        exec.ops.cast(exec, {narrow, piece.gradient});
      }
    });
  }
  Trained result;
  for (int s = 1; s <= kSteps; ++s) {
    const float poison = std::numeric_limits<float>::quiet_NaN();
    if (s == kPoisoned)
      replica.write(replica.store().gradient("final_norm.weight").element_range(0, 1), &poison, sizeof poison);
    const StepOutcome outcome = training.take_step(
        1, [&] { return synthetic_batch(s, config.data.micro_batch, config.data.seq_length, config.model.vocab); });
    EXPECT_EQ(outcome.skipped, s == kPoisoned) << "step " << s << ": " << outcome.non_finite;
    result.losses.push_back(outcome.loss);
    result.norms.push_back(outcome.skipped ? -1.0 : outcome.grad_norm);
  }
  for (const OwnedPiece& piece : replica.store().owned()) {
    std::vector<float> values(static_cast<size_t>(piece.master.count()));
    replica.read(piece.master, values.data());
    result.weights.insert(result.weights.end(), values.begin(), values.end());
    result.parameters += piece.range.count;
    EXPECT_EQ(piece.gradient.dtype, gradients == Gradients::kBf16 ? DType::bf16 : DType::f32);
  }
  result.gradient_bytes = static_cast<int64_t>(replica.memory().bytes[static_cast<size_t>(MemoryCategory::kGradients)]);
  return result;
}

void expect_one_rounding(const std::vector<std::string>& more) {
  const Trained wide = train(more, Gradients::kFp32), rounded = train(more, Gradients::kFp32Rounded),
                narrow = train(more, Gradients::kBf16);
  EXPECT_EQ(narrow.losses, rounded.losses);
  EXPECT_EQ(narrow.norms, rounded.norms);
  EXPECT_TRUE(narrow.weights == rounded.weights);
  EXPECT_TRUE(narrow.weights != wide.weights) << "nothing was rounded";
  // Each element of the gradient is off by 2^-9 of itself at most, and so is the norm.
  EXPECT_EQ(narrow.losses[0], wide.losses[0]);
  EXPECT_NEAR(narrow.norms[0], wide.norms[0], 0x1p-9 * wide.norms[0]);
  EXPECT_NE(narrow.norms[0], wide.norms[0]);
}

TEST(GradientDtype, OneRoundingWithATiedHead) {
  expect_one_rounding({"pos_emb=learned", "norm=layernorm"});
}

TEST(GradientDtype, OneRoundingUntied) {
  expect_one_rounding(
      {"num_kv_heads=2", "pos_emb=rotary", "norm=rmsnorm", "activation=swiglu", "no_weight_tying=true"});
}

TEST(GradientDtype, OneRoundingRecomputedAndSgd) {
  expect_one_rounding({"pos_emb=rotary", "gpt_j_residual=true", "recompute_granularity=full", "optimizer.type=sgd",
                       "optimizer.params.momentum=0.9"});
}

// 2 bytes a parameter, and fp32 buffers of two halves of blocks of each kind, the embedding and the head.
TEST(GradientDtype, TakesHalfTheMemoryOfDeepModels) {
  const std::vector<std::string> deep = {"num_layers=24", "pos_emb=rotary", "norm=layernorm"};
  const Trained wide = train(deep, Gradients::kFp32), narrow = train(deep, Gradients::kBf16);
  EXPECT_GE(wide.gradient_bytes, 4 * wide.parameters);
  const int64_t summed = narrow.gradient_bytes - 2 * narrow.parameters;
  EXPECT_GT(summed, 0);
  EXPECT_LT(summed, 4 * narrow.parameters / 6) << "4 of 48 halves, the embedding and the last norm";
}

}  // namespace
}  // namespace thinwire::gradient_dtype_test
