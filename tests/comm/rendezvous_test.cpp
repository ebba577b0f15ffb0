// Every verb and algorithm where a send is over only when its receive was posted, with many operations in flight, on 2
// to 33 ranks that one thread drives: the windows of the executor, its reuse of buffers and the turns among all-gathers
// must not close a circle of ranks that wait for each other, and nobody may write to a buffer before its send is over.
// That the validator sees such mistakes is shown by making each of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/core/error.h"
#include "tests/comm/coded_codecs.h"
#include "tests/comm/real_codecs.h"

namespace thinwire::rendezvous_test {
namespace {

uint64_t hash_of(const void* data, size_t bytes) {
  uint64_t hash = bytes;
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001B3u;
  return hash;
}

// The wire between all ranks. The n-th send of a (from, to, tag) meets the n-th receive; both end some time after they
// met, in any order.
class Wire {
 public:
  Wire(int size, uint64_t seed) : done(static_cast<size_t>(size)), random_(seed) {}

  struct End {
    void* data;
    size_t bytes;
    uint32_t token;
    uint64_t hash;
  };
  void post(int from, int to, int tag, bool is_send, const End& end) {
    Line& line = lines_[{from, to, tag}];
    line.received |= !is_send;
    (is_send ? line.sends : line.receives).push_back(end);
    if (line.sends.empty() || line.receives.empty()) return;
    met_.push_back({from, to, line.sends.front(), line.receives.front()});
    line.sends.pop_front(), line.receives.pop_front();
  }
  // Ends some of those that met; false: there were none.
  bool step() {
    const bool any = !met_.empty();
    while (!met_.empty() && random_() % 3 != 0) {
      const size_t pick = random_() % met_.size();
      const Met m = met_[pick];
      met_[pick] = met_.back();
      met_.pop_back();
      changed |= hash_of(m.send.data, m.send.bytes) != m.send.hash;
      if (m.send.bytes > 0) std::memcpy(m.receive.data, m.send.data, std::min(m.send.bytes, m.receive.bytes));
      done[static_cast<size_t>(m.from)].push_back({m.send.token, m.send.bytes});
      done[static_cast<size_t>(m.to)].push_back({m.receive.token, m.send.bytes});
    }
    return any;
  }
  // What those who wait for ever wait for.
  std::string stuck() const {
    std::set<std::pair<int, int>> sends, receives;
    bool strange = false;
    for (const auto& [key, line] : lines_) {
      const std::pair<int, int> way = {std::get<0>(key), std::get<1>(key)};
      if (!line.sends.empty()) sends.insert(way), strange |= !line.received;
      if (!line.receives.empty()) receives.insert(way);
    }
    if (strange) return "a tag that nobody listens to";
    return receives.empty() ? "a receive is missing" : "ranks wait for each other";
  }

  std::vector<std::vector<Completion>> done;  // per rank, not reported yet
  bool changed = false;                       // a buffer, while it was sent

 private:
  struct Line {
    std::deque<End> sends, receives;
    bool received = false;
  };
  struct Met {
    int from, to;
    End send, receive;
  };
  std::map<std::tuple<int, int, int>, Line> lines_;
  std::vector<Met> met_;
  std::mt19937_64 random_;
};

class WireEnd : public Transport {
 public:
  WireEnd(Wire& wire, int rank) : wire_(wire), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(wire_.done.size()); }
  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    wire_.post(rank_, peer, tag, true, {const_cast<void*>(data), bytes, token, hash_of(data, bytes)});
    return false;
  }
  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    wire_.post(peer, rank_, tag, false, {data, bytes, token, 0});
    return false;
  }
  size_t poll(std::span<Completion> done) override {
    std::vector<Completion>& mine = wire_.done[static_cast<size_t>(rank_)];
    const size_t n = std::min(done.size(), mine.size());
    std::copy_n(mine.begin(), n, done.begin());
    mine.erase(mine.begin(), mine.begin() + static_cast<ptrdiff_t>(n));
    return n;
  }
  bool withdraw(uint32_t) noexcept override { return true; }
  [[noreturn]] void abort(int code) override { throw Error(static_cast<ExitCode>(code), "abort"); }

 private:
  Wire& wire_;
  int rank_;
};

// A rank's end of a group, its operations and their buffers.
struct Member {
  Member(Wire& wire, int rank, int size, const CommTuning& tuning, const std::vector<int>& nodes)
      : transport(wire, rank),
        progress(std::make_unique<Progress>(transport, ProgressOptions{.thread = false, .spin_us = 0})),
        end(*progress, size, tuning, nodes) {}
  View data(int64_t count) {
    kept.emplace_back(DType::f32, count).fill(3, end.me());
    return kept.back().view();
  }
  void start(Task task) { open.push_back(end.group.start(std::move(task), "verb", 1)); }

  WireEnd transport;
  std::unique_ptr<Progress> progress;
  CodedRank end;
  std::deque<Buffer> kept;
  std::deque<Payloads> payloads;
  std::vector<Ticket> open;
};

Task one_by_one(std::vector<Task> tasks) {
  for (Task& task : tasks) co_await task;
}

// What every rank has goes around all of them; coder: packed once.
Task whole_ring(Member& m, const CodedCall& call, int64_t count) {
  Communicator& group = m.end.group;
  const int n = group.size(), me = group.rank();
  Payloads* payloads[2] = {};
  std::vector<Task> tasks;
  View held = m.data(count);
  if (call.coder != nullptr) {
    for (Payloads*& p : payloads)
      p = &m.payloads.emplace_back(group.pool(), group.tuning(), *call.coder, DType::f32, count);
    tasks.push_back(coded_pack(group.lane(), call, held, payloads[0]));
  }
  for (int hop = 0; hop + 1 < n; ++hop) {
    const View next = m.data(count);
    tasks.push_back(coded_hop(group.lane(), call, held, (me + 1) % n, next, (me + n - 1) % n, (me + n - hop - 1) % n,
                              payloads[hop % 2], payloads[1 - hop % 2]));
    held = next;
  }
  return one_by_one(std::move(tasks));
}

// Issues on every rank, and polls all until everything is over: "". Otherwise what is wrong.
std::string validate(int n, const std::vector<int>& nodes, const CommTuning& tuning,
                     const std::function<void(Member&)>& issue, uint64_t seed = 1) {
  Wire wire(n, seed);
  std::deque<Member> members;
  for (int r = 0; r < n; ++r) members.emplace_back(wire, r, n, tuning, nodes);
  for (Member& m : members) issue(m);
  for (bool moved = true; moved;) {
    moved = wire.step();
    for (Member& m : members) moved |= m.progress->poll();
  }
  std::string verdict;
  for (Member& m : members) {
    const bool stuck = std::ranges::any_of(m.open, [](const Ticket& ticket) { return ticket.open(); });
    if (stuck) verdict = wire.stuck();
  }
  if (wire.changed) verdict = "a buffer was written before its send was over";
  for (Member& m : members) {
    if (!verdict.empty()) m.progress.reset();
    for (Ticket& ticket : m.open) {
      try {
        ticket.wait_on_host();
      } catch (const Error& error) {
        if (verdict.empty()) verdict = error.what();
      }
    }
  }
  return verdict;
}

struct Case {
  int n, local;
  int64_t count;
  std::vector<int64_t> bounds;
  std::vector<int> nodes;
  int64_t mine(int rank) const { return bounds[static_cast<size_t>(rank) + 1] - bounds[static_cast<size_t>(rank)]; }
};
// local: ranks of a node; n: all on unequal nodes.
Case case_of(int n, int local) {
  Case c{.n = n, .local = local, .count = 900 + 37 * n, .bounds = {}, .nodes = {}};
  for (int r = 0; r < n; ++r) c.nodes.push_back(local < n ? r / local : r < n - 1 ? 0 : 1);
  std::mt19937_64 random(static_cast<uint64_t>(n));
  c.bounds = ragged_bounds(random, c.count, n);
  return c;
}
// Every way to lay n ranks on equal nodes of two or more, and once on unequal ones.
std::vector<Case> cases_of(int n) {
  std::vector<Case> cases = {case_of(n, n)};
  for (int local = 2; local <= n / 2; ++local)
    if (n % local == 0) cases.push_back(case_of(n, local));
  return cases;
}

void plain_verbs(Member& m, const Case& c) {
  Communicator& group = m.end.group;
  HostStream& stream = m.end.stream;
  const int n = c.n, me = group.rank(), next = (me + 1) % n, previous = (me + n - 1) % n;
  const int64_t mine = c.mine(me);
  std::vector<int64_t> cuts = {0};
  for (int r = 0; r < n; ++r) cuts.push_back(cuts.back() + mine);
  for (int round = 0; round < 2; ++round) {
    if (c.local == n) m.open.push_back(group.receive(m.data(c.count * 20), previous, stream));
    m.open.push_back(group.all_gather(m.data(mine), m.data(c.count), c.bounds, stream));
    m.open.push_back(group.all_reduce(m.data(c.count), ReduceKind::kSum, stream));
    m.open.push_back(group.reduce_scatter(m.data(c.count), c.bounds, m.data(mine), true, stream));
    m.open.push_back(group.all_gather(m.data(mine), m.data(c.count), c.bounds, stream));
    if (c.local < n) continue;  // what has two levels
    m.open.push_back(group.all_to_all(m.data(c.count), c.bounds, m.data(n * mine), cuts, stream));
    m.open.push_back(group.broadcast(m.data(c.count), round, stream));
    m.open.push_back(group.all_reduce(m.data(3), ReduceKind::kMax, stream));
    m.open.push_back(group.all_reduce(m.data(3), ReduceKind::kSum, stream));
    m.open.push_back(group.barrier());
    m.start(whole_ring(m, plain_call(), c.count));
    m.open.push_back(group.send(m.data(c.count * 20), next, stream));
  }
}

TEST(Rendezvous, PlainVerbsInFlightTogether) {
  for (const int n : {2, 3, 4, 5, 6, 8, 9, 12, 16, 33})
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing})
      EXPECT_EQ(validate(n, {}, small_chunks(256, algorithm), [c = case_of(n, n)](Member& m) { plain_verbs(m, c); }),
                "")
          << n;
}

TEST(Rendezvous, TwoLevelsOnEveryGridOfTwoTo33Ranks) {
  for (int n = 2; n <= 33; ++n)
    for (const Case& c : cases_of(n)) {
      if (c.local == n && cases_of(n).size() > 1) continue;
      EXPECT_EQ(validate(n, c.nodes, small_chunks(256, Algorithm::kTwoLevel), [&](Member& m) { plain_verbs(m, c); }),
                "")
          << n << " in nodes of " << c.local;
    }
}

TEST(Rendezvous, CompressedVerbsInFlightTogether) {
  const auto cast = RealCodec{real_spec("cast", [](CodecSpec& s) { s["format"] = "bf16"; })}.coder();
  const auto framed = coder_of(std::make_shared<NonZeros>(8));
  const auto verbs = [](Member& m, const Case& c, const Coder* coder) {
    Communicator& group = m.end.group;
    const int n = c.n, me = group.rank(), next = (me + 1) % n, previous = (me + n - 1) % n;
    const int64_t mine = c.mine(me);
    const auto bounds = [&] { return bounds_in(group, c.bounds); };
    const CodedCall call = m.end.call(coder), plain;
    for (int round = 0; round < 2; ++round) {
      if (c.local < n) {
        m.start(coded_all_reduce(group.lane(), call, call, m.data(c.count), Algorithm::kTwoLevel, call));
        m.start(coded_reduce_scatter(group.lane(), plain, m.data(c.count), bounds(), m.data(mine), false,
                                     Algorithm::kTwoLevel, call));
        m.start(coded_all_gather(group.lane(), call, m.data(mine), m.data(c.count), bounds(), Algorithm::kTwoLevel));
        m.start(coded_all_gather(group.lane(), call, m.data(mine), m.data(c.count), bounds()));
        continue;
      }
      m.start(coded_receive(group.lane_from(previous), call, m.data(c.count), previous));
      m.start(coded_all_gather(group.lane(), call, m.data(mine), m.data(c.count), bounds()));
      m.start(coded_all_reduce(group.lane(), call, call, m.data(c.count)));
      m.start(coded_all_reduce(group.lane(), call, plain, m.data(c.count)));
      m.start(coded_reduce_scatter(group.lane(), call, m.data(c.count), bounds(), m.data(mine), true));
      m.start(coded_all_gather(group.lane(), call, m.data(mine), m.data(c.count), bounds()));
      m.start(coded_all_reduce(group.lane(), call, call, m.data(c.count), Algorithm::kRing));
      m.start(
          coded_reduce_scatter(group.lane(), call, m.data(c.count), bounds(), m.data(mine), false, Algorithm::kRing));
      m.start(whole_ring(m, call, c.count));
      m.start(coded_hop(group.lane(), call, m.data(c.count), next, m.data(c.count), previous, previous));
      m.start(coded_send(group.lane_to(next), call, m.data(c.count), next));
    }
  };
  for (const int n : {2, 3, 4, 6, 8, 9, 12, 16, 33})
    for (const Case& c : cases_of(n))
      for (const Coder* const coder : {static_cast<const Coder*>(nullptr), cast.get(), framed.get()})
        EXPECT_EQ(validate(n, c.nodes, small_chunks(512), [&](Member& m) { verbs(m, c, coder); }), "")
            << n << " in nodes of " << c.local;
}

// --- mistakes ---------------------------------------------------------------------------------------------------

// A gather and a two-level one, of equal slices with forty pieces, on four ranks; `fault` on the second of them.
std::string with_fault(RouteFault fault, bool levels, uint64_t seed = 1) {
  const auto cast = RealCodec{real_spec("cast", [](CodecSpec& s) { s["format"] = "bf16"; })}.coder();
  return validate(
      4, node_list(2, 2), small_chunks(64),
      [&](Member& m) {
        GroupLane lane = m.end.group.lane();
        if (m.end.me() == 1) lane.fault = fault;
        const CodedCall call = m.end.call(fault == RouteFault::kReceiveTooFew ? nullptr : cast.get());
        Bounds bounds = bounds_in(m.end.group, {0, 640, 1280, 1920, 2560});
        m.start(coded_all_gather(lane, call, m.data(640), m.data(2560), std::move(bounds),
                                 levels ? Algorithm::kTwoLevel : Algorithm::kDirect));
      },
      seed);
}

TEST(Mistakes, AReceiveTooFew) {
  for (const bool levels : {false, true})
    EXPECT_EQ(with_fault(RouteFault::kReceiveTooFew, levels), "a receive is missing");
}
// Whether the buffer is still being sent is a matter of timing: in some of 16 orders it is.
TEST(Mistakes, ABufferUsedAgainTooEarly) {
  for (const bool levels : {false, true}) {
    std::set<std::string> verdicts;
    for (uint64_t seed = 1; seed <= 16; ++seed) verdicts.insert(with_fault(RouteFault::kReusedTooEarly, levels, seed));
    EXPECT_TRUE(verdicts.contains("a buffer was written before its send was over"));
  }
}
TEST(Mistakes, TheWrongTag) {
  for (const bool levels : {false, true})
    EXPECT_EQ(with_fault(RouteFault::kWrongTag, levels), "a tag that nobody listens to");
}
TEST(Mistakes, None) {
  for (const bool levels : {false, true}) EXPECT_EQ(with_fault(RouteFault::kNone, levels), "");
}

// Two all-gathers, which send in turns: one rank takes them in the other order.
TEST(Mistakes, TurnsSwapped) {
  for (const bool swapped : {false, true}) {
    const std::string verdict = validate(3, {}, small_chunks(64), [&](Member& m) {
      std::vector<Task> gathers;
      for (int i = 0; i < 2; ++i)
        gathers.push_back(coded_all_gather(m.end.group.lane(), m.end.call(nullptr), m.data(640), m.data(1920),
                                           bounds_in(m.end.group, {0, 640, 1280, 1920})));
      if (swapped && m.end.me() == 1) std::swap(gathers[0], gathers[1]);
      for (Task& task : gathers) m.start(std::move(task));
    });
    EXPECT_EQ(verdict, swapped ? "ranks wait for each other" : "");
  }
}

}  // namespace
}  // namespace thinwire::rendezvous_test
