// The way of a unit's gradient from its last addition to the groups that sum it: what UnitTraffic does with reductions,
// and the messages of one of them.
#include "parallel/sites/gradient_reduction.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/core/check.h"
#include "parallel/sites/unit_traffic.h"
#include "parallel/wire/host_staging.h"

namespace thinwire {
namespace {

constexpr int kMostOperations = kMostPieces;  // of all its groups together

View part_of(View buffer, Range of, Range part) {
  return buffer.element_range(part.first - of.first, part.count);
}

// Elements of a unit's gradient buffer: all of it, but for `keep`, is zeroed.
void zero_outside(Device& device, View buffer, Range keep, Stream& stream) {
  const View before = buffer.element_range(0, keep.first);
  const View behind = buffer.element_range(keep.first + keep.count, buffer.count() - keep.first - keep.count);
  if (before.count() > 0) device.fill_zero(before.data, before.bytes(), stream);
  if (behind.count() > 0) device.fill_zero(behind.data, behind.bytes(), stream);
}

}  // namespace

// ---- when: the reductions of UnitTraffic

// The unit's reduction has ended and what it left behind is zeroed: the buffer may be added to.
void UnitTraffic::settle(int u) {
  UnitMemory& unit = memory(u);
  UnitState& s = state(u);
  if (waiting_.unit == u) flush();
  if (!s.reduced) return;
  s.reduction.wait(stream_);
  if (summed_apart_) device_.fill_zero(unit.gradient.data, unit.gradient.bytes(), stream_);
  s.reduced = false;
}

void UnitTraffic::gradients_begin(int u) {
  UnitMemory& unit = memory(u);
  if (unit.count == 0 || !summed_apart_) return;
  UnitState& s = state(u);
  if (unit.gradient_place >= 0) {
    int& occupant = gradient_occupants_[static_cast<size_t>(unit.gradient_place)];
    if (occupant >= 0) {
      TW_CHECK(occupant == u || !state(occupant).begun, "units ", occupant, " and ", u, " sum in one buffer");
      settle(occupant);
    }
    occupant = u;
  }
  settle(u);
  s.begun = true;
}

void UnitTraffic::gradients_complete(int u) {
  UnitMemory& unit = memory(u);
  if (unit.count == 0 || !unit.gradient) return;
  if (!sharded_gradients_ && !last_) return;
  // Everything may have gone with an earlier micro-batch (whose input half was later than another's): then zeros go.
  UnitState& s = state(u);
  if (!std::exchange(s.begun, false)) settle(u);
  if (unit.tp_partial.empty() || ports_.tp.size() == 1) {
    flush();
    start_reduction(u, last_);
    return;
  }
  // The tensor ranks' parts are summed while the next unit is at work, unless that one needs the buffer soon.
  next_packed_ ^= 1;
  const int64_t parts = pack(unit, true, packed_[next_packed_]);
  Waiting mine{u, last_, packed_[next_packed_].element_range(0, parts), {}};
  mine.sum = ports_.tp.sum_gradients(mine.packed, stream_);
  flush();
  waiting_ = std::move(mine);
  if (unit.gradient_place >= 0) flush();
}

// Copies the runs of tensor-parallel parts out of the gradient, or back in; returns their number of elements.
int64_t UnitTraffic::pack(UnitMemory& unit, bool out, View buffer) {
  int64_t at = 0;
  for (const Range& r : unit.tp_partial) {
    const View run = unit.gradient.element_range(r.first, r.count), place = buffer.element_range(at, r.count);
    device_.copy(out ? place.data : run.data, out ? run.data : place.data, run.bytes(), stream_).wait(stream_);
    at += r.count;
  }
  return at;
}

void UnitTraffic::flush() {
  if (waiting_.unit < 0) return;
  waiting_.sum.wait(stream_);
  const int u = std::exchange(waiting_.unit, -1);
  pack(memory(u), false, waiting_.packed);
  start_reduction(u, waiting_.last);
}

void UnitTraffic::start_reduction(int u, bool is_last) {
  UnitMemory& unit = memory(u);
  UnitState& s = state(u);
  const GradientBuffers buffers{unit.gradient, unit.gradient_shard};
  s.reduction.wait(stream_);
  if (sent_value_ != nullptr) sent_value_->transform(u, unit.gradient, placement_.replicas * (unit.tied ? 2 : 1));
  // On one queue per rank, what joins two stages waits until the pipeline's messages of both are over.
  const bool finishes_later = unit.tied && is_last && ports_.embedding.on_device(unit.pieces, stream_);
  if (finishes_later) joined_.push_back(u);
  s.reduction = unit.tied
                    ? ports_.embedding.reduce(unit.shard, unit.pieces, buffers, is_last && !finishes_later, stream_)
                    : ports_.dp.reduce(unit.shard, unit.pieces, buffers, is_last, stream_);
  if (!placement_.overlap && !unit.tied) s.reduction.wait(stream_);
  if (unit.gradient_shard.dtype != unit.gradient.dtype) {
    TW_CHECK(is_last && unit.shard.replicas.size() <= 1 && round_ != nullptr, "a sum that is rounded before its end");
    round_(unit.gradient, unit.gradient_shard);
  }
  s.reduced = true;
  if (is_last && !s.listed) s.listed = true, reduce_order_.push_back(u);
}

void UnitTraffic::finish_reductions() {
  flush();
  for (int u : joined_) {
    const UnitMemory& unit = memory(u);
    state(u).reduction.wait(stream_);
    state(u).reduction =
        ports_.embedding.finish(unit.shard, unit.pieces, {unit.gradient, unit.gradient_shard}, stream_);
  }
  joined_.clear();
  for (int u : reduce_order_) {
    const UnitMemory& unit = memory(u);
    settle(u);
    zero_padding(unit, unit.gradient_shard, sharded_gradients_ ? unit.shard.gradients.first : 0);
    state(u).listed = false;
  }
  leftovers_.assign(reduce_order_.begin(), reduce_order_.end());
  reduce_order_.clear();
}

// What others own of reduced gradients: parts of sums.
void UnitTraffic::clear_leftovers() {
  for (int u : leftovers_) {
    const UnitMemory& unit = memory(u);
    const Range& owned = unit.shard.optimizer;
    zero_outside(device_, unit.gradient_shard,
                 {owned.first - (sharded_gradients_ ? unit.shard.gradients.first : 0), owned.count}, stream_);
  }
  leftovers_.clear();
}

// ---- what: the messages of one reduction

ReplicaGroups replica_groups(const Placement& placement, bool tied, const UnitShard& shard) {
  ReplicaGroups g{shard.replicas, {}};
  if (tied && placement.embedding == EmbeddingSyncKind::kTwoStep) {
    const int other = g.replicas.back(), me = (other + placement.replicas) % (2 * placement.replicas);
    g.pair = {std::min(me, other), std::max(me, other)};
    g.replicas.pop_back();
  }
  return g;
}

namespace {

Task one_after_another(Communicator& pool, std::array<Task, kMostOperations> tasks, int count) {
  static_cast<void>(pool);  // where the frame comes from
  for (int i = 0; i < count; ++i) {
    Task& task = tasks[static_cast<size_t>(i)];
    co_await task;
  }
}

// Where the messages of a reduction go, in their order. Through the host: they run one after the other as one
// operation.
class OnHost {
 public:
  void reduce_scatter(Channel& channel, View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                      const MessageKey& key) {
    add(channel, channel.reduce_scatter_task(whole, bounds, out, accumulate, key));
  }
  void all_reduce(Channel& channel, View data, const MessageKey& key) {
    add(channel, channel.all_reduce_task(data, ReduceKind::kSum, key));
  }
  Ticket start(int64_t bytes) {
    if (count_ == 0) return Ticket::finished();
    if (count_ == 1) return first_->start(std::move(tasks_[0]), "reduce", bytes);
    return first_->start(one_after_another(*first_, std::move(tasks_), count_), "reduce", bytes);
  }

 private:
  void add(Channel& channel, Task task) {
    if (count_ == 0) first_ = channel.communicator();
    TW_CHECK(count_ < kMostOperations, "a unit in more than ", kMostOperations, " messages");
    tasks_[static_cast<size_t>(count_++)] = std::move(task);
  }

  Communicator* first_ = nullptr;
  std::array<Task, kMostOperations> tasks_;
  int count_ = 0;
};

// Between devices: one behind the other on the device's stream.
class OnDevice {
 public:
  explicit OnDevice(Stream& stream) : stream_(stream) {}
  void reduce_scatter(Channel& channel, View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                      const MessageKey& key) {
    next(channel, channel.reduce_scatter(whole, bounds, out, accumulate, stream_, key));
  }
  void all_reduce(Channel& channel, View data, const MessageKey& key) {
    next(channel, channel.all_reduce(data, ReduceKind::kSum, stream_, key));
  }
  Ticket last;

 private:
  void next(Channel& channel, Ticket ticket) {
    last.wait(channel.on_device(stream_)->traffic().stream());  // it lies before
    last = std::move(ticket);
  }
  Stream& stream_;
};

View part_of_shard(const UnitShard& unit, const GradientBuffers& buffers, Range part) {
  return part.count > 0 ? part_of(buffers.shard, unit.gradients, part) : buffers.shard.element_range(0, 0);
}

// All members of a group see the same ranges, so they leave out the same messages.
template <typename Way>
void scatter_pieces(Way& way, GradientChannels& channels, const UnitShard& unit, std::span<const UnitPiece> pieces,
                    const GradientBuffers& buffers) {
  const Range whole{0, buffers.full.count()};
  for (const UnitPiece& piece : pieces) {
    if (!channels.shard || buffers.full.count() == 0) break;
    const PieceRanges& ranges = piece.ranges;
    way.reduce_scatter(channels.shard, part_of(buffers.full, whole, piece.range), ranges.shard_bounds,
                       part_of_shard(unit, buffers, ranges.refined), true, piece.key(piece.shard));
  }
}

template <typename Way>
void sum_pieces(Way& way, GradientChannels& channels, const UnitShard& unit, std::span<const UnitPiece> pieces,
                const GradientBuffers& buffers) {
  for (const UnitPiece& piece : pieces) {
    const PieceRanges& ranges = piece.ranges;
    if (ranges.refined.count == 0) continue;
    const View sum = part_of_shard(unit, buffers, ranges.mine);
    if (channels.refine) {
      way.reduce_scatter(channels.refine, part_of_shard(unit, buffers, ranges.refined), ranges.refine_bounds, sum,
                         false, piece.key(piece.refine));
    }
    for (Channel* channel : {&channels.replicas, &channels.pair}) {
      if (!*channel || ranges.mine.count == 0) continue;
      way.all_reduce(*channel, sum, piece.key(piece.mine));
    }
  }
}

}  // namespace

bool GradientReduction::stay_on_device(std::span<const UnitPiece> pieces) const {
  for (const Channel* channel : {&channels_.shard, &channels_.refine, &channels_.replicas, &channels_.pair})
    for (const UnitPiece& piece : pieces)
      if (*channel && !channel->stays_on_device(piece.key({}))) return false;
  return true;
}

bool GradientReduction::on_device(std::span<const UnitPiece> pieces, Stream& stream) const {
  bool any = false;
  for (const Channel* channel : {&channels_.shard, &channels_.refine, &channels_.replicas, &channels_.pair}) {
    if (!*channel) continue;
    any = true;
    if (channel->on_device(stream) == nullptr) return false;
  }
  return any && stay_on_device(pieces);
}

Ticket GradientReduction::reduce(const UnitShard& unit, std::span<const UnitPiece> pieces,
                                 const GradientBuffers& buffers, bool last, Stream& stream) {
  if (on_device(pieces, stream)) {
    OnDevice way(stream);
    scatter_pieces(way, channels_, unit, pieces, buffers);
    if (last) sum_pieces(way, channels_, unit, pieces, buffers);
    return std::move(way.last);
  }
  if (stream.device() != nullptr) {
    if (!channels_.shard && !channels_.refine && !channels_.replicas && !channels_.pair) return Ticket::finished();
    HostStaging staged(stream);
    // What is not this rank's in the end may go lost; where both are the same memory it comes back whole.
    const View full = staged.in(buffers.full), shard = staged.both(buffers.shard);
    return staged.finish(reduce(unit, pieces, {full, shard}, last, staged.host()));
  }
  OnHost way;
  scatter_pieces(way, channels_, unit, pieces, buffers);
  if (last) sum_pieces(way, channels_, unit, pieces, buffers);
  return way.start(static_cast<int64_t>(buffers.full.bytes()));
}

Ticket GradientReduction::finish(const UnitShard& unit, std::span<const UnitPiece> pieces,
                                 const GradientBuffers& buffers, Stream& stream) {
  OnDevice way(stream);
  sum_pieces(way, channels_, unit, pieces, buffers);
  return std::move(way.last);
}

void GradientReduction::prepare(std::span<const UnitPiece> pieces) {
  const bool through_host = !stay_on_device(pieces);
  const auto as_sent = [&](const UnitPiece& piece, const MessageContent& content) {
    MessageKey key = piece.key(content);
    key.staged = through_host;
    return key;
  };
  for (const UnitPiece& piece : pieces) {
    const PieceRanges& ranges = piece.ranges;
    channels_.shard.prepare(as_sent(piece, piece.shard), piece.range.count, ChannelUse::kScatter, ranges.shard_bounds);
    channels_.refine.prepare(as_sent(piece, piece.refine), ranges.refined.count, ChannelUse::kScatter,
                             ranges.refine_bounds);
    for (Channel* channel : {&channels_.replicas, &channels_.pair})
      channel->prepare(as_sent(piece, piece.mine), ranges.mine.count, ChannelUse::kAllReduce);
  }
}

}  // namespace thinwire
