// Softmax cross entropy against float64: losses, gradients, padding, weights and numbers at the edge of the range.
#include <algorithm>
#include <limits>

#include "engine/base/ops/op_list.h"
#include "engine/run/bench/op_oracles.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::cross_entropy_test {
namespace {

constexpr double kU = 0x1p-24;
const double kInf = std::numeric_limits<double>::infinity();

oracle::SoftmaxRow row_of(const std::vector<double>& v, int64_t start, int64_t valid) {
  return oracle::softmax_row(valid, [&](int64_t c) { return v[static_cast<size_t>(start + c)]; });
}

void check(DType type, int64_t rows, int64_t cols, int64_t valid, double spread, unsigned seed) {
  SCOPED_TRACE(testing::Message() << name_of(type) << " [" << rows << "," << valid << " of " << cols << "] spread "
                                  << spread);
  std::mt19937 rng(seed);
  Tensor logits = random_tensor(rng, type, {rows, cols}, spread);
  for (int64_t r = 0; r < rows; ++r) {  // rubbish in the padding must not be seen
    for (int64_t c = valid; c < cols; ++c)
      logits.set(r * cols + c, c % 3 == 0 ? std::nan("") : c % 3 == 1 ? kInf : 6e4);
  }
  Tensor targets = random_tokens(rng, rows, valid);
  Tensor weight = random_tensor(rng, DType::f32, {rows});
  if (rows > 2) {
    weight.set(1, 0.0);
    targets.set(1, -100);
  }
  Tensor loss(DType::f32, {rows}), scale = constant_tensor(DType::f32, {1}, 0.125);
  const Tensor before = logits;
  const std::vector<double> v = before.values();
  CpuExec exec;
  cross_entropy_op(*exec, {logits, targets, weight, loss, View(), valid});
  EXPECT_EQ(std::memcmp(logits.view().data, before.view().data, logits.view().bytes()), 0)
      << "evaluation must not write";
  const Tensor evaluated = loss;
  cross_entropy_op(*exec, {logits, targets, weight, loss, scale, valid});
  EXPECT_TRUE(loss.same_bits(evaluated));

  std::vector<double> want_loss, bound_loss, want(v.size(), 0.0), bound(v.size(), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    if (weight.at(r) == 0.0) {
      want_loss.push_back(0.0);
      bound_loss.push_back(0.0);
      continue;
    }
    const int64_t target = static_cast<int64_t>(targets.at(r));
    const oracle::SoftmaxRow row = row_of(v, r * cols, valid);
    const double row_loss = row.loss(v[static_cast<size_t>(r * cols + target)]);
    // The sum: each term has the rounding of v - max (weight |v - max| <= 80 where the term counts, and it counts
    // little where that is large: |d| e^-|d| <= 1/e, so one unit) and of the exponential, 3 units; rescaling by chunk 5
    // more each; addition.
    const double chunks = std::ceil(static_cast<double>(valid) / 512.0);
    double exponent_error = 0.0;
    for (int64_t c = 0; c < valid; ++c) {
      const double d = row.maximum - v[static_cast<size_t>(r * cols + c)];
      exponent_error += d < 700 ? d * std::exp(-d) : 0.0;
    }
    const double sum_error = kU * (exponent_error / row.sum + 12 + 6 * chunks + static_cast<double>(valid) / 32.0);
    const double logit_distance = std::abs(row.maximum - v[static_cast<size_t>(r * cols + target)]);
    want_loss.push_back(row_loss);
    bound_loss.push_back(sum_error + kU * (2 * std::abs(std::log(row.sum)) + 2 * logit_distance + 2 * row_loss));
    const double g = weight.at(r) * scale.at(0);
    for (int64_t c = 0; c < valid; ++c) {
      const size_t i = static_cast<size_t>(r * cols + c);
      const double d = row.maximum - v[i], p = std::exp(-d) / row.sum;
      want[i] = (p - (c == target ? 1.0 : 0.0)) * g;
      bound[i] = std::abs(g) * (p * (sum_error + kU * (d + 10)) + (c == target ? 2 * kU : 0.0) + 1e-37) +
                 unit_of(type) * std::abs(want[i]) * 1.01 + tiny_of(type);
    }
  }
  expect_close(
      loss, want_loss, [&](int64_t i) { return bound_loss[static_cast<size_t>(i)]; }, "loss");
  expect_close(
      logits, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "dlogits");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = valid; c < cols; ++c) ASSERT_EQ(logits.at(r * cols + c), 0.0) << "padding has a gradient";
  }
}

TEST(CrossEntropy, AgreesWithFloat64) {
  unsigned seed = 1;
  for (DType type : compute_types()) {
    for (double spread : {1.0, 30.0}) {
      check(type, 1, 1, 1, spread, seed++);
      check(type, 3, 3, 2, spread, seed++);
      check(type, 7, 17, 17, spread, seed++);
      check(type, 5, 63, 50, spread, seed++);
      check(type, 9, 65, 65, spread, seed++);
      check(type, 4, 1024, 1003, spread, seed++);
      check(type, 3, 5120, 5017, spread, seed++);
    }
    check(type, 3, 50304, 50257, 3.0, seed++);
  }
}

TEST(CrossEntropy, GradientAgreesWithCentralDifferences) {
  std::mt19937 rng(4);
  const int64_t rows = 3, cols = 21, valid = 19;
  Tensor logits = random_tensor(rng, DType::f32, {rows, cols}, 2.0);
  const Tensor targets = random_tokens(rng, rows, valid), weight = random_tensor(rng, DType::f32, {rows}, 0.1, 1.0);
  const Tensor scale = constant_tensor(DType::f32, {1}, 1.0);
  Tensor loss(DType::f32, {rows});
  std::vector<double> v = logits.values();
  CpuExec exec;
  cross_entropy_op(*exec, {logits, targets, weight, loss, scale, valid});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const size_t i = static_cast<size_t>(r * cols + c);
      const double h = 1e-4, kept = v[i];
      const int64_t target = static_cast<int64_t>(targets.at(r));
      v[i] = kept + h;
      const double above = row_of(v, r * cols, valid).loss(v[static_cast<size_t>(r * cols + target)]);
      v[i] = kept - h;
      const double below = row_of(v, r * cols, valid).loss(v[static_cast<size_t>(r * cols + target)]);
      v[i] = kept;
      // h^2 / 6 times a third derivative below 1/2, and some tens of fp32 roundings of numbers below 2.
      EXPECT_NEAR(logits.at(r * cols + c), weight.at(r) * (above - below) / (2 * h), 2e-9 + 40 * kU);
    }
  }
}

TEST(CrossEntropy, ExtremeLogits) {
  const int64_t cols = 40;
  Tensor logits = constant_tensor(DType::f32, {4, cols}, -1e30);
  logits.set(7, 3e38);                                                            // row 0: one giant, it is the target
  for (int64_t c = 0; c < cols; ++c) logits.set(cols + c, c == 3 ? 1.0 : -kInf);  // row 1: all others impossible
  logits.set(2 * cols + 39, std::nan(""));                                        // row 2: NaN must show
  logits.set(3 * cols + 0, kInf);                                                 // row 3: so must infinity
  Tensor targets(DType::i32, {4}), loss(DType::f32, {4});
  targets.set(0, 7);
  targets.set(1, 3);
  const Tensor weight = constant_tensor(DType::f32, {4}, 1.0), scale = constant_tensor(DType::f32, {1}, 1.0);
  CpuExec exec;
  cross_entropy_op(*exec, {logits, targets, weight, loss, scale, cols});
  EXPECT_EQ(loss.at(0), 0.0);
  EXPECT_EQ(loss.at(1), 0.0);
  EXPECT_TRUE(std::isnan(loss.at(2)));
  EXPECT_TRUE(std::isnan(loss.at(3)));
  for (int64_t c = 0; c < 2 * cols; ++c) EXPECT_EQ(logits.at(c), 0.0);
  EXPECT_TRUE(std::isnan(logits.at(2 * cols + 5)));
}

TEST(CrossEntropy, SameBitsForAnyNumberOfThreads) {
  for (DType type : compute_types()) {
    std::mt19937 rng(5);
    const Tensor logits = random_tensor(rng, type, {203, 515}), targets = random_tokens(rng, 203, 500);
    const Tensor weight = constant_tensor(DType::f32, {203}, 1.0), scale = constant_tensor(DType::f32, {1}, 0.5);
    expect_same_bits_for_threads(
        [&](Exec& exec) {
          std::vector<Tensor> out = {logits, Tensor(DType::f32, {203})};
          cross_entropy_op(exec, {out[0], targets, weight, out[1], scale, 500});
          return out;
        },
        "cross_entropy");
  }
}

TEST(CrossEntropy, WrongArgumentsAreRefused) {
  Tensor logits(DType::f32, {2, 8}), targets(DType::i32, {2}), loss(DType::f32, {2});
  const Tensor weight = constant_tensor(DType::f32, {2}, 1.0);
  CpuExec exec;
  targets.set(1, 7);
  EXPECT_ANY_THROW(
      cross_entropy_op(*exec, {logits, targets, weight, loss, View(), 7}));  // the target is a padding column
  EXPECT_ANY_THROW(cross_entropy_op(*exec, {logits, targets, weight, loss, View(), 9}));
  EXPECT_NO_THROW(cross_entropy_op(*exec, {logits, targets, weight, loss, View(), 8}));
}

}  // namespace
}  // namespace thinwire::test::cross_entropy_test
