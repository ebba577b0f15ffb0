// Attention backward against an analytic float64 loop, which finite differences of the float64 forward vouch for.
#include "engine/base/core/error.h"
#include "tests/ops/attention_oracle.h"

namespace thinwire::test::attention_backward_test {
namespace {

void check_backward(const AttentionCase& c, std::mt19937& rng, int threads = 2) {
  AttentionTensors x(c, rng);
  CpuExec exec(threads);
  x.run_forward(*exec);
  x.run_backward(*exec);
  const AttentionOracle want = attention_oracle(x, true);
  expect_within(x.dq, want.dq, want.dq_bound, "dq of " + c.name());
  if (c.packing == Packing::kInterleaved) return;  // all three are in one tensor
  expect_within(x.dk, want.dk, want.dk_bound, "dk of " + c.name());
  expect_within(x.dv, want.dv, want.dv_bound, "dv of " + c.name());
}

// sum of out * dout in float64: what the gradients are derivatives of.
double objective(AttentionTensors& x) {
  const AttentionOracle r = attention_oracle(x, false);
  double sum = 0.0;
  for (int64_t i = 0; i < x.dout.count(); ++i) sum += r.out[static_cast<size_t>(i)] * x.dout.at(i);
  return sum;
}

TEST(AttentionBackwardTest, OracleAgreesWithFiniteDifferences) {
  // Steps of 2^-11 are exact in fp32 around numbers of size 1 when those are multiples of 2^-11. The central difference
  // is off by h^2/6 times a third derivative, of order 10 here: 1e-6.
  std::mt19937 rng(1);
  for (float p : {0.0f, 0.4f}) {
    AttentionCase c{.packing = Packing::kCache,
                    .batch = 2,
                    .q_len = 4,
                    .kv_len = 6,
                    .groups = 2,
                    .heads_per_group = 2,
                    .head_dim = 3,
                    .scale = 0.6f,
                    .dropout = p};
    AttentionTensors x(c, rng);
    const double h = 0x1p-11;
    for (Tensor* t : {&x.q, &x.k, &x.v}) {
      for (int64_t i = 0; i < t->count(); ++i) {
        if (!std::isnan(t->at(i))) t->set(i, std::nearbyint(t->at(i) / h) * h);
      }
    }
    const AttentionOracle want = attention_oracle(x, true);
    const auto check = [&](Tensor& t, const std::vector<double>& gradient, const char* what) {
      int checked = 0;
      for (int64_t i = 0; i < t.count(); ++i) {
        const double at = t.at(i);
        if (std::isnan(at)) continue;
        t.set(i, at + h);
        const double up = objective(x);
        t.set(i, at - h);
        const double down = objective(x);
        t.set(i, at);
        ASSERT_NEAR(gradient[static_cast<size_t>(i)], (up - down) / (2 * h), 2e-5) << what << " " << i;
        ++checked;
      }
      EXPECT_GE(checked, 72) << what;
    };
    check(x.q, want.dq, "dq");
    check(x.k, want.dk, "dk");
    check(x.v, want.dv, "dv");
  }
}

TEST(AttentionBackwardTest, RandomRaggedShapesMatchFloat64) {
  std::mt19937 rng(2);
  for (const AttentionCase& c : random_attention_cases(rng, 48, 200))
    check_backward(c, rng, 1 + static_cast<int>(rng() % 3));
}

// With one thread and with many, which cut the work in another way: documents, windows, and both.
TEST(AttentionBackwardTest, MaskedCasesMatchFloat64) {
  std::mt19937 rng(13);
  int threads = 1;
  for (const AttentionCase& c : random_attention_cases(rng, 60, 200, true))
    check_backward(c, rng, threads = 8 / threads);
  check_backward(
      {.q_len = sized(600, 130), .kv_len = sized(600, 130), .heads_per_group = 2, .head_dim = 64, .document = 200},
      rng);
  check_backward({.q_len = sized(600, 130), .kv_len = sized(600, 130), .head_dim = 64, .window = 130}, rng, 5);
}

TEST(AttentionBackwardTest, LongSequencesMatchFloat64) {
  std::mt19937 rng(3);
  check_backward(
      {.dtype = DType::f32, .q_len = sized(700, 130), .kv_len = sized(700, 130), .head_dim = 64, .scale = 0.125f}, rng);
  check_backward({.dtype = DType::bf16,
                  .q_len = sized(513, 130),
                  .kv_len = sized(513, 130),
                  .heads_per_group = 2,
                  .head_dim = 64,
                  .scale = 0.125f},
                 rng);
  check_backward({.dtype = DType::f16,
                  .packing = Packing::kCache,
                  .q_len = 130,
                  .kv_len = sized(700, 130),
                  .head_dim = 80,
                  .scale = 0.1f},
                 rng);
}

TEST(AttentionBackwardTest, DropoutIsReplayed) {
  std::mt19937 rng(4);
  for (DType t : compute_types()) {
    for (int64_t kv : {64, 65, 66, 67, 131}) {
      check_backward({.dtype = t,
                      .packing = Packing::kCache,
                      .batch = 2,
                      .q_len = 50,
                      .kv_len = kv,
                      .groups = 2,
                      .heads_per_group = 2,
                      .head_dim = 20,
                      .scale = 0.2f,
                      .dropout = 0.3f},
                     rng);
    }
  }
}

// With 1 or 2 threads a thread owns a whole (sample, group); with 3 and 16 the work is split and scores are made twice.
TEST(AttentionBackwardTest, BitsDoNotDependOnThreads) {
  const int64_t length = emulated() ? 200 : 600;
  for (DType t : compute_types()) {
    for (int64_t members : {1, 3}) {
      for (float p : {0.0f, 0.2f}) {
        const auto run = [&](Exec& exec) {
          std::mt19937 rng(5);
          AttentionTensors x({.dtype = t,
                              .q_len = length,
                              .kv_len = length,
                              .groups = 2,
                              .heads_per_group = members,
                              .head_dim = 40,
                              .dropout = p},
                             rng);
          x.run_forward(exec);
          x.run_backward(exec);
          return std::vector<Tensor>{x.dq};
        };
        expect_same_bits_for_threads(run, "attention backward, " + std::string(name_of(t)), {2, 3, 16});
      }
    }
  }
}

TEST(AttentionBackwardTest, NanReachesTheGradients) {
  std::mt19937 rng(6);
  for (DType t : compute_types()) {
    AttentionTensors x({.dtype = t, .q_len = 100, .kv_len = 100, .head_dim = 16}, rng);
    CpuExec exec(2);
    x.run_forward(*exec);
    x.dout.set(90 * 16 + 2, std::nan(""));
    x.run_backward(*exec);
    for (int64_t key = 0; key <= 90; ++key) {
      ASSERT_TRUE(std::isnan(x.dq.at(key * 48 + 16))) << name_of(t) << " dk of key " << key;
      ASSERT_TRUE(std::isnan(x.dq.at(key * 48 + 32 + 2))) << name_of(t) << " dv of key " << key;
    }
    EXPECT_TRUE(std::isnan(x.dq.at(90 * 48)));
    EXPECT_FALSE(std::isnan(x.dq.at(10 * 48)));
  }
}

TEST(AttentionBackwardTest, ScratchGrowsAtMostLinearly) {
  std::mt19937 rng(7);
  AttentionTensors x({.groups = 2, .heads_per_group = 2, .head_dim = 64}, rng);
  AttentionBackward op = x.backward_op();
  const auto bytes = [&](int64_t length, int threads) {
    op.shape.q_len = op.shape.kv_len = length;
    return attention_backward_scratch(op, threads);
  };
  // Sums of dk and dv of one group per thread, and tiles of a constant size.
  const int64_t sums = 2 * 8192 * 64 * 4;
  EXPECT_LE(bytes(8192, 2), 2 * (sums + (int64_t{1} << 20)));
  EXPECT_LE(bytes(8192, 2), 8 * bytes(1024, 2));
  EXPECT_EQ(bytes(8192, 3), bytes(1024, 3));  // split: pieces of keys
}

TEST(AttentionBackwardTest, WrongArguments) {
  std::mt19937 rng(8);
  CpuExec exec(2);
  AttentionTensors x({.q_len = 8, .kv_len = 8}, rng);
  x.run_forward(*exec);
  const auto refused = [&](auto change) {
    AttentionBackward wrong = x.backward_op();
    change(wrong);
    EXPECT_THROW(exec->ops.attention_backward(*exec, wrong), Error);
  };
  refused([](AttentionBackward& f) { f.lse = View(); });
  refused([](AttentionBackward& f) { f.dout.dtype = DType::bf16; });
  refused([](AttentionBackward& f) { f.dout.shape[0] = 7; });
  refused([](AttentionBackward& f) { f.dk.shape[0] -= 17; });
  refused([](AttentionBackward& f) { f.dv = View(); });
  refused([](AttentionBackward& f) { f.shape.kv_len = 7; });
}

}  // namespace
}  // namespace thinwire::test::attention_backward_test
