// Attention forward against a float64 loop: ragged shapes, layouts, types, dropout, caches, hostile numbers, threads,
// memory.
#include "engine/base/core/error.h"
#include "tests/ops/attention_oracle.h"

namespace thinwire::test::attention_test {
namespace {

void check_forward(const AttentionCase& c, std::mt19937& rng, int threads = 2) {
  AttentionTensors x(c, rng);
  CpuExec exec(threads);
  x.run_forward(*exec);
  const AttentionOracle want = attention_oracle(x, false);
  expect_within(x.out, want.out, want.out_bound, "out of " + c.name());
  expect_within(x.lse, want.lse, want.lse_bound, "lse of " + c.name());
}

TEST(AttentionForwardTest, RandomRaggedShapesMatchFloat64) {
  std::mt19937 rng(1);
  for (const AttentionCase& c : random_attention_cases(rng, 60, 255)) check_forward(c, rng);
}

// Documents that begin anywhere, sliding windows, and both.
TEST(AttentionForwardTest, MaskedCasesMatchFloat64) {
  std::mt19937 rng(11);
  for (const AttentionCase& c : random_attention_cases(rng, 60, 255, true)) check_forward(c, rng);
  check_forward(
      {.q_len = sized(900, 130), .kv_len = sized(900, 130), .heads_per_group = 2, .head_dim = 64, .document = 300},
      rng);
  check_forward({.q_len = sized(700, 130), .kv_len = sized(700, 130), .head_dim = 64, .window = 130}, rng);
}

// A document alone has the bits that it has among others, where it begins on a tile.
TEST(AttentionForwardTest, DocumentsAloneAreWhatTheyAreTogether) {
  std::mt19937 rng(12);
  for (DType t : compute_types()) {
    AttentionTensors whole({.dtype = t, .q_len = 256, .kv_len = 256, .groups = 2, .head_dim = 40}, rng);
    for (int64_t i = 0; i < 256; ++i) whole.first_keys.push_back(i < 128 ? 0 : 128);
    AttentionTensors half({.dtype = t, .q_len = 128, .kv_len = 128, .groups = 2, .head_dim = 40}, rng);
    const int64_t width = whole.q.view().cols(), out_width = whole.out.view().cols();
    for (int64_t i = 0; i < 128 * width; ++i) half.q.set(i, whole.q.at(128 * width + i));
    CpuExec exec;
    whole.run_forward(*exec), half.run_forward(*exec);
    for (int64_t i = 0; i < 128 * out_width; ++i) ASSERT_EQ(half.out.at(i), whole.out.at(128 * out_width + i)) << i;
  }
}

TEST(AttentionForwardTest, LongSequencesMatchFloat64) {
  std::mt19937 rng(2);
  check_forward(
      {.dtype = DType::f32, .q_len = sized(1000, 130), .kv_len = sized(1000, 130), .head_dim = 64, .scale = 0.125f},
      rng);
  check_forward({.dtype = DType::bf16,
                 .q_len = sized(777, 130),
                 .kv_len = sized(777, 130),
                 .heads_per_group = 2,
                 .head_dim = 64,
                 .scale = 0.125f},
                rng);
  check_forward({.dtype = DType::f16,
                 .packing = Packing::kCache,
                 .q_len = 130,
                 .kv_len = sized(1100, 130),
                 .head_dim = 80,
                 .scale = 0.1f},
                rng);
}

TEST(AttentionForwardTest, DecodeSeesTheWholeCache) {
  std::mt19937 rng(3);
  for (DType t : compute_types()) {
    for (int64_t kv : {1, 2, 63, 64, 65, 300, 1000}) {
      check_forward({.dtype = t,
                     .packing = Packing::kCache,
                     .batch = 2,
                     .q_len = 1,
                     .kv_len = kv,
                     .groups = 2,
                     .heads_per_group = 3,
                     .head_dim = 48,
                     .scale = 0.15f},
                    rng);
    }
  }
}

TEST(AttentionForwardTest, PrefillInPiecesGivesTheRowsOfTheWhole) {
  // Positions 0..99 at once, and 40 then 60 through the cache: same oracle, so compare with each other's bound doubled.
  std::mt19937 rng(4);
  AttentionCase c{
      .dtype = DType::f32, .packing = Packing::kCache, .q_len = 100, .kv_len = 100, .groups = 2, .head_dim = 32};
  AttentionTensors x(c, rng);
  CpuExec exec(2);
  x.run_forward(*exec);
  const AttentionOracle want = attention_oracle(x, false);
  AttentionForward rest = x.forward_op();
  rest.shape.q_len = 60;
  rest.q_at.offset += 40 * rest.q_at.token;
  Tensor out(DType::f32, {60, c.heads() * c.head_dim});
  rest.out = out;
  rest.lse = View();
  exec->ops.attention_forward(*exec, rest);
  const int64_t skipped = 40 * c.heads() * c.head_dim;
  for (int64_t i = 0; i < out.count(); ++i) {
    ASSERT_LE(std::abs(out.at(i) - x.out.at(skipped + i)), 2 * want.out_bound[static_cast<size_t>(skipped + i)]) << i;
  }
}

TEST(AttentionForwardTest, DropoutDropsByTheCounters) {
  std::mt19937 rng(5);
  // kv_len of every remainder mod 4: a query's elements then start anywhere in a block of four words.
  for (DType t : compute_types()) {
    for (int64_t kv : {64, 65, 66, 67, 131}) {
      check_forward({.dtype = t,
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

TEST(AttentionForwardTest, HugeScoresStayStable) {
  std::mt19937 rng(6);
  for (DType t : compute_types()) {
    AttentionCase c{.dtype = t, .q_len = 150, .kv_len = 150, .head_dim = 32, .scale = 3.0f, .spread = 30.0};
    AttentionTensors x(c, rng);
    CpuExec exec(2);
    x.run_forward(*exec);
    const AttentionOracle want = attention_oracle(x, false);
    for (int64_t i = 0; i < x.out.count(); ++i) ASSERT_TRUE(std::isfinite(x.out.at(i))) << name_of(t) << " " << i;
    expect_within(x.lse, want.lse, want.lse_bound, "lse of " + c.name());
    expect_within(x.out, want.out, want.out_bound, "out of " + c.name());
  }
}

// One element of head size 1..: q = 1, so that scores are the keys themselves.
TEST(AttentionForwardTest, InfiniteScoresAreProbabilityZeroOrNaN) {
  std::mt19937 rng(7);
  for (DType t : compute_types()) {
    AttentionCase c{.dtype = t, .q_len = 140, .kv_len = 140, .head_dim = 1, .scale = 1.0f};
    AttentionTensors x(c, rng);
    for (int64_t i = 0; i < 140; ++i) {
      x.q.set(3 * i, 1.0);
      x.q.set(3 * i + 1, i < 70 || i % 3 == 0 ? -INFINITY : 0.5);
      x.q.set(3 * i + 2, i);
    }
    CpuExec exec(2);
    x.run_forward(*exec);
    for (int64_t i = 0; i < 70; ++i) ASSERT_TRUE(std::isnan(x.out.at(i))) << "no key has a finite score at " << i;
    for (int64_t i = 70; i < 140; ++i) {
      double sum = 0.0, n = 0.0;
      for (int64_t j = 70; j <= i; ++j) {
        if (j % 3 == 0) continue;
        sum += static_cast<double>(j);
        n += 1.0;
      }
      ASSERT_NEAR(x.out.at(i), sum / n, 2 * epsilon_of(t) * 140) << name_of(t) << " query " << i;
    }
  }
}

TEST(AttentionForwardTest, NanReachesEveryLaterQueryAndNoMuchEarlierOne) {
  std::mt19937 rng(8);
  for (DType t : compute_types()) {
    for (int what = 0; what < 3; ++what) {  // in q, k, v
      AttentionCase c{.dtype = t, .q_len = 200, .kv_len = 200, .head_dim = 16};
      AttentionTensors x(c, rng);
      x.q.set(101 * 48 + what * 16 + 3, std::nan(""));
      CpuExec exec(2);
      x.run_forward(*exec);
      for (int64_t i = 0; i < 200; ++i) {
        const bool reached = what == 0 ? i == 101 : i >= 101;
        const double got = x.out.at(i * 16 + 3);
        if (reached) {
          EXPECT_TRUE(std::isnan(got)) << name_of(t) << " part " << what << " query " << i;
        } else if (i < 64) {
          EXPECT_FALSE(std::isnan(got)) << name_of(t) << " part " << what << " query " << i;
        }
      }
    }
  }
}

TEST(AttentionForwardTest, BitsDoNotDependOnThreads) {
  for (DType t : compute_types()) {
    for (float p : {0.0f, 0.2f}) {
      expect_same_bits_for_threads(
          [&](Exec& exec) {
            std::mt19937 rng(9);
            AttentionTensors x({.dtype = t, .q_len = 600, .kv_len = 600, .groups = 2, .head_dim = 40, .dropout = p},
                               rng);
            x.run_forward(exec);
            return std::vector<Tensor>{x.out, x.lse};
          },
          "attention forward");
    }
  }
}

TEST(AttentionForwardTest, ScratchDoesNotGrowWithTheSequence) {
  std::mt19937 rng(10);
  AttentionTensors x({.groups = 2, .heads_per_group = 2, .head_dim = 64}, rng);
  AttentionForward op = x.forward_op();
  const auto bytes = [&](int64_t length) {
    op.shape.q_len = op.shape.kv_len = length;
    return attention_forward_scratch(op, 2);
  };
  EXPECT_EQ(bytes(8192), bytes(512));
  EXPECT_LT(bytes(8192), int64_t{2} << 20);
}

TEST(AttentionForwardTest, EmptyAndWrongArguments) {
  std::mt19937 rng(11);
  CpuExec exec(2);
  AttentionTensors x({.q_len = 8, .kv_len = 8}, rng);
  AttentionForward op = x.forward_op();
  op.shape.batch = 0;
  exec->ops.attention_forward(*exec, op);  // nothing to do

  const auto refused = [&](auto change) {
    AttentionForward wrong = x.forward_op();
    change(wrong);
    EXPECT_THROW(exec->ops.attention_forward(*exec, wrong), Error);
  };
  refused([](AttentionForward& f) { f.shape.kv_len = 7; });
  refused([](AttentionForward& f) { f.shape.kv_len = 9; });
  refused([](AttentionForward& f) { f.k_at.offset += 17; });
  refused([](AttentionForward& f) { f.v_at.token = -1; });
  refused([](AttentionForward& f) { f.k.dtype = DType::bf16; });
  refused([](AttentionForward& f) { f.q.dtype = DType::i32; });
  refused([](AttentionForward& f) { f.out.shape[0] = 7; });
  refused([](AttentionForward& f) { f.lse.shape[2] = 7; });
  refused([](AttentionForward& f) { f.dropout.p = 0.5f, f.dropout.batch = 2; });
}

}  // namespace
}  // namespace thinwire::test::attention_test
