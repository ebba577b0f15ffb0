// The dynamic loss scale step by step, its state, and the clip rule.
#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "optim/optimizer.h"

namespace thinwire::loss_scaler_test {
namespace {

OptimConfig config(double scale, int64_t window, int64_t hysteresis, double minimum) {
  OptimConfig c;
  c.loss_scale = scale, c.loss_scale_window = window, c.hysteresis = hysteresis, c.min_loss_scale = minimum;
  return c;
}

// One letter per step: o = overflow, . = clean; the scale after each is expected.
void expect_scales(LossScaler& scaler, const std::string& updates, const std::vector<double>& expected) {
  ASSERT_EQ(updates.size(), expected.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    scaler.update(updates[i] == 'o');
    EXPECT_EQ(scaler.scale(), expected[i]) << "update " << i + 1;
  }
}

TEST(LossScaler, GrowsAfterEveryWindowOfCleanUpdates) {
  LossScaler scaler(config(8, 3, 1, 1), true);
  expect_scales(scaler, ".......", {8, 8, 16, 16, 16, 32, 32});
}

TEST(LossScaler, WindowCountsFromTheLastOverflow) {
  LossScaler scaler(config(8, 3, 1, 1), true);
  expect_scales(scaler, "..o..o...", {8, 8, 4, 4, 4, 2, 2, 2, 4});
}

TEST(LossScaler, HysteresisForgivesAndIsRefilledByGrowthAlone) {
  LossScaler scaler(config(64, 3, 2, 1), true);
  //                        forgiven; then every overflow halves, also after clean steps, until the scale has grown
  expect_scales(scaler, "o..oo...oo", {64, 64, 64, 32, 16, 16, 16, 32, 32, 16});
}

TEST(LossScaler, NeverBelowTheMinimum) {
  LossScaler scaler(config(4, 1000, 1, 2), true);
  expect_scales(scaler, "ooo.", {2, 2, 2, 2});
}

TEST(LossScaler, StaticAndInactiveScalesDoNotMove) {
  OptimConfig c = config(128, 1, 1, 1);
  c.dynamic_loss_scale = false;
  LossScaler fixed(c, true);
  expect_scales(fixed, "o..o", {128, 128, 128, 128});
  LossScaler off(config(128, 1, 1, 1), false);
  expect_scales(off, "o..o", {1, 1, 1, 1});
}

// Writes what it is shown, or puts back what was written.
class Memory : public StateVisitor {
 public:
  bool restoring = false;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  void tensor(const GlobalSlice&) override { FAIL(); }
  void text(const std::string&, std::string&) override { FAIL(); }
  void integer(const std::string& name, int64_t& value) override {
    if (restoring)
      value = integers.at(name);
    else
      integers[name] = value;
  }
  void real(const std::string& name, double& value) override {
    if (restoring)
      value = reals.at(name);
    else
      reals[name] = value;
  }
};

TEST(LossScaler, StateSurvivesAtEveryPoint) {
  const std::string updates = "o..oo....o...o.....";
  for (size_t cut = 0; cut <= updates.size(); ++cut) {
    LossScaler whole(config(64, 3, 2, 1), true), before(config(64, 3, 2, 1), true), after(config(64, 3, 2, 1), true);
    Memory memory;
    for (size_t i = 0; i < updates.size(); ++i) {
      whole.update(updates[i] == 'o');
      (i < cut ? before : after).update(updates[i] == 'o');
      if (i + 1 == cut) {
        before.visit(memory);
        memory.restoring = true;
        after.visit(memory);
      }
    }
    EXPECT_EQ(cut == updates.size() ? before.scale() : after.scale(), whole.scale()) << "cut at " << cut;
  }
}

// Puts the state of one scaler into another.
void hand_over(LossScaler& from, LossScaler& to) {
  Memory memory;
  from.visit(memory);
  memory.restoring = true;
  to.visit(memory);
}

// What a resume finds in the checkpoint gives way to what its configuration says now.
TEST(LossScaler, StaticScaleIsTheConfigurationsAfterAResume) {
  OptimConfig c = config(128, 3, 1, 1);
  c.dynamic_loss_scale = false;
  LossScaler dynamic(config(4096, 3, 1, 1), true), fixed(c, true);
  expect_scales(dynamic, "o", {2048});
  hand_over(dynamic, fixed);
  expect_scales(fixed, "o..", {128, 128, 128});
  LossScaler off(config(64, 3, 1, 1), false);
  hand_over(dynamic, off);
  EXPECT_EQ(off.scale(), 1.0);
}

TEST(LossScaler, DynamicScaleGoesOnFromAStaticOne) {
  OptimConfig c = config(128, 3, 1, 1);
  c.dynamic_loss_scale = false;
  LossScaler fixed(c, true), dynamic(config(4096, 3, 1, 1), true);
  expect_scales(fixed, "....", {128, 128, 128, 128});
  hand_over(fixed, dynamic);
  expect_scales(dynamic, "...o", {128, 128, 256, 128});
}

TEST(LossScaler, RestoredStateKeepsToTheNewLimits) {
  LossScaler before(config(8, 3, 4, 1), true), after(config(64, 3, 1, 32), true);
  hand_over(before, after);
  EXPECT_EQ(after.scale(), 32);  // and no overflow raises it
  expect_scales(after, "o...oo", {32, 32, 32, 64, 32, 32});
}

TEST(Clip, ScalesOnlyWhatIsTooLarge) {
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_coefficient(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_coefficient(1.0, 1.0), 1.0 / (1.0 + 1e-6));  // the 1e-6 belongs to the rule
  EXPECT_EQ(clip_coefficient(1e9, 0.0), 1.0);
}

}  // namespace
}  // namespace thinwire::loss_scaler_test
