// Coded reductions in two levels: a coding inside each node, another one between nodes, fp32 sums in between.
#include "parallel/collective/coded.h"
#include "parallel/collective/coded_chunks.h"
#include "parallel/collective/node_seat.h"

namespace thinwire {
namespace {

Slice block_of(const NodeSeat& g, const Bounds& bounds, int j) {
  const int64_t first = bounds[g.member(j, 0)];
  return {first, bounds[g.member(j, 0) + g.local] - first};
}
// Elements that I send: all ranges of other places inside my node, and my place's node sums to the other nodes.
int64_t two_level_elements(const NodeSeat& g, const Bounds& bounds, int64_t count) {
  int64_t column = 0;
  for (int j = 0; j < g.nodes; ++j) column += slice_of(bounds, g.member(j, g.place)).count;
  return count - column + column - slice_of(bounds, g.member(g.node, g.place)).count;
}

// Inside each node first, block by block; then the node sums of everybody's range go to their owners, who add them up
// in node order.
Task two_level_scatter_pieces(GroupLane lane, CodedCall intra, CodedCall inter, View whole, Bounds bounds, View out,
                              bool accumulate) {
  const NodeSeat g(lane);
  const int n = lane.size();
  const GroupLane inner = inside_node(lane, g);
  Scratch<int> column_ranks(lane.pool(), g.nodes);
  const GroupLane outer = across_nodes(lane, g, column_ranks);
  const DType sum_type = sum_dtype(inter.coder, whole.dtype);
  // Sums of this node of all ranges at my place; they leave from here.
  Bounds column(lane.pool(), g.nodes + 1);
  column[0] = 0;
  for (int j = 0; j < g.nodes; ++j) column[j + 1] = column[j] + slice_of(bounds, g.member(j, g.place)).count;
  const Scratch<char> space(lane.pool(), column[g.nodes] * static_cast<int64_t>(size_of(sum_type)));
  const View sums(space.data(), sum_type, {column[g.nodes]});

  const Slice own = slice_of(bounds, lane.me);
  const Cut cut(*lane.tuning, sum_type, inter.coder);
  const int64_t pieces = cut.pieces(own.count);
  const Seat seat{.rank = g.place, .step = g.local, .ranks = n};
  PieceCoder coder(outer, inter, seat);
  // Payloads of all pieces of a range lie behind each other, `stride` apart.
  const auto stride =
      static_cast<int64_t>((coder.bytes(cut.longest(longest_slice(column, g.nodes)), sum_type) + 63) / 64 * 64);
  Bounds places(lane.pool(), g.nodes + 1);  // number of node j's first payload among those that leave
  places[0] = 0;
  for (int j = 0; j < g.nodes; ++j)
    places[j + 1] = places[j] + (j == g.node ? 0 : cut.pieces(slice_of(column, j).count));
  const bool framed = coder.framed();
  const Scratch<char> leaving(lane.pool(), coder.plain() ? 0 : places[g.nodes] * stride);
  const Scratch<uint64_t> lengths_out(lane.pool(), framed ? places[g.nodes] : 0);
  const Scratch<char> landing(lane.pool(), (g.nodes - 1) * pieces * stride);
  const Scratch<uint64_t> lengths_in(lane.pool(), framed ? (g.nodes - 1) * pieces : 0);
  const auto arrival = [&](int j, int64_t k) { return (j < g.node ? j : j - 1) * pieces + k; };
  Exchange departures(lane), lengths(lane), arrivals(lane);
  const auto receive = [&](int j, int64_t k, size_t bytes) {
    for (size_t first = 0; first < bytes; first += kLargestMessage)
      arrivals.receive(landing.data() + arrival(j, k) * stride + first, std::min(kLargestMessage, bytes - first),
                       outer.world_rank(j));
  };
  for (int j = 0; j < g.nodes; ++j) {
    for (int64_t k = 0; j != g.node && k < pieces; ++k) {
      if (framed) {
        lengths.receive(&lengths_in[arrival(j, k)], kLengthBytes, outer.world_rank(j), lane.tag + 1);
      } else {
        receive(j, k, coder.bytes(cut.piece(own, k).count, sum_type));
      }
    }
  }
  // The blocks of the other nodes first: while one travels, the next is summed inside the node.
  for (int step = 1; step <= g.nodes; ++step) {
    const int j = (g.node + step) % g.nodes;
    const Slice block = block_of(g, bounds, j);
    const Slice place = slice_of(column, j);
    const Seat inner_seat{.first = block.first, .rank = g.member(g.node, 0), .step = 1, .ranks = n};
    Task reduce = scatter_pieces(inner, intra, inner_seat, part_of(whole, block), block_bounds(lane, g, bounds, j),
                                 part_of(sums, place), false);
    co_await reduce;
    if (j == g.node) continue;
    const int64_t first = bounds[g.member(j, g.place)];  // in the message
    for (int64_t k = 0; k < cut.pieces(place.count); ++k) {
      const Slice piece = cut.piece(place, k);
      const View part = part_of(sums, piece);
      const char* payload = static_cast<const char*>(part.data);
      size_t bytes = part.bytes();
      if (!coder.plain()) {
        char* const room = leaving.data() + (places[j] + k) * stride;
        bytes = coder.pack(part, View(), first + piece.first - place.first, room);
        payload = room;
      }
      if (framed) {
        uint64_t& length = lengths_out[places[j] + k];
        length = bytes;
        departures.send(&length, kLengthBytes, outer.world_rank(j), lane.tag + 1);
      }
      for (size_t sent = 0; sent < bytes; sent += kLargestMessage)
        departures.send(payload + sent, std::min(kLargestMessage, bytes - sent), outer.world_rank(j));
    }
  }
  co_await lengths;
  for (int j = 0; j < g.nodes && framed; ++j) {
    for (int64_t k = 0; j != g.node && k < pieces; ++k) {
      const uint64_t length = lengths_in[arrival(j, k)];
      if (length == 0 || length > coder.bytes(cut.piece(own, k).count, sum_type)) coder.bad_payload(j, k, kBadLength);
      receive(j, k, static_cast<size_t>(length));
    }
  }
  co_await arrivals;
  Scratch<Share> shares(lane.pool(), g.nodes);
  for (int64_t k = 0; k < pieces; ++k) {
    const Slice piece = cut.piece(own, k);
    for (int j = 0; j < g.nodes; ++j) {
      if (j == g.node) {
        Share raw;
        raw.raw = sums.element_range(column[j] + piece.first - own.first, piece.count);
        raw.rank = seat.rank_of(j);
        shares[j] = raw;
      } else {
        const size_t bytes =
            framed ? static_cast<size_t>(lengths_in[arrival(j, k)]) : coder.bytes(piece.count, sum_type);
        shares[j] = coder.share(landing.data() + arrival(j, k) * stride, bytes, j, sum_type, piece.count);
      }
    }
    coder.absorb({shares.data(), static_cast<size_t>(g.nodes)}, sum_type,
                 out.element_range(piece.first - own.first, piece.count), accumulate, piece.first, k);
  }
  co_await departures;
}

}  // namespace

Task coded_two_level_reduce_scatter(GroupLane lane, CodedCall intra, CodedCall inter, View whole, Bounds bounds,
                                    View out, bool accumulate) {
  const NodeSeat g(lane);
  const Tally tally(lane, intra.counters,
                    two_level_elements(g, bounds, whole.count()) * static_cast<int64_t>(size_of(whole.dtype)));
  Task scatter = two_level_scatter_pieces(lane, intra, inter, whole, std::move(bounds), out, accumulate);
  co_await scatter;
}

Task coded_two_level_all_reduce(GroupLane lane, CodedCall intra, CodedCall inter, CodedCall gather, View data) {
  const NodeSeat g(lane);
  const int n = lane.size();
  Bounds bounds = part_bounds(lane.pool(), data.count(), n, common_unit(intra.coder, inter.coder, gather.coder));
  const Slice own = slice_of(bounds, lane.me);
  int64_t column = 0;
  for (int j = 0; j < g.nodes; ++j) column += slice_of(bounds, g.member(j, g.place)).count;
  const int64_t elements =
      two_level_elements(g, bounds, data.count()) + own.count * (g.nodes - 1) + column * (g.local - 1);
  const Tally tally(lane, intra.counters, elements * static_cast<int64_t>(size_of(data.dtype)));
  const DType sum_type = sum_dtype(gather.coder, data.dtype);
  const Scratch<char> space(lane.pool(), own.count * static_cast<int64_t>(size_of(sum_type)));
  const View sum(space.data(), sum_type, {own.count});
  Task scatter = two_level_scatter_pieces(lane, intra, inter, data, copy_of(lane.pool(), bounds, n), sum, false);
  co_await scatter;
  Task spread = two_level_gather_pieces(lane, gather, sum, data, std::move(bounds));
  co_await spread;
}

}  // namespace thinwire
