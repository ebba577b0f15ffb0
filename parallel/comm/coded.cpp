// Coded reductions, point-to-point messages and all-to-all, piece by piece.
#include "parallel/comm/coded.h"

#include <optional>

#include "parallel/comm/coded_chunks.h"
#include "parallel/comm/rank_sum.h"
#include "parallel/comm/tuning.h"

namespace thinwire {
namespace {

int64_t element_bytes(const View& view) {
  return static_cast<int64_t>(size_of(view.dtype));
}

}  // namespace

// --- reduce-scatter ---------------------------------------------------------------------------------------------

Task scatter_pieces(GroupLane lane, CodedCall call, Seat seat, View whole, Bounds bounds, View out, bool accumulate) {
  const Slice own = slice_of(bounds, lane.me);
  PieceCoder coder(lane, call, seat);
  if (lane.size() == 1) {
    const void* source = part_of(whole, own).data;
    if (own.count > 0 && (accumulate || out.data != source || out.dtype != whole.dtype))
      combine_in_rank_order(ReduceKind::kSum, whole.dtype, &source, 1, out.dtype, out.data, own.count, accumulate);
    co_return;
  }
  const Cut cut(*lane.tuning, whole.dtype, call.coder);
  CodedScatter scatter(lane, coder, whole, bounds, cut, lane.tag, lane.tag + 1);
  for (int k = 0; k < kInFlight; ++k) scatter.post(k);
  scatter.send(0);
  scatter.send(1);
  for (int64_t k = 0; k < scatter.steps(); ++k) {
    if (k + 2 < scatter.steps()) {
      Exchange& departures = scatter.departures(k + 2);  // named: GCC 12 would copy what a call returns
      co_await departures;
      scatter.send(k + 2);
    }
    Exchange& lengths = scatter.lengths(k);
    co_await lengths;
    scatter.follow(k);
    Exchange& arrivals = scatter.arrivals(k);
    co_await arrivals;
    if (const Slice mine = scatter.mine(k); mine.count > 0)
      scatter.sum(k, out.element_range(mine.first - own.first, mine.count), accumulate);
    scatter.post(k + kInFlight);
  }
  for (int k = 0; k < kInFlight; ++k) {
    Exchange& departures = scatter.departures(k);
    co_await departures;
  }
}

Task coded_reduce_scatter(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate) {
  const int n = lane.size();
  const Tally tally(lane, call.counters, (whole.count() - slice_of(bounds, lane.me).count) * element_bytes(whole));
  Task scatter = scatter_pieces(lane, call, {.ranks = n}, whole, std::move(bounds), out, accumulate);
  co_await scatter;
}

// --- all-reduce -------------------------------------------------------------------------------------------------

namespace {

// Both codings have payloads of known length: the sums of piece k go back while piece k + 1 arrives.
Task all_reduce_pieces(GroupLane lane, CodedCall scatter_call, CodedCall gather_call, View data) {
  const int n = lane.size(), me = lane.me;
  const int64_t unit = common_unit(scatter_call.coder, gather_call.coder);
  const Bounds bounds = part_bounds(lane.pool(), data.count(), n, unit);
  const Slice own = slice_of(bounds, me);
  const Seat seat{.ranks = n};
  const Cut cut(*lane.tuning, data.dtype, scatter_call.coder, gather_call.coder);
  PieceCoder coder(lane, scatter_call, seat), sums(lane, gather_call, seat);
  CodedScatter scatter(lane, coder, data, bounds, cut, lane.tag, lane.tag + 1);
  const DType sum_type = sum_dtype(gather_call.coder, data.dtype);
  const size_t longest = sums.bytes(cut.longest(longest_slice(bounds, n)), sum_type);
  const Scratch<char> sum(lane.pool(),
                          sums.plain() ? 0 : cut.longest(own.count) * static_cast<int64_t>(size_of(sum_type)));
  Outbox back(lane, 1, sums.plain() ? 0 : longest, false, lane.tag + 1, lane.tag + 1);
  Inbox in(lane, n, longest, false, lane.tag + 1, lane.tag + 1);
  const auto post_sums = [&](int64_t k) {
    if (k >= scatter.steps()) return;
    in.clear(k);
    for (int i = 1; i < n; ++i) {
      const int peer = (me + n - i) % n;
      const Slice piece = cut.piece(slice_of(bounds, peer), k);
      if (piece.count > 0) in.expect(k, peer, sums.bytes(piece.count, sum_type), lane.world_rank(peer));
    }
  };
  const auto send_sum = [&](int64_t k) {
    const Slice mine = scatter.mine(k);
    if (mine.count == 0) return;
    const View result = part_of(data, mine);
    const char* payload = static_cast<const char*>(result.data);
    size_t bytes = result.bytes();
    if (sums.plain()) {
      scatter.sum(k, result, false);
    } else {
      const View total(sum.data(), sum_type, {mine.count});
      scatter.sum(k, total, false);
      char* const room = back.of(k, 0);
      bytes = sums.pack(total, View(), mine.first, room, result);
      payload = room;
    }
    for (int i = 1; i < n; ++i) back.send(k, 0, payload, bytes, lane.world_rank((me + i) % n));
    // The owner takes what the others take.
    if (!sums.plain()) sums.absorb_own(payload, bytes, sum_type, result, mine.first, k);
  };
  const auto take_sums = [&](int64_t k) {
    for (int peer = 0; peer < n; ++peer) {
      const Slice piece = cut.piece(slice_of(bounds, peer), k);
      if (peer == me || piece.count == 0) continue;
      sums.absorb_one(in.data(k, peer), in.bytes(k, peer), peer, sum_type, part_of(data, piece), piece.first, k);
    }
  };
  for (int k = 0; k < kInFlight; ++k) {
    scatter.post(k);
    post_sums(k);
  }
  scatter.send(0);
  scatter.send(1);
  for (int64_t k = 0; k <= scatter.steps(); ++k) {
    if (k < scatter.steps()) {
      if (k + 2 < scatter.steps()) {
        Exchange& departures = scatter.departures(k + 2);
        co_await departures;
        scatter.send(k + 2);
      }
      Exchange& arrivals = scatter.arrivals(k);
      co_await arrivals;
      Exchange& returned = back.departures(k);
      co_await returned;
      send_sum(k);
      scatter.post(k + kInFlight);
    }
    if (k == 0) continue;
    // What travels as it is was sent from where the sums go now.
    Exchange& departures = scatter.departures(k - 1);
    if (coder.plain()) co_await departures;
    Exchange& arrivals = in.arrivals(k - 1);
    co_await arrivals;
    take_sums(k - 1);
    post_sums(k - 1 + kInFlight);
  }
  for (int k = 0; k < kInFlight; ++k) {
    Exchange& departures = scatter.departures(k);
    co_await departures;
    Exchange& returned = back.departures(k);
    co_await returned;
  }
}

// A framed payload on either way: one behind the other.
Task all_reduce_in_turn(GroupLane lane, CodedCall scatter_call, CodedCall gather_call, View data) {
  const int n = lane.size();
  Bounds bounds = part_bounds(lane.pool(), data.count(), n, common_unit(scatter_call.coder, gather_call.coder));
  const Slice own = slice_of(bounds, lane.me);
  const DType sum_type = sum_dtype(gather_call.coder, data.dtype);
  const Scratch<char> space(lane.pool(), own.count * static_cast<int64_t>(size_of(sum_type)));
  const View sum(space.data(), sum_type, {own.count});
  Task scatter = scatter_pieces(lane, scatter_call, {.ranks = n}, data, copy_of(lane.pool(), bounds, n), sum, false);
  co_await scatter;
  // No turn among all-gathers: it would be taken here, behind the scatter, and ranks whose scatters end in another
  // order would wait for each other for ever.
  TurnQueue alone;
  lane.gathers = &alone;
  Task gather = gather_pieces(lane, gather_call, {.ranks = n}, sum, data, std::move(bounds));
  co_await gather;
}

}  // namespace

Task coded_all_reduce(GroupLane lane, CodedCall scatter, CodedCall gather, View data) {
  const int n = lane.size();
  if (n == 1) co_return;
  const int64_t count = data.count();
  const int64_t unit = common_unit(scatter.coder, gather.coder);
  const int64_t own = part_bound(count, n, lane.me + 1, unit) - part_bound(count, n, lane.me, unit);
  const Tally tally(lane, scatter.counters, (count - own + own * (n - 1)) * element_bytes(data));
  Task task = is_framed(scatter.coder) || is_framed(gather.coder) ? all_reduce_in_turn(lane, scatter, gather, data)
                                                                  : all_reduce_pieces(lane, scatter, gather, data);
  co_await task;
}

// --- point to point ---------------------------------------------------------------------------------------------

// A message has one tag: lengths and payloads take turns on it.
Task coded_send(GroupLane lane, CodedCall call, View data, int peer) {
  std::optional<Turn> turn;
  if (call.packing != nullptr) {
    Turn& mine = turn.emplace(lane, *call.packing);
    co_await mine;
  }
  const Tally tally(lane, call.counters, data.count() * element_bytes(data));
  const Seat seat{.ranks = lane.size()};
  const Cut cut(*lane.tuning, data.dtype, call.coder);
  const Slice all{0, data.count()};
  PieceCoder coder(lane, call, seat);
  Outbox out(lane, 1, coder.plain() ? 0 : coder.bytes(cut.longest(all.count), data.dtype), coder.framed(), lane.tag,
             lane.tag);
  for (int64_t k = 0; k < cut.pieces(all.count); ++k) {
    Exchange& departures = out.departures(k);
    co_await departures;
    const Slice piece = cut.piece(all, k);
    const View part = part_of(data, piece);
    const char* payload = static_cast<const char*>(part.data);
    size_t bytes = part.bytes();
    if (!coder.plain()) {
      char* const room = out.of(k, 0);
      bytes = coder.pack(part, View(), piece.first, room);
      payload = room;
    }
    out.send(k, 0, payload, bytes, lane.world_rank(peer));
  }
  turn.reset();
  for (int k = 0; k < kInFlight; ++k) {
    Exchange& departures = out.departures(k);
    co_await departures;
  }
}

Task coded_receive(GroupLane lane, CodedCall call, View data, int peer) {
  const Tally tally(lane, call.counters, 0);
  const Seat seat{.ranks = lane.size()};
  const Cut cut(*lane.tuning, data.dtype, call.coder);
  const Slice all{0, data.count()};
  const int64_t steps = cut.pieces(all.count);
  PieceCoder coder(lane, call, seat);
  Inbox in(lane, 1, coder.plain() ? 0 : coder.bytes(cut.longest(all.count), data.dtype), coder.framed(), lane.tag,
           lane.tag);
  const auto post = [&](int64_t k) {
    if (k >= steps) return;
    const View part = part_of(data, cut.piece(all, k));
    in.expect(k, 0, coder.bytes(part.count(), data.dtype), lane.world_rank(peer),
              coder.plain() ? static_cast<char*>(part.data) : nullptr);
  };
  const int ahead = coder.framed() ? 1 : kInFlight;
  for (int k = 0; k < ahead; ++k) post(k);
  for (int64_t k = 0; k < steps; ++k) {
    Exchange& lengths = in.lengths(k);
    co_await lengths;
    if (in.follow(k) >= 0) coder.bad_payload(peer, k, kBadLength);
    if (coder.framed()) post(k + 1);
    Exchange& arrivals = in.arrivals(k);
    co_await arrivals;
    const Slice piece = cut.piece(all, k);
    if (!coder.plain())
      coder.absorb_one(in.data(k, 0), in.bytes(k, 0), peer, data.dtype, part_of(data, piece), piece.first, k);
    if (!coder.framed()) post(k + ahead);
  }
}

// --- all-to-all -------------------------------------------------------------------------------------------------

Task coded_all_to_all(GroupLane lane, CodedCall call, View from, Bounds from_bounds, View to, Bounds to_bounds) {
  const int n = lane.size(), me = lane.me;
  const Slice kept = slice_of(from_bounds, me);
  const Tally tally(lane, call.counters, (from.count() - kept.count) * element_bytes(from));
  const Cut cut(*lane.tuning, from.dtype, call.coder);
  PieceCoder coder(lane, call, {.ranks = n});
  const int64_t steps = std::max(cut.most_pieces(from_bounds, n), cut.most_pieces(to_bounds, n));
  Outbox out(lane, n, coder.plain() ? 0 : coder.bytes(cut.longest(longest_slice(from_bounds, n)), from.dtype),
             coder.framed(), lane.tag, lane.tag + 1);
  Inbox in(lane, n, coder.plain() ? 0 : coder.bytes(cut.longest(longest_slice(to_bounds, n)), from.dtype),
           coder.framed(), lane.tag, lane.tag + 1);
  // Where a part starts is the sender's knowledge alone, so pieces are numbered within their part; with a state, which
  // has a place for every element, by the place in `from`, which is then the same on all ranks.
  const auto place_of = [&](int part, const Slice& whole_part, const Slice& piece) {
    return piece.first - whole_part.first + (call.state != nullptr ? from_bounds[part] : 0);
  };
  const auto post = [&](int64_t k) {
    if (k >= steps) return;
    in.clear(k);
    for (int i = 1; i < n; ++i) {
      const int peer = (me + n - i) % n;
      const View part = part_of(to, cut.piece(slice_of(to_bounds, peer), k));
      if (part.count() > 0)
        in.expect(k, peer, coder.bytes(part.count(), from.dtype), lane.world_rank(peer),
                  coder.plain() ? static_cast<char*>(part.data) : nullptr);
    }
  };
  const auto send = [&](int64_t k) {
    for (int i = 1; i < n; ++i) {
      const int peer = (me + i) % n;
      const Slice piece = cut.piece(slice_of(from_bounds, peer), k);
      if (piece.count == 0) continue;
      const View part = part_of(from, piece);
      const char* payload = static_cast<const char*>(part.data);
      size_t bytes = part.bytes();
      if (!coder.plain()) {
        char* const room = out.of(k, peer);
        bytes = coder.pack(part, View(), place_of(peer, slice_of(from_bounds, peer), piece), room);
        payload = room;
      }
      out.send(k, peer, payload, bytes, lane.world_rank(peer));
    }
  };
  for (int k = 0; k < kInFlight; ++k) post(k);
  send(0);
  send(1);
  convert(part_of(from, kept), part_of(to, slice_of(to_bounds, me)));
  for (int64_t k = 0; k < steps; ++k) {
    Exchange& departures = out.departures(k + 2);
    co_await departures;
    send(k + 2);
    Exchange& lengths = in.lengths(k);
    co_await lengths;
    if (const int bad = in.follow(k); bad >= 0) coder.bad_payload(bad, k, kBadLength);
    Exchange& arrivals = in.arrivals(k);
    co_await arrivals;
    for (int peer = 0; peer < n && !coder.plain(); ++peer) {
      const Slice part = slice_of(to_bounds, peer), piece = cut.piece(part, k);
      if (peer == me || piece.count == 0) continue;
      coder.absorb_one(in.data(k, peer), in.bytes(k, peer), peer, from.dtype, part_of(to, piece),
                       place_of(me, part, piece), k);
    }
    post(k + kInFlight);
  }
  for (int k = 0; k < kInFlight; ++k) {
    Exchange& departures = out.departures(k);
    co_await departures;
  }
}

}  // namespace thinwire
