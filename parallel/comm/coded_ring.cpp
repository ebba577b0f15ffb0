// Rings with coding at every hop: what the MPI literature does, and what it costs in error.
#include "parallel/comm/coded.h"
#include "parallel/comm/coded_chunks.h"
#include "parallel/comm/tuning.h"

namespace thinwire {
namespace {

// What arrives, in order: step s brings pieces of slice `slice(s)`.
struct Cursor {
  int step = 0;
  int64_t k = 0;
};

// Slice r starts at rank r + 1, where it is packed as it is, and ends at rank r; in between it is decoded, added to and
// packed again at every rank. Payloads of two slices may be on their way out.
Task ring_scatter_pieces(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate) {
  const int n = lane.size(), me = lane.me;
  const int to = lane.world_rank((me + 1) % n), from = lane.world_rank((me + n - 1) % n), previous = (me + n - 1) % n;
  const Cut cut(*lane.tuning, whole.dtype, call.coder);
  PieceCoder coder(lane, call, {.ranks = n});
  const DType hop_type = sum_dtype(call.coder, whole.dtype);
  const auto type_of = [&](int step) { return step == 0 ? whole.dtype : hop_type; };  // of what is packed
  const int64_t longest_piece = cut.longest(longest_slice(bounds, n));
  const size_t longest = std::max(coder.bytes(longest_piece, whole.dtype), coder.bytes(longest_piece, hop_type));
  const auto stride = static_cast<int64_t>((longest + 63) / 64 * 64);
  const int64_t most = cut.most_pieces(bounds, n);
  const bool framed = coder.framed();
  const Scratch<char> leaving(lane.pool(), 2 * most * stride);
  const Scratch<uint64_t> lengths(lane.pool(), framed ? 2 * most : 0);
  const Scratch<char> sum(lane.pool(), longest_piece * static_cast<int64_t>(size_of(hop_type)));
  Exchange even(lane), odd(lane);
  Inbox in(lane, 1, longest, framed, lane.tag, lane.tag + 1);
  const auto send = [&](int step, int64_t k, View part, int64_t first) {
    const int64_t place = (step % 2) * most + k;
    char* const room = leaving.data() + place * stride;
    size_t bytes = part.bytes();
    if (coder.plain()) {
      std::memcpy(room, part.data, bytes);
    } else {
      bytes = coder.pack(part, View(), first, room);
    }
    Exchange& departures = step % 2 == 0 ? even : odd;
    if (framed) {
      lengths[place] = bytes;
      departures.send(&lengths[place], kLengthBytes, to, lane.tag + 1);
    }
    for (size_t sent = 0; sent < bytes; sent += kLargestMessage)
      departures.send(room + sent, std::min(kLargestMessage, bytes - sent), to);
  };
  const auto slice = [n, me](int step) { return (me - step - 2 + 2 * n) % n; };
  const auto settle = [&](Cursor& c) {  // moves on to a piece that exists, or to the end
    while (c.step < n - 1 && cut.piece(slice_of(bounds, slice(c.step)), c.k).count == 0) c = {c.step + 1, 0};
  };
  Cursor posted;
  int64_t receives = 0;
  const auto post = [&] {
    settle(posted);
    if (posted.step >= n - 1) return;
    const Slice piece = cut.piece(slice_of(bounds, slice(posted.step)), posted.k++);
    in.expect(receives++, 0, coder.bytes(piece.count, type_of(posted.step)), from);
  };
  for (int i = 0; i < kInFlight; ++i) post();
  const Slice start = slice_of(bounds, previous);
  for (int64_t k = 0; k < cut.pieces(start.count); ++k) {
    const Slice piece = cut.piece(start, k);
    send(0, k, part_of(whole, piece), piece.first);
  }
  Cursor taken;
  for (int64_t i = 0;; ++i) {
    settle(taken);
    if (taken.step >= n - 1) break;
    Exchange& lengths_in = in.lengths(i);  // named: GCC 12 would copy what a call returns
    co_await lengths_in;
    const int64_t k = taken.k++;
    if (in.follow(i) >= 0) coder.bad_payload(previous, k, kBadLength);
    Exchange& arrivals = in.arrivals(i);
    co_await arrivals;
    const int r = slice(taken.step);
    const Slice piece = cut.piece(slice_of(bounds, r), k);
    Share shares[2];
    shares[0] = coder.share(in.data(i, 0), in.bytes(i, 0), previous, type_of(taken.step), piece.count);
    shares[1].raw = part_of(whole, piece);
    shares[1].rank = me;
    if (r == me) {
      coder.absorb(shares, type_of(taken.step), out.element_range(piece.first - bounds[me], piece.count), accumulate,
                   piece.first, k);
    } else {
      const View partial(sum.data(), hop_type, {piece.count});
      coder.absorb(shares, type_of(taken.step), partial, false, piece.first, k);
      // Buffers of the slice before the last: its pieces have long left.
      Exchange& before = taken.step % 2 == 0 ? odd : even;
      if (k == 0) co_await before;
      send(taken.step + 1, k, partial, piece.first);
    }
    post();
  }
  co_await even;
  co_await odd;
}

// Payloads go round as they were packed by the owner, who absorbs them like everybody.
Task ring_gather_pieces(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds) {
  const int n = lane.size(), me = lane.me;
  const int to = lane.world_rank((me + 1) % n), from = lane.world_rank((me + n - 1) % n);
  const Slice own = slice_of(bounds, me);
  const DType dtype = mine.dtype;
  const Cut cut(*lane.tuning, dtype, call.coder);
  PieceCoder coder(lane, call, {.ranks = n});
  const auto stride = static_cast<int64_t>((coder.bytes(cut.longest(longest_slice(bounds, n)), dtype) + 63) / 64 * 64);
  const int64_t most = cut.most_pieces(bounds, n);
  const bool framed = coder.framed();
  // A slice's payloads: three of them, the one that arrives while two leave.
  const Scratch<char> space(lane.pool(), kInFlight * most * stride);
  const Scratch<uint64_t> lengths(lane.pool(), kInFlight * most);
  Exchange out[kInFlight] = {Exchange(lane), Exchange(lane), Exchange(lane)};
  Exchange lengths_in(lane), arrivals(lane);
  const auto place = [&](int step, int64_t k) { return (step % kInFlight) * most + k; };
  const auto send = [&](int step, int64_t k) {
    const int64_t at = place(step, k);
    Exchange& departures = out[step % kInFlight];
    if (framed) departures.send(&lengths[at], kLengthBytes, to, lane.tag + 1);
    for (size_t sent = 0; sent < lengths[at]; sent += kLargestMessage)
      departures.send(space.data() + at * stride + sent, std::min<size_t>(kLargestMessage, lengths[at] - sent), to);
  };
  for (int64_t k = 0; k < cut.pieces(own.count); ++k) {
    const Slice piece = cut.piece(own, k);
    const View part = mine.element_range(piece.first - own.first, piece.count);
    char* const room = space.data() + place(0, k) * stride;
    if (coder.plain()) {
      std::memcpy(room, part.data, part.bytes());
      lengths[place(0, k)] = part.bytes();
    } else {
      lengths[place(0, k)] = coder.pack(part, View(), piece.first, room);
    }
    send(0, k);
    coder.absorb_one(room, lengths[place(0, k)], me, dtype, part_of(whole, piece), piece.first, k);
  }
  // Step s brings the slice of rank me - s.
  for (int step = 1; step < n; ++step) {
    Exchange& before = out[step % kInFlight];
    co_await before;
    const int owner = (me - step + n) % n;
    const Slice theirs = slice_of(bounds, owner);
    const auto receive = [&](int64_t k) {
      const int64_t at = place(step, k);
      for (size_t first = 0; first < lengths[at]; first += kLargestMessage)
        arrivals.receive(space.data() + at * stride + first, std::min<size_t>(kLargestMessage, lengths[at] - first),
                         from);
    };
    for (int64_t k = 0; k < cut.pieces(theirs.count); ++k) {
      const int64_t at = place(step, k);
      if (framed) {
        lengths_in.receive(&lengths[at], kLengthBytes, from, lane.tag + 1);
      } else {
        lengths[at] = coder.bytes(cut.piece(theirs, k).count, dtype);
      }
    }
    co_await lengths_in;
    // One piece behind the other: each is handed on before it is absorbed, and the next is under way meanwhile.
    const int64_t pieces = cut.pieces(theirs.count);
    for (int64_t k = 0; k < pieces && framed; ++k)
      if (!lengths[place(step, k)] || lengths[place(step, k)] > coder.bytes(cut.piece(theirs, k).count, dtype))
        coder.bad_payload(owner, k, kBadLength);
    if (pieces > 0) receive(0);
    for (int64_t k = 0; k < pieces; ++k) {
      co_await arrivals;
      if (k + 1 < pieces) receive(k + 1);
      if (step < n - 1) send(step, k);
      const Slice piece = cut.piece(theirs, k);
      coder.absorb_one(space.data() + place(step, k) * stride, lengths[place(step, k)], owner, dtype,
                       part_of(whole, piece), piece.first, k);
    }
  }
  for (int i = 0; i < kInFlight; ++i) {
    Exchange& departures = out[i];
    co_await departures;
  }
}

}  // namespace

Task coded_ring_reduce_scatter(GroupLane lane, CodedCall call, View whole, Bounds bounds, View out, bool accumulate) {
  const int n = lane.size();
  if (n == 1) {
    Task alone = scatter_pieces(lane, call, {.ranks = 1}, whole, std::move(bounds), out, accumulate);
    co_await alone;
    co_return;
  }
  const Tally tally(lane, call.counters,
                    (whole.count() - slice_of(bounds, lane.me).count) * static_cast<int64_t>(size_of(whole.dtype)));
  Task scatter = ring_scatter_pieces(lane, call, whole, std::move(bounds), out, accumulate);
  co_await scatter;
}

Task coded_ring_all_reduce(GroupLane lane, CodedCall call, CodedCall gather, View data) {
  const int n = lane.size();
  if (n == 1) co_return;
  Bounds bounds = part_bounds(lane.pool(), data.count(), n, common_unit(call.coder, gather.coder));
  const Slice own = slice_of(bounds, lane.me);
  const int64_t elements = 2 * data.count() - own.count - slice_of(bounds, (lane.me + 1) % n).count;
  const Tally tally(lane, call.counters, elements * static_cast<int64_t>(size_of(data.dtype)));
  const DType sum_type = sum_dtype(gather.coder, data.dtype);
  const Scratch<char> space(lane.pool(), own.count * static_cast<int64_t>(size_of(sum_type)));
  const View sum(space.data(), sum_type, {own.count});
  Task scatter = ring_scatter_pieces(lane, call, data, copy_of(lane.pool(), bounds, n), sum, false);
  co_await scatter;
  Task spread = ring_gather_pieces(lane, gather, sum, data, std::move(bounds));
  co_await spread;
}

}  // namespace thinwire
