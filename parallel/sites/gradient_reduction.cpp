// The way of a unit's gradient through its groups, as one operation.
#include "parallel/sites/gradient_reduction.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/core/check.h"
#include "parallel/wire/host_staging.h"

namespace thinwire {
namespace {

constexpr int kMostOperations = kMostPieces;  // of all its groups together

Task one_after_another(Communicator& pool, std::array<Task, kMostOperations> tasks, int count) {
  static_cast<void>(pool);  // where the frame comes from
  for (int i = 0; i < count; ++i) {
    Task& task = tasks[static_cast<size_t>(i)];
    co_await task;
  }
}

// Collectives that run one after the other as one operation.
class Sequence {
 public:
  void add(Channel& channel, Task task) {
    if (count_ == 0) first_ = channel.communicator();
    TW_CHECK(count_ < kMostOperations, "a unit in more than ", kMostOperations, " messages");
    tasks_[static_cast<size_t>(count_++)] = std::move(task);
  }
  Ticket start(int64_t bytes) {
    if (count_ == 0) return Ticket::finished();
    if (count_ == 1) return first_->start(std::move(tasks_[0]), "reduce", bytes);
    return first_->start(one_after_another(*first_, std::move(tasks_), count_), "reduce", bytes);
  }

 private:
  Communicator* first_ = nullptr;
  std::array<Task, kMostOperations> tasks_;
  int count_ = 0;
};

View part_of(View buffer, Range of, Range part) {
  return buffer.element_range(part.first - of.first, part.count);
}

}  // namespace

ReplicaGroups replica_groups(const Placement& placement, bool tied, const UnitShard& shard) {
  ReplicaGroups g{shard.replicas, {}};
  if (tied && placement.embedding == EmbeddingSyncKind::kTwoStep) {
    const int other = g.replicas.back(), me = (other + placement.replicas) % (2 * placement.replicas);
    g.pair = {std::min(me, other), std::max(me, other)};
    g.replicas.pop_back();
  }
  return g;
}

// All members of a group see the same ranges, so they leave out the same sequence.
Ticket GradientReduction::reduce(const UnitShard& unit, std::span<const UnitPiece> pieces,
                                 const GradientBuffers& buffers, bool last, Stream& stream) {
  if (stream.device() != nullptr) {
    if (!channels_.shard && !channels_.refine && !channels_.replicas && !channels_.pair) return Ticket::finished();
    HostStaging staged(stream);
    // What is not this rank's in the end may go lost; where both are the same memory it comes back whole.
    const View full = staged.in(buffers.full), shard = staged.both(buffers.shard);
    return staged.finish(reduce(unit, pieces, {full, shard}, last, staged.host()));
  }
  Sequence sequence;
  const Range whole{0, buffers.full.count()};
  const auto part_of_shard = [&](Range part) {
    return part.count > 0 ? part_of(buffers.shard, unit.gradients, part) : buffers.shard.element_range(0, 0);
  };
  for (const UnitPiece& piece : pieces) {
    if (!channels_.shard || buffers.full.count() == 0) break;
    const PieceRanges& ranges = piece.ranges;
    sequence.add(channels_.shard, channels_.shard.reduce_scatter_task(
                                      part_of(buffers.full, whole, piece.range), ranges.shard_bounds,
                                      part_of_shard(ranges.refined), true, piece.key(piece.shard_matrices)));
  }
  for (const UnitPiece& piece : pieces) {
    const PieceRanges& ranges = piece.ranges;
    if (!last || ranges.refined.count == 0) continue;
    const View sum = part_of_shard(ranges.mine);
    if (channels_.refine) {
      sequence.add(channels_.refine,
                   channels_.refine.reduce_scatter_task(part_of_shard(ranges.refined), ranges.refine_bounds, sum, false,
                                                        piece.key(piece.refine_matrices)));
    }
    for (Channel* channel : {&channels_.replicas, &channels_.pair}) {
      if (!*channel || ranges.mine.count == 0) continue;
      sequence.add(*channel, channel->all_reduce_task(sum, ReduceKind::kSum, piece.key(piece.mine_matrices)));
    }
  }
  return sequence.start(static_cast<int64_t>(buffers.full.bytes()));
}

void GradientReduction::prepare(std::span<const UnitPiece> pieces) {
  for (const UnitPiece& piece : pieces) {
    const PieceRanges& ranges = piece.ranges;
    channels_.shard.prepare(piece.key(piece.shard_matrices), piece.range.count, ChannelUse::kScatter);
    channels_.refine.prepare(piece.key(piece.refine_matrices), ranges.refined.count, ChannelUse::kScatter);
    for (Channel* channel : {&channels_.replicas, &channels_.pair})
      channel->prepare(piece.key(piece.mine_matrices), ranges.mine.count, ChannelUse::kAllReduce);
  }
}

}  // namespace thinwire
