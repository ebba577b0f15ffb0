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
#include "parallel/collective/rehearsal.h"
#include "parallel/collective/route.h"
#include "parallel/wire/progress_core.h"

namespace thinwire {

// Collects what a verb would send, in a lane without an engine: verbs run as they are, and touch no data.
struct Rehearsal {
  BlockPool& pool;
  int64_t bytes = 0;                // with checksums
  RehearsalWatch* watch = nullptr;  // rehearsal.h
};

// Mistakes that the executor of routes makes when told to: tests show with them that they would be noticed.
enum class RouteFault : uint8_t { kNone, kReceiveTooFew, kReusedTooEarly, kWrongTag };

struct DeviceWork;  // route_on_device.h

// A Lane within a group. The spans belong to the communicator, which outlives what it issued.
struct GroupLane : Lane {
  std::span<const int> ranks;  // world ranks in group order
  std::span<const int> nodes;  // per member, empty: all on one
  int me = 0;
  const CommTuning* tuning = nullptr;
  SendQueue* gathers = nullptr;  // of the communicator's all-gathers
  SequencePlace place;           // taken by the first coroutine that is handed the lane (task.h), the only operation
  Rehearsal* rehearsal = nullptr;
  DeviceWork* device = nullptr;  // routes are queued between devices; alive until then
  RouteFault fault = RouteFault::kNone;
  Checksums checksums = Checksums::kNone;

  BlockPool& pool() const { return rehearsal != nullptr ? rehearsal->pool : Lane::pool(); }
  int size() const { return static_cast<int>(ranks.size()); }
  int world_rank(int member) const { return ranks[static_cast<size_t>(member)]; }
  Peer peer(int member) const { return {world_rank(member), is_checked(member)}; }
  bool is_checked(int member) const {
    return checksums == Checksums::kAll || (checksums == Checksums::kBetweenNodes && !nodes.empty() &&
                                            nodes[static_cast<size_t>(member)] != nodes[static_cast<size_t>(me)]);
  }
  // Of a piece, where nothing is coded: of what is summed or passed on, of what only travels, and of a message that may
  // be handed on as it came: that is the same wherever the ranks are.
  int64_t chunk_elements(DType dtype) const;
  int64_t piece_elements(DType dtype, bool inside_node = false) const;
  int64_t message_elements(DType dtype) const;
};

// Elements [bounds[r], bounds[r+1]) are rank r's; a copy that lives as long as the coroutine.
using Bounds = Scratch<int64_t>;

// Small vectors, without a route: to set up buffers and windows costs more than 8 bytes need to travel, and steps that
// double what is sent would be routes of one piece each. With the bits of one sum in rank order. Few ranks: everybody
// sends its vector to everybody, one latency. From kFirstTree ranks on at most 2 ceil(log2 n) messages per rank: a sum
// is an all-gather in doubling steps (Bruck) and then the sum; max and or double partial results of neighbouring
// ranks.
inline constexpr int kFirstTree = 8;  // below, n - 1 messages are no more than those of the trees
Task small_all_reduce(GroupLane lane, View data, ReduceKind kind);
Task tree_broadcast(GroupLane lane, View data, int root);  // binomial tree, chunk by chunk
Task dissemination_barrier(GroupLane lane);
Task nothing(GroupLane lane);

}  // namespace thinwire
