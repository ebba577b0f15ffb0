// The event loop and the state of every actor.
#include "engine/run/plan/simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
// How late the last rank is in the step behind the measured one: seconds, and a share of its work. On two cores of a
// busy host steps of equal work differ by a tenth, and a first step takes 60 ms more, in which oneDNN makes kernels.
constexpr double kLate = 20e-3, kLateShare = 0.1;

// Nearly normal, with mean 0 and deviation 1; depends on the rank and the number of the work alone.
double drawn(uint64_t rank, uint64_t number) {
  uint64_t x = rank * 0x9E3779B97F4A7C15u + number * 0xD1B54A32D192ED03u + 0x632BE59BD9B4E019u;
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) {
    x ^= x >> 30, x *= 0xBF58476D1CE4E5B9u, x ^= x >> 27, x *= 0x94D049BB133111EBu, x ^= x >> 31;
    sum += static_cast<double>(x >> 11) * 0x1p-53;
  }
  return sum;
}

class Engine {
 public:
  Engine(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster, int steps, bool spans)
      : tapes_(tapes),
        folding_(folding),
        cluster_(cluster),
        measured_(steps - 2),
        spans_(spans),
        links_(link_tapes(tapes, folding, cluster)) {
    actors_.resize(tapes.size());
    result_.actors.resize(tapes.size());
    group_states_.resize(links_.groups.size());
    lines_.resize(static_cast<size_t>(links_.connection_count));
    for (size_t g = 0; g < links_.groups.size(); ++g)
      group_states_[g].posts = links_.groups[g].posts, group_states_[g].unposted = links_.groups[g].receives;
    if (spans_) log_.open(tapes.size(), links_.groups.size());
    for (size_t a = 0; a < tapes.size(); ++a) open_actor(static_cast<int>(a));
  }

  Simulation run() {
    for (size_t a = 0; a < actors_.size(); ++a) go_on(static_cast<int>(a));
    for (;;) {
      double next = queue_.empty() ? kForever : queue_.top().time;
      for (FairPool& network : links_.networks) next = std::min(next, network.next());
      for (FairPool& host : hosts_) next = std::min(next, host.next());
      if (next == kForever) break;
      now_ = next;
      while (!queue_.empty() && queue_.top().time <= now_) {
        const Event event = queue_.top();
        queue_.pop();
        ++result_.events;
        event.group >= 0 ? arrive(event.group) : notice(event.actor, event.operation);
      }
      for (FairPool& host : hosts_)
        if (host.next() <= now_)
          for (int owner : host.advance(now_)) work_is_over(owner / 2, owner % 2 == 0);
      give_cores_back();
      for (FairPool& network : links_.networks)
        if (network.next() <= now_)
          for (int flow : network.advance(now_)) flow_is_over(flow);
    }
    return finish();
  }

 private:
  enum class Mode : uint8_t { kRuns, kIssues, kWaits, kOver };
  struct OperationState {
    int pc = 0, pending = 0;
    bool done = false, ready = false;
    double issued = 0.0;
  };
  struct Actor {
    int host = 0, core = 0;  // core: which of the host's resources
    double share = 1.0;      // ranks on that host that it stands for
    Mode mode = Mode::kRuns;
    size_t event = 0;
    int operation = -1;  // issued or waited for
    double since = 0.0, node_since = 0.0, slow = 1.0;
    int step = 0, works = 0;
    int64_t logged = 0;                                         // lines of the log at the end of the measured step
    double alone = 0.0;                                         // of the work under way
    std::array<double, kBlockClasses> blocks{}, most_blocks{};  // bytes of the pool by size
    double early = 0.0;                                         // bytes here before their receives are posted
    std::vector<OperationState> operations;
    std::deque<int> ready;       // operations that can go on
    std::vector<int> unnoticed;  // that could, once the progress thread polls
    int moving = -1;             // operation whose kWork is under way
    double moves_since = 0.0;
    bool polls = false;  // that kWork is the progress thread's poll for it
    std::vector<std::deque<int>> queues;
    double usual_gap = 0.0, last_moved = 0.0, quiet_since = 0.0;
  };
  struct GroupState {
    int posts = 0, unposted = 0, flows = 0;
    bool sent = false, started = false, departed = false, arrived = false;
    double arrives = 0.0;
    std::vector<std::pair<int, int>> for_arrival, for_departure;  // actor, operation
  };
  using Line = std::deque<int>;  // groups of a connection: the first moves, the others wait
  struct Event {
    double time;
    int64_t number;
    int group, actor, operation;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  Actor& actor(int a) { return actors_[static_cast<size_t>(a)]; }
  const Tape& tape(int a) const { return tapes_[static_cast<size_t>(a)]; }
  const TapeOperation& operation(int a, int op) const { return tape(a).operations[static_cast<size_t>(op)]; }
  ActorTimes& times(int a) { return result_.actors[static_cast<size_t>(a)]; }
  GroupState& group_state(int g) { return group_states_[static_cast<size_t>(g)]; }
  const LinkedGroup& linked(int g) const { return links_.groups[static_cast<size_t>(g)]; }
  OperationState& state(int a, int op) { return actor(a).operations[static_cast<size_t>(op)]; }

  void open_actor(int a) {
    Actor& me = actor(a);
    const int rank = folding_.rank_of(a);
    me.operations.resize(tape(a).operations.size());
    for (size_t o = 0; o < me.operations.size(); ++o) me.operations[o].pc = tape(a).operations[o].first;
    me.queues.resize(static_cast<size_t>(tape(a).queues));
    times(a).exposed.assign(kSiteNames.size(), 0.0);
    for (const Straggler& s : cluster_.stragglers)
      if (s.rank == rank) me.slow *= s.slowdown;
    const int place = cluster_.shared_cores > 0 ? 0 : cluster_.node_of(rank);
    const auto [at, fresh] = host_numbers_.try_emplace(place, static_cast<int>(hosts_.size()));
    if (fresh) {
      hosts_.emplace_back();
      const int cores = cluster_.shared_cores > 0 ? cluster_.shared_cores : cluster_.machine.cores;
      for (int c = 0; c < (pinned(a) ? cores : 1); ++c) hosts_.back().add_resource(pinned(a) ? 1 : cores);
    }
    me.host = at->second;
    if (cluster_.machine.gpu) me.core = hosts_[static_cast<size_t>(me.host)].add_resource(1.0);  // its own GPU
    if (pinned(a)) me.core = rank % cluster_.shared_cores;
    if (is_slowest(a)) me.slow *= 1.0 + cluster_.machine.uneven;
    if (!folding_.folded || cluster_.machine.gpu) return;
    me.share = 0.0;
    for (int r = rank; r < rank + folding_.ranks_of_actor(); ++r)
      me.share += cluster_.shared_cores > 0 || cluster_.node_of(r) == cluster_.node_of(rank);
  }

  // As scripts/lab run --bind does: a rank and its progress thread are on one core.
  bool pinned(int a) const { return cluster_.shared_cores > 0 && tape(a).threads == 1 && !folding_.folded; }

  // Rates are a mean rank's, and steps wait for the slowest rank. Here that is the last one, with those on its core:
  // rank 0 then waits as long as it does on average in a run, where any rank may be the slowest.
  bool is_slowest(int a) const {
    const int last = static_cast<int>(tapes_.size()) - 1;
    if (cluster_.uneven() || (last == 0 && !folding_.folded)) return false;
    return a == last || (pinned(a) && (last - a) % cluster_.shared_cores == 0);
  }

  // Seconds that this work takes longer because its rank, the last, is late. Every rank is late now and then in a run,
  // and the pool keeps the blocks that are open then. In the last step alone: its times are not read.
  double lateness(int a, double seconds) {
    const int last = static_cast<int>(tapes_.size()) - 1;
    if (a != last || last == 0 || actor(a).step <= measured_ || cluster_.machine.gpu) return 0.0;
    return kLateShare * seconds + std::exchange(late_, 0.0) * tape(a).threads;
  }

  // loaded: by what factor it takes longer with all cores busy.
  void start_work(int a, double seconds, bool compute, double loaded) {
    Actor& me = actor(a);
    const double threads = compute ? tape(a).threads : 1.0;  // on a GPU 1
    const FairPool::Use use{me.core, me.share};
    FairPool::Slowdown slowdown{loaded, compute ? cluster_.machine.crowded_slowdown : 1.0};
    if (cluster_.machine.gpu) slowdown = {};  // its codecs and its compute share it, and no more is known
    hosts_[static_cast<size_t>(me.host)].add(now_, seconds, threads, threads, &use, 1, 2 * a + (compute ? 0 : 1),
                                             slowdown);
    if (compute) me.alone = seconds / threads, me.since = now_;
  }

  void work_is_over(int a, bool compute) {
    Actor& me = actor(a);
    if (compute) {
      if (logs_) log_.computed(a, me.since, now_);
      if (me.step == measured_) {
        times(a).compute += me.alone;
        times(a).contention += now_ - me.since - me.alone;
      }
      return go_on(a);
    }
    const int op = me.moving;
    me.moving = -1;
    if (logs_) log_.worked(a, op, me.mode == Mode::kIssues, me.moves_since, now_);
    if (!std::exchange(me.polls, false)) ++state(a, op).pc;
    if (!execute(a, op)) return;
    if (me.mode == Mode::kIssues && op == me.operation) compute_goes_on(a);
    move_on(a);
  }

  // An operation has its blocks from its issue until it is over.
  void hold(int a, int op) {
    Actor& me = actor(a);
    for (const TapeBlocks& b : operation(a, op).blocks) {
      const auto size = static_cast<size_t>(b.size_class);
      me.blocks[size] += b.bytes;
      me.most_blocks[size] = std::max(me.most_blocks[size], me.blocks[size]);
    }
  }
  void let_go(int a, int op) {
    for (const TapeBlocks& b : operation(a, op).blocks) actor(a).blocks[static_cast<size_t>(b.size_class)] -= b.bytes;
  }

  // --- the compute thread

  void go_on(int a) {
    Actor& me = actor(a);
    const std::vector<TapeEvent>& events = tape(a).events;
    me.mode = Mode::kRuns;
    while (me.event < events.size()) {
      const TapeEvent& event = events[me.event++];
      switch (event.kind) {
        case TapeKind::kCompute: {
          double seconds = event.seconds * me.slow;
          if (cluster_.jitter > 0.0)
            seconds *= std::max(0.1, 1.0 + cluster_.jitter * drawn(static_cast<uint64_t>(tape(a).rank),
                                                                   static_cast<uint64_t>(me.works++)));
          seconds += lateness(a, seconds);
          start_work(a, seconds, true, std::max(1.0, event.loaded / std::max(event.seconds, 1e-12)));
          return;
        }
        case TapeKind::kIssue:
          state(a, event.operation).issued = now_;
          if (logs_) log_.issued(a, event.operation, now_);
          hold(a, event.operation);
          if (cluster_.machine.gpu) {  // queued on a stream of its own: what computes goes on
            make_ready(a, event.operation);
            move_on(a);
            break;
          }
          me.mode = Mode::kIssues, me.operation = event.operation, me.since = now_;
          me.ready.push_front(event.operation);
          move_on(a);
          return;  // move_on comes back here when the operation waits for somebody
        case TapeKind::kWait:
          if (state(a, event.operation).done) break;
          me.mode = Mode::kWaits, me.operation = event.operation, me.since = me.quiet_since = now_;
          count_waiter(a, 1);
          for (int op : me.unnoticed) state(a, op).ready = true, me.ready.push_back(op);
          me.unnoticed.clear();
          move_on(a);
          return;
        case TapeKind::kNode:
          if (spans_ && me.step == measured_)
            result_.spans.push_back({a, SpanKind::kWork, event.node, event.micro, -1, me.node_since, now_});
          me.node_since = now_;
          break;
        case TapeKind::kStep:
          times(a).step_ends.push_back(now_);
          if (me.step++ == measured_) me.logged = log_.lines(), ++over_;
          // The path needs no line from before the first of them began the step, and none from behind the last one.
          logs_ = spans_ && (logs_ || me.step == measured_) && over_ < static_cast<int>(actors_.size());
          break;
      }
    }
    me.mode = Mode::kOver;
  }

  // The operation that was issued has been taken as far as it goes, or the one waited for is over.
  void compute_goes_on(int a) {
    Actor& me = actor(a);
    if (me.step == measured_) {
      if (me.mode == Mode::kIssues) times(a).issue += now_ - me.since;
      if (me.mode == Mode::kWaits) {
        times(a).exposed[static_cast<size_t>(operation(a, me.operation).site)] += now_ - me.since;
        if (spans_) result_.spans.push_back({a, SpanKind::kWait, NodeKind::kControl, -1, me.operation, me.since, now_});
      }
    }
    if (me.mode == Mode::kWaits) count_waiter(a, -1);
    if (logs_) log_.waited(a, me.operation, now_);
    me.operation = -1;
    go_on(a);
  }

  // Polls of whoever waits take a part of the core from the ranks that work there. Where all wait, one of them moves
  // messages, and its own polls are part of that.
  void count_waiter(int a, int more) {
    const double share = cluster_.machine.waiting_share;
    if (share <= 0.0 || !pinned(a)) return;
    const Actor& me = actor(a);
    const int here = (static_cast<int>(tapes_.size()) - me.core - 1) / cluster_.shared_cores + 1;
    const int others = std::min(waiters_[me.core] += more, here - 1);
    hosts_[static_cast<size_t>(me.host)].set_capacity(now_, me.core, std::max(0.1, 1.0 - share * others));
  }

  // --- operations

  // Takes ready operations on until one works on the cores, or none is left; then the compute thread, if it was waiting
  // for that.
  void move_on(int a) {
    Actor& me = actor(a);
    while (me.moving < 0) {
      if (me.mode == Mode::kWaits && state(a, me.operation).done) {
        compute_goes_on(a);
        continue;
      }
      if (me.ready.empty()) return;
      const int op = me.ready.front();
      me.ready.pop_front();
      if (!execute(a, op)) return;
      if (me.mode == Mode::kIssues && op == me.operation) compute_goes_on(a);
    }
  }

  // Executes instructions of an operation until it waits or is over (true), or works (false).
  bool execute(int a, int op) {
    OperationState& s = state(a, op);
    s.ready = false;
    const int end = operation(a, op).first + operation(a, op).count;
    for (; s.pc < end; ++s.pc) {
      const TapeInstruction& i = tape(a).code[static_cast<size_t>(s.pc)];
      switch (i.code) {
        case TapeCode::kWork:
          actor(a).moving = op;
          actor(a).moves_since = now_;
          start_work(a, i.seconds, false, cluster_.machine.loaded_slowdown);
          return false;
        case TapeCode::kPost:
          for_groups(a, s.pc, [&](int g) {
            GroupState& group = group_state(g);
            --group.posts;
            if (--group.unposted == 0 && group.arrived) actor(a).early -= linked(g).bytes;
            start_group(g, a, op);
          });
          break;
        case TapeCode::kSend:
          for_groups(a, s.pc, [&](int g) {
            group_state(g).sent = true;
            start_group(g, a, op);
          });
          break;
        case TapeCode::kAwait:
          for_groups(a, i.first, [&](int g) {
            GroupState& group = group_state(g);
            if (!group.arrived) group.for_arrival.emplace_back(a, op), ++s.pending;
          });
          if (s.pending > 0) return ++s.pc, true;
          break;
        case TapeCode::kAwaitSent:
          for (int r = i.first; r < i.first + i.count; ++r)
            for_groups(a, tape(a).refs[static_cast<size_t>(r)], [&](int g) {
              GroupState& group = group_state(g);
              if (!group.departed) group.for_departure.emplace_back(a, op), ++s.pending;
            });
          if (s.pending > 0) return ++s.pc, true;
          break;
        case TapeCode::kTurn: {
          std::deque<int>& queue = actor(a).queues[static_cast<size_t>(i.first)];
          if (std::find(queue.begin(), queue.end(), op) == queue.end()) queue.push_back(op);
          if (queue.front() != op) return true;  // goes on from here when the one before it leaves
          break;
        }
        case TapeCode::kRelease: {
          std::deque<int>& queue = actor(a).queues[static_cast<size_t>(i.first)];
          std::erase(queue, op);
          if (!queue.empty()) {
            if (logs_) log_.turn(a, queue.front(), op, now_);
            make_ready(a, queue.front());
          }
          break;
        }
      }
    }
    s.done = true;
    let_go(a, op);
    if (spans_ && actor(a).step == measured_)
      result_.spans.push_back({a, SpanKind::kOperation, NodeKind::kControl, -1, op, s.issued, now_});
    return true;
  }

  template <typename Each>
  void for_groups(int a, int instruction, const Each& each) {
    const auto [first, end] = links_.group_ranges[static_cast<size_t>(a)][static_cast<size_t>(instruction)];
    for (int i = first; i < end; ++i) each(links_.listed_groups[static_cast<size_t>(i)]);
  }

  void make_ready(int a, int op) {
    OperationState& s = state(a, op);
    if (s.ready || s.pending > 0) return;
    s.ready = true;
    actor(a).ready.push_back(op);
  }

  // Seconds until the waiting thread polls: it does so, yielding its core meanwhile, for as long as the message can
  // take, as in the ping-pong that a message's costs are from; then it sleeps for a part of the silence (progress.cpp:
  // Patience).
  double seconds_to_poll(const Actor& me, int a, bool crowded) const {
    const Machine& m = cluster_.machine;
    const double bytes = me.operation >= 0 ? operation(a, me.operation).bytes : 0.0;
    const double quiet = now_ - me.quiet_since;
    if (quiet < 50e-6 + std::min(bytes * 1e-9, 20e-3)) return crowded ? m.crowded_yield / 2.0 : 0.0;
    return m.waiter_seconds + std::min(quiet / 64.0, m.longest_nap / 8.0) + (crowded ? m.crowded_wake : 0.0);
  }

  // What an operation waited for is here; somebody has to poll.
  void came(int a, int op, int group) {
    if (--state(a, op).pending > 0) return;
    if (logs_) log_.ready(a, op, group, now_);
    Actor& me = actor(a);
    const Machine& m = cluster_.machine;
    const bool crowded = hosts_[static_cast<size_t>(me.host)].full(me.core);
    if (me.mode == Mode::kOver || me.mode == Mode::kWaits || me.mode == Mode::kIssues) {
      queue_.push({now_ + (me.moving >= 0 ? 0.0 : seconds_to_poll(me, a, crowded)), ++numbers_, -1, a, op});
      if (crowded && me.moving < 0) displaced_.emplace_back(a, op);
      me.quiet_since = now_;
      return;
    }
    const double gap = std::min(now_ - me.last_moved, 4.0 * m.longest_nap);
    me.usual_gap = (me.usual_gap + gap) / 2.0;
    me.last_moved = now_;
    const double nap = std::clamp(me.usual_gap / 2.0, m.shortest_nap, std::max(m.shortest_nap, m.longest_nap));
    me.unnoticed.push_back(op);
    queue_.push({now_ + nap / 2.0 + (crowded ? m.crowded_wake : 0.0), ++numbers_, -1, a, op});
  }

  // Whose core another one works on has it when that one waits, too, and no later.
  void give_cores_back() {
    std::erase_if(displaced_, [&](const auto& waiting) {
      const auto [a, op] = waiting;
      if (hosts_[static_cast<size_t>(actor(a).host)].full(actor(a).core)) return false;
      queue_.push({now_, ++numbers_, -1, a, op});
      return true;
    });
  }

  void notice(int a, int op) {
    Actor& me = actor(a);
    std::erase(displaced_, std::pair(a, op));
    const auto at = std::find(me.unnoticed.begin(), me.unnoticed.end(), op);
    if (at != me.unnoticed.end()) {
      me.unnoticed.erase(at);
      if (me.moving < 0 && cluster_.machine.poll > 0.0) {  // a poll too early, and this one: progress_thread.cpp
        me.moving = op, me.polls = true, me.moves_since = now_;
        return start_work(a, 2.0 * cluster_.machine.poll, false, cluster_.machine.loaded_slowdown);
      }
    } else if (state(a, op).ready || state(a, op).pending > 0 || state(a, op).done || me.moving == op) {
      return;  // the compute thread has polled meanwhile
    }
    make_ready(a, op);
    move_on(a);
  }

  // --- messages

  // By what operation `op` of actor `a` did.
  void start_group(int g, int a, int op) {
    GroupState& s = group_state(g);
    if (s.started || !s.sent || s.posts > 0) return;
    s.started = true;
    Line& line = line_of(g);
    if (spans_) log_.started(g, a, op, line.empty() ? -1 : line.back(), now_);
    line.push_back(g);
    take_over(line);
    if (line.size() == 1) move(g);
  }

  Line& line_of(int g) { return lines_[static_cast<size_t>(linked(g).connection)]; }

  // What the sender's socket holds counts as sent.
  void take_over(Line& line) {
    double bytes = 0.0;
    for (int g : line) {
      bytes += linked(g).bytes;
      if (bytes > linked(g).socket) return;
      leave(g);
    }
  }

  // Starts the flows of a group that has come first in its line.
  void move(int g) {
    GroupState& s = group_state(g);
    const LinkedGroup& group = linked(g);
    s.flows = group.count;
    s.arrives = now_;
    for (int f = group.first; f < group.first + group.count; ++f) {
      const LinkedFlow& flow = links_.flows[static_cast<size_t>(f)];
      const LinkedPath& path = links_.paths[static_cast<size_t>(flow.path)];
      links_.networks[static_cast<size_t>(path.network)].add(now_, flow.bytes, kForever, 1.0, path.uses, path.count, f);
    }
    if (group.count == 0) depart(g);
  }

  void flow_is_over(int f) {
    const LinkedFlow& flow = links_.flows[static_cast<size_t>(f)];
    GroupState& s = group_state(flow.group);
    s.arrives = std::max(s.arrives, now_ + links_.paths[static_cast<size_t>(flow.path)].latency);
    if (--s.flows == 0) depart(flow.group);
  }

  // All of it is on the wire.
  void depart(int g) {
    leave(g);
    queue_.push({group_state(g).arrives, ++numbers_, g, 0, 0});
    Line& line = line_of(g);
    line.pop_front();
    take_over(line);
    if (!line.empty()) move(line.front());
  }

  void leave(int g) {
    GroupState& s = group_state(g);
    s.departed = true;
    const auto waiting = std::move(s.for_departure);
    s.for_departure.clear();
    for (const auto& [a, op] : waiting) came(a, op, g);
  }

  void arrive(int g) {
    GroupState& s = group_state(g);
    s.arrived = true;
    if (s.unposted > 0) {
      const LinkedGroup& group = linked(g);
      double& most = times(group.to).early;
      most = std::max(most, actor(group.to).early += group.bytes);
    }
    const auto waiting = std::move(s.for_arrival);
    s.for_arrival.clear();
    for (const auto& [a, op] : waiting) came(a, op, g);
  }

  Simulation finish() {
    double before = 0.0, last = 0.0;
    int latest = 0;
    for (size_t a = 0; a < actors_.size(); ++a) {
      const Actor& me = actors_[a];
      TW_CHECK(me.mode == Mode::kOver, "rank ", tapes_[a].rank, " waits for ever in event ", me.event,
               " of its tape, for ",
               me.operation < 0 ? "nothing" : tapes_[a].operations[static_cast<size_t>(me.operation)].verb);
      result_.actors[a].buffers = std::accumulate(me.most_blocks.begin(), me.most_blocks.end(), 0.0);
      const std::vector<double>& ends = result_.actors[a].step_ends;
      TW_CHECK(static_cast<int>(ends.size()) == measured_ + 2 && measured_ >= 1);
      before = std::max(before, ends[ends.size() - 3]);
      if (ends[ends.size() - 2] > last) last = ends[ends.size() - 2], latest = static_cast<int>(a);
    }
    result_.step_seconds = last - before;
    if (spans_) result_.critical = log_.path(latest, before, last, actor(latest).logged);
    return std::move(result_);
  }

  const std::vector<Tape>& tapes_;
  const Folding& folding_;
  const Cluster& cluster_;
  int measured_;
  bool spans_, logs_ = false;
  int over_ = 0;  // actors that have ended the measured step
  LinkedTapes links_;
  Simulation result_;
  double now_ = 0.0, late_ = kLate;
  int64_t numbers_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::vector<Actor> actors_;
  std::vector<GroupState> group_states_;
  std::vector<Line> lines_;
  std::map<int, int> host_numbers_;
  std::map<int, int> waiters_;                  // by core of shared_cores
  std::vector<std::pair<int, int>> displaced_;  // actor, operation: can go on, and another one has the core
  std::vector<FairPool> hosts_;  // owners: twice an actor for its compute thread, 1 more for who moves its messages
  PathLog log_;
};

}  // namespace

double ActorTimes::wait() const {
  return std::accumulate(exposed.begin(), exposed.end(), 0.0);
}

Simulation simulate(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster, int steps,
                    bool spans) {
  return Engine(tapes, folding, cluster, steps, spans).run();
}

}  // namespace thinwire
