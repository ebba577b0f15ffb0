// The simulation that orders the messages, and the placement of each one between the works of its rank.
#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <tuple>

#include "engine/base/core/check.h"
#include "parallel/schedule/schedules.h"

namespace thinwire {
namespace {

constexpr int64_t kUnknown = -1;

int64_t nominal_cost(NodeKind kind) {
  return kind == NodeKind::kBackward ? 2 : 1;
}

// A micro-batch in a virtual stage.
struct Life {
  int forward = 0, backward = 0, finish = 0;  // positions in the order of the rank; finish: weight half included
  int slot = -1;
  int granted_behind = -1;  // position of the work whose end freed the slot, -1: free from the start
  int open = 1;             // what still keeps the slot: the finishing work, the gradient to be sent
};

struct Flight {
  int64_t made = kUnknown, granted = kUnknown, met = kUnknown;
};

// One end of a message on its rank, in the order of all messages.
struct End {
  Message message;
  int earliest = 0, wanted = 0, latest = 0;  // positions: in front of the work of that number
  int position = 0;
};

class Placement {
 public:
  Placement(const PipelineShape& shape, const std::vector<std::vector<Work>>& orders)
      : shape_(shape), orders_(orders), depth_(shape.stages * shape.chunks) {
    lives_.resize(static_cast<size_t>(depth_ * shape.micro_batches));
    flights_.resize(lives_.size() * 2);
    ranks_.resize(static_cast<size_t>(shape.stages));
    for (int stage = 0; stage < shape.stages; ++stage) survey(stage);
  }

  std::vector<Plan> run() {
    for (int stage = 0; stage < shape_.stages; ++stage) advance(stage);
    while (!ready_.empty()) {
      const auto [time, tie, micro, forward, edge] = ready_.top();
      ready_.pop();
      meet(forward, edge, micro, time);
    }
    std::vector<Plan> plans;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      TW_CHECK(ranks_[at(stage)].next == static_cast<int>(orders_[at(stage)].size()), "the order of stage ", stage,
               " cannot be executed");
      plans.push_back(build(stage));
    }
    return plans;
  }

 private:
  struct Rank {
    int next = 0;      // work
    int64_t free = 0;  // when it may start
    std::vector<int64_t> start;
    std::vector<int> slots;                                        // per chunk
    std::vector<std::deque<std::tuple<int64_t, int, int>>> spare;  // per chunk: since when, slot, work that freed it
    std::vector<std::vector<int>> forwards;  // per chunk: micro-batches in order of their forwards
    std::vector<size_t> granted;             // per chunk: forwards that have their slot
    std::vector<End> ends;
  };
  // Earlier meetings first; of those at once, the ones that prefetch deeper: activations from the front of the chain,
  // gradients from its end.
  using Ready = std::tuple<int64_t, int, int, bool, int>;  // time, tie, micro, forward, edge

  static size_t at(int index) { return static_cast<size_t>(index); }
  int stage_of(int vs) const { return vs % shape_.stages; }
  int chunk_of(int vs) const { return vs / shape_.stages; }
  int vs_of(int chunk, int stage) const { return chunk * shape_.stages + stage; }
  Life& life(int vs, int micro) { return lives_[at(vs * shape_.micro_batches + micro)]; }
  Flight& flight(bool forward, int edge, int micro) {
    return flights_[(at(edge * shape_.micro_batches + micro)) * 2 + (forward ? 1 : 0)];
  }

  void survey(int stage) {
    Rank& rank = ranks_[at(stage)];
    rank.slots.assign(at(shape_.chunks), 0);
    rank.forwards.resize(at(shape_.chunks));
    rank.granted.assign(at(shape_.chunks), 0);
    rank.spare.resize(at(shape_.chunks));
    std::vector<int> alive(at(shape_.chunks), 0);
    const std::vector<Work>& order = orders_[at(stage)];
    for (int i = 0; i < static_cast<int>(order.size()); ++i) {
      const Work& work = order[at(i)];
      Life& l = life(vs_of(work.chunk, stage), work.micro);
      const size_t chunk = at(work.chunk);
      if (work.kind == NodeKind::kForward) {
        l.forward = i;
        l.open = vs_of(work.chunk, stage) > 0 ? 2 : 1;
        rank.forwards[chunk].push_back(work.micro);
        rank.slots[chunk] = std::max(rank.slots[chunk], ++alive[chunk]);
      }
      if (is_backward(work.kind)) l.backward = i;
      if (work.kind == NodeKind::kBackward || work.kind == NodeKind::kBackwardWeight) {
        l.finish = i;
        --alive[chunk];
      }
    }
    for (int chunk = 0; chunk < shape_.chunks; ++chunk)
      for (int slot = 0; slot < rank.slots[at(chunk)]; ++slot) free_slot(stage, chunk, 0, slot, -1);
  }

  // The next forward of the chunk that has no slot yet gets this one.
  void free_slot(int stage, int chunk, int64_t time, int slot, int behind) {
    Rank& rank = ranks_[at(stage)];
    rank.spare[at(chunk)].push_back({time, slot, behind});
    grant(stage, chunk);
  }

  void grant(int stage, int chunk) {
    Rank& rank = ranks_[at(stage)];
    const int vs = vs_of(chunk, stage);
    size_t& granted = rank.granted[at(chunk)];
    while (!rank.spare[at(chunk)].empty() && granted < rank.forwards[at(chunk)].size()) {
      const int micro = rank.forwards[at(chunk)][granted++];
      const auto [time, slot, behind] = rank.spare[at(chunk)].front();
      rank.spare[at(chunk)].pop_front();
      life(vs, micro).slot = slot;
      life(vs, micro).granted_behind = behind;
      if (vs == 0) continue;
      flight(true, vs - 1, micro).granted = time;
      offer(true, vs - 1, micro);
    }
  }

  void offer(bool forward, int edge, int micro) {
    const Flight& f = flight(forward, edge, micro);
    if (f.made == kUnknown || f.granted == kUnknown) return;
    ready_.push({std::max(f.made, f.granted), forward ? edge : 2 * depth_ - edge, micro, forward, edge});
  }

  void made(bool forward, int edge, int micro, int64_t time) {
    flight(forward, edge, micro).made = time;
    if (!forward) flight(false, edge, micro).granted = 0;  // its micro-batch has a slot already
    offer(forward, edge, micro);
  }

  void release(int vs, int micro, int64_t time) {
    Life& l = life(vs, micro);
    if (--l.open == 0) free_slot(stage_of(vs), chunk_of(vs), time, l.slot, l.finish);
  }

  // Runs the rank's works as far as their inputs are known.
  void advance(int stage) {
    Rank& rank = ranks_[at(stage)];
    const std::vector<Work>& order = orders_[at(stage)];
    for (; rank.next < static_cast<int>(order.size()); ++rank.next) {
      const Work& work = order[at(rank.next)];
      const int vs = vs_of(work.chunk, stage);
      const bool goes_up = is_backward(work.kind);
      int64_t start = rank.free;
      if (work.kind == NodeKind::kForward && vs > 0) {
        const int64_t met = flight(true, vs - 1, work.micro).met;
        if (met == kUnknown) return;
        start = std::max(start, met);
      }
      if (goes_up && vs + 1 < depth_) {
        const int64_t met = flight(false, vs, work.micro).met;
        if (met == kUnknown) return;
        start = std::max(start, met);
      }
      TW_CHECK(life(vs, work.micro).slot >= 0, "no slot for a forward");
      rank.start.push_back(start);
      const int64_t end = rank.free = start + nominal_cost(work.kind);
      if (work.kind == NodeKind::kForward && vs + 1 < depth_) made(true, vs, work.micro, end);
      if (goes_up && vs > 0) made(false, vs - 1, work.micro, end);
      if (work.kind == NodeKind::kBackward || work.kind == NodeKind::kBackwardWeight) release(vs, work.micro, end);
    }
  }

  void meet(bool forward, int edge, int micro, int64_t time) {
    flight(forward, edge, micro).met = time;
    const int from = forward ? edge : edge + 1, to = forward ? edge + 1 : edge;
    add_end(true, forward, edge, micro, from, to);
    add_end(false, forward, edge, micro, to, from);
    if (!forward) release(from, micro, time);
    advance(stage_of(to));
  }

  void add_end(bool send, bool forward, int edge, int micro, int vs, int other) {
    const Life& l = life(vs, micro);
    End end{{send, forward, edge, micro, stage_of(other), l.slot, chunk_of(vs)}};
    if (send) {
      end.earliest = end.wanted = (forward ? l.forward : l.backward) + 1;
      end.latest = static_cast<int>(orders_[at(stage_of(vs))].size());
    } else {
      end.earliest = forward ? l.granted_behind + 1 : l.forward + 1;
      end.latest = forward ? l.forward : l.backward;
    }
    ranks_[at(stage_of(vs))].ends.push_back(end);
  }

  // In front of the last work that started before the message met.
  int wanted_position(const Rank& rank, const Message& m) {
    const int64_t met = flight(m.forward, m.edge, m.micro).met;
    const auto later = std::lower_bound(rank.start.begin(), rank.start.end(), met);
    return std::max(0, static_cast<int>(later - rank.start.begin()) - 1);
  }

  void choose_positions(Rank& rank) {
    std::vector<End>& ends = rank.ends;
    // A receive must not push a send that follows it in the order away from its maker.
    int cap = std::numeric_limits<int>::max();
    std::vector<int> caps(ends.size());
    for (size_t i = ends.size(); i-- > 0;) {
      if (!ends[i].message.send) ends[i].wanted = wanted_position(rank, ends[i].message);
      cap = std::min(cap, ends[i].message.send ? ends[i].earliest : ends[i].latest);
      caps[i] = cap;
    }
    int lowest = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      End& end = ends[i];
      const bool pair = to_itself(ends, i);  // both ends on this rank: one node, so one position
      const int earliest = pair ? std::max(end.earliest, ends[i + 1].earliest) : end.earliest;
      lowest = end.position = std::max({lowest, earliest, std::min(end.wanted, caps[i])});
      TW_CHECK(end.position <= end.latest, "a message has no place between its making and its use");
      if (!pair) continue;
      ends[++i].position = lowest;
      TW_CHECK(lowest <= ends[i].latest, "a message has no place between its making and its use");
    }
  }

  static bool to_itself(const std::vector<End>& ends, size_t i) {
    return i + 1 < ends.size() && ends[i].message.send && !ends[i + 1].message.send &&
           ends[i].message.forward == ends[i + 1].message.forward && ends[i].message.edge == ends[i + 1].message.edge &&
           ends[i].message.micro == ends[i + 1].message.micro;
  }

  // Receives into a slot whose last gradient this node still sends must wait for the next node.
  static bool slot_leaves_with(const PlanNode& node, const Message& m) {
    if (m.send || !m.forward) return false;
    return std::any_of(node.messages.begin(), node.messages.end(), [&](const Message& other) {
      return other.send && other.chunk == m.chunk && other.slot == m.slot;
    });
  }

  Plan build(int stage) {
    Rank& rank = ranks_[at(stage)];
    choose_positions(rank);
    Plan plan;
    plan.slots = rank.slots;
    size_t next = 0;
    for (int position = 0; position <= static_cast<int>(orders_[at(stage)].size()); ++position) {
      PlanNode node{NodeKind::kExchange};
      const auto close = [&] {
        if (!node.messages.empty()) plan.nodes.push_back(node);
        node.messages.clear();
      };
      for (; next < rank.ends.size() && rank.ends[next].position == position; ++next) {
        const Message& m = rank.ends[next].message;
        const bool pair = to_itself(rank.ends, next);
        if (slot_leaves_with(node, pair ? rank.ends[next + 1].message : m)) close();
        node.messages.push_back(m);
        if (pair) node.messages.push_back(rank.ends[++next].message);
      }
      close();
      if (position == static_cast<int>(orders_[at(stage)].size())) break;
      const Work& work = orders_[at(stage)][at(position)];
      PlanNode compute{work.kind, work.micro, work.chunk};
      compute.slot = life(vs_of(work.chunk, stage), work.micro).slot;
      plan.nodes.push_back(compute);
    }
    TW_CHECK(next == rank.ends.size());
    return plan;
  }

  const PipelineShape& shape_;
  const std::vector<std::vector<Work>>& orders_;
  int depth_;  // virtual stages
  std::vector<Life> lives_;
  std::vector<Flight> flights_;
  std::vector<Rank> ranks_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
};

}  // namespace

std::vector<Plan> place_exchanges(const PipelineShape& shape, const std::vector<std::vector<Work>>& orders) {
  return Placement(shape, orders).run();
}

}  // namespace thinwire
