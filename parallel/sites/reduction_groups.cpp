// The way of a unit's gradient through its groups, as one operation; and the channels that it takes.
#include "parallel/sites/reduction_groups.h"

#include <algorithm>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

Task one_after_another(Communicator& pool, Task first, Task second, Task third, Task fourth) {
  static_cast<void>(pool);  // where the frame comes from
  co_await first;
  co_await second;
  if (third) co_await third;
  if (fourth) co_await fourth;
}

// Collects the steps of one operation.
class Steps {
 public:
  void add(Communicator& communicator, Task task) {
    if (count_ == 0) first_ = &communicator;
    TW_CHECK(count_ < 4);
    tasks_[count_++] = std::move(task);
  }
  Ticket start(int64_t bytes) {
    if (count_ == 0) return Ticket::finished();
    if (count_ == 1) return first_->start(std::move(tasks_[0]), "reduce", bytes);
    return first_->start(one_after_another(*first_, std::move(tasks_[0]), std::move(tasks_[1]), std::move(tasks_[2]),
                                           std::move(tasks_[3])),
                         "reduce", bytes);
  }

 private:
  Communicator* first_ = nullptr;
  Task tasks_[4];
  int count_ = 0;
};

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
  Channel channel(GroupKind kind, GroupKind tied_kind, Site site, const std::vector<int>& members) {
    const MeshShape& shape = mesh_.shape();
    std::vector<int> ranks;
    for (int m : members) {
      Coordinates at = mesh_.at();
      at.data = m % shape.data;
      if (tied_) at.pipeline = m < shape.data ? 0 : shape.pipeline - 1;
      ranks.push_back(rank_at(shape, at));
    }
    return mesh_.channel(tied_ ? tied_kind : kind, site, std::move(ranks));
  }

 private:
  Mesh& mesh_;
  bool tied_;
  UnitShard shard_;
};

}  // namespace

GradientChannels make_gradient_channels(Mesh& mesh, const Placement& placement, bool tied) {
  Groups groups(mesh, placement, tied);
  const Site site = tied ? Site::kEmbedding : Site::kDpGradient;
  std::vector<int> replicas = groups.shard().replicas, pair;
  if (tied && placement.embedding == EmbeddingSyncKind::kTwoStep) {
    const int other = replicas.back(), me = (other + placement.replicas) % (2 * placement.replicas);
    pair = {std::min(me, other), std::max(me, other)};
    replicas.pop_back();
  }
  GradientChannels c;
  c.shard = groups.channel(GroupKind::kGradientShard, GroupKind::kEmbeddingShard, site, groups.shard().shard.members);
  c.refine = groups.channel(GroupKind::kGradientOptimizer, GroupKind::kEmbeddingOptimizer, site,
                            groups.shard().refine.members);
  c.replicas = groups.channel(GroupKind::kGradientReplicas, GroupKind::kEmbeddingReplicas, site, replicas);
  if (!pair.empty()) c.pair = groups.channel(GroupKind::kEmbeddingPair, GroupKind::kEmbeddingPair, site, pair);
  return c;
}

ParameterChannels make_parameter_channels(Mesh& mesh, const Placement& placement, bool tied) {
  Groups groups(mesh, placement, tied);
  const Site site = Site::kZeroParameter;
  ParameterChannels c;
  c.update =
      groups.channel(GroupKind::kParameterUpdate, GroupKind::kEmbeddingUpdate, site, groups.shard().update.members);
  c.gather =
      groups.channel(GroupKind::kParameterGather, GroupKind::kEmbeddingGather, site, groups.shard().gather.members);
  if (placement.secondary > 0) {
    c.keep = groups.channel(GroupKind::kParameterSecondary, GroupKind::kEmbeddingSecondary, site,
                            groups.shard().keep.members);
  }
  return c;
}

// All members of a group see the same ranges, so they leave out the same steps.
Ticket reduce_unit(GradientChannels& channels, const UnitShard& unit, const GradientBuffers& buffers, bool last,
                   Stream&) {
  Steps steps;
  if (channels.shard && buffers.full.count() > 0) {
    Communicator& c = *channels.shard.communicator();
    steps.add(c, c.reduce_scatter_task(buffers.full, unit.shard.bounds, buffers.shard, true));
  }
  if (last && unit.gradients.count > 0) {
    const View mine = buffers.shard.element_range(unit.optimizer.first - unit.gradients.first, unit.optimizer.count);
    if (channels.refine) {
      Communicator& c = *channels.refine.communicator();
      steps.add(c, c.reduce_scatter_task(buffers.shard, unit.refine.bounds, mine, false));
    }
    for (Channel* channel : {&channels.replicas, &channels.pair}) {
      if (!*channel || mine.count() == 0) continue;
      steps.add(*channel->communicator(), channel->communicator()->all_reduce_task(mine, ReduceKind::kSum));
    }
  }
  return steps.start(static_cast<int64_t>(buffers.full.bytes()));
}

}  // namespace thinwire
