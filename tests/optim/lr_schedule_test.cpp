// Learning rates at named updates, worked out by hand from the published formulas.
#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace thinwire::lr_schedule_test {
namespace {

// lr 8, min 2, 4 warm-up and 12 decay updates: eighths and quarters come out exactly.
OptimConfig schedule(LrDecay decay, WarmupConvention convention) {
  OptimConfig c;
  c.lr = 8.0, c.min_lr = 2.0;
  c.decay = decay, c.warmup_iters = 4, c.decay_iters = 12;
  c.warmup_convention = convention;
  return c;
}

void expect_rates(const OptimConfig& c, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(learning_rate(c, static_cast<int64_t>(i)), expected[i], 1e-12) << "update " << i + 1;
  }
}

TEST(LrSchedule, NeoxWarmupGivesTheFirstTwoUpdatesTheSameRate) {
  expect_rates(schedule(LrDecay::kConstant, WarmupConvention::kNeox), {2, 2, 4, 6, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8});
}

TEST(LrSchedule, MegatronWarmupStartsAtItsInitialValue) {
  OptimConfig c = schedule(LrDecay::kConstant, WarmupConvention::kMegatron);
  expect_rates(c, {0, 2, 4, 6, 8, 8, 8});
  c.warmup_init = 4.0;
  expect_rates(c, {4, 5, 6, 7, 8, 8, 8});
}

TEST(LrSchedule, NoWarmupStartsAtTheTop) {
  for (const auto convention : {WarmupConvention::kNeox, WarmupConvention::kMegatron}) {
    OptimConfig c = schedule(LrDecay::kConstant, convention);
    c.warmup_iters = 0;
    expect_rates(c, {8, 8, 8});
  }
}

// x = (t - 4) / 8 with t = update - 1; Megatron 8 - 6 x, NeoX 8 - 8 x and not below 2.
TEST(LrSchedule, Linear) {
  expect_rates(schedule(LrDecay::kLinear, WarmupConvention::kMegatron),
               {0, 2, 4, 6, 8, 7.25, 6.5, 5.75, 5, 4.25, 3.5, 2.75, 2, 2, 2});
  expect_rates(schedule(LrDecay::kLinear, WarmupConvention::kNeox), {2, 2, 4, 6, 8, 7, 6, 5, 4, 3, 2, 2, 2, 2, 2});
  OptimConfig to_zero = schedule(LrDecay::kLinear, WarmupConvention::kNeox);
  to_zero.min_lr = 0.0;  // where the two agree
  expect_rates(to_zero, {2, 2, 4, 6, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0});
}

// 2 + 3 (1 + cos(pi x)): cos is 1, sqrt(2 + sqrt 2)/2, sqrt(1/2), sqrt(2 - sqrt 2)/2, 0 and mirrored.
TEST(LrSchedule, Cosine) {
  const double a = std::sqrt(2.0 + std::sqrt(2.0)) / 2.0, b = std::sqrt(0.5), c = std::sqrt(2.0 - std::sqrt(2.0)) / 2.0;
  expect_rates(schedule(LrDecay::kCosine, WarmupConvention::kMegatron),
               {0, 2, 4, 6, 8, 5 + 3 * a, 5 + 3 * b, 5 + 3 * c, 5, 5 - 3 * c, 5 - 3 * b, 5 - 3 * a, 2, 2, 2});
}

// lr * sqrt(4 / t), not below 2; the minimum after step 12 has finished.
TEST(LrSchedule, InverseSquareRoot) {
  OptimConfig c = schedule(LrDecay::kInverseSqrt, WarmupConvention::kMegatron);
  expect_rates(c, {0, 2, 4, 6, 8, 16 / std::sqrt(5.0), 16 / std::sqrt(6.0), 16 / std::sqrt(7.0), 16 / std::sqrt(8.0),
                   16.0 / 3.0, 16 / std::sqrt(10.0), 16 / std::sqrt(11.0), 16 / std::sqrt(12.0), 2, 2});
  c.min_lr = 6.0;
  EXPECT_EQ(learning_rate(c, 9), 6.0);
  c.min_lr = 0.0, c.warmup_iters = 0;  // then w counts as 1
  expect_rates(c, {8, 8, 8 / std::sqrt(2.0), 8 / std::sqrt(3.0), 4});
}

// Stable at 8 until t = 8, then z = (t - 8) / 4.
TEST(LrSchedule, WarmupStableDecay) {
  OptimConfig c = schedule(LrDecay::kWsd, WarmupConvention::kMegatron);
  c.wsd_decay_iters = 4;
  const double r = std::sqrt(0.5);
  c.wsd_decay = WsdDecay::kLinear;
  expect_rates(c, {0, 2, 4, 6, 8, 8, 8, 8, 8, 6.5, 5, 3.5, 2, 2, 2});
  c.wsd_decay = WsdDecay::kCosine;
  expect_rates(c, {0, 2, 4, 6, 8, 8, 8, 8, 8, 5 + 3 * r, 5, 5 - 3 * r, 2, 2, 2});
  c.wsd_decay = WsdDecay::kExponential;  // 2 * 2^-z - 1
  const double q = std::pow(2.0, 0.25);
  expect_rates(
      c, {0, 2, 4, 6, 8, 8, 8, 8, 8, 2 + 6 * (2 / q - 1), 2 + 6 * (std::sqrt(2.0) - 1), 2 + 6 * (q - 1), 2, 2, 2});
  c.wsd_decay = WsdDecay::kMinusSqrt;
  expect_rates(c, {0, 2, 4, 6, 8, 8, 8, 8, 8, 5, 2 + 6 * (1 - r), 2 + 6 * (1 - std::sqrt(0.75)), 2, 2, 2});
  c.wsd_decay_iters = 0;  // no tail: stable to the end
  expect_rates(c, {0, 2, 4, 6, 8, 8, 8, 8, 8, 8, 8, 8, 8, 2, 2});
}

// The public 20B recipe: warm-up 1 % of 150,000, cosine from 0.97e-4 to 0.97e-5.
TEST(LrSchedule, TwentyBillionRecipe) {
  OptimConfig c;
  c.lr = 0.97e-4, c.min_lr = 0.97e-5, c.decay = LrDecay::kCosine, c.decay_iters = 150000, c.warmup_iters = 1500;
  EXPECT_DOUBLE_EQ(learning_rate(c, 0), 0.97e-4 / 1500);
  EXPECT_DOUBLE_EQ(learning_rate(c, 1), 0.97e-4 / 1500);
  EXPECT_DOUBLE_EQ(learning_rate(c, 2), 0.97e-4 * 2 / 1500);
  EXPECT_DOUBLE_EQ(learning_rate(c, 1500), 0.97e-4);
  EXPECT_NEAR(learning_rate(c, 1500 + 74250), (0.97e-4 + 0.97e-5) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(c, 150001), 0.97e-5);
}

TEST(LrSchedule, UpdatesCountFromOne) {
  EXPECT_ANY_THROW(learning_rate(schedule(LrDecay::kLinear, WarmupConvention::kNeox), -1));
}

}  // namespace
}  // namespace thinwire::lr_schedule_test
