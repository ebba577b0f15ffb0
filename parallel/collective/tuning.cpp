// The table, and bytes by rehearsal. Tests compare them with what Exchange counts.
#include "parallel/collective/tuning.h"

#include <algorithm>
#include <array>

#include "engine/base/core/check.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/two_level.h"

namespace thinwire {
namespace {

// A row of the table that Algorithm::kAuto consults; the first row that fits decides, kDirect if none does.
struct TuningRow {
  Verb verb;
  int min_ranks;
  int64_t min_bytes;  // of the whole vector
  bool across_nodes;  // only where the group can be served in two levels
  Algorithm algorithm;
};

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

}  // namespace

NodeGrid node_grid(std::span<const int> nodes, int members) {
  if (nodes.empty()) return {1, members};
  TW_CHECK(static_cast<int>(nodes.size()) == members);
  const auto local =
      static_cast<int>(std::find_if(nodes.begin(), nodes.end(), [&](int n) { return n != nodes[0]; }) - nodes.begin());
  if (local == 1 || members % local != 0) return {0, 0};
  // Every collective asks this: groups whose nodes ascend, as they do in nearly all, are looked through once.
  bool ascend = true;
  for (int r = local; r < members; ++r) {
    const int node = nodes[static_cast<size_t>(r)], before = nodes[static_cast<size_t>(r) - 1];
    if (r % local == 0)
      ascend = ascend && before < node;
    else if (node != before)
      return {0, 0};
  }
  // A node that comes back is interleaved.
  for (int r = local; !ascend && r < members; r += local)
    for (int other = 0; other < r; other += local)
      if (nodes[static_cast<size_t>(other)] == nodes[static_cast<size_t>(r)]) return {0, 0};
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
  lane.device = nullptr;  // nothing is queued, and no memory of a device taken
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
                         DType dtype, ReduceKind kind) {
  const View data = nowhere(dtype, count);
  return rehearsed_bytes(tuning, nodes, members, me,
                         [&](const GroupLane& lane) { return plain_all_reduce(lane, data, kind); });
}

}  // namespace thinwire
