// The mesh of ranks: (pipeline, data, tensor) coordinates with tensor fastest, and the groups cut out of it.
//
// Context-parallel ranks share the sequences of a replica. They are consecutive along data, and hold the same weights:
// to gradients and to the placement of weights they are replicas like any others (Megatron: the groups over dp x cp).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "parallel/channel/channel.h"
#include "parallel/device/device_traffic.h"

namespace thinwire {

struct MeshShape {
  int pipeline = 1, data = 1, tensor = 1;
  int context = 1;  // divides data
  int ranks() const { return pipeline * data * tensor; }
};

struct Coordinates {
  int pipeline = 0, data = 0, tensor = 0;
};

// World rank = (pipeline * data_size + data) * tensor_size + tensor, as Megatron and NeoX number theirs.
int rank_at(const MeshShape& shape, const Coordinates& at);
Coordinates coordinates_of(const MeshShape& shape, int rank);

// World ranks of the groups that `at` belongs to, in order.
std::vector<int> tensor_ranks(const MeshShape& shape, const Coordinates& at);
std::vector<int> data_ranks(const MeshShape& shape, const Coordinates& at);
std::vector<int> context_ranks(const MeshShape& shape, const Coordinates& at);
std::vector<int> pipeline_ranks(const MeshShape& shape, const Coordinates& at);

// A pretended cluster: ranks_per_node consecutive ranks are a node.
std::vector<int> pretend_nodes(int ranks, int ranks_per_node);

// Tag spaces: one number per kind of group. Groups of one kind never share two ranks, so they share the number.
enum class GroupKind : int {
  kWorld,
  kTpForward,
  kTpBackward,
  kTpControl,
  kPpForward,
  kPpBackward,
  kDpControl,
  kGradientShard,       // reduce-scatter of every micro-batch, inside the gradients' level
  kGradientOptimizer,   // gradients' level -> optimizer's level, at the last micro-batch
  kGradientReplicas,    // between the replicas of the optimizer's level
  kParameterSync,       // optimizer's level -> weights' level, after the step
  kParameterGather,     // weights' level -> whole unit, before use
  kParameterSecondary,  // secondary level -> whole unit, in the backward pass
  kEmbeddingShard,      // the same six for the tied embedding's unit
  kEmbeddingOptimizer,
  kEmbeddingReplicas,
  kEmbeddingSync,
  kEmbeddingGather,
  kEmbeddingSecondary,
  kEmbeddingPair,  // first and last stage, for the two-step synchronisation
  kCheckpoint,
  kSequenceForward,
  kSequenceBackward,
  kPpForwardParts,  // tensor ranks that were sent a pipeline message in parts
  kPpBackwardParts,
  kCount
};

// What a rank holds of the mesh; builds channels of groups on demand. Outlives the channels it makes. Rebuilding a mesh
// in one process is making a new one, with nothing open.
class Mesh {
 public:
  // nodes: per world rank. Counters live here, one set per site.
  Mesh(Progress& progress, const MeshShape& shape, std::vector<int> nodes, const CommTuning& tuning = {});
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const MeshShape& shape() const { return shape_; }
  const Coordinates& at() const { return at_; }
  int rank() const { return rank_; }
  const std::vector<int>& nodes() const { return nodes_; }

  // How the sites' messages are compressed. Before channels are made.
  using Compressions = std::array<SiteCompressions, kSiteNames.size()>;
  void use_compressions(Compressions compressions) { compressions_ = std::move(compressions); }
  const SiteCompressions& compressions(Site site) const { return compressions_[static_cast<size_t>(site)]; }
  CompressionClock& clock() { return clock_; }
  // A step's parameter all-gathers begin: until the next one's they are encoded by the clock of now, also those that
  // start later, in a forward pass or an evaluation, with a clock and a compression of their own.
  void begin_parameter_gathers() { gather_clock_ = clock_; }

  // Channels made from now on let what lies on its device travel there. It outlives them, and is connected when all are
  // made (make_ports).
  void use_device(DeviceTraffic* device) { device_ = device; }
  DeviceTraffic* device() const { return device_; }
  // All ranks together: id is that of one rank's DeviceTraffic::unique_id().
  void connect_device(const std::string& id);

  // Channels made from now on send nothing: they count in `prices`, which outlives them.
  void rehearse(SitePrices& prices) { prices_ = &prices; }

  // The channel of `ranks` (world ranks, in group order); empty for one rank. further: its messages were coded and
  // summed once before (further_compressions).
  Channel channel(GroupKind kind, Site site, std::vector<int> ranks, bool further = false);
  // The states of all channels that still exist: the step's writes count, or are taken back.
  void settle_states(bool applied);
  // Named by this rank's coordinates: states have one owner, and fit only the layout that wrote them.
  void visit_states(StateVisitor& visitor);
  // Of a checkpoint by another number of data ranks, all else being equal: see ChannelStates::adopt.
  AdoptedStates adopt_residuals(const OldResiduals& old);
  int64_t state_bytes() const;
  SiteCounters& counters(Site site) { return counters_[static_cast<size_t>(site)]; }
  Progress& progress() { return *progress_; }

 private:
  Progress* progress_;
  SitePrices* prices_ = nullptr;
  DeviceTraffic* device_ = nullptr;
  MeshShape shape_;
  Coordinates at_;
  int rank_ = 0;
  std::vector<int> nodes_;
  CommTuning tuning_;
  std::array<SiteCounters, kSiteNames.size()> counters_{};
  Compressions compressions_{};
  CompressionClock clock_, gather_clock_;
  std::vector<std::weak_ptr<ChannelStates>> states_;
};

}  // namespace thinwire
