// Plans of every shape: written-out small ones, the memory bound of each schedule, and where messages stand.
#include "parallel/schedule/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "engine/base/core/error.h"
#include "parallel/schedule/schedules.h"
#include "tests/schedule/plan_shapes.h"

namespace thinwire::plan_test {
namespace {

std::vector<std::string> lines_of(const PipelineShape& shape, bool with_messages = false) {
  std::vector<std::string> lines;
  for (const Plan& plan : make_plans(shape)) lines.push_back(to_string(plan, with_messages));
  return lines;
}

using Lines = std::vector<std::string>;

TEST(Plan, OneStageRunsEachMicroBatchThroughUnderEverySchedule) {
  for (ScheduleKind kind : kSchedules)
    EXPECT_EQ(lines_of({kind, 1, 1, 3}), Lines{"F0 B0 F1 B1 F2 B2 R C O G"}) << static_cast<int>(kind);
  EXPECT_EQ(make_plan({ScheduleKind::kGpipe, 1, 1, 3}, 0).slots, std::vector<int>{1});
}

TEST(Plan, GpipeIsWrittenOut) {
  EXPECT_EQ(lines_of({ScheduleKind::kGpipe, 2, 1, 3}),
            (Lines{"F0 F1 F2 B0 B1 B2 R C O G", "F0 F1 F2 B0 B1 B2 R C O G"}));
}

TEST(Plan, OneForwardOneBackwardIsWrittenOut) {
  EXPECT_EQ(
      lines_of({ScheduleKind::k1f1b, 3, 1, 4}),
      (Lines{"F0 F1 F2 B0 F3 B1 B2 B3 R C O G", "F0 F1 B0 F2 B1 F3 B2 B3 R C O G", "F0 B0 F1 B1 F2 B2 F3 B3 R C O G"}));
  EXPECT_EQ(lines_of({ScheduleKind::k1f1b, 4, 1, 2}),
            (Lines{"F0 F1 B0 B1 R C O G", "F0 F1 B0 B1 R C O G", "F0 F1 B0 B1 R C O G", "F0 B0 F1 B1 R C O G"}));
}

// The upper half of figure 3 of Qi et al. 2023, with four stages and fewer micro-batches; stage 0 keeps its halves
// together.
TEST(Plan, ZeroBubbleIsWrittenOut) {
  EXPECT_EQ(lines_of({ScheduleKind::kZbH1, 3, 1, 4}),
            (Lines{"F0 F1 F2 B0 F3 B1 B2 B3 R C O G", "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 R C O G",
                   "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 R C O G"}));
}

// Megatron-LM's walk: groups of `stages` micro-batches, chunk after chunk, 2 (p - s - 1) + (v - 1) p forwards ahead.
TEST(Plan, InterleavedIsWrittenOut) {
  EXPECT_EQ(lines_of({ScheduleKind::kInterleaved, 2, 2, 4}),
            (Lines{"F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0 R C O G",
                   "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0 R C O G"}));
  EXPECT_EQ(lines_of({ScheduleKind::kInterleaved, 2, 2, 1}),
            (Lines{"F0.0 F0.1 B0.1 B0.0 R C O G", "F0.0 F0.1 B0.1 B0.0 R C O G"}));
}

TEST(Plan, MessagesAreWrittenOut) {
  EXPECT_EQ(lines_of({ScheduleKind::k1f1b, 2, 1, 3}, true),
            (Lines{"F0 [>f0 <b0] F1 [>f1] B0 [<b1] F2 [>f2 <b2] B1 B2 R C O G",
                   "[<f0] F0 B0 [>b0] [<f1] F1 B1 [>b1] [<f2] F2 B2 [>b2] R C O G"}));
  EXPECT_EQ(lines_of({ScheduleKind::kInterleaved, 1, 2, 1}, true),
            (Lines{"F0.0 [>f0.0 <f0.1] F0.1 B0.1 [>b0.1 <b0.0] B0.0 R C O G"}));
}

TEST(Plan, EveryShapeIsValid) {
  int shapes = 0;
  for_all_shapes(8, 4, 20, [&](const PipelineShape& shape) {
    ASSERT_EQ(validate(make_plans(shape), shape), "") << text_of(shape);
    ++shapes;
  });
  EXPECT_EQ(shapes, 8 * 20 * (3 + 4));
}

// Counts what is alive by walking the works alone: a micro-batch lives in a chunk from its forward to its (weight half
// of the) backward. The bounds are the published ones, written here once more.
TEST(Plan, MemoryStaysWithinTheBoundOfItsSchedule) {
  for_all_shapes(8, 4, 20, [](const PipelineShape& shape) {
    const int p = shape.stages, v = shape.chunks, m = shape.micro_batches;
    const std::vector<Plan> plans = make_plans(shape);
    for (int stage = 0; stage < p; ++stage) {
      const Plan& plan = plans[static_cast<size_t>(stage)];
      int alive = 0, most = 0, waiting = 0, most_waiting = 0;
      std::vector<int> in_chunk(static_cast<size_t>(v), 0), most_in_chunk(static_cast<size_t>(v), 0);
      for (const PlanNode& node : plan.nodes) {
        const size_t chunk = static_cast<size_t>(node.chunk);
        if (node.kind == NodeKind::kForward) {
          most = std::max(most, ++alive);
          most_in_chunk[chunk] = std::max(most_in_chunk[chunk], ++in_chunk[chunk]);
        }
        if (node.kind == NodeKind::kBackwardInput) most_waiting = std::max(most_waiting, ++waiting);
        if (node.kind == NodeKind::kBackwardWeight) --waiting;
        if (finishes(node.kind)) --alive, --in_chunk[chunk];
      }
      int bound = std::min(p - stage, m);
      if (shape.kind == ScheduleKind::kGpipe && p > 1) bound = m;
      if (shape.kind == ScheduleKind::kZbH1) bound = std::min(p, m);  // stage 0 of 1F1B
      if (v > 1) bound = std::min(2 * (p - stage - 1) + (v - 1) * p + 1, m * v);
      const std::string where = text_of(shape) + " stage " + std::to_string(stage);
      // Ragged interleaved plans may stay below.
      if (v > 1 && m % p != 0) {
        EXPECT_LE(most, bound) << where;
      } else {
        EXPECT_EQ(most, bound) << where;
      }
      EXPECT_EQ(plan.slots, most_in_chunk) << where << ": no more slots than needed";
      EXPECT_EQ(plan.weight_halves, most_waiting) << where;
      EXPECT_LE(plan.weight_halves, shape.kind == ScheduleKind::kZbH1 ? std::min(stage + 1, m) : 0) << where;
    }
  });
}

// A batch that grows while training runs in the memory that its largest plan took.
TEST(Plan, FewerMicroBatchesNeedNoMoreMemory) {
  for_all_shapes(8, 4, 20, [](const PipelineShape& shape) {
    PipelineShape more = shape;
    ++more.micro_batches;
    const std::vector<Plan> plans = make_plans(shape), larger = make_plans(more);
    for (size_t stage = 0; stage < plans.size(); ++stage) {
      EXPECT_LE(plans[stage].weight_halves, larger[stage].weight_halves) << text_of(shape);
      for (size_t chunk = 0; chunk < plans[stage].slots.size(); ++chunk)
        EXPECT_LE(plans[stage].slots[chunk], larger[stage].slots[chunk]) << text_of(shape);
    }
  });
}

TEST(Plan, MegatronsOrderOfForwardsAndBackwards) {
  for_all_shapes(6, 4, 18, [](const PipelineShape& shape) {
    if (shape.chunks < 2) return;
    for (const Plan& plan : make_plans(shape)) {
      // Sorted by (group of `stages` micro-batches, chunk, micro-batch), chunks backwards for gradients.
      std::vector<std::array<int, 3>> forwards, backwards;
      for (const PlanNode& node : plan.nodes) {
        const int group = node.micro / shape.stages;
        if (node.kind == NodeKind::kForward) forwards.push_back({group, node.chunk, node.micro});
        if (node.kind == NodeKind::kBackward) backwards.push_back({group, -node.chunk, node.micro});
      }
      ASSERT_EQ(forwards.size(), static_cast<size_t>(shape.chunks * shape.micro_batches));
      EXPECT_TRUE(std::is_sorted(forwards.begin(), forwards.end())) << text_of(shape);
      EXPECT_TRUE(std::is_sorted(backwards.begin(), backwards.end())) << text_of(shape);
    }
  });
}

// Sends directly behind their making: always, except where the receiver of an interleaved plan has no slot yet and a
// blocking send would stop the chain.
TEST(Plan, SendsStandDirectlyBehindTheirMaking) {
  int64_t sends = 0, late = 0;
  for_all_shapes(6, 4, 18, [&](const PipelineShape& shape) {
    for (const Plan& plan : make_plans(shape)) {
      const PlanNode* work = nullptr;
      for (const PlanNode& node : plan.nodes) {
        if (is_work(node.kind) && node.kind != NodeKind::kBackwardWeight) work = &node;
        for (const Message& m : node.messages) {
          if (!m.send) continue;
          ++sends;
          const bool directly = work != nullptr && work->micro == m.micro && work->chunk == m.chunk &&
                                (work->kind == NodeKind::kForward) == m.forward;
          if (!directly) ++late;
          EXPECT_TRUE(directly || shape.chunks > 1) << text_of(shape) << " " << to_string(plan, true);
        }
      }
    }
  });
  RecordProperty("late_sends_percent", std::to_string(100.0 * static_cast<double>(late) / static_cast<double>(sends)));
  EXPECT_LT(late, sends / 10);
}

// All slots of GPipe are free from the start, so each receive can stand before the work during which it arrives. Not
// those of the first forward and the first backward: there the rank has nothing else to do.
TEST(Plan, ReceivesOfGpipeStandAWorkAhead) {
  for (int p = 2; p <= 6; ++p)
    for (int m = 2; m <= 12; ++m) {
      const PipelineShape shape{ScheduleKind::kGpipe, p, 1, m};
      for (const Plan& plan : make_plans(shape)) {
        std::map<std::pair<bool, int>, int> posted;
        int works = 0;
        for (const PlanNode& node : plan.nodes) {
          for (const Message& message : node.messages)
            if (!message.send) posted[{message.forward, message.micro}] = works;
          if (!is_work(node.kind)) continue;
          const auto found = posted.find({node.kind == NodeKind::kForward, node.micro});
          if (found != posted.end() && node.micro > 0) {
            EXPECT_LT(found->second, works) << to_string(plan, true);
          }
          ++works;
        }
      }
    }
}

TEST(Plan, ImpossibleShapesAreRefused) {
  for (const PipelineShape& shape :
       {PipelineShape{ScheduleKind::k1f1b, 2, 2, 4}, PipelineShape{ScheduleKind::kGpipe, 0, 1, 4},
        PipelineShape{ScheduleKind::kZbH1, 2, 1, 0}, PipelineShape{ScheduleKind::kInterleaved, 2, 0, 4}}) {
    try {
      make_plans(shape);
      ADD_FAILURE() << text_of(shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    }
  }
  EXPECT_THROW(make_plan({ScheduleKind::k1f1b, 2, 1, 4}, 2), Error);
}

}  // namespace
}  // namespace thinwire::plan_test
