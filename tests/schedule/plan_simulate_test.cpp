// Simulated times against the published bubbles, and against times worked out by hand where messages cost something.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "tests/schedule/plan_shapes.h"

namespace thinwire::plan_simulate_test {
namespace {

NodeCosts equal_costs(const PipelineShape& shape, double forward, double input, double weight, double transfer = 0.0) {
  const size_t depth = static_cast<size_t>(shape.stages * shape.chunks);
  return {std::vector<double>(depth, forward), std::vector<double>(depth, input), std::vector<double>(depth, weight),
          transfer};
}

PlanTimes times_of(const PipelineShape& shape, const NodeCosts& costs) {
  return simulate(make_plans(shape), shape, costs);
}

// Where the formula is exact (docs/schedules.md): GPipe and 1F1B always, interleaved where stages divide the
// micro-batches and a backward takes at least two forwards, ZB-H1 from as many micro-batches as stages on, if a weight
// half is not longer than an input half.
bool formula_is_exact(const PipelineShape& shape, double forward, double input, double weight) {
  if (shape.chunks > 1 && shape.stages > 1)
    return shape.micro_batches % shape.stages == 0 && input + weight >= 2 * forward;
  if (shape.kind == ScheduleKind::kZbH1) return shape.micro_batches >= shape.stages && weight <= input;
  return true;
}

TEST(Price, EqualStagesGiveTheFormula) {
  int exact = 0, above = 0;
  for (const auto& [forward, input, weight] :
       {std::array<double, 3>{1, 1, 1}, {1.0, 1.2, 0.8}, {2, 1, 1}, {1, 2, 0.5}, {1, 1, 1.5}, {0.7, 0.1, 0.1}})
    for_all_shapes(8, 4, 20, [&, f = forward, i = input, w = weight](const PipelineShape& shape) {
      const PlanTimes times = times_of(shape, equal_costs(shape, f, i, w));
      const double formula = bubble_formula(shape, f, i, w);
      for (double idle : times.idle) {
        if (formula_is_exact(shape, f, i, w)) {
          EXPECT_NEAR(idle, formula, 1e-9) << text_of(shape);
          ++exact;
        } else if (shape.chunks == 1 || shape.micro_batches % shape.stages == 0) {
          EXPECT_GE(idle, formula - 1e-9) << text_of(shape);
          ++above;
        }
      }
    });
  EXPECT_GT(exact, 10000);
  EXPECT_GT(above, 100);
}

// Ragged interleaved plans are those of the next full group with works left out, so they take no longer.
TEST(Price, RaggedInterleavedTakesNoLongerThanTheNextFullGroup) {
  for_all_shapes(8, 4, 20, [](const PipelineShape& shape) {
    if (shape.chunks == 1 || shape.micro_batches % shape.stages == 0) return;
    PipelineShape full = shape;
    full.micro_batches = (shape.micro_batches + shape.stages - 1) / shape.stages * shape.stages;
    EXPECT_LE(times_of(shape, equal_costs(shape, 1, 1, 1)).total,
              times_of(full, equal_costs(full, 1, 1, 1)).total + 1e-9)
        << text_of(shape);
  });
}

TEST(Price, ZeroBubbleIdlesLessThanOneForwardOneBackwardInTheSameMemory) {
  for (int p = 2; p <= 8; ++p)
    for (int m = 2; m <= 20; ++m) {
      const PipelineShape zero{ScheduleKind::kZbH1, p, 1, m}, plain{ScheduleKind::k1f1b, p, 1, m};
      const auto zero_plans = make_plans(zero), plain_plans = make_plans(plain);
      for (const Plan& plan : zero_plans) EXPECT_LE(plan.slots[0], plain_plans[0].slots[0]);
      EXPECT_LT(times_of(zero, equal_costs(zero, 1, 1, 1)).total, times_of(plain, equal_costs(plain, 1, 1, 1)).total)
          << text_of(zero);
    }
}

TEST(Price, MoreChunksIdleLess) {
  for (int p = 2; p <= 6; ++p) {
    double before = 1.0;
    for (int v = 1; v <= 4; ++v) {
      const PipelineShape shape{ScheduleKind::kInterleaved, p, v, 2 * p};
      const double idle = times_of(shape, equal_costs(shape, 1, 1, 1)).idle[0];
      EXPECT_LT(idle, before);
      before = idle;
    }
  }
}

// A transfer shorter than a forward hides behind the works of GPipe, except on the way in and out of the chain.
TEST(Price, GpipeHidesItsTransfers) {
  for (int p = 2; p <= 6; ++p)
    for (int m = 1; m <= 12; ++m) {
      const PipelineShape shape{ScheduleKind::kGpipe, p, 1, m};
      const double t = 0.5, ideal = 3.0 * (m + p - 1);
      EXPECT_NEAR(times_of(shape, equal_costs(shape, 1, 1, 1, t)).total, ideal + 2 * (p - 1) * t, 1e-9)
          << text_of(shape);
    }
}

// By hand: two stages, one micro-batch. F [0,1], transfer, F [2,3], B [3,5], transfer, B [6,8].
TEST(Price, OneMicroBatchByHand) {
  const PipelineShape shape{ScheduleKind::k1f1b, 2, 1, 1};
  const PlanTimes times = times_of(shape, equal_costs(shape, 1, 1, 1, 1.0));
  EXPECT_DOUBLE_EQ(times.total, 8.0);
  EXPECT_DOUBLE_EQ(times.idle[0], 1.0 - 3.0 / 8.0);
  const std::vector<Plan> plans = make_plans(shape);
  for (size_t stage = 0; stage < 2; ++stage)
    for (size_t i = 0; i < plans[stage].nodes.size(); ++i) {
      const bool first = stage == 0;
      const NodeKind kind = plans[stage].nodes[i].kind;
      if (kind == NodeKind::kForward) {
        EXPECT_DOUBLE_EQ(times.start[stage][i], first ? 0.0 : 2.0);
      }
      if (kind == NodeKind::kBackward) {
        EXPECT_DOUBLE_EQ(times.end[stage][i], first ? 8.0 : 5.0);
      }
      if (kind > NodeKind::kExchange) {
        EXPECT_DOUBLE_EQ(times.start[stage][i], 8.0);
      }
    }
}

// No work starts before what it needs, and works of a rank do not overlap, for any costs.
TEST(Price, CausalForUnequalStages) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.1, 3.0);
  for_all_shapes(5, 3, 7, [&](const PipelineShape& shape) {
    NodeCosts costs = equal_costs(shape, 0, 0, 0, cost(random));
    for (auto* list : {&costs.forward, &costs.backward_input, &costs.backward_weight})
      for (double& value : *list) value = cost(random);
    const std::vector<Plan> plans = make_plans(shape);
    const PlanTimes times = simulate(plans, shape, costs);
    const int depth = shape.stages * shape.chunks;
    const auto at = [&](int vs, int micro) { return static_cast<size_t>(vs * shape.micro_batches + micro); };
    std::vector<double> forward(at(depth, 0)), backward(at(depth, 0)), start_f(forward), start_b(forward);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Plan& plan = plans[static_cast<size_t>(stage)];
      double free = 0.0;
      for (size_t i = 0; i < plan.nodes.size(); ++i) {
        const PlanNode& node = plan.nodes[i];
        const double start = times.start[static_cast<size_t>(stage)][i], end = times.end[static_cast<size_t>(stage)][i];
        EXPECT_GE(start, free - 1e-12);
        free = end;
        const int vs = node.chunk * shape.stages + stage;
        if (node.kind == NodeKind::kForward) start_f[at(vs, node.micro)] = start, forward[at(vs, node.micro)] = end;
        if (node.kind == NodeKind::kBackward || node.kind == NodeKind::kBackwardInput)
          start_b[at(vs, node.micro)] = start, backward[at(vs, node.micro)] = end;
      }
    }
    for (int vs = 0; vs + 1 < depth; ++vs)
      for (int micro = 0; micro < shape.micro_batches; ++micro) {
        EXPECT_GE(start_f[at(vs + 1, micro)], forward[at(vs, micro)] + costs.transfer - 1e-9) << text_of(shape);
        EXPECT_GE(start_b[at(vs, micro)], backward[at(vs + 1, micro)] + costs.transfer - 1e-9) << text_of(shape);
      }
  });
}

}  // namespace
}  // namespace thinwire::plan_simulate_test
