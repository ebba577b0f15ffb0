// Ranks of one node on disjoint cores, where there are enough and the launcher has not seen to it.
#pragma once

#include <string>
#include <vector>

#include "parallel/wire/transport.h"

namespace thinwire {

// Which rank of its node a rank is.
struct NodePlace {
  int local_rank = 0, local_size = 1;
  std::vector<int> ranks;  // world ranks of the node, ascending
};
NodePlace place_on_node(const std::vector<int>& nodes, int rank);

// Numbers nodes by first appearance of their name: {"a","a","b"} -> {0,0,1}.
std::vector<int> number_nodes(const std::vector<std::string>& names);

// Equal for processes that can share memory: the boot of the kernel and the namespace of its shared memory. Host names
// will not do: images are cloned with them, and containers of one machine have several.
std::string machine_identity();

// One logical CPU and the core that it is a thread of.
struct Cpu {
  int number = 0, package = 0, core = 0;
};

// The CPUs that local rank `local_rank` is to run on, ascending; empty: leave things alone. masks: per local rank the
// CPUs that it may use now (ascending). Alone on the node, bound differently by the launcher, or with fewer cores than
// ranks: left alone. Otherwise each rank gets a run of whole cores, neighbours in (package, core) order, sizes that
// differ by one at most. CPUs that `machine` does not list count as a core each.
std::vector<int> choose_cpus(const std::vector<std::vector<int>>& masks, int local_rank,
                             const std::vector<Cpu>& machine);

// What /sys says of them; CPUs of which it says nothing are left out.
std::vector<Cpu> machine_cpus(const std::vector<int>& numbers);

// How many CPUs a rank may count on: those that it and the ranks beside it may use, over these ranks; 0: ranks have to
// share one. masks: as above, of this rank at least one.
int cpus_per_rank(const std::vector<std::vector<int>>& masks, int local_rank);

struct CpuShare {
  std::vector<int> bound;  // the chosen CPUs; empty: nothing was changed
  int cpus = 0;            // cpus_per_rank(), and no more than the node's ranks have of cpu_quota()
};
// Binds the calling thread; threads that it starts later inherit that. All ranks call it once, before Progress exists:
// masks are exchanged over `transport` with tag kTags - 1.
class Keeper;
CpuShare bind_to_cores(Transport& transport, const std::vector<int>& nodes, Keeper* keeper = nullptr);

}  // namespace thinwire
