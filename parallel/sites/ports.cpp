// Builds the channels of every site from the mesh.
#include "parallel/sites/ports.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

// The groups of one kind of unit as this rank sees them. They are the same for every size.
class Groups {
 public:
  Groups(Mesh& mesh, const Placement& placement, bool tied) : mesh_(mesh), tied_(tied) {
    const Coordinates& at = mesh.at();
    const int last = mesh.shape().pipeline - 1;
    TW_CHECK(placement.replicas == mesh.shape().data, "a placement for ", placement.replicas, " ranks in a mesh of ",
             mesh.shape().data);
    TW_CHECK(!tied || (last > 0 && (at.pipeline == 0 || at.pipeline == last)), "no tied embedding on stage ",
             at.pipeline);
    shard_ = tied ? shard_unit(0, placement, at.data, at.pipeline == 0 ? 0 : 1, 2) : shard_unit(0, placement, at.data);
  }

  const UnitShard& shard() const { return shard_; }
  Channel channel(GroupKind kind, GroupKind tied_kind, Site site, const std::vector<int>& members,
                  bool further = false) {
    const MeshShape& shape = mesh_.shape();
    std::vector<int> ranks;
    for (int m : members) {
      Coordinates at = mesh_.at();
      at.data = m % shape.data;
      if (tied_) at.pipeline = m < shape.data ? 0 : shape.pipeline - 1;
      ranks.push_back(rank_at(shape, at));
    }
    return mesh_.channel(tied_ ? tied_kind : kind, site, std::move(ranks), further);
  }

 private:
  Mesh& mesh_;
  bool tied_;
  UnitShard shard_;
};

// Built from any UnitShard of the kind: groups do not depend on the unit's size. `tied`: the embedding shared by first
// and last stage; its members then count both stages.
GradientChannels make_gradient_channels(Mesh& mesh, const Placement& placement, bool tied) {
  Groups groups(mesh, placement, tied);
  const Site site = tied ? Site::kEmbedding : Site::kDpGradient;
  const auto [replicas, pair] = replica_groups(placement, tied, groups.shard());
  GradientChannels c;
  c.shard = groups.channel(GroupKind::kGradientShard, GroupKind::kEmbeddingShard, site, groups.shard().shard.members);
  c.refine = groups.channel(GroupKind::kGradientOptimizer, GroupKind::kEmbeddingOptimizer, site,
                            groups.shard().refine.members, static_cast<bool>(c.shard));
  const bool summed = c.shard || c.refine;
  c.replicas = groups.channel(GroupKind::kGradientReplicas, GroupKind::kEmbeddingReplicas, site, replicas, summed);
  if (!pair.empty())
    c.pair = groups.channel(GroupKind::kEmbeddingPair, GroupKind::kEmbeddingPair, site, pair, summed || c.replicas);
  return c;
}

ParameterChannels make_parameter_channels(Mesh& mesh, const Placement& placement, bool tied) {
  Groups groups(mesh, placement, tied);
  const Site site = Site::kZeroParameter;
  ParameterChannels c;
  c.sync = groups.channel(GroupKind::kParameterSync, GroupKind::kEmbeddingSync, site, groups.shard().sync.members);
  c.gather =
      groups.channel(GroupKind::kParameterGather, GroupKind::kEmbeddingGather, site, groups.shard().gather.members);
  if (placement.secondary > 0) {
    c.keep = groups.channel(GroupKind::kParameterSecondary, GroupKind::kEmbeddingSecondary, site,
                            groups.shard().keep.members);
  }
  return c;
}

}  // namespace

Ports make_ports(Mesh& mesh, const Placement& placement, bool sequence_parallel, bool tied_across_stages,
                 bool pipeline_parts) {
  const MeshShape& shape = mesh.shape();
  const Coordinates& at = mesh.at();
  const bool ends = at.pipeline == 0 || at.pipeline == shape.pipeline - 1;
  const bool tied = tied_across_stages && shape.pipeline > 1 && ends;
  const std::vector<int> tensor = tensor_ranks(shape, at), pipeline = pipeline_ranks(shape, at);
  std::vector<int> world(static_cast<size_t>(shape.ranks()));
  std::iota(world.begin(), world.end(), 0);

  Ports ports;
  ports.tp = TpActivation(mesh.channel(GroupKind::kTpForward, Site::kTpForward, tensor),
                          mesh.channel(GroupKind::kTpBackward, Site::kTpBackward, tensor),
                          mesh.channel(GroupKind::kTpControl, Site::kControl, tensor), sequence_parallel);
  const std::vector<int> sharers = pipeline_parts && shape.pipeline > 1 ? tensor : std::vector<int>();
  ports.pp = PpBoundary(mesh.channel(GroupKind::kPpForward, Site::kPpForward, pipeline),
                        mesh.channel(GroupKind::kPpBackward, Site::kPpBackward, pipeline),
                        mesh.channel(GroupKind::kPpForwardParts, Site::kTpForward, sharers),
                        mesh.channel(GroupKind::kPpBackwardParts, Site::kTpBackward, sharers));
  const std::vector<int> context = context_ranks(shape, at);
  ports.sequence = SequenceExchange(mesh.channel(GroupKind::kSequenceForward, Site::kSequenceForward, context),
                                    mesh.channel(GroupKind::kSequenceBackward, Site::kSequenceBackward, context));
  ports.dp = GradientReduction(make_gradient_channels(mesh, placement, false));
  ports.zero = ZeroParameter(make_parameter_channels(mesh, placement, false));
  if (tied) {
    ports.embedding_zero = ZeroParameter(make_parameter_channels(mesh, placement, true));
    ports.embedding = GradientReduction(make_gradient_channels(mesh, placement, true));
  }
  ports.control = Control(mesh.channel(GroupKind::kWorld, Site::kControl, world));
  return ports;
}

void connect_ports(Mesh& mesh, Ports& ports) {
  if (mesh.device() == nullptr || mesh.shape().ranks() == 1) return;
  // An Error of rank 0 is all ranks': they would wait for an id that does not come.
  const std::string id = ports.control.made_by_first([&] { return mesh.device()->unique_id(); });
  try {
    mesh.connect_device(id);
  } catch (const Error&) {
    // Where all ranks have the same error, rank 0 prints it and ends the job meanwhile.
    if (mesh.rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw;
  }
}

}  // namespace thinwire
