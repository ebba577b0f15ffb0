// Direct exchanges, rings, trees. Ranks are group members here; Exchange wants world ranks.
#include "parallel/comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "parallel/comm/rank_sum.h"
#include "parallel/comm/tuning.h"

namespace thinwire {
namespace {

constexpr int64_t kCut = 16;  // elements: chunks end on whole vectors

char* at(const View& view, int64_t element) {
  return static_cast<char*>(view.data) + static_cast<size_t>(element) * size_of(view.dtype);
}

size_t part_bytes(const View& view, const Bounds& bounds, int r) {
  return static_cast<size_t>(bounds[r + 1] - bounds[r]) * size_of(view.dtype);
}

int64_t pieces(int64_t count, int64_t chunk) {
  return (count + chunk - 1) / chunk;
}

// Elements [first, first + count) of chunk k of rank r's range; count 0 where it has no such chunk.
struct Piece {
  int64_t first = 0, count = 0;
};
Piece piece_of(const Bounds& bounds, int r, int64_t k, int64_t chunk) {
  const int64_t begin = bounds[r] + k * chunk;
  return {begin, std::max<int64_t>(0, std::min(chunk, bounds[r + 1] - begin))};
}

int64_t most_pieces(const Bounds& bounds, int ranks, int64_t chunk) {
  int64_t most = 0;
  for (int r = 0; r < ranks; ++r) most = std::max(most, pieces(bounds[r + 1] - bounds[r], chunk));
  return most;
}

// Bytes to or from one peer.
struct Leg {
  char* data = nullptr;  // only read where they are sent
  size_t bytes = 0;
  int peer = 0;  // world rank
};
using Legs = Scratch<Leg>;
struct OwnCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// Pieces whose receives are posted: what comes before somebody asked for it is copied once more.
constexpr size_t kAwaited = 4;

// Moves all legs at once, in pieces, two of each leg under way at a time: a message of another operation between the
// same ranks waits for two pieces, not for the end of a large one. queue: whose turn it is to send; nullptr: no order.
Task move_legs(GroupLane lane, Legs sends, Legs receives, OwnCopy own, TurnQueue* queue) {
  const size_t piece = lane.piece_bytes();
  size_t longest_send = 0, longest = 0;
  for (int64_t i = 0; i < sends.count(); ++i) longest_send = std::max(longest_send, sends[i].bytes);
  for (int64_t i = 0; i < receives.count(); ++i) longest = std::max(longest, receives[i].bytes);
  longest = std::max(longest, longest_send);
  Exchange arrivals[kAwaited] = {Exchange(lane), Exchange(lane), Exchange(lane), Exchange(lane)};
  Exchange departures[2] = {Exchange(lane), Exchange(lane)};
  std::optional<Turn> turn;
  if (queue != nullptr) turn.emplace(lane, *queue);
  const auto receive = [&](size_t k) {
    for (int64_t i = 0; i < receives.count(); ++i) {
      const Leg& leg = receives[i];
      if (k * piece < leg.bytes)
        arrivals[k % kAwaited].receive(leg.data + k * piece, std::min(piece, leg.bytes - k * piece), leg.peer);
    }
  };
  const auto send = [&](size_t k) {
    if (turn && (k + 1) * piece >= longest_send) turn->pass_on();
    for (int64_t i = 0; i < sends.count(); ++i) {
      const Leg& leg = sends[i];
      if (k * piece < leg.bytes)
        departures[k % 2].send(leg.data + k * piece, std::min(piece, leg.bytes - k * piece), leg.peer);
    }
  };
  for (size_t k = 0; k < kAwaited; ++k) receive(k);
  if (turn) {
    Turn& mine = *turn;
    co_await mine;
  }
  send(0);
  send(1);
  if (own.bytes > 0 && own.to != own.from) std::memmove(own.to, own.from, own.bytes);  // while others send
  for (size_t k = 0; k * piece < longest; ++k) {
    Exchange& in = arrivals[k % kAwaited];  // named: GCC 12 would copy what an expression gives
    Exchange& out = departures[k % 2];
    co_await in;
    receive(k + kAwaited);
    co_await out;
    send(k + 2);
  }
}

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

// The first half of both direct reductions: in step k every rank sends piece k of each peer's range and receives the
// peers' parts of its own, two steps under way at a time. Lives in the frame of the task that awaits it.
class DirectScatter {
 public:
  DirectScatter(GroupLane lane, View whole, const Bounds& bounds)
      : lane_(lane),
        whole_(whole),
        bounds_(bounds),
        chunk_(lane.chunk_elements(whole.dtype)),
        steps_(most_pieces(bounds, lane.size(), chunk_)),
        landing_(lane, std::min(chunk_, bounds[lane.me + 1] - bounds[lane.me]), whole.dtype),
        arrivals_{Exchange(lane), Exchange(lane)},
        departures_{Exchange(lane), Exchange(lane)} {}

  int64_t steps() const { return steps_; }
  Piece piece(int rank, int64_t k) const { return piece_of(bounds_, rank, k, chunk_); }
  Piece mine(int64_t k) const { return piece(lane_.me, k); }
  Exchange& arrivals(int64_t k) { return arrivals_[k % 2]; }
  Exchange& departures(int64_t k) { return departures_[k % 2]; }
  // This rank's own part and, where they landed, those of the others, in rank order.
  auto sources(int64_t k) { return landing_.sources(k, at(whole_, mine(k).first)); }

  void post(int64_t k) {
    if (k >= steps_) return;
    const int n = lane_.size(), me = lane_.me;
    const size_t element = size_of(whole_.dtype);
    const Piece own = mine(k);
    for (int i = 1; i < n && own.count > 0; ++i) {
      const int peer = (me + n - i) % n;
      arrivals(k).receive(landing_.of(k, peer), static_cast<size_t>(own.count) * element, lane_.world_rank(peer));
    }
    for (int i = 1; i < n; ++i) {
      const int peer = (me + i) % n;
      const Piece theirs = piece(peer, k);
      if (theirs.count > 0)
        departures(k).send(at(whole_, theirs.first), static_cast<size_t>(theirs.count) * element,
                           lane_.world_rank(peer));
    }
  }

 private:
  GroupLane lane_;
  View whole_;
  const Bounds& bounds_;
  int64_t chunk_, steps_;
  Landing landing_;
  Exchange arrivals_[2], departures_[2];
};

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

Task direct_reduce_scatter(GroupLane lane, View whole, Bounds bounds, View out, bool accumulate) {
  DirectScatter scatter(lane, whole, bounds);
  scatter.post(0);
  scatter.post(1);
  for (int64_t k = 0; k < scatter.steps(); ++k) {
    Exchange& arrivals = scatter.arrivals(k);  // named: GCC 12 would copy what a call returns
    Exchange& departures = scatter.departures(k);
    co_await arrivals;
    if (const Piece mine = scatter.mine(k); mine.count > 0) {
      combine_in_rank_order(ReduceKind::kSum, whole.dtype, scatter.sources(k), lane.size(), out.dtype,
                            at(out, mine.first - bounds[lane.me]), mine.count, accumulate);
    }
    co_await departures;
    scatter.post(k + 2);
  }
}

Task direct_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const int n = lane.size(), me = lane.me;
  const Bounds bounds = even_bounds(lane.pool(), data.count(), n);
  const size_t element = size_of(data.dtype);
  DirectScatter scatter(lane, data, bounds);
  Exchange back_even(lane), back_odd(lane);
  scatter.post(0);
  scatter.post(1);
  for (int64_t k = 0; k < scatter.steps(); ++k) {
    Exchange& arrivals = scatter.arrivals(k);  // named: GCC 12 would copy what a call returns
    Exchange& departures = scatter.departures(k);
    co_await arrivals;
    const Piece mine = scatter.mine(k);
    if (mine.count > 0) {
      combine_in_rank_order(kind, data.dtype, scatter.sources(k), n, data.dtype, at(data, mine.first), mine.count,
                            false);
    }
    // Only what has been sent may be overwritten by the sums that come back.
    co_await departures;
    Exchange& sums = k % 2 == 0 ? back_even : back_odd;
    co_await sums;
    for (int i = 1; i < n; ++i) {
      const int peer = (me + n - i) % n;
      const Piece theirs = scatter.piece(peer, k);
      if (theirs.count > 0)
        sums.receive(at(data, theirs.first), static_cast<size_t>(theirs.count) * element, lane.world_rank(peer),
                     lane.tag + 1);
    }
    for (int i = 1; i < n && mine.count > 0; ++i)
      sums.send(at(data, mine.first), static_cast<size_t>(mine.count) * element, lane.world_rank((me + i) % n),
                lane.tag + 1);
    scatter.post(k + 2);
  }
  co_await back_even;
  co_await back_odd;
}

Task direct_all_gather(GroupLane lane, View whole, const Bounds& bounds) {
  return direct_all_gather(lane, whole.element_range(bounds[lane.me], bounds[lane.me + 1] - bounds[lane.me]), whole,
                           bounds, nullptr);
}

Task direct_all_gather(GroupLane lane, View mine, View whole, const Bounds& bounds, TurnQueue* queue) {
  const int n = lane.size(), me = lane.me;
  Legs sends(lane.pool(), n - 1), receives(lane.pool(), n - 1);
  for (int i = 1; i < n; ++i) {
    const int from = (me + n - i) % n;
    receives[i - 1] = {at(whole, bounds[from]), part_bytes(whole, bounds, from), lane.world_rank(from)};
    sends[i - 1] = {static_cast<char*>(mine.data), mine.bytes(), lane.world_rank((me + i) % n)};
  }
  return move_legs(lane, std::move(sends), std::move(receives), {at(whole, bounds[me]), mine.data, mine.bytes()},
                   queue);
}

Task ring_reduce_scatter(GroupLane lane, View whole, Bounds bounds, View out, bool accumulate, ReduceKind kind) {
  const int n = lane.size(), me = lane.me;
  const int to = lane.world_rank((me + 1) % n), from = lane.world_rank((me + n - 1) % n);
  const int64_t chunk = lane.chunk_elements(whole.dtype);
  const size_t element = size_of(whole.dtype);
  const Scratch<char> landing(lane.pool(), 2 * chunk * static_cast<int64_t>(element));
  Exchange in_even(lane), in_odd(lane), sends(lane);
  // What arrives, in order: step s brings the partial sums of slice me - s - 2, chunk by chunk.
  struct Cursor {
    int step = 0;
    int64_t k = 0;
  };
  const auto slice = [n, me](int step) { return (me - step - 2 + 2 * n) % n; };
  const auto settle = [&](Cursor& c) {  // moves on to a chunk that exists, or to the end
    while (c.step < n - 1 && piece_of(bounds, slice(c.step), c.k, chunk).count == 0) c = {c.step + 1, 0};
  };
  Cursor posted;
  int64_t receives = 0;
  const auto post = [&] {
    settle(posted);
    if (posted.step >= n - 1) return;
    const Piece piece = piece_of(bounds, slice(posted.step), posted.k++, chunk);
    (receives % 2 == 0 ? in_even : in_odd)
        .receive(landing.data() + (receives % 2) * chunk * static_cast<int64_t>(element),
                 static_cast<size_t>(piece.count) * element, from);
    ++receives;
  };
  post();
  post();
  const int first = (me + n - 1) % n;
  for (int64_t k = 0; k * chunk < bounds[first + 1] - bounds[first]; ++k) {
    const Piece piece = piece_of(bounds, first, k, chunk);
    sends.send(at(whole, piece.first), static_cast<size_t>(piece.count) * element, to);
  }
  Cursor taken;
  for (int64_t i = 0;; ++i) {
    settle(taken);
    if (taken.step >= n - 1) break;
    Exchange& in = i % 2 == 0 ? in_even : in_odd;
    co_await in;
    const int r = slice(taken.step);
    const Piece piece = piece_of(bounds, r, taken.k++, chunk);
    char* const mine = at(whole, piece.first);
    const void* sources[2] = {landing.data() + (i % 2) * chunk * static_cast<int64_t>(element), mine};
    if (r == me) {
      combine_in_rank_order(kind, whole.dtype, sources, 2, out.dtype, at(out, piece.first - bounds[me]), piece.count,
                            accumulate);
    } else {
      combine_in_rank_order(kind, whole.dtype, sources, 2, whole.dtype, mine, piece.count, false);
      sends.send(mine, static_cast<size_t>(piece.count) * element, to);
    }
    post();
  }
  co_await sends;
}

Task ring_all_gather(GroupLane lane, View whole, Bounds bounds) {
  const int n = lane.size(), me = lane.me;
  const int to = lane.world_rank((me + 1) % n), from = lane.world_rank((me + n - 1) % n);
  const int64_t chunk = lane.chunk_elements(whole.dtype);
  const size_t element = size_of(whole.dtype);
  Exchange in_even(lane), in_odd(lane), sends(lane);
  struct Cursor {
    int step = 0;
    int64_t k = 0;
  };
  const auto slice = [n, me](int step) { return (me - step - 1 + n) % n; };
  const auto settle = [&](Cursor& c) {
    while (c.step < n - 1 && piece_of(bounds, slice(c.step), c.k, chunk).count == 0) c = {c.step + 1, 0};
  };
  Cursor posted;
  int64_t receives = 0;
  const auto post = [&] {
    settle(posted);
    if (posted.step >= n - 1) return;
    const Piece piece = piece_of(bounds, slice(posted.step), posted.k++, chunk);
    (receives++ % 2 == 0 ? in_even : in_odd)
        .receive(at(whole, piece.first), static_cast<size_t>(piece.count) * element, from);
  };
  post();
  post();
  for (int64_t k = 0; k * chunk < bounds[me + 1] - bounds[me]; ++k) {
    const Piece piece = piece_of(bounds, me, k, chunk);
    sends.send(at(whole, piece.first), static_cast<size_t>(piece.count) * element, to);
  }
  Cursor taken;
  for (int64_t i = 0;; ++i) {
    settle(taken);
    if (taken.step >= n - 1) break;
    Exchange& in = i % 2 == 0 ? in_even : in_odd;
    co_await in;
    const Piece piece = piece_of(bounds, slice(taken.step), taken.k++, chunk);
    if (taken.step < n - 2) sends.send(at(whole, piece.first), static_cast<size_t>(piece.count) * element, to);
    post();
  }
  co_await sends;
}

Task ring_all_reduce(GroupLane lane, View data, ReduceKind kind) {
  const int n = lane.size();
  Bounds bounds = even_bounds(lane.pool(), data.count(), n);
  Bounds again(lane.pool(), std::span<const int64_t>(bounds.data(), static_cast<size_t>(n + 1)));
  const View mine = data.element_range(bounds[lane.me], bounds[lane.me + 1] - bounds[lane.me]);
  Task reduce = ring_reduce_scatter(lane, data, std::move(bounds), mine, false, kind);
  co_await reduce;
  GroupLane back = lane;
  back.tag = lane.tag + 1;
  Task gather = ring_all_gather(back, data, std::move(again));
  co_await gather;
}

Task direct_all_to_all(GroupLane lane, View from, const Bounds& from_bounds, View to, const Bounds& to_bounds) {
  const int n = lane.size(), me = lane.me;
  Legs sends(lane.pool(), n - 1), receives(lane.pool(), n - 1);
  for (int i = 1; i < n; ++i) {
    const int source = (me + n - i) % n, peer = (me + i) % n;
    receives[i - 1] = {at(to, to_bounds[source]), part_bytes(to, to_bounds, source), lane.world_rank(source)};
    sends[i - 1] = {at(from, from_bounds[peer]), part_bytes(from, from_bounds, peer), lane.world_rank(peer)};
  }
  const OwnCopy own{at(to, to_bounds[me]), at(from, from_bounds[me]), part_bytes(from, from_bounds, me)};
  return move_legs(lane, std::move(sends), std::move(receives), own, nullptr);
}

Task tree_broadcast(GroupLane lane, View data, int root) {
  const int n = lane.size();
  const int place = (lane.me - root + n) % n;  // in a tree with the root at 0: parents differ in their lowest set bit
  const int parent = lane.world_rank(((place & (place - 1)) + root) % n);
  const size_t element = size_of(data.dtype);
  // Pieces are passed on, and with two ranks nobody does.
  const int64_t chunk = n > 2 ? lane.chunk_elements(data.dtype)
                              : std::max<int64_t>(1, static_cast<int64_t>(lane.piece_bytes() / element));
  const int64_t steps = pieces(data.count(), chunk);
  Exchange in_even(lane), in_odd(lane), out_even(lane), out_odd(lane);
  const auto piece = [&](int64_t k) { return Piece{k * chunk, std::min(chunk, data.count() - k * chunk)}; };
  const auto post = [&](int64_t k) {
    if (place == 0 || k >= steps) return;
    (k % 2 == 0 ? in_even : in_odd)
        .receive(at(data, piece(k).first), static_cast<size_t>(piece(k).count) * element, parent);
  };
  post(0);
  post(1);
  int farthest = 1;
  while (farthest < n && (place & farthest) == 0) farthest *= 2;
  for (int64_t k = 0; k < steps; ++k) {
    Exchange& in = k % 2 == 0 ? in_even : in_odd;
    Exchange& out = k % 2 == 0 ? out_even : out_odd;
    co_await in;
    co_await out;
    for (int step = farthest / 2; step >= 1; step /= 2) {
      if (place + step >= n) continue;
      out.send(at(data, piece(k).first), static_cast<size_t>(piece(k).count) * element,
               lane.world_rank((place + step + root) % n));
    }
    post(k + 2);
  }
  co_await out_even;
  co_await out_odd;
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

Task send_task(GroupLane lane, View data, int peer) {
  Legs sends(lane.pool(), 1);
  sends[0] = {static_cast<char*>(data.data), data.bytes(), lane.world_rank(peer)};
  return move_legs(lane, std::move(sends), Legs(), {}, nullptr);
}

Task receive_task(GroupLane lane, View data, int peer) {
  Legs receives(lane.pool(), 1);
  receives[0] = {static_cast<char*>(data.data), data.bytes(), lane.world_rank(peer)};
  return move_legs(lane, Legs(), std::move(receives), {}, nullptr);
}

}  // namespace thinwire
