// The validator against spoiled plans: every kind of fault by hand, and thousands of random mutations judged by a
// machine that executes them.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>

#include "tests/schedule/plan_machine.h"
#include "tests/schedule/plan_shapes.h"

namespace thinwire::plan_validate_test {
namespace {

using Plans = std::vector<Plan>;

size_t find_node(const Plan& plan, const std::string& text) {
  for (size_t i = 0; i < plan.nodes.size(); ++i)
    if (to_string(plan.nodes[i], plan.slots.size() > 1) == text) return i;
  ADD_FAILURE() << text << " is not in " << to_string(plan, true);
  return 0;
}

// Two stages, three micro-batches:
// 0: F0 [>f0 <b0] F1 [>f1] B0 [<b1] F2 [>f2 <b2] B1 B2 R C O G
// 1: [<f0] F0 B0 [>b0] [<f1] F1 B1 [>b1] [<f2] F2 B2 [>b2] R C O G
struct Spoiled {
  PipelineShape shape{ScheduleKind::k1f1b, 2, 1, 3};
  Plans plans = make_plans(shape);
  PlanNode& node(size_t stage, const std::string& text) { return plans[stage].nodes[find_node(plans[stage], text)]; }
  void erase(size_t stage, const std::string& text) {
    auto& nodes = plans[stage].nodes;
    nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(find_node(plans[stage], text)));
  }
  void swap(size_t stage, const std::string& a, const std::string& b) { std::swap(node(stage, a), node(stage, b)); }
  std::string fault() const { return validate(plans, shape); }
};

#define EXPECT_FAULT(spoiled, words) \
  EXPECT_NE((spoiled).fault().find(words), std::string::npos) << "said: '" << (spoiled).fault() << "'"

TEST(Validate, NamesEachFault) {
  {
    // Rank 0 insists on its second activation before it takes the gradient that rank 1 insists on sending first.
    Spoiled s;
    s.node(0, "[>f0 <b0]").messages.pop_back();
    PlanNode late = s.node(0, "[>f0]");
    late.messages = {Message{false, false, 0, 0, 1, 0, 0}};
    s.plans[0].nodes.insert(s.plans[0].nodes.begin() + static_cast<std::ptrdiff_t>(find_node(s.plans[0], "[>f1]")) + 1,
                            late);
    EXPECT_FAULT(s, "deadlock: stage 0, node 3 [>f1] waits for the activation of micro-batch 1 on edge 0 with stage 1");
    EXPECT_FAULT(s, "stage 1, node 3 [>b0] waits for the gradient of micro-batch 0 on edge 0 with stage 0");
  }
  {
    Spoiled s;
    std::erase_if(s.node(0, "[>f2 <b2]").messages, [](const Message& m) { return m.send; });
    EXPECT_FAULT(s, "deadlock");
  }
  {
    Spoiled s;
    s.erase(1, "[>b2]");
    EXPECT_FAULT(s, "(which has ended)");
  }
  {
    Spoiled s;
    s.erase(1, "[<f1]");
    EXPECT_FAULT(s, "forward of micro-batch 1 before its activation is received");
  }
  {
    Spoiled s;
    s.node(1, "[<f1]").messages[0].micro = 2;
    EXPECT_FAULT(
        s, "sends the activation of micro-batch 1 on edge 0 where stage 1 expects the activation of micro-batch 2");
  }
  {
    Spoiled s;
    s.swap(1, "[>b0]", "[<f1]");  // one slot: it still holds the gradient
    EXPECT_FAULT(s, "slot 0 is given to micro-batch 1 while micro-batch 0 lives in it");
  }
  {
    Spoiled s;  // the same in one node
    s.node(1, "[>b0]").messages.push_back(s.node(1, "[<f1]").messages[0]);
    s.erase(1, "[<f1]");
    EXPECT_FAULT(s, "slot 0 is given to micro-batch 1 while micro-batch 0 lives in it");
  }
  {
    Spoiled s;
    s.swap(0, "F1", "[>f1]");
    EXPECT_FAULT(s, "sent before it is made");
  }
  {
    Spoiled s;
    s.erase(0, "B1");
    EXPECT_FAULT(s, "`last` before the last backward");
  }
  {
    Spoiled s;
    s.node(0, "B2").last = false;
    EXPECT_FAULT(s, "`last` is missing");
  }
  {
    Spoiled s;
    s.node(0, "B1").last = true;
    EXPECT_FAULT(s, "`last` before");
  }
  {
    Spoiled s;
    s.plans[0].slots[0] = 1;
    EXPECT_FAULT(s, "slot 1 of 1");
  }
  {
    Spoiled s;
    s.node(0, "[>f1]").messages[0].peer = 0;
    EXPECT_FAULT(s, "wrong peer");
  }
  {
    Spoiled s;
    s.node(0, "B1").slot = 0;
    s.node(0, "B1").micro = 0;
    EXPECT_FAULT(s, "a second backward of micro-batch 0");
  }
  {
    Spoiled s;
    s.erase(1, "C");
    EXPECT_FAULT(s, "closing nodes");
  }
  {
    Spoiled s;
    s.erase(1, "G");
    EXPECT_FAULT(s, "does not end with");
  }
  {
    Spoiled s;
    s.plans.pop_back();
    EXPECT_FAULT(s, "1 plans for 2 stages");
  }
  {
    Spoiled s;
    s.shape.kind = ScheduleKind::kZbH1;
    s.plans = make_plans(s.shape);
    EXPECT_EQ(s.fault(), "");
    s.plans[1].weight_halves -= 1;
    EXPECT_FAULT(s, "more weight halves wait");
  }
}

TEST(Validate, TheMachineExecutesEveryPlan) {
  for_all_shapes(6, 3, 10, [](const PipelineShape& shape) {
    const Plans plans = make_plans(shape);
    for (uint32_t seed = 0; seed < 3; ++seed) EXPECT_TRUE(PlanMachine(plans, shape, seed).right()) << text_of(shape);
  });
}

enum class Mutation : int {
  kDropNode,
  kDropMessage,
  kRepeatNode,
  kRetargetMicro,
  kRetargetPeer,
  kRetargetEdge,
  kTurnSend,
  kTurnDirection,
  kMessageSlot,
  kNodeSlot,
  kNodeMicro,
  kNodeKind,
  kFlipLast,
  kFewerSlots,
  kSwapNodes,
  kMoveNode,
  kMoveMessage,
  kCount
};
constexpr const char* kMutationNames[] = {
    "drop node",          "drop message", "repeat node",    "retarget micro-batch", "retarget peer",
    "retarget edge",      "turn send",    "turn direction", "message's slot",       "node's slot",
    "node's micro-batch", "node's kind",  "flip last",      "fewer slots",          "swap nodes",
    "move node",          "move message"};
// After these a plan may still be a right one: another order that also works.
bool may_be_harmless(Mutation mutation) {
  return mutation >= Mutation::kSwapNodes;
}

struct Mutator {
  std::mt19937 random{11};

  int below(size_t n) { return std::uniform_int_distribution<int>(0, static_cast<int>(n) - 1)(random); }
  int other_than(int value, int n) { return (value + 1 + (n > 1 ? below(static_cast<size_t>(n - 1)) : 0)) % n; }

  PlanNode* exchange(Plan& plan) {
    std::vector<PlanNode*> found;
    for (PlanNode& node : plan.nodes)
      if (node.kind == NodeKind::kExchange) found.push_back(&node);
    return found.empty() ? nullptr : found[static_cast<size_t>(below(found.size()))];
  }
  PlanNode& work(Plan& plan) {
    std::vector<PlanNode*> found;
    for (PlanNode& node : plan.nodes)
      if (is_work(node.kind)) found.push_back(&node);
    return *found[static_cast<size_t>(below(found.size()))];
  }

  // False where this plan offers nothing to do.
  bool apply(Mutation mutation, Plans& plans, const PipelineShape& shape) {
    Plan& plan = plans[static_cast<size_t>(below(plans.size()))];
    auto& nodes = plan.nodes;
    const auto at = [&](int index) { return nodes.begin() + index; };
    PlanNode* const e = exchange(plan);
    if (mutation >= Mutation::kRetargetMicro && mutation <= Mutation::kMessageSlot && e == nullptr) return false;
    Message* const m = e == nullptr ? nullptr : &e->messages[static_cast<size_t>(below(e->messages.size()))];
    const int depth = shape.stages * shape.chunks;
    switch (mutation) {
      case Mutation::kDropNode:
        nodes.erase(at(below(nodes.size())));
        return true;
      case Mutation::kDropMessage:
        if (e == nullptr) return false;
        e->messages.erase(e->messages.begin() + below(e->messages.size()));
        return true;
      case Mutation::kRepeatNode: {
        const PlanNode node = nodes[static_cast<size_t>(below(nodes.size()))];
        nodes.insert(at(below(nodes.size() + 1)), node);
        return true;
      }
      case Mutation::kRetargetMicro:
        m->micro = other_than(m->micro, shape.micro_batches + 1);
        return true;
      case Mutation::kRetargetPeer:
        m->peer = other_than(m->peer, shape.stages + 1);
        return true;
      case Mutation::kRetargetEdge:
        m->edge = other_than(m->edge, depth);
        return true;
      case Mutation::kTurnSend:
        m->send = !m->send;
        return true;
      case Mutation::kTurnDirection:
        m->forward = !m->forward;
        return true;
      case Mutation::kMessageSlot:
        m->slot = other_than(m->slot, plan.slots[static_cast<size_t>(m->chunk)] + 1);
        return true;
      case Mutation::kNodeSlot: {
        PlanNode& node = work(plan);
        node.slot = other_than(node.slot, plan.slots[static_cast<size_t>(node.chunk)] + 1);
        return true;
      }
      case Mutation::kNodeMicro: {
        PlanNode& node = work(plan);
        node.micro = other_than(node.micro, shape.micro_batches + 1);
        return true;
      }
      case Mutation::kNodeKind: {
        PlanNode& node = work(plan);
        node.kind = static_cast<NodeKind>(other_than(static_cast<int>(node.kind), 4));
        return true;
      }
      case Mutation::kFlipLast: {
        PlanNode& node = work(plan);
        node.last = !node.last;
        return true;
      }
      case Mutation::kFewerSlots:
        --plan.slots[static_cast<size_t>(below(plan.slots.size()))];
        return true;
      case Mutation::kSwapNodes: {
        const int a = below(nodes.size() - 1);
        std::swap(*at(a), *at(a + 1));
        return true;
      }
      case Mutation::kMoveNode: {
        const int a = below(nodes.size());
        const PlanNode node = *at(a);
        nodes.erase(at(a));
        nodes.insert(at(below(nodes.size() + 1)), node);
        return true;
      }
      case Mutation::kMoveMessage: {
        PlanNode* const other = exchange(plan);
        if (e == nullptr || other == e) return false;
        const int i = below(e->messages.size());
        const Message message = e->messages[static_cast<size_t>(i)];
        other->messages.insert(other->messages.begin() + below(other->messages.size() + 1), message);
        e->messages.erase(e->messages.begin() + i);
        if (e->messages.empty()) nodes.erase(at(static_cast<int>(e - nodes.data())));
        return true;
      }
      case Mutation::kCount:
        break;
    }
    return false;
  }
};

// What the validator calls valid must run right on the machine, in any order of ranks. And it must notice every
// mutation that no right plan can come from.
TEST(Validate, RandomMutationsAreNoticed) {
  Mutator mutator;
  struct Tally {
    int done = 0, noticed = 0, harmless = 0, strict = 0;
  };
  std::vector<Tally> tallies(static_cast<size_t>(Mutation::kCount));
  for (int round = 0; round < 60000; ++round) {
    PipelineShape shape;
    shape.kind = kSchedules[mutator.below(4)];
    shape.stages = 1 + mutator.below(5);
    shape.chunks = shape.kind == ScheduleKind::kInterleaved ? 1 + mutator.below(3) : 1;
    shape.micro_batches = 1 + mutator.below(7);
    Plans plans = make_plans(shape);
    const Mutation mutation = static_cast<Mutation>(mutator.below(static_cast<size_t>(Mutation::kCount)));
    const Plans before = plans;
    if (!mutator.apply(mutation, plans, shape) || plans == before) continue;
    Tally& tally = tallies[static_cast<size_t>(mutation)];
    ++tally.done;
    const std::string fault = validate(plans, shape);
    bool runs = true;
    for (uint32_t seed = 0; seed < 4; ++seed) runs = runs && PlanMachine(plans, shape, seed).right();
    if (fault.empty()) {
      ++tally.harmless;
      EXPECT_TRUE(runs) << "called valid, but goes wrong: " << kMutationNames[static_cast<int>(mutation)] << ", "
                        << text_of(shape);
      EXPECT_TRUE(may_be_harmless(mutation))
          << "not noticed: " << kMutationNames[static_cast<int>(mutation)] << ", " << text_of(shape);
    } else {
      ++tally.noticed;
      if (runs) ++tally.strict;  // the machine does not look at `last`, closing nodes and the like
    }
  }
  std::printf("%-22s %6s %8s %16s %22s\n", "mutation", "done", "noticed", "harmless (runs)", "noticed though it runs");
  for (size_t i = 0; i < tallies.size(); ++i)
    std::printf("%-22s %6d %8d %16d %22d\n", kMutationNames[i], tallies[i].done, tallies[i].noticed,
                tallies[i].harmless, tallies[i].strict);
}

}  // namespace
}  // namespace thinwire::plan_validate_test
