// Small vectors, barriers, broadcasts, and the pieces of plain collectives. Exchange wants world ranks, all else
// members.
#include "parallel/collective/collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"

namespace thinwire {

// Chunks between two hosts are worth being twice as large as those that come through a cache. 4 MiB over TCP beside
// MPI's all-reduce: 1.08 in pieces of 256 KiB, 1.02 of 512 KiB, 0.99 of 1 MiB; but steps of ZeRO-2 (bench step char,
// 1 Gbit/s) take 505, 504 and 519 ms with them.
int64_t GroupLane::chunk_elements(DType dtype) const {
  const int64_t factor = nodes.size() == 2 && nodes[0] != nodes[1] ? 2 : 1;
  const int64_t elements = std::min(factor * tuning->chunk_bytes, static_cast<int64_t>(kLargestMessage)) /
                           static_cast<int64_t>(size_of(dtype));
  return std::max(kVector, elements / kVector * kVector);
}

namespace {
int64_t elements_in(int64_t bytes, DType dtype) {
  return std::max<int64_t>(1, std::min<int64_t>(bytes, kLargestMessage) / static_cast<int64_t>(size_of(dtype)));
}
}  // namespace

// Larger where memory is the wire: a piece costs 0.7 us, and of a ping-pong of 4 MiB on shared memory pieces of 256 KiB
// are 3 %. On a network what waits behind two pieces waits for long, and 0.7 us are nothing.
int64_t GroupLane::piece_elements(DType dtype, bool inside_node) const {
  const bool one_node = inside_node || std::ranges::all_of(nodes, [this](int node) { return node == nodes[0]; });
  return one_node ? elements_in(4 * tuning->chunk_bytes, dtype) : message_elements(dtype);
}

int64_t GroupLane::message_elements(DType dtype) const {
  return elements_in(2 * tuning->chunk_bytes, dtype);
}

Task nothing(GroupLane) {
  co_return;
}

namespace {

Task exchange_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const int n = lane.size();
  const int64_t stride = (static_cast<int64_t>(data.bytes()) + 63) / 64 * 64;
  const Scratch<char> landing(lane.pool(), stride * n);
  const Scratch<const void*> sources(lane.pool(), n);
  Exchange exchange(lane);
  for (int i = 1; i < n; ++i) {
    const int peer = (lane.me + n - i) % n;
    sources[peer] = landing.data() + peer * stride;
    exchange.receive(landing.data() + peer * stride, data.bytes(), lane.peer(peer));
  }
  for (int i = 1; i < n; ++i) exchange.send(data.data, data.bytes(), lane.peer((lane.me + i) % n));
  co_await exchange;
  sources[lane.me] = data.data;
  combine_in_rank_order(kind, data.dtype, sources.data(), n, data.dtype, data.data, data.count(), false);
}

// Every vector to everybody, in steps that double what a rank holds; then the sum in rank order.
Task bruck_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const int n = lane.size(), me = lane.me;
  const size_t bytes = data.bytes();
  const Scratch<char> held(lane.pool(), static_cast<int64_t>(bytes) * n);  // vector i is that of rank me + i
  std::memcpy(held.data(), data.data, bytes);
  for (int have = 1; have < n; have *= 2) {
    const size_t moved = static_cast<size_t>(std::min(have, n - have)) * bytes;
    Exchange exchange(lane);
    exchange.receive(held.data() + static_cast<size_t>(have) * bytes, moved, lane.peer((me + have) % n));
    exchange.send(held.data(), moved, lane.peer((me - have + n) % n));
    co_await exchange;
  }
  const Scratch<const void*> sources(lane.pool(), n);
  for (int r = 0; r < n; ++r) sources[r] = held.data() + static_cast<size_t>((r - me + n) % n) * bytes;
  combine_in_rank_order(kind, data.dtype, sources.data(), n, data.dtype, data.data, data.count(), false);
}

// Where a rank stands when partial results double: the first `extra` pairs of neighbours begin as one.
struct Doubling {
  int teams, extra, team;  // team -1: the second of a pair, which only gives and takes
  Doubling(int n, int me) : teams(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))), extra(n - teams) {
    team = me >= 2 * extra ? me - extra : me % 2 == 0 ? me / 2 : -1;
  }
  int leader(int of_team) const { return of_team < extra ? 2 * of_team : of_team + extra; }
};

// Max and or: partial results are those of ranks that stand next to each other and are combined in their order, so
// that signed zeros and NaNs come out as in one pass over the ranks.
Task doubling_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const Doubling d(lane.size(), lane.me);
  const Scratch<char> landing(lane.pool(), static_cast<int64_t>(data.bytes()));
  const auto combine = [&](bool theirs_first) {
    const void* sources[2] = {theirs_first ? landing.data() : data.data, theirs_first ? data.data : landing.data()};
    combine_in_rank_order(kind, data.dtype, sources, 2, data.dtype, data.data, data.count(), false);
  };
  Exchange exchange(lane);
  if (d.team < 0) {
    exchange.send(data.data, data.bytes(), lane.peer(lane.me - 1));
    co_await exchange;
    exchange.receive(data.data, data.bytes(), lane.peer(lane.me - 1));
    co_await exchange;
    co_return;
  }
  if (d.team < d.extra) {
    exchange.receive(landing.data(), data.bytes(), lane.peer(lane.me + 1));
    co_await exchange;
    combine(false);
  }
  for (int step = 1; step < d.teams; step *= 2) {
    const Peer peer = lane.peer(d.leader(d.team ^ step));
    exchange.receive(landing.data(), data.bytes(), peer);
    exchange.send(data.data, data.bytes(), peer);
    co_await exchange;
    combine((d.team & step) != 0);
  }
  if (d.team < d.extra) {
    exchange.send(data.data, data.bytes(), lane.peer(lane.me + 1));
    co_await exchange;
  }
}

enum class SmallWay { kExchange, kBruck, kDoubling };

// Tells visit(member, vectors) every message that this member sends.
template <typename Visit>
void small_sends(SmallWay way, int n, int me, const Visit& visit) {
  if (way == SmallWay::kExchange) {
    for (int i = 1; i < n; ++i) visit((me + i) % n, 1);
  } else if (way == SmallWay::kBruck) {
    for (int have = 1; have < n; have *= 2) visit((me - have + n) % n, std::min(have, n - have));
  } else {
    const Doubling d(n, me);
    if (d.team < 0) return visit(me - 1, 1);
    for (int step = 1; step < d.teams; step *= 2) visit(d.leader(d.team ^ step), 1);
    if (d.team < d.extra) visit(me + 1, 1);
  }
}

// The exchanges of the three above; doubling ranks are told as if their number were a power of two.
void tell_small_all_reduce(const GroupLane& lane, ReduceKind kind, int64_t bytes) {
  const int n = lane.size(), me = lane.me;
  if (n < kFirstTree) {
    std::vector<int> to, from;
    for (int i = 1; i < n; ++i) to.push_back((me + i) % n), from.push_back((me + n - i) % n);
    return lane.rehearsal->watch->exchange(lane, to, from, bytes);
  }
  for (int have = 1; have < n; have *= 2) {
    const int to = (me - have + n) % n, from = (me + have) % n;
    const int vectors = kind == ReduceKind::kSum ? std::min(have, n - have) : 1;
    lane.rehearsal->watch->exchange(lane, {&to, 1}, {&from, 1}, vectors * bytes);
  }
}

}  // namespace

Task small_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const bool one_message = data.bytes() * static_cast<size_t>(lane.size()) <= kLargestMessage;
  const bool to_all = lane.size() < kFirstTree || (kind == ReduceKind::kSum && !one_message);
  const SmallWay way = to_all ? SmallWay::kExchange : kind == ReduceKind::kSum ? SmallWay::kBruck : SmallWay::kDoubling;
  if (lane.rehearsal != nullptr) {
    if (lane.rehearsal->watch != nullptr) tell_small_all_reduce(lane, kind, static_cast<int64_t>(data.bytes()));
    small_sends(way, lane.size(), lane.me, [&](int member, int vectors) {
      lane.rehearsal->bytes += vectors * static_cast<int64_t>(data.bytes()) +
                               (lane.is_checked(member) ? static_cast<int64_t>(kChecksumOfMessage) : 0);
    });
    return nothing(lane);
  }
  if (way == SmallWay::kExchange) return exchange_all_reduce(lane, data, kind);
  return way == SmallWay::kBruck ? bruck_all_reduce(lane, data, kind) : doubling_all_reduce(lane, data, kind);
}

Task tree_broadcast(GroupLane lane, View data, int root) {
  // Pieces are passed on, and with two ranks nobody does.
  const int64_t chunk = lane.size() > 2 ? lane.chunk_elements(data.dtype) : lane.piece_elements(data.dtype);
  RouteRun run(lane, 1, plain_call(), data.dtype, chunk);
  run.whole = data;
  run.flows[0].own_ahead = 0;
  tree_broadcast_route(run, lane.size(), lane.me, root, data.count());
  return run_route(lane, std::move(run));
}

Task dissemination_barrier(GroupLane lane) {
  const int n = lane.size();
  for (int step = 1; step < n; step *= 2) {
    Exchange exchange(lane);
    exchange.receive(nullptr, 0, lane.peer((lane.me + n - step) % n));
    exchange.send(nullptr, 0, lane.peer((lane.me + step) % n));
    co_await exchange;
  }
}

}  // namespace thinwire
