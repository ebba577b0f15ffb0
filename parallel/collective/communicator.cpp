// The verbs of a group: arguments checked, a tag taken, an algorithm picked, a task started.
#include "parallel/collective/communicator.h"

#include <algorithm>
#include <cstring>

#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"

namespace thinwire {
namespace {

// A tag: number of the communicator | collective or message | sequence, which wraps (sequence_window.h).
constexpr int kNumberBits = 5, kSequenceBits = kTagBits - kNumberBits - 1;
static_assert(kMaxGroups == (1 << kNumberBits) - 1);
constexpr uint32_t kTagsPerCollective = 2;  // collectives.h

int make_tag(int number, bool message, uint32_t sequence, int sequence_bits) {
  return static_cast<int>(static_cast<uint32_t>(number) << (kSequenceBits + 1) |
                          static_cast<uint32_t>(message) << kSequenceBits | sequence % (1u << sequence_bits));
}

// As Transfer sends it, where the tag is not free yet.
Task one_message(GroupLane lane, View data, int peer, bool is_send) {
  Exchange exchange(lane);
  if (is_send) {
    exchange.send(data.data, data.bytes(), peer);
  } else {
    exchange.receive(data.data, data.bytes(), peer);
  }
  co_await exchange;
}

Label label_of(Site site) {
  return {name_of(site).data(), static_cast<int>(site)};
}

char* start_of(View whole, std::span<const int64_t> bounds, int rank) {
  return static_cast<char*>(whole.data) + static_cast<size_t>(bounds[static_cast<size_t>(rank)]) * size_of(whole.dtype);
}

bool overlap(View a, View b) {
  const char *first = static_cast<const char*>(a.data), *second = static_cast<const char*>(b.data);
  return first < second + b.bytes() && second < first + a.bytes();
}

// Copies first, when the task runs.
Task gather_from(GroupLane, View mine, char* place, Task gather) {
  std::memmove(place, mine.data, mine.bytes());
  co_await gather;
}

}  // namespace

void watch_rehearsal(Progress& progress, RehearsalWatch* watch) {
  progress.core().rehearsal_watch = watch;
}

int communicator_of(const GroupLane& lane) {
  return lane.tag >> (kSequenceBits + 1);
}

Communicator::Communicator(Progress& progress, std::vector<int> ranks, int number, Site site, WireCounters* counters,
                           std::vector<int> nodes, const CommTuning& tuning)
    : progress_(&progress),
      ranks_(std::move(ranks)),
      nodes_(std::move(nodes)),
      number_(number),
      site_(site),
      counters_(counters),
      tuning_(tuning),
      collectives_(progress.core().held, (1u << tuning.sequence_bits) / kTagsPerCollective) {
  TW_CHECK(number >= 0 && number < kMaxGroups, "communicator ", number);
  TW_CHECK(nodes_.empty() || nodes_.size() == ranks_.size());
  TW_CHECK(tuning_.chunk_bytes > 0 && tuning_.chunk_bytes <= static_cast<int64_t>(kLargestMessage) &&
           tuning_.small_bytes <= static_cast<int64_t>(kLargestMessage));
  TW_CHECK(tuning_.sequence_bits >= 1 && tuning_.sequence_bits <= kSequenceBits);
  Progress::Core& core = progress.core();
  {
    IssueLock lock(core);
    gathers_ = &core.gathers[number];
  }
  const auto me = std::find(ranks_.begin(), ranks_.end(), progress.transport().rank());
  TW_CHECK(me != ranks_.end(), "rank ", progress.transport().rank(), " is not in its group");
  rank_ = static_cast<int>(me - ranks_.begin());
  std::vector<int> sorted = ranks_;
  std::sort(sorted.begin(), sorted.end());
  TW_CHECK(sorted.front() >= 0, "rank ", sorted.front());
  TW_CHECK(sorted.back() < progress.transport().size(), "rank ", sorted.back());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  TW_CHECK(twice == sorted.end(), "rank ", *twice, " is twice in a group");
}

GroupLane Communicator::lane() {
  GroupLane lane = bare_lane();
  lane.place = collectives_.take();
  lane.tag = make_tag(number_, false, lane.place.sequence * kTagsPerCollective, tuning_.sequence_bits);
  return lane;
}

GroupLane Communicator::message_lane(const SequencePlace& place) const {
  GroupLane lane = bare_lane();
  lane.place = place;
  lane.tag = make_tag(number_, true, place.sequence, tuning_.sequence_bits);
  return lane;
}

SequenceWindow& Communicator::messages(int peer, bool is_send) {
  check_peer(peer);
  return messages_.try_emplace(2 * peer + (is_send ? 1 : 0), progress_->core().held, 1u << tuning_.sequence_bits)
      .first->second;
}

GroupLane Communicator::bare_lane() const {
  GroupLane lane;
  lane.core = &progress_->core();
  lane.counters = counters_;
  lane.ranks = ranks_;
  lane.nodes = nodes_;
  lane.me = rank_;
  lane.tuning = &tuning_;
  lane.checksums = tuning_.checksums;
  lane.gathers = gathers_;
  return lane;
}

Ticket Communicator::start(Task task, const char* verb, int64_t bytes, int peer) {
  const SequencePlace place = task.place();  // none: of several collectives, and goes by the last of them
  const OperationNote note{.label = label_of(site_),
                           .verb = verb,
                           .group = number_,
                           .peer = peer < 0 ? -1 : ranks_[static_cast<size_t>(peer)],
                           .sequence = place.window != nullptr ? place.sequence : collectives_.next() - 1,
                           .bytes = bytes};
  Ticket ticket = progress_->start(std::move(task), note, counters_);
  RehearsalWatch* const watch = progress_->core().rehearsal_watch;
  return watch != nullptr ? watch->issued(note) : std::move(ticket);
}

GroupLane Communicator::lane_of(DeviceWork& work) const {
  GroupLane lane = bare_lane();
  lane.device = &work;
  return lane;
}

SendQueue& Communicator::packing(uint32_t slot) {
  Progress::Core& core = progress_->core();
  IssueLock lock(core);
  return core.packing[{number_, slot}];
}

GroupLane Communicator::lane_to(int peer) {
  return message_lane(messages(peer, true).take());
}

GroupLane Communicator::lane_from(int peer) {
  return message_lane(messages(peer, false).take());
}

void Communicator::check_peer(int peer) const {
  TW_CHECK(peer >= 0 && peer < size() && peer != rank_, "rank ", rank_, " of ", size(), " and its peer ", peer);
}

void Communicator::check_host(Stream& stream) {
  TW_CHECK(stream.device() == nullptr, "a communicator moves host memory; a channel takes that of a device");
}

void Communicator::check_bounds(std::span<const int64_t> bounds, View whole) const {
  TW_CHECK(static_cast<int>(bounds.size()) == size() + 1 && bounds.front() == 0 && bounds.back() == whole.count(),
           "bounds do not divide ", whole.count(), " elements among ", size(), " ranks");
  TW_CHECK(std::is_sorted(bounds.begin(), bounds.end()), "bounds go backwards");
}

// --- tasks ------------------------------------------------------------------------------------------------------

Task Communicator::all_reduce_task(View data, ReduceKind kind) {
  TW_CHECK(can_reduce(data.dtype, kind), "no such reduction of ", name_of(data.dtype));
  return plain_all_reduce(lane(), data, kind);
}

Task Communicator::reduce_scatter_task(View whole, std::span<const int64_t> bounds, View out, bool accumulate) {
  check_bounds(bounds, whole);
  const int64_t mine = bounds[static_cast<size_t>(rank_) + 1] - bounds[static_cast<size_t>(rank_)];
  TW_CHECK(out.count() == mine, out.count(), " elements for a range of ", mine);
  TW_CHECK(can_reduce(whole.dtype, ReduceKind::kSum), "no sums of ", name_of(whole.dtype));
  TW_CHECK(out.dtype == whole.dtype ||
               (out.dtype == DType::f32 && (whole.dtype == DType::bf16 || whole.dtype == DType::f16)),
           name_of(whole.dtype), " into ", name_of(out.dtype));
  const char *first = static_cast<const char*>(whole.data), *place = static_cast<const char*>(out.data);
  TW_CHECK(mine == 0 || place + out.bytes() <= first || place >= first + whole.bytes() ||
               (!accumulate && place == start_of(whole, bounds, rank_) && out.dtype == whole.dtype),
           "the result overlaps what is reduced");
  return plain_reduce_scatter(lane(), whole, Bounds(pool(), bounds), out, accumulate);
}

Task Communicator::all_gather_task(View mine, View whole, std::span<const int64_t> bounds) {
  check_bounds(bounds, whole);
  char* const place = start_of(whole, bounds, rank_);
  const int64_t count = bounds[static_cast<size_t>(rank_) + 1] - bounds[static_cast<size_t>(rank_)];
  TW_CHECK(mine.count() == count && mine.dtype == whole.dtype, mine.count(), " elements for a range of ", count);
  GroupLane lane = this->lane();
  const bool direct = choose_algorithm(tuning_, Collective::kAllGather, nodes_, size(),
                                       static_cast<int64_t>(whole.bytes())) == Algorithm::kDirect;
  if (count == 0 || mine.data == place || (direct && size() > 1 && !overlap(mine, whole)))
    return plain_all_gather(lane, mine, whole, Bounds(pool(), bounds));
  GroupLane inner = lane;
  inner.place = SequencePlace();  // the outer task's
  return gather_from(lane, mine, place,
                     plain_all_gather(inner, View(place, whole.dtype, {count}), whole, Bounds(pool(), bounds)));
}

Task Communicator::all_to_all_task(View from, std::span<const int64_t> from_bounds, View to,
                                   std::span<const int64_t> to_bounds) {
  check_bounds(from_bounds, from);
  check_bounds(to_bounds, to);
  TW_CHECK(from.dtype == to.dtype);
  const auto mine = [this](std::span<const int64_t> bounds) {
    return bounds[static_cast<size_t>(rank_) + 1] - bounds[static_cast<size_t>(rank_)];
  };
  TW_CHECK(mine(from_bounds) == mine(to_bounds), "what this rank keeps differs in length");
  return coded_all_to_all(lane(), plain_call(), from, Bounds(pool(), from_bounds), to, Bounds(pool(), to_bounds));
}

Task Communicator::broadcast_task(View data, int root) {
  TW_CHECK(root >= 0 && root < size(), "rank ", root, " of ", size());
  const GroupLane lane = this->lane();
  return size() == 1 || data.bytes() == 0 ? nothing(lane) : tree_broadcast(lane, data, root);
}

Task Communicator::barrier_task() {
  return dissemination_barrier(lane());
}

// --- tickets ----------------------------------------------------------------------------------------------------

Ticket Communicator::all_reduce(View data, ReduceKind kind, Stream& stream) {
  check_host(stream);
  if (size() == 1) return Ticket::finished();
  return start(all_reduce_task(data, kind), "all_reduce", static_cast<int64_t>(data.bytes()));
}

Ticket Communicator::reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                                    Stream& stream) {
  check_host(stream);
  return start(reduce_scatter_task(whole, bounds, out, accumulate), "reduce_scatter",
               static_cast<int64_t>(whole.bytes()));
}

Ticket Communicator::all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream) {
  check_host(stream);
  return start(all_gather_task(mine, whole, bounds), "all_gather", static_cast<int64_t>(whole.bytes()));
}

Ticket Communicator::all_to_all(View from, std::span<const int64_t> from_bounds, View to,
                                std::span<const int64_t> to_bounds, Stream& stream) {
  check_host(stream);
  return start(all_to_all_task(from, from_bounds, to, to_bounds), "all_to_all", static_cast<int64_t>(from.bytes()));
}

Ticket Communicator::broadcast(View data, int root, Stream& stream) {
  check_host(stream);
  if (size() == 1) return Ticket::finished();
  return start(broadcast_task(data, root), "broadcast", static_cast<int64_t>(data.bytes()));
}

Ticket Communicator::send(View data, int peer, Stream& stream) {
  check_host(stream);
  return point_to_point(data, peer, true);
}

Ticket Communicator::receive(View data, int peer, Stream& stream) {
  check_host(stream);
  return point_to_point(data, peer, false);
}

Ticket Communicator::point_to_point(View data, int peer, bool is_send) {
  SequenceWindow& window = messages(peer, is_send);
  const OperationNote note{.label = label_of(site_),
                           .verb = is_send ? "send" : "receive",
                           .group = number_,
                           .peer = ranks_[static_cast<size_t>(peer)],
                           .sequence = window.next(),
                           .bytes = static_cast<int64_t>(data.bytes())};
  // One message, or the two pieces that a window of pieces would have under way (collectives.h).
  if (data.bytes() == 0 || bare_lane().peer(peer).checked ||
      data.bytes() > std::min(2 * static_cast<size_t>(bare_lane().piece_elements(DType::u8)), kLargestMessage)) {
    Task task = is_send ? coded_send(lane_to(peer), plain_call(), data, peer)
                        : coded_receive(lane_from(peer), plain_call(), data, peer);
    return progress_->start(std::move(task), note, counters_);
  }
  const SequencePlace place = window.take();
  const GroupLane lane = message_lane(place);
  if (!place.may_start()) return progress_->start(one_message(lane, data, note.peer, is_send), note, counters_);
  const Transfer transfer{is_send, data.data, data.bytes(), note.peer, lane.tag, place};
  return progress_->core().start(transfer, note, counters_);
}

Ticket Communicator::barrier() {
  if (size() == 1) return Ticket::finished();
  return start(barrier_task(), "barrier", 0);
}

}  // namespace thinwire
