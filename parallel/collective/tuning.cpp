// The choice by size and group, and bytes by rehearsal. Tests compare them with what Exchange counts.
#include "parallel/collective/tuning.h"

#include <algorithm>

#include "engine/base/core/check.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/two_level.h"

namespace thinwire {
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

Algorithm choose_algorithm(const CommTuning& tuning, Collective collective, std::span<const int> nodes, int members,
                           int64_t bytes, ReduceKind kind) {
  const bool levels = tuning.two_levels && node_grid(nodes, members).two_level() &&
                      (collective != Collective::kAllReduce || kind == ReduceKind::kSum);
  const Algorithm named = collective == Collective::kAllReduce       ? tuning.all_reduce
                          : collective == Collective::kReduceScatter ? tuning.reduce_scatter
                                                                     : tuning.all_gather;
  if (named == Algorithm::kDirect || named == Algorithm::kRing) return named;
  if (named == Algorithm::kTwoLevel && levels) return named;
  // Direct exchanges win on shared memory and on few hosts. Two levels save network bytes as soon as bytes, not
  // latency, are the cost. With many ranks a ring keeps the number of messages per rank from growing with their square.
  if (levels && members >= 4 && bytes >= 64 << 10) return Algorithm::kTwoLevel;
  return members >= 17 && bytes >= 4 << 20 ? Algorithm::kRing : Algorithm::kDirect;
}

int64_t rehearsed_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& collective, bool watched) {
  if (lane.size() == 1) return 0;
  Rehearsal rehearsal{.pool = lane.pool(), .watch = watched ? lane.core->rehearsal_watch : nullptr};
  lane.rehearsal = &rehearsal;
  lane.place = SequencePlace();
  const Task task = collective(lane);
  task.start().resume();
  TW_CHECK(task.returned(), "a rehearsal waits for nobody");
  if (task.error()) std::rethrow_exception(task.error());
  return rehearsal.bytes;
}

int64_t logical_bytes(GroupLane lane, const std::function<Task(const GroupLane& lane)>& collective) {
  lane.checksums = Checksums::kNone;
  lane.device = nullptr;  // nothing is queued, and no memory of a device taken
  return rehearsed_bytes(lane, collective);
}

View nowhere(DType dtype, int64_t count) {
  alignas(64) static const char place = 0;
  return View(const_cast<char*>(&place), dtype, {count});
}

}  // namespace thinwire
