// Epilogue and critical messages, found on the plans of all stages.
#include <algorithm>

#include "engine/base/core/check.h"
#include "parallel/rules/message_rules.h"

namespace thinwire {
namespace {

// What a work waits for and what an exchange starts, as numbers of messages.
class MessageNumbers {
 public:
  explicit MessageNumbers(const PipelineShape& shape)
      : stages_(shape.stages), depth_(shape.stages * shape.chunks), micro_batches_(shape.micro_batches) {}

  int edges() const { return depth_ - 1; }
  size_t count() const { return static_cast<size_t>(std::max(0, edges()) * micro_batches_) * 2; }
  size_t of(bool forward, int edge, int micro) const {
    return static_cast<size_t>((edge * micro_batches_ + micro) * 2 + (forward ? 1 : 0));
  }
  int virtual_stage(int stage, const PlanNode& node) const { return node.chunk * stages_ + stage; }
  int stage_of(int virtual_stage) const { return virtual_stage % stages_; }
  int last() const { return depth_ - 1; }

 private:
  int stages_, depth_, micro_batches_;
};

bool is_backward(NodeKind kind) {
  return kind == NodeKind::kBackward || kind == NodeKind::kBackwardInput;
}

// Latest times, from the end of the step to its start: the mirror image of simulate().
class LatestTimes {
 public:
  LatestTimes(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs)
      : plans_(plans), numbers_(shape), costs_(costs), times_(simulate(plans, shape, costs)) {
    arrival_.assign(numbers_.count(), 0.0);
    latest_arrival_.assign(numbers_.count(), times_.total);
    order_nodes();
    walk_back();
  }

  double slack(bool forward, int edge, int micro) const {
    const size_t m = numbers_.of(forward, edge, micro);
    return latest_arrival_[m] - arrival_[m];
  }
  double total() const { return times_.total; }

 private:
  struct Event {
    int stage = 0;
    size_t node = 0;
    std::vector<size_t> waits;  // messages that must be over before it starts
  };

  // An order in which every node comes behind all that it waits for. Messages are waited for only where both ends were
  // started, so walking ranks as far as they go gives one.
  void order_nodes() {
    struct Rank {
      size_t node = 0;
      // Last message sent from the buffer of a (chunk, slot), per direction; -1: none.
      std::vector<std::vector<int64_t>> sent[2];
    };
    std::vector<Rank> ranks(plans_.size());
    for (size_t s = 0; s < plans_.size(); ++s)
      for (auto& sent : ranks[s].sent)
        for (int slots : plans_[s].slots) sent.emplace_back(static_cast<size_t>(slots), -1);
    std::vector<int> ends(numbers_.count(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < plans_.size(); ++s) {
        Rank& rank = ranks[s];
        for (; rank.node < plans_[s].nodes.size(); ++rank.node, moved = true) {
          const PlanNode& node = plans_[s].nodes[rank.node];
          if (node.kind > NodeKind::kExchange) continue;  // they take no time
          Event event{static_cast<int>(s), rank.node, {}};
          if (node.kind == NodeKind::kExchange) {
            for (const Message& m : node.messages) {
              const size_t number = numbers_.of(m.forward, m.edge, m.micro);
              ++ends[number];
              arrival_[number] = std::max(arrival_[number], times_.start[s][rank.node] + costs_.transfer);
              if (m.send)
                rank.sent[m.forward][static_cast<size_t>(m.chunk)][static_cast<size_t>(m.slot)] =
                    static_cast<int64_t>(number);
            }
          } else {
            event.waits = waits_of(static_cast<int>(s), node, rank.sent);
            if (std::any_of(event.waits.begin(), event.waits.end(), [&](size_t m) { return ends[m] < 2; })) break;
          }
          events_.push_back(std::move(event));
        }
      }
    }
    for (size_t s = 0; s < plans_.size(); ++s)
      TW_CHECK(ranks[s].node == plans_[s].nodes.size(), "stage ", s, " waits for ever in node ", ranks[s].node);
  }

  std::vector<size_t> waits_of(int stage, const PlanNode& node,
                               const std::vector<std::vector<int64_t>> (&sent)[2]) const {
    std::vector<size_t> waits;
    const bool forward = node.kind == NodeKind::kForward;
    if (!forward && !is_backward(node.kind)) return waits;
    const int vs = numbers_.virtual_stage(stage, node);
    if (forward && vs > 0) waits.push_back(numbers_.of(true, vs - 1, node.micro));
    if (!forward && vs < numbers_.last()) waits.push_back(numbers_.of(false, vs, node.micro));
    const int64_t before = sent[forward][static_cast<size_t>(node.chunk)][static_cast<size_t>(node.slot)];
    if (before >= 0) waits.push_back(static_cast<size_t>(before));
    return waits;
  }

  void walk_back() {
    std::vector<double> next(plans_.size(), times_.total);  // latest start of what follows on each rank
    for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
      const size_t s = static_cast<size_t>(event->stage);
      const PlanNode& node = plans_[s].nodes[event->node];
      double latest_end = next[s];
      for (const Message& m : node.messages)
        latest_end = std::min(latest_end, latest_arrival_[numbers_.of(m.forward, m.edge, m.micro)] - costs_.transfer);
      const double latest_start = latest_end - (times_.end[s][event->node] - times_.start[s][event->node]);
      for (size_t m : event->waits) latest_arrival_[m] = std::min(latest_arrival_[m], latest_start);
      next[s] = latest_start;
    }
  }

  const std::vector<Plan>& plans_;
  MessageNumbers numbers_;
  const NodeCosts& costs_;
  PlanTimes times_;
  std::vector<Event> events_;
  std::vector<double> arrival_, latest_arrival_;
};

// Per edge and micro-batch: gradients made behind their stage's last forward.
std::vector<bool> epilogue_messages(const std::vector<Plan>& plans, const PipelineShape& shape) {
  const MessageNumbers numbers(shape);
  std::vector<bool> found(numbers.count() / 2, false);
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::vector<PlanNode>& nodes = plans[static_cast<size_t>(stage)].nodes;
    size_t last_forward = 0;
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].kind == NodeKind::kForward) last_forward = i;
    for (size_t i = last_forward; i < nodes.size(); ++i) {
      const int vs = numbers.virtual_stage(stage, nodes[i]);
      if (is_backward(nodes[i].kind) && vs > 0)
        found[static_cast<size_t>((vs - 1) * shape.micro_batches + nodes[i].micro)] = true;
    }
  }
  return found;
}

}  // namespace

std::vector<double> message_slack(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs,
                                  bool forward) {
  const LatestTimes times(plans, shape, costs);
  std::vector<double> slack;
  for (int edge = 0; edge + 1 < shape.stages * shape.chunks; ++edge)
    for (int micro = 0; micro < shape.micro_batches; ++micro) slack.push_back(times.slack(forward, edge, micro));
  return slack;
}

PipelineMessages::PipelineMessages(const SelectSpec& select, bool forward, const PipelineShape& shape,
                                   const NodeCosts& costs, double richer)
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
    const double limit = std::max(std::min(costs.transfer, richer) - rounding, rounding);
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
