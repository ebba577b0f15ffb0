// All ranks at once in the strictest model: one queue each, exchanges that block until every message met its partner.
#include <algorithm>
#include <deque>
#include <map>

#include "parallel/schedule/plan.h"
#include "parallel/schedule/schedules.h"

namespace thinwire {
namespace {

constexpr int kClosingNodes = 4;

std::string place_of(int stage, size_t node) {
  return "stage " + std::to_string(stage) + ", node " + std::to_string(node);
}

std::string name_of(const Message& m) {
  return std::string(m.forward ? "activation" : "gradient") + " of micro-batch " + std::to_string(m.micro) +
         " on edge " + std::to_string(m.edge);
}

// One message end: not yet in an exchange, in one that is under way, in one that has completed.
enum class Passage : uint8_t { kNone, kPosted, kMet };

// One micro-batch in one virtual stage.
struct Life {
  Passage activation_in = Passage::kNone, activation_out = Passage::kNone;
  Passage gradient_in = Passage::kNone, gradient_out = Passage::kNone;
  bool forward = false, input_done = false, weight_done = false;
  int slot = -1;

  Passage& passage(const Message& m) {
    if (m.forward) return m.send ? activation_out : activation_in;
    return m.send ? gradient_out : gradient_in;
  }
};

class Validation {
 public:
  Validation(const std::vector<Plan>& plans, const PipelineShape& shape)
      : plans_(plans), shape_(shape), depth_(shape.stages * shape.chunks) {}

  std::string run() {
    if (plans_.size() != static_cast<size_t>(shape_.stages))
      return std::to_string(plans_.size()) + " plans for " + std::to_string(shape_.stages) + " stages";
    lives_.resize(static_cast<size_t>(depth_ * shape_.micro_batches));
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (std::string fault = open_rank(stage); !fault.empty()) return fault;
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage)
        while (step(stage)) moved = true;
      if (!fault_.empty()) return fault_;
    }
    if (std::string fault = deadlock(); !fault.empty()) return fault;
    for (int stage = 0; stage < shape_.stages; ++stage)
      if (rank(stage).closing < kClosingNodes)
        return "stage " + std::to_string(stage) + " does not end with reduce, control, optimizer, gather";
    return "";
  }

 private:
  struct Rank {
    size_t node = 0;
    bool posted = false;                   // the exchange at `node`
    size_t unmet = 0;                      // its messages that wait for a partner
    std::vector<std::vector<int>> holder;  // per chunk and slot: micro-batch, -1 free
    std::vector<int> undone;               // per chunk: micro-batches without a finished backward
    int weight_halves = 0;
    int closing = 0;  // nodes kReduce .. kGather seen
  };
  struct Posted {
    int stage;
    const Message* message;
  };
  // Message ends from one stage to another that have met no partner yet, in the order of posting.
  struct Line {
    std::deque<Posted> sends, receives;
  };

  const Plan& plan(int stage) const { return plans_[static_cast<size_t>(stage)]; }
  Rank& rank(int stage) { return ranks_[static_cast<size_t>(stage)]; }
  // Virtual stages (vs) are numbered along the model: chunk by chunk, each through all stages.
  int vs_of(int chunk, int stage) const { return chunk * shape_.stages + stage; }
  Life& life(int vs, int micro) { return lives_[static_cast<size_t>(vs * shape_.micro_batches + micro)]; }
  int& holder(int stage, int chunk, int slot) {
    return rank(stage).holder[static_cast<size_t>(chunk)][static_cast<size_t>(slot)];
  }

  bool fail(int stage, const std::string& what) {
    if (fault_.empty()) fault_ = place_of(stage, rank(stage).node) + ": " + what;
    return false;
  }

  std::string open_rank(int stage) {
    Rank r;
    if (plan(stage).slots.size() != static_cast<size_t>(shape_.chunks))
      return "stage " + std::to_string(stage) + ": slots of " + std::to_string(plan(stage).slots.size()) +
             " chunks instead of " + std::to_string(shape_.chunks);
    for (int slots : plan(stage).slots) r.holder.emplace_back(static_cast<size_t>(std::max(slots, 0)), -1);
    r.undone.assign(static_cast<size_t>(shape_.chunks), shape_.micro_batches);
    ranks_.push_back(std::move(r));
    return "";
  }

  // Executes the rank's next node as far as possible; true if it got further.
  bool step(int stage) {
    Rank& r = rank(stage);
    if (!fault_.empty() || r.node >= plan(stage).nodes.size()) return false;
    const PlanNode& node = plan(stage).nodes[r.node];
    if (node.kind != NodeKind::kExchange) {
      if (!compute(stage, node)) return false;
      ++r.node;
      return true;
    }
    if (!r.posted) return post(stage, node);
    if (r.unmet > 0) return false;
    complete(stage, node);
    r.posted = false;
    ++r.node;
    return true;
  }

  bool in_range(const PlanNode& node) const {
    return node.micro >= 0 && node.micro < shape_.micro_batches && node.chunk >= 0 && node.chunk < shape_.chunks;
  }

  bool compute(int stage, const PlanNode& node) {
    Rank& r = rank(stage);
    if (!node.messages.empty()) return fail(stage, "messages outside an exchange");
    if (node.kind >= NodeKind::kReduce) return close(stage, node);
    if (r.closing > 0) return fail(stage, "work behind the closing nodes");
    if (!in_range(node)) return fail(stage, "no such micro-batch or chunk");
    const int vs = vs_of(node.chunk, stage);
    Life& l = life(vs, node.micro);
    const std::string micro = "micro-batch " + std::to_string(node.micro);
    if (node.kind == NodeKind::kForward) {
      if (l.forward) return fail(stage, "a second forward of " + micro);
      if (vs == 0 && !take_slot(stage, node.chunk, node.slot, node.micro)) return false;
      if (l.activation_in != Passage::kMet && vs > 0)
        return fail(stage, "forward of " + micro + " before its activation is received");
      if (l.slot != node.slot) return fail(stage, "forward of " + micro + " in a slot that is not its own");
      if (node.last) return fail(stage, "`last` on a forward");
      l.forward = true;
      return true;
    }
    if (!l.forward) return fail(stage, "backward of " + micro + " before its forward");
    if (l.slot != node.slot) return fail(stage, "backward of " + micro + " in a slot that is not its own");
    if (node.kind != NodeKind::kBackwardWeight) {
      if (l.input_done) return fail(stage, "a second backward of " + micro);
      if (l.gradient_in != Passage::kMet && vs + 1 < depth_)
        return fail(stage, "backward of " + micro + " before its gradient is received");
      l.input_done = true;
    } else if (!l.input_done) {
      return fail(stage, "weight half of " + micro + " before its input half");
    }
    if (node.kind == NodeKind::kBackwardInput) {
      if (node.last) return fail(stage, "`last` on an input half: its weight gradients are not done");
      if (++r.weight_halves > plan(stage).weight_halves)
        return fail(stage,
                    "more weight halves wait than the plan says (" + std::to_string(plan(stage).weight_halves) + ")");
      return true;
    }
    if (l.weight_done) return fail(stage, "a second weight half of " + micro);
    l.weight_done = true;
    if (node.kind == NodeKind::kBackwardWeight) --r.weight_halves;
    const bool is_last = --r.undone[static_cast<size_t>(node.chunk)] == 0;
    if (node.last != is_last) return fail(stage, is_last ? "`last` is missing" : "`last` before the last backward");
    free_slot(vs, node.micro);
    return true;
  }

  bool close(int stage, const PlanNode& node) {
    Rank& r = rank(stage);
    if (static_cast<int>(node.kind) != static_cast<int>(NodeKind::kReduce) + r.closing)
      return fail(stage, "the closing nodes are reduce, control, optimizer, gather, once each");
    for (int undone : r.undone)
      if (undone > 0) return fail(stage, "closing before " + std::to_string(undone) + " backwards are done");
    ++r.closing;
    return true;
  }

  bool take_slot(int stage, int chunk, int slot, int micro) {
    if (slot < 0 || slot >= plan(stage).slots[static_cast<size_t>(chunk)])
      return fail(stage, "slot " + std::to_string(slot) + " of " +
                             std::to_string(plan(stage).slots[static_cast<size_t>(chunk)]));
    int& held = holder(stage, chunk, slot);
    if (held >= 0)
      return fail(stage, "slot " + std::to_string(slot) + " is given to micro-batch " + std::to_string(micro) +
                             " while micro-batch " + std::to_string(held) + " lives in it");
    held = micro;
    life(vs_of(chunk, stage), micro).slot = slot;
    return true;
  }

  // A slot is free again when its micro-batch is done and its gradient has met its receiver.
  void free_slot(int vs, int micro) {
    const Life& l = life(vs, micro);
    if (l.weight_done && (l.gradient_out == Passage::kMet || vs == 0) &&
        (l.activation_out == Passage::kMet || vs + 1 == depth_))
      holder(vs % shape_.stages, vs / shape_.stages, l.slot) = -1;
  }

  // Posts all messages of the exchange at once and lets those meet that can.
  bool post(int stage, const PlanNode& node) {
    Rank& r = rank(stage);
    if (r.closing > 0) return fail(stage, "an exchange behind the closing nodes");
    if (node.messages.empty()) return fail(stage, "an exchange without messages");
    for (const Message& m : node.messages)
      if (!check_message(stage, m)) return false;
    r.posted = true;
    r.unmet = node.messages.size();
    for (const Message& m : node.messages) {
      const int from = m.send ? stage : m.peer, to = m.send ? m.peer : stage;
      Line& line = lines_[{from, to}];
      (m.send ? line.sends : line.receives).push_back({stage, &m});
      while (!line.sends.empty() && !line.receives.empty()) {
        const Posted send = line.sends.front(), receive = line.receives.front();
        line.sends.pop_front();
        line.receives.pop_front();
        // On devices activations and gradients share a communicator: between two stages one order holds for both.
        if (send.message->edge != receive.message->edge || send.message->micro != receive.message->micro ||
            send.message->forward != receive.message->forward)
          return fail(stage, "stage " + std::to_string(from) + " sends the " + name_of(*send.message) +
                                 " where stage " + std::to_string(to) + " expects the " + name_of(*receive.message));
        --rank(send.stage).unmet;
        --rank(receive.stage).unmet;
      }
    }
    return true;
  }

  bool check_message(int stage, const Message& m) {
    if (m.edge < 0 || m.edge + 1 >= depth_ || m.micro < 0 || m.micro >= shape_.micro_batches || m.chunk < 0 ||
        m.chunk >= shape_.chunks)
      return fail(stage, "no such edge, micro-batch or chunk: " + name_of(m));
    const bool upper = m.send == m.forward;  // this stage is the edge's upper end
    const int vs = m.edge + (upper ? 0 : 1), other = m.edge + (upper ? 1 : 0);
    if (vs_of(m.chunk, stage) != vs) return fail(stage, "the " + name_of(m) + " has no end in this chunk");
    if (m.peer != other % shape_.stages) return fail(stage, "the " + name_of(m) + " goes to a wrong peer");
    Life& l = life(vs, m.micro);
    if (l.passage(m) != Passage::kNone)
      return fail(stage, "the " + name_of(m) + (m.send ? " is sent" : " is received") + " twice");
    l.passage(m) = Passage::kPosted;
    if (m.send && !(m.forward ? l.forward : l.input_done))
      return fail(stage, "the " + name_of(m) + " is sent before it is made");
    if (m.forward && !m.send) return take_slot(stage, m.chunk, m.slot, m.micro);
    if (l.slot < 0 || l.slot != m.slot) return fail(stage, "the " + name_of(m) + " uses a slot that is not its own");
    return true;
  }

  void complete(int stage, const PlanNode& node) {
    for (const Message& m : node.messages) {
      const int vs = vs_of(m.chunk, stage);
      life(vs, m.micro).passage(m) = Passage::kMet;
      if (m.send) free_slot(vs, m.micro);
    }
  }

  // When no rank can go on: what each rank that has not ended waits for; empty where all have ended.
  std::string deadlock() {
    std::string text;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      const Rank& r = rank(stage);
      if (r.node >= plan(stage).nodes.size()) continue;
      std::string peers;
      for (const auto& [ends, line] : lines_)
        for (const std::deque<Posted>* waiting : {&line.sends, &line.receives})
          for (const Posted& posted : *waiting) {
            if (posted.stage != stage) continue;
            const int peer = posted.message->peer;
            peers += (peers.empty() ? "" : ", ") + name_of(*posted.message) + " with stage " + std::to_string(peer) +
                     (rank(peer).node < plan(peer).nodes.size() ? "" : " (which has ended)");
          }
      text += (text.empty() ? "deadlock: " : "; ") + place_of(stage, r.node) + " " +
              to_string(plan(stage).nodes[r.node], shape_.chunks > 1) + " waits for the " + peers;
    }
    return text;
  }

  const std::vector<Plan>& plans_;
  const PipelineShape& shape_;
  int depth_;
  std::vector<Life> lives_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Line> lines_;  // from, to
  std::string fault_;
};

}  // namespace

std::string validate(const std::vector<Plan>& plans, const PipelineShape& shape) {
  check_shape(shape);
  return Validation(plans, shape).run();
}

}  // namespace thinwire
