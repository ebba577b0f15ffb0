// What one rank does in some steps, as plain data: work on its compute thread, operations it issues and waits for, and
// what each operation packs, sends, awaits and adds. Recorded from the code of a run (StepRehearsal), so nodes, routes,
// pieces, windows and rules are a run's.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compression/site.h"
#include "engine/run/config/run_config.h"
#include "engine/run/plan/cluster.h"
#include "engine/run/train/rank_layout.h"
#include "parallel/channel/mesh.h"

namespace thinwire {

// Messages to or from one world rank that are posted together. Those of one channel (communicator and flow) between two
// ranks meet in order.
struct TapeLeg {
  int channel = 0, peer = 0, messages = 1;
  int64_t bytes = 0;
  auto operator<=>(const TapeLeg&) const = default;
};

enum class TapeCode : uint8_t {
  kWork,       // `seconds` of whoever moves messages on
  kPost,       // legs that are to come
  kSend,       // legs that leave
  kAwait,      // the legs of the kPost numbered `first`
  kAwaitSent,  // kSends: refs [first, first + count)
  kTurn,       // waits until it is first in queue `first`
  kRelease,    // leaves it
};

struct TapeInstruction {
  TapeCode code = TapeCode::kWork;
  bool cyclic = false;       // kPost, kSend: to a neighbour, which for some ranks is on another node
  int first = 0, count = 0;  // legs, or as above
  // kPost, kSend: number of the route among those of its communicator (a message: among those to or from that rank, by
  // direction); folded tapes are linked by it.
  int route = 0;
  double seconds = 0.0;
};

// Bytes written (on a GPU: taken) in the most blocks of one size that an operation has at a time. The pool (scratch.h)
// hands out powers of two, keeps them, and uses a block again for what has the same size.
struct TapeBlocks {
  int size_class = 0;  // blocks of 2 to the power of it
  double bytes = 0.0;
};
inline constexpr int kBlockClasses = 64;

struct TapeOperation {
  Site site = Site::kControl;
  const char* verb = "";
  int first = 0, count = 0;  // instructions
  double bytes = 0.0;        // of the tensor it is about
  std::vector<TapeBlocks> blocks;
};

enum class TapeKind : uint8_t { kCompute, kIssue, kWait, kNode, kStep };

struct TapeEvent {
  TapeKind kind = TapeKind::kCompute;
  NodeKind node = NodeKind::kControl;  // kNode: the node of the plan that ends here
  int16_t micro = -1, chunk = 0;
  int operation = 0;     // kIssue, kWait
  double seconds = 0.0;  // kCompute: of one core (or of the accelerator)
  double loaded = 0.0;   // the same with all cores of the machine busy
};

struct Tape {
  int rank = 0;
  int threads = 1;
  std::vector<TapeEvent> events;
  std::vector<TapeOperation> operations;
  std::vector<TapeInstruction> code;
  std::vector<TapeLeg> legs;  // instructions with the same ones share them
  std::vector<int> refs;
  int queues = 0;
  std::map<int, Site> sites;        // of communicators, by number
  std::vector<SitePrices> counted;  // per step: what the channels say they sent
};

// Which ranks have a tape of their own: all, or, folded, the first of every pipeline stage, for all ranks of it.
struct Folding {
  bool folded = false;
  MeshShape mesh;
  int actors() const { return folded ? mesh.pipeline : mesh.ranks(); }
  int rank_of(int actor) const { return folded ? rank_at(mesh, {actor, 0, 0}) : actor; }
  int actor_of(int rank) const { return folded ? coordinates_of(mesh, rank).pipeline : rank; }
  int ranks_of_actor() const { return folded ? mesh.data * mesh.tensor : 1; }
};

// `steps` steps of a rank. most_pieces: a slice is told in at most so many pieces, and the messages of several counted
// in each; 0: in those that travel.
Tape record_tape(const RunConfig& config, const Cluster& cluster, int rank, int steps, int most_pieces = 0);
// Per rank of the cluster that has a place in the layout.
std::vector<int> nodes_of(const Cluster& cluster, int ranks);
// Of a rank: as a run on these nodes takes them (Job::share_cores).
int threads_of(const RunConfig& config, const Cluster& cluster);

}  // namespace thinwire
