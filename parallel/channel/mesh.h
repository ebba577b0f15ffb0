// The mesh of ranks: (pipeline, data, tensor) coordinates with tensor fastest, and the groups cut out of it.
//
// Every `context` consecutive data ranks form a context-parallel group, which shares its sequences. They hold the same
// weights, so for gradients and placements they are data ranks like any others (Megatron: the groups over dp x cp).
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/channel/channel.h"
#include "parallel/collective/tuning.h"
#include "parallel/device/device_traffic.h"

namespace thinwire {

struct MeshShape {
  int pipeline = 1, data = 1, tensor = 1;
  int context = 1;  // of the data ranks; divides data
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

// How the groups of all tensor ranks in the place of `ranks` (world ranks, of one tensor rank) lie on nodes; {0, 0}
// where one lies otherwise than another. nodes: per world rank.
NodeGrid common_grid(const MeshShape& shape, std::span<const int> nodes, std::span<const int> ranks);

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
  kPpForwardParts,  // tensor ranks, for a pipeline message that came to them in parts
  kPpBackwardParts,
  kCount
};

// The mesh as one rank sees it; makes the channels of its groups, and outlives them. For another mesh in the same
// process make a new one, while no operation is open.
class Mesh {
 public:
  // nodes: per world rank. Counters live here, one set per site.
  Mesh(Progress& progress, const MeshShape& shape, std::vector<int> nodes, const CommTuning& tuning = {});
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const MeshShape& shape() const { return shape_; }
  const Coordinates& at() const { return at_; }
  int rank() const { return rank_; }

  // How the sites' messages are compressed. To be called before channels are made.
  using Compressions = std::array<SiteCompressions, kSiteNames.size()>;
  void use_compressions(Compressions compressions) { compressions_ = std::move(compressions); }
  CompressionClock& clock() { return clock_; }
  // A step's parameter all-gathers begin. Until the next call they are encoded by the clock as it is now, even those
  // that start later, in a forward pass or an evaluation, where clock() has moved on.
  void begin_parameter_gathers() { gather_clock_ = clock_; }

  // Channels made from now on send what lies in this device's memory over it. It outlives them; connect_ports
  // connects it when all are made.
  void use_device(DeviceTraffic* device) { device_ = device; }
  DeviceTraffic* device() const { return device_; }
  // All ranks together: id is that of one rank's DeviceTraffic::unique_id().
  void connect_device(const std::string& id);

  // Channels made from now on send nothing: they count in `prices`, which outlives them.
  void rehearse(SitePrices& prices) { prices_ = &prices; }

  // The channel of `ranks` (world ranks, in group order); empty for one rank. further: its messages were coded and
  // summed once before (further_compressions).
  Channel channel(GroupKind kind, Site site, std::vector<int> ranks, bool further = false);
  // Commits what the step wrote to the states of all channels that still exist, or rolls it back.
  void settle_states(bool applied);
  // Names hold this rank's coordinates: states have one owner, and fit only the layout that wrote them.
  void visit_states(StateVisitor& visitor);
  // Takes residuals from a checkpoint that differs in the number of data ranks alone: see ChannelStates::adopt.
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
