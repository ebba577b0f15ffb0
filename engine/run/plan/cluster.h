// A cluster as its file describes it: nodes, the links between them, and the machine that each node is.
#pragma once

#include <string>
#include <vector>

#include "engine/run/plan/machine.h"

namespace thinwire {

// The level of the machine at which two ranks meet.
enum class Reach : int { kNode, kNodes, kRacks, kCount };  // inside a node, between nodes of a rack, between racks

// What a rank (inside a node), a node or a rack can send and, as much, receive.
struct ClusterLink {
  double gbps = 0.0;              // 0: as fast as memory, only the time of the cores counts
  double latency_us = 0.0;        // one way
  double efficiency = 1.0;        // share of the rate that payload gets
  double burst_bytes = 0.0;       // that leave at once after a pause: the token bucket of a shaper
  bool by_network = false;        // inside a node: messages cost the cores what those between nodes do
  bool shared = false;            // inside a node: one bus for all its ranks, instead of a link per rank
  double oversubscription = 1.0;  // between racks: divides gbps, which is then the sum of a rack's nodes
  double bytes_per_second() const { return gbps * 1e9 / 8.0 * efficiency / oversubscription; }
};

struct Straggler {
  int rank = 0;
  double slowdown = 1.0;
};

struct Cluster {
  std::string name, file;
  int nodes = 1, ranks_per_node = 1, nodes_per_rack = 0;  // 0: one rack
  int shared_cores = 0;                                   // > 0: all ranks are emulated on these cores of one machine
  double memory_per_rank = 0.0;                           // bytes; 0: not known
  double jitter = 0.0;  // relative standard deviation of the compute time of a node of the plan
  std::vector<Straggler> stragglers;
  ClusterLink links[static_cast<int>(Reach::kCount)];
  Machine machine;

  int ranks() const { return nodes * ranks_per_node; }
  int node_of(int rank) const { return rank / ranks_per_node; }
  int rack_of(int rank) const { return nodes_per_rack > 0 ? node_of(rank) / nodes_per_rack : 0; }
  Reach reach(int a, int b) const;
  const MessageCosts& costs(Reach reach) const {
    return reach == Reach::kNode && !links[0].by_network ? machine.memory : machine.network;
  }
  bool uneven() const { return jitter > 0.0 || !stragglers.empty(); }
};

// The file's "machine" is an object, or the name of a file beside it. Throws Error(kBadConfig) with every violation as
// file:line:col: key: what is wrong.
Cluster read_cluster(const std::string& file);

}  // namespace thinwire
