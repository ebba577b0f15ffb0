// The coded all-gather in two levels: the owner packs once, everybody absorbs the same bytes.
#include "parallel/collective/coded.h"
#include "parallel/collective/coded_chunks.h"
#include "parallel/collective/node_seat.h"

namespace thinwire {

bool has_references(const CodedCall& call) {
  return call.coder != nullptr && call.coder->value_difference();
}

View as_it_travels(const CodedCall& call, View mine, View range) {
  const bool exact = call.coder == nullptr || call.coder->traits().lossless;
  if (!exact || mine.dtype == range.dtype) return mine;
  convert(mine, range);
  return range;
}

// Every owner sends piece k to its column (the same place on the other nodes) and to its node; what came by the column
// is handed on inside the node as it is, and travels apart from the node's own pieces: these may be ahead of it. Framed
// lengths need the second tag, so there everything takes its turn: own piece k, then those of the column by node.
Task two_level_gather_pieces(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds) {
  const int n = lane.size(), me = lane.me;
  const NodeSeat g(lane);
  const Slice own = slice_of(bounds, me);
  const View range = part_of(whole, own);
  const View source = as_it_travels(call, mine, range);
  PieceCoder coder(lane, call, {.ranks = n});
  if (coder.plain()) convert(source, range);
  const DType dtype = source.dtype;
  const Cut cut(*lane.tuning, dtype, call.coder);
  const int64_t steps = cut.most_pieces(bounds, n);
  const size_t longest = coder.plain() ? 0 : coder.bytes(cut.longest(longest_slice(bounds, n)), dtype);
  const bool framed = coder.framed();
  const int ahead = framed ? 0 : 2;
  const int tag = lane.tag, second_tag = framed ? lane.tag : lane.tag + 1;
  Outbox out(lane, 1, longest, framed, tag, lane.tag + 1);
  Outbox forward(lane, g.nodes, 0, framed, second_tag, lane.tag + 1);
  Inbox column(lane, g.nodes, longest, framed, tag, lane.tag + 1);  // place: node
  Inbox near(lane, g.local, longest, framed, tag, lane.tag + 1);    // place: place on my node
  Inbox far(lane, n, longest, framed, second_tag, lane.tag + 1);    // place: member
  const auto piece_of = [&](int member, int64_t k) { return cut.piece(slice_of(bounds, member), k); };
  // Piece k of `member`, from `peer`.
  const auto expect = [&](Inbox& in, int64_t k, int place, int member, int peer) {
    const Slice piece = piece_of(member, k);
    if (piece.count > 0)
      in.expect(k, place, coder.bytes(piece.count, dtype), lane.world_rank(peer),
                coder.plain() ? static_cast<char*>(part_of(whole, piece).data) : nullptr);
  };
  const auto post = [&](int64_t k) {
    if (k >= steps) return;
    column.clear(k);
    near.clear(k);
    far.clear(k);
    for (int j = 0; j < g.nodes; ++j)
      if (j != g.node) expect(column, k, j, g.member(j, g.place), g.member(j, g.place));
    for (int l = 0; l < g.local; ++l) {
      if (l == g.place) continue;
      const int peer = g.member(g.node, l);
      expect(near, k, l, peer, peer);
      for (int j = 0; j < g.nodes; ++j)
        if (j != g.node) expect(far, k, g.member(j, l), g.member(j, l), peer);
    }
  };
  const auto send = [&](int64_t k) {
    const Slice piece = piece_of(me, k);
    if (k >= steps || piece.count == 0) return;
    const View place = part_of(whole, piece);
    const char* payload = static_cast<const char*>(place.data);
    size_t bytes = place.bytes();
    if (!coder.plain()) {
      char* const room = out.of(k, 0);
      bytes = coder.pack(source.element_range(piece.first - own.first, piece.count),
                         has_references(call) ? place : View(), piece.first, room, place);
      payload = room;
    }
    for (int i = 1; i < g.nodes; ++i)
      out.send(k, 0, payload, bytes, lane.world_rank(g.member((g.node + i) % g.nodes, g.place)));
    for (int i = 1; i < g.local; ++i)
      out.send(k, 0, payload, bytes, lane.world_rank(g.member(g.node, (g.place + i) % g.local)));
    if (!coder.plain()) coder.absorb_own(payload, bytes, dtype, place, piece.first, k);
  };
  const auto hand_on = [&](int64_t k) {
    for (int j = 0; j < g.nodes; ++j) {
      if (j == g.node || piece_of(g.member(j, g.place), k).count == 0) continue;
      for (int i = 1; i < g.local; ++i)
        forward.send(k, j, column.data(k, j), column.bytes(k, j),
                     lane.world_rank(g.member(g.node, (g.place + i) % g.local)));
    }
  };
  const auto take = [&](const Inbox& in, int64_t k, int place, int member) {
    const Slice piece = piece_of(member, k);
    if (piece.count == 0 || coder.plain()) return;
    coder.absorb_one(in.data(k, place), in.bytes(k, place), member, dtype, part_of(whole, piece), piece.first, k);
  };
  for (int k = 0; k < kInFlight; ++k) post(k);
  for (int k = 0; k < ahead; ++k) send(k);
  for (int64_t k = 0; k < steps; ++k) {
    Exchange& departures = out.departures(k + ahead);
    co_await departures;
    send(k + ahead);
    Exchange& column_lengths = column.lengths(k);
    co_await column_lengths;
    if (const int bad = column.follow(k); bad >= 0) coder.bad_payload(g.member(bad, g.place), k, kBadLength);
    Exchange& column_arrivals = column.arrivals(k);
    co_await column_arrivals;
    hand_on(k);
    for (int j = 0; j < g.nodes; ++j)
      if (j != g.node) take(column, k, j, g.member(j, g.place));
    Exchange& near_lengths = near.lengths(k);
    co_await near_lengths;
    if (const int bad = near.follow(k); bad >= 0) coder.bad_payload(g.member(g.node, bad), k, kBadLength);
    Exchange& far_lengths = far.lengths(k);
    co_await far_lengths;
    if (const int bad = far.follow(k); bad >= 0) coder.bad_payload(bad, k, kBadLength);
    Exchange& near_arrivals = near.arrivals(k);
    co_await near_arrivals;
    for (int l = 0; l < g.local; ++l)
      if (l != g.place) take(near, k, l, g.member(g.node, l));
    Exchange& far_arrivals = far.arrivals(k);
    co_await far_arrivals;
    for (int j = 0; j < g.nodes; ++j)
      for (int l = 0; l < g.local; ++l)
        if (j != g.node && l != g.place) take(far, k, g.member(j, l), g.member(j, l));
    // Payloads of the column are handed on from where the next ones land.
    Exchange& forwarded = forward.departures(k);
    co_await forwarded;
    post(k + kInFlight);
  }
  for (int k = 0; k < kInFlight; ++k) {
    Exchange& departures = out.departures(k);
    co_await departures;
  }
}

Task coded_two_level_all_gather(GroupLane lane, CodedCall call, View mine, View whole, Bounds bounds) {
  const NodeSeat g(lane);
  int64_t column = 0;  // of all owners at my place
  for (int j = 0; j < g.nodes; ++j) column += slice_of(bounds, g.member(j, g.place)).count;
  const int64_t own = slice_of(bounds, lane.me).count;
  const Tally tally(lane, call.counters,
                    (own * (g.nodes - 1) + column * (g.local - 1)) * static_cast<int64_t>(size_of(whole.dtype)));
  Task gather = two_level_gather_pieces(lane, call, mine, whole, std::move(bounds));
  co_await gather;
}

}  // namespace thinwire
