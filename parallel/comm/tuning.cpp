// The table, and the algorithms' traffic in closed form. Tests compare it with what Exchange counts.
#include "parallel/comm/tuning.h"

#include <algorithm>
#include <array>

#include "engine/base/core/check.h"

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

int64_t length(std::span<const int64_t> bounds, int r) {
  return bounds[static_cast<size_t>(r) + 1] - bounds[static_cast<size_t>(r)];
}

// Length of part r of even_bounds (collectives.h).
int64_t even_length(int64_t count, int parts, int r) {
  return even_bound(count, parts, r + 1) - even_bound(count, parts, r);
}

int64_t direct_all_reduce_elements(int64_t count, int members, int me) {
  const int64_t mine = even_length(count, members, me);
  return count - mine + mine * (members - 1);
}

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
  if (named == Algorithm::kLibrary) return Algorithm::kDirect;
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
  switch (choose_algorithm(tuning, Verb::kAllReduce, nodes, members, bytes, kind)) {
    case Algorithm::kRing:
      return (2 * count - even_length(count, members, me) - even_length(count, members, (me + 1) % members)) *
             element_bytes;
    case Algorithm::kTwoLevel: {
      const NodeGrid grid = node_grid(nodes, members);
      const int64_t slice = even_length(count, grid.local, me % grid.local);
      const int64_t inside = count - slice + slice * (grid.local - 1);
      return (inside + direct_all_reduce_elements(slice, grid.nodes, me / grid.local)) * element_bytes;
    }
    default:
      if (bytes <= tuning.small_bytes) return bytes * (members - 1);
      return direct_all_reduce_elements(count, members, me) * element_bytes;
  }
}

int64_t reduce_scatter_bytes(const CommTuning& tuning, std::span<const int> nodes, int me,
                             std::span<const int64_t> bounds, int64_t element_bytes) {
  const int members = static_cast<int>(bounds.size()) - 1;
  const int64_t count = bounds.back();
  if (choose_algorithm(tuning, Verb::kReduceScatter, nodes, members, count * element_bytes) == Algorithm::kTwoLevel) {
    const NodeGrid grid = node_grid(nodes, members);
    int64_t column = 0;  // ranges at my place of each node
    for (int r = me % grid.local; r < members; r += grid.local) column += length(bounds, r);
    return (count - column + column - length(bounds, me)) * element_bytes;
  }
  return (count - length(bounds, me)) * element_bytes;
}

int64_t all_gather_bytes(const CommTuning& tuning, std::span<const int> nodes, int me, std::span<const int64_t> bounds,
                         int64_t element_bytes) {
  const int members = static_cast<int>(bounds.size()) - 1;
  const int64_t count = bounds.back();
  switch (choose_algorithm(tuning, Verb::kAllGather, nodes, members, count * element_bytes)) {
    case Algorithm::kRing:
      return (count - length(bounds, (me + 1) % members)) * element_bytes;
    case Algorithm::kTwoLevel: {
      const NodeGrid grid = node_grid(nodes, members);
      int64_t column = 0;
      for (int r = me % grid.local; r < members; r += grid.local) column += length(bounds, r);
      return (length(bounds, me) * (grid.nodes - 1) + column * (grid.local - 1)) * element_bytes;
    }
    default:
      return length(bounds, me) * (members - 1) * element_bytes;
  }
}

int64_t all_to_all_bytes(int me, std::span<const int64_t> from_bounds, int64_t element_bytes) {
  return (from_bounds.back() - length(from_bounds, me)) * element_bytes;
}

int64_t broadcast_bytes(int members, int me, int root, int64_t bytes) {
  const int place = (me - root + members) % members;
  int64_t children = 0;
  for (int step = 1; step < members && (place & step) == 0; step *= 2) children += place + step < members ? 1 : 0;
  return children * bytes;
}

}  // namespace thinwire
