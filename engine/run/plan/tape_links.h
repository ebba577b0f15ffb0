// Matches the sends and receives of all actors' tapes: which messages a receive is for, over which links they move,
// and how many bytes. An actor is a rank, or in folded tapes a pipeline stage with all its ranks.
#pragma once

#include <vector>

#include "engine/run/plan/cluster.h"
#include "engine/run/plan/fair_pool.h"
#include "engine/run/plan/step_tape.h"

namespace thinwire {

// The links between ranks of two actors.
struct LinkedPath {
  double latency = 0.0;                     // seconds
  int network = 0;                          // in LinkedTapes::networks
  FairPool::Use uses[FairPool::kMostUses];  // of links of that network
  int count = 0;                            // of uses; 0: through memory
};

// Those bytes of a group that take the same path.
struct LinkedFlow {
  double bytes = 0.0;
  int path = 0, group = 0;  // in LinkedTapes
};

// The messages of one kSend to one other actor.
struct LinkedGroup {
  int first = 0, count = 0;  // flows
  int receives = 0;          // kPosts of the receiver that are for it
  int posts = 0;             // of them, those that it waits for before it moves
  int from = 0, to = 0;      // actors
  int connection = 0;        // groups of one connection move one after the other
  double bytes = 0.0;
  double socket = 0.0;  // MessageCosts::socket_bytes
  bool large = false;   // false: it moves without waiting for a kPost
};

struct LinkedTapes {
  std::vector<LinkedPath> paths;
  std::vector<LinkedFlow> flows;
  std::vector<LinkedGroup> groups;
  // Per actor and instruction: the range [first, second) of listed_groups that a kSend sends or a kPost receives.
  std::vector<std::vector<std::pair<int, int>>> group_ranges;
  std::vector<int> listed_groups;
  int connection_count = 0;
  std::vector<FairPool> networks;  // at least one; no path has links of two
  // Receives without a send of their own. Only in folded tapes: ranks of a stage differ in their last pieces.
  int unmatched = 0;
};

// CHECKs that unfolded tapes match, message by message.
LinkedTapes link_tapes(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster);

inline constexpr int64_t kEagerBytes = 8 << 10;  // a message up to this size is sent before its receive is posted

}  // namespace thinwire
