// The algorithms of collectives, as coroutines over Exchange. Callers have checked shapes; see Communicator for the
// verbs.
//
// Everybody in the group runs the same one with the same bounds and tuning. Chunks follow from these alone, and
// contributions are combined in an order that follows from the group alone. A collective may use two tags: lane.tag and
// lane.tag + 1 (Communicator reserves both).
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/core/view.h"
#include "parallel/collective/communicator.h"
#include "parallel/wire/progress_core.h"

namespace thinwire {

// A Lane within a group. The spans belong to the communicator, which outlives what it issued.
struct GroupLane : Lane {
  std::span<const int> ranks;  // world ranks in group order
  std::span<const int> nodes;  // per member, empty: all on one
  int me = 0;
  const CommTuning* tuning = nullptr;
  TurnQueue* gathers = nullptr;  // of the communicator's all-gathers
  SequencePlace place;           // taken by the first coroutine that is handed the lane (task.h)

  int size() const { return static_cast<int>(ranks.size()); }
  int world_rank(int member) const { return ranks[static_cast<size_t>(member)]; }
  int64_t chunk_elements(DType dtype) const;  // of what is summed or passed on
  size_t piece_bytes() const;                 // of what only travels
};

// Elements [bounds[r], bounds[r+1]) are rank r's; a copy that lives as long as the coroutine.
using Bounds = Scratch<int64_t>;
// Equal parts of `count` elements, cut at multiples of 16.
Bounds even_bounds(BlockPool& pool, int64_t count, int ranks);

// Small vectors, with the bits of one sum in rank order. Few ranks: everybody sends its vector to everybody, one
// latency. From kFirstTree ranks on at most 2 ceil(log2 n) messages per rank: a sum is an all-gather in doubling steps
// (Bruck) and then the sum; max, min and or double partial results of neighbouring ranks.
inline constexpr int kFirstTree = 8;  // below, n - 1 messages are no more than those of the trees
Task small_all_reduce(GroupLane lane, View data, ReduceKind kind);
// Vectors that member `me` sends for it.
int64_t small_all_reduce_vectors(int members, int me, ReduceKind kind);
// Slices travel straight to their owner, who sums them chunk by chunk and, in the all-reduce, sends each chunk back to
// all while the next one arrives. Rank order.
Task direct_all_reduce(GroupLane lane, View data, ReduceKind kind);
Task direct_reduce_scatter(GroupLane lane, View whole, const Bounds& bounds, View out, bool accumulate);
Task direct_all_gather(GroupLane lane, View whole, const Bounds& bounds);
// The same where the contents of my range are `mine`: that range itself, or memory outside `whole`. queue: gathers that
// stand in one send in the order of issue; only for operations that come here before their first suspension.
Task direct_all_gather(GroupLane lane, View mine, View whole, const Bounds& bounds, TurnQueue* queue);
// Partial sums travel once around: slice r starts at rank r + 1 and ends at rank r; rounded to the wire's dtype at each
// hop. Destroys `whole`.
Task ring_reduce_scatter(GroupLane lane, View whole, const Bounds& bounds, View out, bool accumulate, ReduceKind kind);
Task ring_all_gather(GroupLane lane, View whole, const Bounds& bounds);
Task ring_all_reduce(GroupLane lane, View data, ReduceKind kind);

Task direct_all_to_all(GroupLane lane, View from, const Bounds& from_bounds, View to, const Bounds& to_bounds);
Task tree_broadcast(GroupLane lane, View data, int root);  // binomial tree, chunk by chunk
Task dissemination_barrier(GroupLane lane);
Task message_task(GroupLane lane, View data, int peer, bool is_send);
Task nothing(GroupLane lane);

}  // namespace thinwire
