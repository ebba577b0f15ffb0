// Times of plans by simulating their events, and the published formulas of bubbles to compare them with.
#include <algorithm>

#include "engine/base/core/check.h"
#include "parallel/schedule/plan.h"
#include "parallel/schedule/schedules.h"

namespace thinwire {
namespace {

constexpr double kUnknown = -1.0;

struct Flight {
  double sent = kUnknown, received = kUnknown;  // when its ends were issued
};

class Simulation {
 public:
  Simulation(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs)
      : plans_(plans), shape_(shape), costs_(costs), ranks_(plans.size()) {
    const size_t depth = static_cast<size_t>(shape.stages * shape.chunks);
    TW_CHECK(plans.size() == static_cast<size_t>(shape.stages));
    TW_CHECK(costs.forward.size() == depth && costs.backward_input.size() == depth &&
             costs.backward_weight.size() == depth);
    flights_.resize((depth - 1) * static_cast<size_t>(shape.micro_batches) * 2);
  }

  PlanTimes run() {
    size_t nodes = 0;
    for (const Plan& plan : plans_) {
      times_.start.emplace_back(plan.nodes.size(), 0.0);
      times_.end.emplace_back(plan.nodes.size(), 0.0);
      for (auto& sent : ranks_[times_.start.size() - 1].sent)
        for (const int slots : plan.slots) sent.emplace_back(static_cast<size_t>(slots), -1);
      nodes += plan.nodes.size();
    }
    times_.events.reserve(nodes);
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage)
        while (step(stage)) moved = true;
    }
    for (size_t stage = 0; stage < plans_.size(); ++stage)
      TW_CHECK(ranks_[stage].node == plans_[stage].nodes.size(), "stage ", stage, " waits for ever in node ",
               ranks_[stage].node);
    finish();
    return std::move(times_);
  }

 private:
  struct Rank {
    size_t node = 0;
    double free = 0.0, busy = 0.0;
    std::vector<std::vector<int64_t>> sent[2];  // last message of a (direction, chunk, slot); -1: none
  };

  double arrival(const Flight& f) const { return std::max(f.sent, f.received) + costs_.transfer; }

  bool step(int stage) {
    Rank& rank = ranks_[static_cast<size_t>(stage)];
    const Plan& plan = plans_[static_cast<size_t>(stage)];
    if (rank.node >= plan.nodes.size()) return false;
    const PlanNode& node = plan.nodes[rank.node];
    double time = rank.free;
    PlanEvent event{stage, rank.node, {-1, -1}};
    if (node.kind == NodeKind::kExchange) {
      issue(rank, node, time);
    } else if (!ready(event, rank, node, time)) {
      return false;
    }
    times_.events.push_back(event);
    times_.start[static_cast<size_t>(stage)][rank.node] = time;
    const double cost = cost_of(stage, node);
    rank.busy += cost;
    rank.free = time + cost;
    times_.end[static_cast<size_t>(stage)][rank.node] = rank.free;
    ++rank.node;
    return true;
  }

  void issue(Rank& rank, const PlanNode& node, double time) {
    for (const Message& m : node.messages) {
      const size_t number = message_number(shape_, m.forward, m.edge, m.micro);
      Flight& f = flights_[number];
      (m.send ? f.sent : f.received) = time;
      if (m.send)
        rank.sent[m.forward][static_cast<size_t>(m.chunk)][static_cast<size_t>(m.slot)] = static_cast<int64_t>(number);
    }
  }

  // Both ends of the messages must have been issued. What was last sent from the node's buffer of the slot must have
  // gone before the buffer is written again.
  bool ready(PlanEvent& event, const Rank& rank, const PlanNode& node, double& time) const {
    const bool forward = node.kind == NodeKind::kForward;
    if (!forward && !is_backward(node.kind)) return true;
    const int edge = node.chunk * shape_.stages + event.stage - (forward ? 1 : 0);
    if (edge >= 0 && edge + 1 < shape_.stages * shape_.chunks)
      event.waits[0] = static_cast<int64_t>(message_number(shape_, forward, edge, node.micro));
    event.waits[1] = rank.sent[forward][static_cast<size_t>(node.chunk)][static_cast<size_t>(node.slot)];
    for (const int64_t message : event.waits) {
      if (message < 0) continue;
      const Flight& f = flights_[static_cast<size_t>(message)];
      if (f.sent == kUnknown || f.received == kUnknown) return false;
      time = std::max(time, arrival(f));
    }
    return true;
  }

  double cost_of(int stage, const PlanNode& node) const {
    const size_t vs = static_cast<size_t>(node.chunk * shape_.stages + stage);
    switch (node.kind) {
      case NodeKind::kForward:
        return costs_.forward[vs];
      case NodeKind::kBackward:
        return costs_.backward_input[vs] + costs_.backward_weight[vs];
      case NodeKind::kBackwardInput:
        return costs_.backward_input[vs];
      case NodeKind::kBackwardWeight:
        return costs_.backward_weight[vs];
      default:
        return 0.0;
    }
  }

  void finish() {
    for (const Flight& f : flights_) times_.arrival.push_back(arrival(f));
    for (size_t stage = 0; stage < plans_.size(); ++stage)
      for (size_t i = 0; i < plans_[stage].nodes.size(); ++i)
        if (plans_[stage].nodes[i].kind < NodeKind::kExchange)
          times_.total = std::max(times_.total, times_.end[stage][i]);
    for (size_t stage = 0; stage < plans_.size(); ++stage) {
      times_.idle.push_back(times_.total > 0.0 ? 1.0 - ranks_[stage].busy / times_.total : 0.0);
      for (size_t i = 0; i < plans_[stage].nodes.size(); ++i)
        if (plans_[stage].nodes[i].kind > NodeKind::kExchange)
          times_.start[stage][i] = times_.end[stage][i] = times_.total;
    }
  }

  const std::vector<Plan>& plans_;
  const PipelineShape& shape_;
  const NodeCosts& costs_;
  std::vector<Rank> ranks_;
  std::vector<Flight> flights_;
  PlanTimes times_;
};

}  // namespace

PlanTimes simulate(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs) {
  check_shape(shape);
  return Simulation(plans, shape, costs).run();
}

double bubble_formula(const PipelineShape& shape, double forward, double backward_input, double backward_weight) {
  check_shape(shape);
  const double waiting = shape.stages - 1, works = static_cast<double>(shape.micro_batches) * shape.chunks;
  const double whole = forward + backward_input + backward_weight;
  if (whole <= 0.0) return 0.0;
  // Waiting at the start for the first forward, at the end for the last gradient: per stage one work each. Interleaved
  // waits as often for works that are `chunks` times shorter; ZB-H1 has weight halves to do meanwhile.
  double gap = whole;
  if (shape.kind == ScheduleKind::kZbH1) gap = std::max(0.0, forward + backward_input - backward_weight);
  return waiting * gap / (works * whole + waiting * gap);
}

}  // namespace thinwire
