// A machine that executes plans with real memory per slot and blocking exchanges in a random order of ranks: the
// independent judge of what the validator says.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "parallel/schedule/plan.h"

namespace thinwire {

class PlanMachine {
 public:
  PlanMachine(const std::vector<Plan>& plans, const PipelineShape& shape, uint32_t seed)
      : plans_(plans), shape_(shape), random_(seed), depth_(shape.stages * shape.chunks) {}

  // Whether every forward and backward of every virtual stage saw the numbers of its own micro-batch, once.
  bool right() {
    ranks_.resize(plans_.size());
    for (size_t s = 0; s < plans_.size(); ++s) {
      ranks_[s].memory.resize(plans_[s].slots.size());
      for (size_t c = 0; c < plans_[s].slots.size(); ++c)
        ranks_[s].memory[c].resize(static_cast<size_t>(plans_[s].slots[c]));
    }
    done_.assign(static_cast<size_t>(depth_ * shape_.micro_batches), 0);
    std::vector<int> order(plans_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    for (bool moved = true; moved && good_;) {
      moved = false;
      std::shuffle(order.begin(), order.end(), random_);
      for (int stage : order) moved = step(stage) || moved;
    }
    for (size_t s = 0; s < plans_.size(); ++s) good_ = good_ && ranks_[s].node == plans_[s].nodes.size();
    return good_ && std::all_of(done_.begin(), done_.end(), [](int n) { return n == 1; });
  }

 private:
  static constexpr int kPoison = -7;
  struct Slot {
    int in = kPoison, kept = kPoison, out = kPoison, gradient_in = kPoison, gradient_out = kPoison, work = kPoison;
  };
  struct Rank {
    size_t node = 0;
    bool posted = false;
    std::vector<bool> met;  // messages of the posted exchange
    std::vector<std::vector<Slot>> memory;
  };

  // What the activation, or the gradient, that belongs on an edge looks like.
  int activation(int edge, int micro) const { return 2 * (edge * shape_.micro_batches + micro); }
  int gradient(int edge, int micro) const { return activation(edge, micro) + 1; }

  Slot* slot_at(int stage, int chunk, int slot) {
    auto& memory = ranks_[static_cast<size_t>(stage)].memory;
    if (chunk < 0 || chunk >= static_cast<int>(memory.size()) || slot < 0 ||
        slot >= static_cast<int>(memory[static_cast<size_t>(chunk)].size())) {
      good_ = false;
      return nullptr;
    }
    return &memory[static_cast<size_t>(chunk)][static_cast<size_t>(slot)];
  }

  bool step(int stage) {
    Rank& rank = ranks_[static_cast<size_t>(stage)];
    const auto& nodes = plans_[static_cast<size_t>(stage)].nodes;
    if (rank.node >= nodes.size() || !good_) return false;
    const PlanNode& node = nodes[rank.node];
    if (node.kind != NodeKind::kExchange) {
      compute(stage, node);
      ++rank.node;
      return good_;
    }
    if (!rank.posted) {
      rank.posted = true;
      rank.met.assign(node.messages.size(), false);
      // From now on data may arrive at any time: whatever lay in the slot is gone.
      for (const Message& m : node.messages)
        if (!m.send)
          if (Slot* slot = slot_at(stage, m.chunk, m.slot)) {
            if (m.forward) *slot = Slot{};
            slot->gradient_in = kPoison;
          }
      return good_;
    }
    bool moved = false;
    for (size_t i = 0; i < node.messages.size(); ++i) moved = (!rank.met[i] && try_meet(stage, i)) || moved;
    if (std::all_of(rank.met.begin(), rank.met.end(), [](bool m) { return m; })) {
      rank.posted = false;
      ++rank.node;
      return true;
    }
    return moved;
  }

  // The oldest unmet message of one direction from `from` to `to` that the rank has posted.
  static int head(const Rank& rank, const PlanNode& node, bool send, bool forward, int peer) {
    for (size_t i = 0; i < node.messages.size() && i < rank.met.size(); ++i) {
      const Message& m = node.messages[i];
      if (!rank.met[i] && m.send == send && m.forward == forward && m.peer == peer) return static_cast<int>(i);
    }
    return -1;
  }

  bool try_meet(int stage, size_t index) {
    Rank& mine = ranks_[static_cast<size_t>(stage)];
    const PlanNode& node = plans_[static_cast<size_t>(stage)].nodes[mine.node];
    const Message& m = node.messages[index];
    if (m.peer < 0 || m.peer >= shape_.stages) return good_ = false;
    Rank& other = ranks_[static_cast<size_t>(m.peer)];
    const auto& other_nodes = plans_[static_cast<size_t>(m.peer)].nodes;
    if (other.node >= other_nodes.size() || !other.posted) return false;
    const PlanNode& other_node = other_nodes[other.node];
    if (head(mine, node, m.send, m.forward, m.peer) != static_cast<int>(index)) return false;
    const int partner = head(other, other_node, !m.send, m.forward, stage);
    if (partner < 0) return false;
    const Message& there = other_node.messages[static_cast<size_t>(partner)];
    const Message& out = m.send ? m : there;
    const Message& in = m.send ? there : m;
    Slot* from = slot_at(m.send ? stage : m.peer, out.chunk, out.slot);
    Slot* to = slot_at(m.send ? m.peer : stage, in.chunk, in.slot);
    if (!good_) return false;
    if (in.forward) {
      to->in = from->out;
    } else {
      to->gradient_in = from->gradient_out;
    }
    // The names that both ends use choose rules and codecs later: they must agree and be what the data is.
    const int data = in.forward ? to->in : to->gradient_in;
    const int named = in.forward ? activation(in.edge, in.micro) : gradient(in.edge, in.micro);
    good_ = good_ && in.edge == out.edge && in.micro == out.micro && data == named;
    mine.met[index] = true;
    other.met[static_cast<size_t>(partner)] = true;
    return true;
  }

  void compute(int stage, const PlanNode& node) {
    if (node.kind > NodeKind::kExchange) return;
    Slot* slot = slot_at(stage, node.chunk, node.slot);
    if (slot == nullptr || node.micro < 0 || node.micro >= shape_.micro_batches) {
      good_ = false;
      return;
    }
    const int vs = node.chunk * shape_.stages + stage;
    const int own = vs * shape_.micro_batches + node.micro;
    if (node.kind == NodeKind::kForward) {
      if (vs == 0) *slot = Slot{};  // tokens need no message
      good_ = good_ && (vs == 0 || slot->in == activation(vs - 1, node.micro));
      slot->kept = own;
      slot->out = activation(vs, node.micro);
      return;
    }
    good_ = good_ && slot->kept == own;
    if (node.kind != NodeKind::kBackwardWeight) {
      good_ = good_ && (vs + 1 == depth_ || slot->gradient_in == gradient(vs, node.micro));
      slot->gradient_out = gradient(vs - 1, node.micro);
      slot->work = own;
    }
    if (node.kind == NodeKind::kBackwardInput) return;
    good_ = good_ && slot->work == own;
    slot->work = kPoison;
    ++done_[static_cast<size_t>(own)];
  }

  const std::vector<Plan>& plans_;
  const PipelineShape& shape_;
  std::mt19937 random_;
  int depth_;
  bool good_ = true;
  std::vector<Rank> ranks_;
  std::vector<int> done_;
};

}  // namespace thinwire
