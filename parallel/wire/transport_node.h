// Messages between the ranks of one node: queues of cells in memory that they share, and a bell for who sleeps.
//
// For every ordered pair of ranks there is a queue of cells. A message is a run of cells: the sender fills them as far
// as there is room, the receiver empties them from the first one on, at the same time. Nothing is locked: a cell tells
// by its turn number whose it is. What arrives before anybody asked for it is kept by the receiver, in the order of
// arrival, as soon as he asks that peer for anything. Messages to other nodes go to the transport beneath.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/wire/transport.h"

namespace thinwire {

class Keeper;

inline constexpr int kMostNodeRanks = 64;
inline constexpr uint32_t kNodeMemoryLayout = 1;  // to be changed with what the memory looks like: builds may meet

// Of the memory for so many ranks (2 .. kMostNodeRanks): 1 MiB for two, at most 33.
size_t node_memory_bytes(int ranks);

// The transport of one rank. `ranks`: the world ranks of this node, ascending, this one (beneath->rank()) among them.
// `memory`: node_memory_bytes() bytes at a multiple of 64, all zero at the start, the same for all these ranks.
std::unique_ptr<Transport> node_transport(std::unique_ptr<Transport> beneath, const std::vector<int>& ranks,
                                          std::shared_ptr<void> memory);

// The same where the ranks of a node (`nodes`: per world rank) find that they can share memory: `transport` itself
// where they cannot (containers), are too many, or one of them does not want it. On the first rank of a node that
// wanted memory and got none, `notice` says so. Collective over all ranks.
std::unique_ptr<Transport> join_node(std::unique_ptr<Transport> transport, const std::vector<int>& nodes, bool wanted,
                                     std::string& notice, Keeper* keeper = nullptr);

// THINWIRE_NODE_MEMORY=0 leaves messages inside a node to MPI, too. Throws Error(kBadConfig) for anything but 0 and 1.
bool wants_node_memory();

}  // namespace thinwire
