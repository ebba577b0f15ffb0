// Collectives and messages of a group as calls of NCCL and sums in rank order, queued on the stream of the traffic.
#include "parallel/device/device_communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/core/check.h"
#include "parallel/wire/progress_core.h"

namespace thinwire {
namespace {

constexpr int64_t kAlign = 64;  // bytes: contributions start on them
constexpr int64_t kUnit = 16;   // elements: slices of an all-reduce end on multiples, as on the host (kVector)

bool is_even(std::span<const int64_t> bounds) {
  for (size_t r = 1; r < bounds.size(); ++r)
    if (bounds[r] - bounds[r - 1] != bounds[1] - bounds[0]) return false;
  return true;
}

int64_t longest(std::span<const int64_t> bounds) {
  int64_t most = 0;
  for (size_t r = 1; r < bounds.size(); ++r) most = std::max(most, bounds[r] - bounds[r - 1]);
  return most;
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(DeviceTraffic& traffic, const DeviceGroup& group, Progress& progress, int number,
                                       Site site, WireCounters* counters)
    : traffic_(traffic), group_(group), progress_(progress), number_(number), site_(site), counters_(counters) {}

OperationNote DeviceCommunicator::issue(const char* verb, int64_t bytes, int peer, bool is_first) {
  TW_CHECK(group_.handle != nullptr, "communication on the device before it is connected");
  if (is_first && counters_ != nullptr) {
    IssueLock lock(progress_.core());
    ++counters_->operations;
  }
  return {.label = {name_of(site_).data(), static_cast<int>(site_)},
          .verb = verb,
          .group = number_,
          .peer = peer < 0 ? -1 : group_.ranks[static_cast<size_t>(peer)],
          .sequence = sequence_++,
          .bytes = bytes};
}

int64_t DeviceCommunicator::count(int64_t bytes, int64_t messages) {
  if (counters_ == nullptr) return bytes;
  IssueLock lock(progress_.core());
  counters_->wire_bytes += bytes, counters_->logical_bytes += bytes;
  counters_->messages += messages;
  return bytes;
}

View DeviceCommunicator::slice(View whole, std::span<const int64_t> bounds, int rank) const {
  const auto r = static_cast<size_t>(rank);
  return whole.element_range(bounds[r], bounds[r + 1] - bounds[r]);
}

// Every rank's contribution to my slice comes to me, in pieces that fit the scratch, and is added.
int64_t DeviceCommunicator::queue_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate) {
  const int n = group_.size(), me = group_.me;
  const auto width = static_cast<int64_t>(size_of(whole.dtype));
  NcclCalls& calls = traffic_.calls();
  const View mine = slice(whole, bounds, me);
  const int64_t sent = count((whole.count() - mine.count()) * width, n - 1);
  if (!traffic_.options().deterministic) {
    calls.group_start();
    for (int r = 0; r < n; ++r)
      if (const View part = slice(whole, bounds, r); part.count() > 0)
        calls.reduce(part, r, group_.handle, traffic_.stream());
    calls.group_end();
    if (mine.count() > 0 && mine.data != out.data)
      calls.sum_in_rank_order({.own = mine, .out = out, .accumulate = accumulate}, traffic_.stream());
    return sent;
  }
  const int64_t piece = traffic_.options().scratch_bytes / n / kAlign * kAlign / width;
  TW_CHECK(piece > 0, "too little scratch for ", n, " ranks");
  const int64_t most = longest(bounds);
  const int64_t stride = std::min(piece * width, (most * width + kAlign - 1) / kAlign * kAlign);
  for (int64_t at = 0; at < most; at += piece) {
    const auto part = [&](View slice) {
      const int64_t first = std::min(at, slice.count());
      return slice.element_range(first, std::min(piece, slice.count() - first));
    };
    std::vector<DeviceTraffic::Transfer> transfers;
    const View own = part(mine);
    for (int i = 1; i < n; ++i) {
      const int to = (me + i) % n, from = (me + n - i) % n;
      transfers.push_back({true, part(slice(whole, bounds, to)), to, &group_});
      transfers.push_back({false, View(traffic_.scratch() + from * stride, whole.dtype, {own.count()}), from, &group_});
    }
    traffic_.queue_group(transfers);
    if (own.count() == 0) continue;
    calls.sum_in_rank_order({own, me, n, traffic_.scratch(), stride, part(out), accumulate}, traffic_.stream());
  }
  return sent;
}

int64_t DeviceCommunicator::queue_gather(View mine, View whole, std::span<const int64_t> bounds) {
  const int n = group_.size();
  NcclCalls& calls = traffic_.calls();
  const View place = slice(whole, bounds, group_.me);
  const int64_t sent = count(static_cast<int64_t>(mine.bytes()) * (n - 1), n - 1);
  if (is_even(bounds)) {
    if (mine.count() > 0) calls.all_gather(mine, whole, group_.handle, traffic_.stream());
    return sent;
  }
  if (mine.data != place.data && mine.count() > 0)
    traffic_.device().copy(place.data, mine.data, mine.bytes(), traffic_.stream()).wait(traffic_.stream());
  calls.group_start();  // broadcasts pass parts on: nobody sends its own to all others
  for (int r = 0; r < n; ++r)
    if (const View part = slice(whole, bounds, r); part.count() > 0)
      calls.broadcast(part, r, group_.handle, traffic_.stream());
  calls.group_end();
  return sent;
}

Ticket DeviceCommunicator::all_reduce(View data, Stream& stream) {
  const OperationNote what = issue("all_reduce", data);
  if (data.count() == 0) return Ticket::finished();
  TW_CHECK(sums(data.dtype), "no sums of ", name_of(data.dtype), " on the device");
  traffic_.follow(stream);
  queue_all_reduce(data);
  return traffic_.finish(what);
}

int64_t DeviceCommunicator::queue_all_reduce(View data) {
  const int n = group_.size();
  const auto bytes = static_cast<int64_t>(data.bytes());
  NcclCalls& calls = traffic_.calls();
  if (bytes <= traffic_.options().small_bytes && bytes * n <= traffic_.options().scratch_bytes) {
    // One latency, and no point-to-point connections, which the world's group does not have (DeviceEdges::kNone).
    const View all(traffic_.scratch(), data.dtype, {data.count() * n});
    calls.all_gather(data, all, group_.handle, traffic_.stream());
    calls.sum_in_rank_order({data, group_.me, n, all.data, bytes, data}, traffic_.stream());
    return count(bytes * (n - 1), n - 1);
  }
  std::vector<int64_t> bounds;
  for (int r = 0; r <= n; ++r)
    bounds.push_back(std::min(data.count(), (data.count() * r / n + kUnit - 1) / kUnit * kUnit));
  const View mine = slice(data, bounds, group_.me);
  if (!traffic_.options().deterministic) {
    calls.all_reduce(data, group_.handle, traffic_.stream());
    return count((data.count() + mine.count() * (n - 2)) * static_cast<int64_t>(size_of(data.dtype)), 2 * (n - 1));
  }
  return queue_scatter(data, bounds, mine, false) + queue_gather(mine, data, bounds);
}

Ticket DeviceCommunicator::reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                                          Stream& stream) {
  const OperationNote what = issue("reduce_scatter", whole);
  TW_CHECK(static_cast<int>(bounds.size()) == group_.size() + 1 && bounds.back() == whole.count() &&
           out.count() == slice(whole, bounds, group_.me).count());
  TW_CHECK(sums(whole.dtype), "no sums of ", name_of(whole.dtype), " on the device");
  if (whole.count() == 0) return Ticket::finished();
  traffic_.follow(stream);
  queue_scatter(whole, bounds, out, accumulate);
  return traffic_.finish(what);
}

Ticket DeviceCommunicator::all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream) {
  const OperationNote what = issue("all_gather", whole);
  TW_CHECK(static_cast<int>(bounds.size()) == group_.size() + 1 && bounds.back() == whole.count() &&
           mine.count() == slice(whole, bounds, group_.me).count());
  if (whole.count() == 0) return Ticket::finished();
  traffic_.follow(stream);
  if (mine.dtype != whole.dtype && mine.count() > 0) {
    const View place = slice(whole, bounds, group_.me);
    const Touched touched[] = {{mine.data, mine.bytes(), false}, {place.data, place.bytes(), true}};
    Exec& exec = traffic_.calls().kernels(touched);
    exec.ops.cast(exec, {mine, place});
    mine = place;
  } else if (mine.count() == 0) {
    mine = slice(whole, bounds, group_.me);
  }
  queue_gather(mine, whole, bounds);
  return traffic_.finish(what);
}

Ticket DeviceCommunicator::all_to_all(View from, std::span<const int64_t> from_bounds, View to,
                                      std::span<const int64_t> to_bounds, Stream& stream) {
  const OperationNote what = issue("all_to_all", from);
  const int n = group_.size(), me = group_.me;
  traffic_.follow(stream);
  std::vector<DeviceTraffic::Transfer> transfers;
  for (int i = 1; i < n; ++i) {
    const int peer = (me + i) % n, source = (me + n - i) % n;
    transfers.push_back({true, slice(from, from_bounds, peer), peer, &group_});
    transfers.push_back({false, slice(to, to_bounds, source), source, &group_});
  }
  const View kept = slice(from, from_bounds, me), place = slice(to, to_bounds, me);
  count(static_cast<int64_t>(from.bytes() - kept.bytes()), n - 1);
  if (kept.count() > 0)
    traffic_.device().copy(place.data, kept.data, kept.bytes(), traffic_.stream()).wait(traffic_.stream());
  traffic_.queue_group(transfers);
  return traffic_.finish(what);
}

Ticket DeviceCommunicator::broadcast(View data, int root, Stream& stream) {
  const OperationNote what = issue("broadcast", data);
  const bool sends = group_.me == root;
  count(sends ? static_cast<int64_t>(data.bytes()) * (group_.size() - 1) : 0, sends ? group_.size() - 1 : 0);
  if (data.count() == 0) return Ticket::finished();
  traffic_.follow(stream);
  traffic_.calls().broadcast(data, root, group_.handle, traffic_.stream());
  return traffic_.finish(what);
}

Ticket DeviceCommunicator::send(View data, int peer, Stream& stream) {
  count(static_cast<int64_t>(data.bytes()), 1);
  return traffic_.exchange({{true, data, peer, &group_}}, issue("send", data, peer), stream);
}

Ticket DeviceCommunicator::receive(View data, int peer, Stream& stream) {
  return traffic_.exchange({{false, data, peer, &group_}}, issue("receive", data, peer), stream);
}

Ticket DeviceCommunicator::send_and_receive(View from, int to, View into, int peer, Stream& stream) {
  count(static_cast<int64_t>(from.bytes()), 1);
  return traffic_.exchange({{true, from, to, &group_}, {false, into, peer, &group_}},
                           issue("send_and_receive", from, to), stream);
}

Ticket DeviceCommunicator::receive_parts(View whole, std::span<const int64_t> bounds, int peer,
                                         DeviceCommunicator& parts, Stream& stream) {
  const View mine = parts.slice(whole, bounds, parts.group_.me);
  return traffic_.exchange({{false, mine, peer, &group_}}, issue("receive", whole, peer), stream,
                           [&parts, mine, whole, kept = std::vector<int64_t>(bounds.begin(), bounds.end())] {
                             parts.queue_gather(mine, whole, kept);
                           });
}

}  // namespace thinwire
