// Epilogue and critical messages, found on the plans of all stages.
#include <algorithm>

#include "engine/base/core/check.h"
#include "parallel/rules/message_rules.h"

namespace thinwire {
namespace {

// Per edge and micro-batch: gradients made behind their stage's last forward.
std::vector<bool> epilogue_messages(const std::vector<Plan>& plans, const PipelineShape& shape) {
  std::vector<bool> found(static_cast<size_t>((shape.stages * shape.chunks - 1) * shape.micro_batches), false);
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::vector<PlanNode>& nodes = plans[static_cast<size_t>(stage)].nodes;
    size_t last_forward = 0;
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].kind == NodeKind::kForward) last_forward = i;
    for (size_t i = last_forward; i < nodes.size(); ++i) {
      const int vs = nodes[i].chunk * shape.stages + stage;
      if (is_backward(nodes[i].kind) && vs > 0)
        found[static_cast<size_t>((vs - 1) * shape.micro_batches + nodes[i].micro)] = true;
    }
  }
  return found;
}

}  // namespace

std::vector<double> message_slack(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs,
                                  bool forward) {
  const PlanTimes times = simulate(plans, shape, costs);
  // From the end of the step to its start: the mirror image of simulate().
  std::vector<double> latest_arrival(times.arrival.size(), times.total);
  std::vector<double> next(plans.size(), times.total);  // latest start of what follows on each rank
  for (auto event = times.events.rbegin(); event != times.events.rend(); ++event) {
    const size_t s = static_cast<size_t>(event->stage);
    double latest_end = next[s];
    for (const Message& m : plans[s].nodes[event->node].messages)
      latest_end =
          std::min(latest_end, latest_arrival[message_number(shape, m.forward, m.edge, m.micro)] - costs.transfer);
    next[s] = latest_end - (times.end[s][event->node] - times.start[s][event->node]);
    for (const int64_t message : event->waits)
      if (message >= 0) {
        double& latest = latest_arrival[static_cast<size_t>(message)];
        latest = std::min(latest, next[s]);
      }
  }
  std::vector<double> slack;
  for (int edge = 0; edge + 1 < shape.stages * shape.chunks; ++edge)
    for (int micro = 0; micro < shape.micro_batches; ++micro) {
      const size_t m = message_number(shape, forward, edge, micro);
      slack.push_back(latest_arrival[m] - times.arrival[m]);
    }
  return slack;
}

PipelineMessages::PipelineMessages(const SelectSpec& select, bool forward, const PipelineShape& shape,
                                   const NodeCosts& costs, double next_transfer)
    : micro_batches_(shape.micro_batches) {
  const int edges = shape.stages * shape.chunks - 1;
  coded_.assign(static_cast<size_t>(edges * micro_batches_), true);
  if (edges == 0) return;
  if (select.micro_batches == MicroBatches::kEpilogue) {
    if (forward)
      coded_.assign(coded_.size(), false);
    else
      coded_ = epilogue_messages(make_plans(shape), shape);
  } else if (select.micro_batches == MicroBatches::kCritical) {
    const std::vector<Plan> plans = make_plans(shape);
    const std::vector<double> slack = message_slack(plans, shape, costs, forward);
    // Sums of durations round: what is equal on paper must not fall on either side of the limit.
    const double rounding = 1e-9 * simulate(plans, shape, costs).total;
    const double limit = std::max(std::min(costs.transfer, next_transfer) - rounding, rounding);
    for (size_t i = 0; i < coded_.size(); ++i) coded_[i] = slack[i] < limit;
  }
  for (int edge = 0; edge < edges; ++edge)
    if (!selects_stage(select, (forward ? edge : edge + 1) % shape.stages))
      std::fill_n(coded_.begin() + edge * micro_batches_, micro_batches_, false);
}

bool PipelineMessages::coded(int edge, int micro) const {
  if (micro_batches_ == 0) return true;
  const size_t i = static_cast<size_t>(edge * micro_batches_ + micro);
  TW_CHECK(edge >= 0 && micro >= 0 && micro < micro_batches_ && i < coded_.size(), "no message ", micro, " on edge ",
           edge);
  return coded_[i];
}

int64_t PipelineMessages::count() const {
  return std::count(coded_.begin(), coded_.end(), true);
}

}  // namespace thinwire
