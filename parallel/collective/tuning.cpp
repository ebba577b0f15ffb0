// The table, and the sums of routes. Tests compare them with what Exchange counts.
#include "parallel/collective/tuning.h"

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/core/check.h"
#include "parallel/collective/collectives.h"
#include "parallel/collective/route.h"

namespace thinwire {
namespace {

// Direct exchanges win on shared memory and on few hosts. Two levels save network bytes as soon as bytes, not latency,
// are the cost. With many ranks a ring keeps the number of messages per rank from growing with their square.
constexpr std::array kTable = {
    TuningRow{Verb::kAllReduce, 4, 64 << 10, true, Algorithm::kTwoLevel},
    TuningRow{Verb::kReduceScatter, 4, 64 << 10, true, Algorithm::kTwoLevel},
    TuningRow{Verb::kAllGather, 4, 64 << 10, true, Algorithm::kTwoLevel},
    TuningRow{Verb::kAllReduce, 17, 4 << 20, false, Algorithm::kRing},
    TuningRow{Verb::kReduceScatter, 17, 4 << 20, false, Algorithm::kRing},
    TuningRow{Verb::kAllGather, 17, 4 << 20, false, Algorithm::kRing},
};

// Elements that a route makes its member send.
class SentElements final : public RouteSink {
 public:
  void add(const Stop& stop) override { count += stop.to.peers() * stop.slice.count; }
  int64_t count = 0;
};

std::vector<int64_t> even_list(int64_t count, int parts) {
  std::vector<int64_t> bounds;
  for (int r = 0; r <= parts; ++r) bounds.push_back(even_bound(count, parts, r));
  return bounds;
}

// Member `me` of a two-level group: where it sits, and the bounds of node j's ranges.
struct Levels {
  int nodes, local, node, place;
  Levels(std::span<const int> of, int members, int me) {
    const NodeGrid grid = node_grid(of, members);
    nodes = grid.nodes, local = grid.local, node = me / local, place = me % local;
  }
  RouteGroup block(std::span<const int64_t> bounds, int j) const {
    return {place, bounds.subspan(static_cast<size_t>(j) * static_cast<size_t>(local), static_cast<size_t>(local) + 1)};
  }
};

}  // namespace

std::span<const TuningRow> tuning_table() {
  return kTable;
}

NodeGrid node_grid(std::span<const int> nodes, int members) {
  if (nodes.empty()) return {1, members};
  TW_CHECK(static_cast<int>(nodes.size()) == members);
  const auto local =
      static_cast<int>(std::find_if(nodes.begin(), nodes.end(), [&](int n) { return n != nodes[0]; }) - nodes.begin());
  if (members % local != 0) return {0, 0};
  for (int r = 0; r < members; ++r) {
    const bool first = r % local == 0;
    if (!first && nodes[static_cast<size_t>(r)] != nodes[static_cast<size_t>(r) - 1]) return {0, 0};
    // A node that comes back is interleaved.
    const auto before = nodes.first(static_cast<size_t>(r));
    if (first && std::find(before.begin(), before.end(), nodes[static_cast<size_t>(r)]) != before.end()) return {0, 0};
  }
  return {members / local, local};
}

Algorithm choose_algorithm(const CommTuning& tuning, Verb verb, std::span<const int> nodes, int members, int64_t bytes,
                           ReduceKind kind) {
  const bool levels = node_grid(nodes, members).two_level() && (verb != Verb::kAllReduce || kind == ReduceKind::kSum);
  const Algorithm named = verb == Verb::kAllReduce       ? tuning.all_reduce
                          : verb == Verb::kReduceScatter ? tuning.reduce_scatter
                                                         : tuning.all_gather;
  if (named == Algorithm::kDirect || named == Algorithm::kRing) return named;
  if (named == Algorithm::kTwoLevel && levels) return named;
  for (const TuningRow& row : kTable) {
    if (row.verb == verb && members >= row.min_ranks && bytes >= row.min_bytes && (!row.across_nodes || levels))
      return row.algorithm;
  }
  return Algorithm::kDirect;
}

int64_t all_reduce_bytes(const CommTuning& tuning, std::span<const int> nodes, int members, int me, int64_t count,
                         int64_t element_bytes, ReduceKind kind) {
  if (members == 1 || count == 0) return 0;
  const int64_t bytes = count * element_bytes;
  SentElements sent;
  switch (choose_algorithm(tuning, Verb::kAllReduce, nodes, members, bytes, kind)) {
    case Algorithm::kRing: {
      const std::vector<int64_t> bounds = even_list(count, members);
      ring_reduce_scatter_route(sent, {me, bounds}, 1, true);
      ring_all_gather_route(sent, {me, bounds}, 1);
      break;
    }
    case Algorithm::kTwoLevel: {
      const Levels g(nodes, members, me);
      const std::vector<int64_t> inside = even_list(count, g.local);
      const RouteGroup inner{g.place, inside};
      direct_reduce_scatter_route(sent, inner);
      const std::vector<int64_t> across = even_list(inner.slice(g.place).count, g.nodes);
      direct_all_reduce_route(sent, {g.node, across}, 1);
      direct_all_gather_route(sent, inner);
      break;
    }
    default: {
      if (bytes <= tuning.small_bytes) return bytes * small_all_reduce_vectors(members, me, kind);
      const std::vector<int64_t> bounds = even_list(count, members);
      direct_all_reduce_route(sent, {me, bounds}, 1);
    }
  }
  return sent.count * element_bytes;
}

int64_t reduce_scatter_bytes(const CommTuning& tuning, std::span<const int> nodes, int me,
                             std::span<const int64_t> bounds, int64_t element_bytes) {
  const int members = static_cast<int>(bounds.size()) - 1;
  SentElements sent;
  switch (choose_algorithm(tuning, Verb::kReduceScatter, nodes, members, bounds.back() * element_bytes)) {
    case Algorithm::kRing:
      ring_reduce_scatter_route(sent, {me, bounds}, 1, true);
      break;
    case Algorithm::kTwoLevel: {
      const Levels g(nodes, members, me);
      for (int j = 0; j < g.nodes; ++j) {
        direct_reduce_scatter_route(sent, g.block(bounds, j));
        if (j != g.node) sent.count += g.block(bounds, j).slice(g.place).count;  // the sum of this node
      }
      break;
    }
    default:
      direct_reduce_scatter_route(sent, {me, bounds});
  }
  return sent.count * element_bytes;
}

int64_t all_gather_bytes(const CommTuning& tuning, std::span<const int> nodes, int me, std::span<const int64_t> bounds,
                         int64_t element_bytes) {
  const int members = static_cast<int>(bounds.size()) - 1;
  SentElements sent;
  switch (choose_algorithm(tuning, Verb::kAllGather, nodes, members, bounds.back() * element_bytes)) {
    case Algorithm::kRing:
      ring_all_gather_route(sent, {me, bounds}, 1);
      break;
    case Algorithm::kTwoLevel: {
      const Levels g(nodes, members, me);
      for (int j = 0; j < g.nodes; ++j) direct_all_gather_route(sent, g.block(bounds, j));
      sent.count += (g.nodes - 1) * g.block(bounds, g.node).slice(g.place).count;
      break;
    }
    default:
      direct_all_gather_route(sent, {me, bounds});
  }
  return sent.count * element_bytes;
}

int64_t all_to_all_bytes(int me, std::span<const int64_t> from_bounds, int64_t element_bytes) {
  SentElements sent;
  all_to_all_route(sent, {me, from_bounds}, {me, from_bounds}, false);
  return sent.count * element_bytes;
}

int64_t broadcast_bytes(int members, int me, int root, int64_t bytes) {
  SentElements sent;
  tree_broadcast_route(sent, members, me, root, bytes);
  return sent.count;
}

}  // namespace thinwire
