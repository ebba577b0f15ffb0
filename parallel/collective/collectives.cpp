// Plain collectives: routes without coders, and small vectors. Exchange wants world ranks, all else members.
#include "parallel/collective/collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"

namespace thinwire {
namespace {

constexpr int64_t kCut = 16;  // elements: chunks end on whole vectors

// Contributions of one chunk of my range, from everybody, twice: one is summed while the next arrives.
class Landing {
 public:
  Landing(const GroupLane& lane, int64_t elements, DType dtype)
      : me_(lane.me),
        stride_((static_cast<size_t>(elements) * size_of(dtype) + 63) / 64 * 64),
        space_(lane.pool(), static_cast<int64_t>(2 * stride_) * (lane.size() - 1)),
        sources_(lane.pool(), lane.size()) {}
  char* of(int64_t k, int peer) const {
    const size_t place = static_cast<size_t>(peer < me_ ? peer : peer - 1) * 2 + static_cast<size_t>(k & 1);
    return space_.data() + place * stride_;
  }
  const void* const* sources(int64_t k, const void* mine) const {
    for (int r = 0; r < static_cast<int>(sources_.count()); ++r) sources_[r] = r == me_ ? mine : of(k, r);
    return sources_.data();
  }

 private:
  int me_;
  size_t stride_;
  Scratch<char> space_;
  Scratch<const void*> sources_;
};

// Sends of two pieces are under way, so that a message of another operation between the same ranks waits for two
// pieces, not for the end of a large one.
RouteRun plain_run(const GroupLane& lane, View whole, int64_t stops, int64_t chunk, int ahead) {
  RouteRun run(lane, stops, chunk);
  run.whole = whole;
  run.dtypes[0] = run.dtypes[1] = whole.dtype;
  run.seat.ranks = lane.size();
  run.flows[0] = {.ahead = ahead, .exchanges = 2, .own_ahead = 1};
  // Only what has been sent may be overwritten by the sums that come back.
  run.flows[1] = {.ahead = 1, .exchanges = 2};
  return run;
}

// A slice leaves in full before the next but one is begun.
RouteRun ring_run(const GroupLane& lane, View whole, const Bounds& bounds) {
  const int64_t chunk = lane.chunk_elements(whole.dtype);
  const int64_t most = std::max<int64_t>(1, (longest_slice(bounds, lane.size()) + chunk - 1) / chunk);
  RouteRun run = plain_run(lane, whole, lane.size(), chunk, 2);
  run.flows[0] = {.ahead = 2, .exchanges = 2, .group = most, .own_ahead = most, .shift = most};
  return run;
}

// Elements of a piece of what only travels.
int64_t piece_elements(const GroupLane& lane, DType dtype) {
  return std::max<int64_t>(1, static_cast<int64_t>(lane.piece_bytes() / size_of(dtype)));
}

}  // namespace

// Chunks between two hosts are worth being twice as large as those that come through a cache. 4 MiB over TCP beside
// MPI's all-reduce: 1.08 in pieces of 256 KiB, 1.02 of 512 KiB, 0.99 of 1 MiB; but steps of ZeRO-2 (bench step char,
// 1 Gbit/s) take 505, 504 and 519 ms with them.
int64_t GroupLane::chunk_elements(DType dtype) const {
  const int64_t factor = nodes.size() == 2 && nodes[0] != nodes[1] ? 2 : 1;
  const int64_t elements = std::min(factor * tuning->chunk_bytes, static_cast<int64_t>(kLargestMessage)) /
                           static_cast<int64_t>(size_of(dtype));
  return std::max(kCut, elements / kCut * kCut);
}

// Larger where memory is the wire: a piece costs 0.7 us, and of a ping-pong of 4 MiB on shared memory pieces of 256 KiB
// are 3 %. On a network what waits behind two pieces waits for long, and 0.7 us are nothing.
size_t GroupLane::piece_bytes() const {
  const bool one_node = std::ranges::all_of(nodes, [this](int node) { return node == nodes[0]; });
  return static_cast<size_t>(std::min((one_node ? 4 : 2) * tuning->chunk_bytes, static_cast<int64_t>(kLargestMessage)));
}

Bounds even_bounds(BlockPool& pool, int64_t count, int ranks) {
  Bounds bounds(pool, ranks + 1);
  for (int r = 0; r <= ranks; ++r) bounds[r] = even_bound(count, ranks, r);
  return bounds;
}

Task nothing(GroupLane) {
  co_return;
}

namespace {

Task exchange_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const int n = lane.size();
  const Landing landing(lane, data.count(), data.dtype);
  Exchange exchange(lane);
  for (int i = 1; i < n; ++i) {
    const int peer = (lane.me + n - i) % n;
    exchange.receive(landing.of(0, peer), data.bytes(), lane.world_rank(peer));
  }
  for (int i = 1; i < n; ++i) exchange.send(data.data, data.bytes(), lane.world_rank((lane.me + i) % n));
  co_await exchange;
  combine_in_rank_order(kind, data.dtype, landing.sources(0, data.data), n, data.dtype, data.data, data.count(), false);
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
    exchange.receive(held.data() + static_cast<size_t>(have) * bytes, moved, lane.world_rank((me + have) % n));
    exchange.send(held.data(), moved, lane.world_rank((me - have + n) % n));
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

// Max, min and or: partial results are those of ranks that stand next to each other and are combined in their order, so
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
    exchange.send(data.data, data.bytes(), lane.world_rank(lane.me - 1));
    co_await exchange;
    exchange.receive(data.data, data.bytes(), lane.world_rank(lane.me - 1));
    co_await exchange;
    co_return;
  }
  if (d.team < d.extra) {
    exchange.receive(landing.data(), data.bytes(), lane.world_rank(lane.me + 1));
    co_await exchange;
    combine(false);
  }
  for (int step = 1; step < d.teams; step *= 2) {
    const int peer = lane.world_rank(d.leader(d.team ^ step));
    exchange.receive(landing.data(), data.bytes(), peer);
    exchange.send(data.data, data.bytes(), peer);
    co_await exchange;
    combine((d.team & step) != 0);
  }
  if (d.team < d.extra) {
    exchange.send(data.data, data.bytes(), lane.world_rank(lane.me + 1));
    co_await exchange;
  }
}

}  // namespace

Task small_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const bool one_message = data.bytes() * static_cast<size_t>(lane.size()) <= kLargestMessage;
  if (lane.size() < kFirstTree || (kind == ReduceKind::kSum && !one_message))
    return exchange_all_reduce(lane, data, kind);
  return kind == ReduceKind::kSum ? bruck_all_reduce(lane, data, kind) : doubling_all_reduce(lane, data, kind);
}

int64_t small_all_reduce_vectors(int members, int me, ReduceKind kind) {
  if (members < kFirstTree || kind == ReduceKind::kSum) return members - 1;
  const Doubling d(members, me);
  if (d.team < 0) return 1;
  return std::countr_zero(static_cast<unsigned>(d.teams)) + (d.team < d.extra ? 1 : 0);
}

Task direct_reduce_scatter(GroupLane lane, View whole, const Bounds& bounds, View out, bool accumulate) {
  RouteRun run = plain_run(lane, whole, lane.size(), lane.chunk_elements(whole.dtype), 2);
  run.out = out;
  run.accumulate = accumulate;
  direct_reduce_scatter_route(run, group_of(lane, bounds));
  return run_route(lane, std::move(run));
}

Task direct_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const Bounds bounds = even_bounds(lane.pool(), data.count(), lane.size());
  RouteRun run = plain_run(lane, data, 2 * lane.size(), lane.chunk_elements(data.dtype), 2);
  run.kind = kind;
  run.flow_count = 2;
  direct_all_reduce_route(run, group_of(lane, bounds), 2);
  return run_route(lane, std::move(run));
}

Task direct_all_gather(GroupLane lane, View whole, const Bounds& bounds) {
  return direct_all_gather(lane, part_of(whole, slice_of(bounds, lane.me)), whole, bounds, nullptr);
}

Task direct_all_gather(GroupLane lane, View mine, View whole, const Bounds& bounds, TurnQueue* queue) {
  RouteRun run = plain_run(lane, whole, lane.size(), piece_elements(lane, whole.dtype), kMostAhead);
  run.mine = mine;
  run.queue = queue;
  direct_all_gather_route(run, group_of(lane, bounds));
  return run_route(lane, std::move(run));
}

Task ring_reduce_scatter(GroupLane lane, View whole, const Bounds& bounds, View out, bool accumulate, ReduceKind kind) {
  RouteRun run = ring_run(lane, whole, bounds);
  run.out = out;
  run.accumulate = accumulate;
  run.kind = kind;
  ring_reduce_scatter_route(run, group_of(lane, bounds), run.flows[0].group, true);
  return run_route(lane, std::move(run));
}

Task ring_all_gather(GroupLane lane, View whole, const Bounds& bounds) {
  RouteRun run = ring_run(lane, whole, bounds);
  run.mine = part_of(whole, slice_of(bounds, lane.me));
  ring_all_gather_route(run, group_of(lane, bounds), run.flows[0].group);
  return run_route(lane, std::move(run));
}

Task ring_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const Bounds bounds = even_bounds(lane.pool(), data.count(), lane.size());
  Task reduce = ring_reduce_scatter(lane, data, bounds, part_of(data, slice_of(bounds, lane.me)), false, kind);
  co_await reduce;
  GroupLane back = lane;
  back.tag = lane.tag + 1;
  Task gather = ring_all_gather(back, data, bounds);
  co_await gather;
}

Task direct_all_to_all(GroupLane lane, View from, const Bounds& from_bounds, View to, const Bounds& to_bounds) {
  RouteRun run = plain_run(lane, from, 2 * lane.size(), piece_elements(lane, from.dtype), kMostAhead);
  run.mine = to;
  run.kept_from = part_of(from, slice_of(from_bounds, lane.me));
  run.kept_to = part_of(to, slice_of(to_bounds, lane.me));
  all_to_all_route(run, group_of(lane, from_bounds), group_of(lane, to_bounds), false);
  return run_route(lane, std::move(run));
}

Task tree_broadcast(GroupLane lane, View data, int root) {
  // Pieces are passed on, and with two ranks nobody does.
  const int64_t chunk = lane.size() > 2 ? lane.chunk_elements(data.dtype) : piece_elements(lane, data.dtype);
  RouteRun run = plain_run(lane, data, 1, chunk, 2);
  run.flows[0].own_ahead = 0;
  tree_broadcast_route(run, lane.size(), lane.me, root, data.count());
  return run_route(lane, std::move(run));
}

Task dissemination_barrier(GroupLane lane) {
  const int n = lane.size();
  for (int step = 1; step < n; step *= 2) {
    Exchange exchange(lane);
    exchange.receive(nullptr, 0, lane.world_rank((lane.me + n - step) % n));
    exchange.send(nullptr, 0, lane.world_rank((lane.me + step) % n));
    co_await exchange;
  }
}

Task message_task(GroupLane lane, View data, int peer, bool is_send) {
  RouteRun run = plain_run(lane, data, 1, piece_elements(lane, data.dtype), kMostAhead);
  message_route(run, peer, is_send, data.count());
  return run_route(lane, std::move(run));
}

}  // namespace thinwire
