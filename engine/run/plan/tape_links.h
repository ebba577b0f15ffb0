// Tapes joined at their messages: which sends a wait is for, and which links and how many bytes each of them takes.
#pragma once

#include <vector>

#include "engine/run/plan/cluster.h"
#include "engine/run/plan/fair_pool.h"
#include "engine/run/plan/step_tape.h"

namespace thinwire {

// The links that flows between two actors share.
struct LinkedPath {
  double latency = 0.0;  // seconds
  int network = 0;
  FairPool::Use uses[FairPool::kMostUses];  // of that network
  int count = 0;                            // 0: through memory
};

// Bytes from an actor to ranks that it reaches alike.
struct LinkedFlow {
  double bytes = 0.0;
  int path = 0, group = 0;
};

// What leaves an actor in one kSend for the ranks of one actor (folded: for all ranks of a stage, as one).
struct LinkedGroup {
  int first = 0, count = 0;  // flows
  int receives = 0;          // kPosts of the other side for it
  int posts = 0;             // those that have to be executed before it moves
  int from = 0, to = 0;
  int line = 0;  // those of one line move one behind the other
  double bytes = 0.0;
  double socket = 0.0;  // MessageCosts::socket_bytes
  bool large = false;   // false: nothing of it waits for a kPost
};

struct LinkedTapes {
  std::vector<LinkedPath> paths;
  std::vector<LinkedFlow> flows;
  std::vector<LinkedGroup> groups;
  // Per actor and instruction: [first, second) of `lists`, of kSend the groups that leave, of kPost those that come.
  std::vector<std::vector<std::pair<int, int>>> places;
  std::vector<int> lists;
  int line_count = 0;
  std::vector<FairPool> networks;  // links of two of them are on no path together; at least one
  int unmatched =
      0;  // receives without a send of their own; only folded tapes, whose ranks differ in their last pieces
};

// CHECKs that unfolded tapes match, message by message.
LinkedTapes link_tapes(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster);

inline constexpr int64_t kEagerBytes = 8 << 10;  // so much travels before its receive is posted

}  // namespace thinwire
