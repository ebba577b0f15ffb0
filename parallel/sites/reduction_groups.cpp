// The way of a unit's gradient through its groups, as one operation; and the channels that it takes.
#include "parallel/sites/reduction_groups.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/core/check.h"
#include "parallel/comm/host_staging.h"

namespace thinwire {
namespace {

// Steps of one operation. As many as a unit has pieces, on three ways.
constexpr int kMostSteps = 24;

Task one_after_another(Communicator& pool, std::array<Task, kMostSteps> tasks, int count) {
  static_cast<void>(pool);  // where the frame comes from
  for (int i = 0; i < count; ++i) {
    Task& task = tasks[static_cast<size_t>(i)];
    co_await task;
  }
}

class Steps {
 public:
  void add(Channel& channel, Task task) {
    if (count_ == 0) first_ = channel.communicator();
    TW_CHECK(count_ < kMostSteps, "a unit in more than ", kMostSteps, " messages");
    tasks_[static_cast<size_t>(count_++)] = std::move(task);
  }
  Ticket start(int64_t bytes) {
    if (count_ == 0) return Ticket::finished();
    if (count_ == 1) return first_->start(std::move(tasks_[0]), "reduce", bytes);
    return first_->start(one_after_another(*first_, std::move(tasks_), count_), "reduce", bytes);
  }

 private:
  Communicator* first_ = nullptr;
  std::array<Task, kMostSteps> tasks_;
  int count_ = 0;
};

Range intersection(Range a, Range b) {
  const int64_t first = std::max(a.first, b.first), end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<int64_t>(0, end - first)};
}

// Bounds that cut `whole` (relative to its start), cut down to [part] of it and relative to that.
std::vector<int64_t> bounds_within(std::span<const int64_t> bounds, Range whole, Range part) {
  std::vector<int64_t> inside;
  for (int64_t b : bounds) inside.push_back(std::clamp<int64_t>(b + whole.first - part.first, 0, part.count));
  return inside;
}

View part_of(View buffer, Range of, Range part) {
  return buffer.element_range(part.first - of.first, part.count);
}

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

// Who sums what is whole already: replicas, and behind them the two stages of a tied embedding in two steps.
struct LastGroups {
  std::vector<int> replicas, pair;
};
LastGroups last_groups(const Placement& placement, bool tied, const UnitShard& shard) {
  LastGroups g{shard.replicas, {}};
  if (tied && placement.embedding == EmbeddingSyncKind::kTwoStep) {
    const int other = g.replicas.back(), me = (other + placement.replicas) % (2 * placement.replicas);
    g.pair = {std::min(me, other), std::max(me, other)};
    g.replicas.pop_back();
  }
  return g;
}

}  // namespace

GradientChannels make_gradient_channels(Mesh& mesh, const Placement& placement, bool tied) {
  Groups groups(mesh, placement, tied);
  const Site site = tied ? Site::kEmbedding : Site::kDpGradient;
  const auto [replicas, pair] = last_groups(placement, tied, groups.shard());
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

UnitPiece make_piece(Range range, uint32_t slot, bool coded, const UnitShard& shard) {
  UnitPiece piece{range, slot, coded, {}, {}, {}, {}};
  PieceRanges& r = piece.ranges;
  r.refined = intersection(range, shard.gradients);
  r.mine = intersection(range, shard.optimizer);
  const int64_t end = shard.shard.bounds.empty() ? 0 : shard.shard.bounds.back();
  r.shard_bounds = bounds_within(shard.shard.bounds, {0, end}, range);
  r.refine_bounds = bounds_within(shard.refine.bounds, shard.gradients, r.refined);
  return piece;
}

std::vector<UnitPiece> cut_unit(const SelectSpec* select, int unit_number, const UnitShard& shard, const Unit& unit,
                                const ParamList& params, int layers, bool leave_whole) {
  std::vector<UnitPiece> pieces;
  const auto add = [&](Range range, bool coded) {
    if (range.count == 0) return;
    const size_t number = static_cast<size_t>(unit_number * kMostSteps) + pieces.size();
    UnitPiece piece = make_piece(range, static_cast<uint32_t>(number), coded, shard);
    piece.shard_matrices = matrices_in(range, unit, params);
    if (piece.ranges.refined.count > 0) piece.refine_matrices = matrices_in(piece.ranges.refined, unit, params);
    if (piece.ranges.mine.count > 0) piece.mine_matrices = matrices_in(piece.ranges.mine, unit, params);
    pieces.push_back(std::move(piece));
  };
  if (select == nullptr || (!leave_whole && select->layers.empty() && select->tensor_classes.empty())) {
    add({0, unit.count}, true);
    return pieces;
  }
  std::vector<Range> coded;
  if (selects_unit(*select, unit_number, layers)) coded = coded_ranges(*select, unit, params, leave_whole);
  int64_t at = 0;
  for (const Range& range : coded) {
    add({at, range.first - at}, false);
    add(range, true);
    at = range.first + range.count;
  }
  add({at, unit.count - at}, false);
  return pieces;
}

// All members of a group see the same ranges, so they leave out the same steps.
Ticket reduce_unit(GradientChannels& channels, const UnitShard& unit, std::span<const UnitPiece> pieces,
                   const GradientBuffers& buffers, bool last, Stream& stream) {
  if (stream.device() != nullptr) {
    if (!channels.shard && !channels.refine && !channels.replicas && !channels.pair) return Ticket::finished();
    HostStaging staged(stream);
    // What is not this rank's in the end may go lost; where both are the same memory it comes back whole.
    const View full = staged.in(buffers.full), shard = staged.both(buffers.shard);
    return staged.finish(reduce_unit(channels, unit, pieces, {full, shard}, last, staged.host()));
  }
  Steps steps;
  const Range whole{0, buffers.full.count()};
  const auto part_of_shard = [&](Range part) {
    return part.count > 0 ? part_of(buffers.shard, unit.gradients, part) : buffers.shard.element_range(0, 0);
  };
  for (const UnitPiece& piece : pieces) {
    if (!channels.shard || buffers.full.count() == 0) break;
    const PieceRanges& ranges = piece.ranges;
    steps.add(channels.shard,
              channels.shard.reduce_scatter_task(part_of(buffers.full, whole, piece.range), ranges.shard_bounds,
                                                 part_of_shard(ranges.refined), true, piece.key(piece.shard_matrices)));
  }
  for (const UnitPiece& piece : pieces) {
    const PieceRanges& ranges = piece.ranges;
    if (!last || ranges.refined.count == 0) continue;
    const View sum = part_of_shard(ranges.mine);
    if (channels.refine) {
      steps.add(channels.refine,
                channels.refine.reduce_scatter_task(part_of_shard(ranges.refined), ranges.refine_bounds, sum, false,
                                                    piece.key(piece.refine_matrices)));
    }
    for (Channel* channel : {&channels.replicas, &channels.pair}) {
      if (!*channel || ranges.mine.count == 0) continue;
      steps.add(*channel, channel->all_reduce_task(sum, ReduceKind::kSum, piece.key(piece.mine_matrices)));
    }
  }
  return steps.start(static_cast<int64_t>(buffers.full.bytes()));
}

void prepare_unit(GradientChannels& channels, std::span<const UnitPiece> pieces) {
  for (const UnitPiece& piece : pieces) {
    const PieceRanges& ranges = piece.ranges;
    channels.shard.prepare(piece.key(piece.shard_matrices), piece.range.count, ChannelUse::kScatter);
    channels.refine.prepare(piece.key(piece.refine_matrices), ranges.refined.count, ChannelUse::kScatter);
    for (Channel* channel : {&channels.replicas, &channels.pair})
      channel->prepare(piece.key(piece.mine_matrices), ranges.mine.count, ChannelUse::kAllReduce);
  }
}

int64_t gradient_state_bytes(const std::shared_ptr<SiteCoding>& coding, const Placement& placement, bool tied,
                             const UnitShard& shard, std::span<const UnitPiece> pieces) {
  const LastGroups last = last_groups(placement, tied, shard);
  const auto further = further_coding(coding);
  const bool shards = shard.shard.members.size() > 1, refines = shard.refine.members.size() > 1;
  const bool replicates = last.replicas.size() > 1;
  int64_t bytes = 0;
  for (const UnitPiece& piece : pieces) {
    if (!piece.coded) continue;
    const PieceRanges& r = piece.ranges;
    if (shards) bytes += state_bytes(*coding, piece.shard_matrices, piece.range.count, ChannelUse::kScatter);
    if (refines)
      bytes += state_bytes(shards ? *further : *coding, piece.refine_matrices, r.refined.count, ChannelUse::kScatter);
    const bool summed = shards || refines;
    if (replicates)
      bytes += state_bytes(summed ? *further : *coding, piece.mine_matrices, r.mine.count, ChannelUse::kAllReduce);
    if (!last.pair.empty())
      bytes += state_bytes(summed || replicates ? *further : *coding, piece.mine_matrices, r.mine.count,
                           ChannelUse::kAllReduce);
  }
  return bytes;
}

}  // namespace thinwire
