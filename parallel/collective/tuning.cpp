// The table, and bytes by rehearsal. Tests compare them with what Exchange counts.
#include "parallel/collective/tuning.h"

#include <algorithm>
#include <array>

#include "engine/base/core/check.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/two_level.h"

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

DType dtype_of(int64_t element_bytes) {
  return element_bytes == 1   ? DType::u8
         : element_bytes == 2 ? DType::bf16
         : element_bytes == 4 ? DType::f32
                              : DType::f64;
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
  for (const TuningRow& row : kTable) {
    if (row.verb == verb && members >= row.min_ranks && bytes >= row.min_bytes && (!row.across_nodes || levels))
      return row.algorithm;
  }
  return Algorithm::kDirect;
}

int64_t rehearsed_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& verb, bool watched) {
  if (lane.size() == 1) return 0;
  Rehearsal rehearsal{.pool = lane.pool(), .watch = watched ? lane.core->rehearsal_watch : nullptr};
  lane.rehearsal = &rehearsal;
  lane.place = SequencePlace();
  const Task task = verb(lane);
  task.start().resume();
  TW_CHECK(task.returned(), "a rehearsal waits for nobody");
  if (task.error()) std::rethrow_exception(task.error());
  return rehearsal.bytes;
}

int64_t logical_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& verb) {
  lane.checksums = Checksums::kNone;
  return rehearsed_bytes(lane, verb);
}

int64_t rehearsed_bytes(const CommTuning& tuning, std::span<const int> nodes, int members, int me,
                        const std::function<Task(const GroupLane& lane)>& verb) {
  struct Pool {
    BlockPool* pool = BlockPool::create();
    ~Pool() { pool->retire(); }
  } const own;
  Rehearsal rehearsal{.pool = *own.pool};
  GroupLane lane;
  lane.rehearsal = &rehearsal;
  const Scratch<int> ranks(lane.pool(), members);
  lane.ranks = {ranks.data(), static_cast<size_t>(members)};
  lane.nodes = nodes;
  lane.me = me;
  lane.tuning = &tuning;
  lane.checksums = tuning.checksums;
  return rehearsed_bytes(lane, verb);
}

View nowhere(DType dtype, int64_t count) {
  alignas(64) static const char place = 0;
  return View(const_cast<char*>(&place), dtype, {count});
}

int64_t all_reduce_bytes(const CommTuning& tuning, std::span<const int> nodes, int members, int me, int64_t count,
                         int64_t element_bytes, ReduceKind kind) {
  const View data = nowhere(dtype_of(element_bytes), count);
  return rehearsed_bytes(tuning, nodes, members, me,
                         [&](const GroupLane& lane) { return plain_all_reduce(lane, data, kind); });
}

int64_t reduce_scatter_bytes(const CommTuning& tuning, std::span<const int> nodes, int me,
                             std::span<const int64_t> bounds, int64_t element_bytes) {
  const View whole = nowhere(dtype_of(element_bytes), bounds.back());
  return rehearsed_bytes(tuning, nodes, static_cast<int>(bounds.size()) - 1, me, [&](const GroupLane& lane) {
    return plain_reduce_scatter(lane, whole, Bounds(lane.pool(), bounds), whole, false);
  });
}

int64_t all_gather_bytes(const CommTuning& tuning, std::span<const int> nodes, int me, std::span<const int64_t> bounds,
                         int64_t element_bytes) {
  const View whole = nowhere(dtype_of(element_bytes), bounds.back());
  return rehearsed_bytes(tuning, nodes, static_cast<int>(bounds.size()) - 1, me, [&](const GroupLane& lane) {
    return plain_all_gather(lane, whole, whole, Bounds(lane.pool(), bounds));
  });
}

int64_t all_to_all_bytes(int me, std::span<const int64_t> from_bounds, int64_t element_bytes) {
  const View data = nowhere(dtype_of(element_bytes), from_bounds.back());
  return rehearsed_bytes({}, {}, static_cast<int>(from_bounds.size()) - 1, me, [&](const GroupLane& lane) {
    const Bounds bounds(lane.pool(), from_bounds);
    return route_all_to_all(lane, plain_call(), data, bounds, data, bounds);
  });
}

int64_t broadcast_bytes(int members, int me, int root, int64_t bytes) {
  const View data = nowhere(DType::u8, bytes);
  return rehearsed_bytes({}, {}, members, me, [&](const GroupLane& lane) { return tree_broadcast(lane, data, root); });
}

}  // namespace thinwire
