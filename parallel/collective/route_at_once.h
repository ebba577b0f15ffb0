// Routes of one plain piece a stop: every message is posted at once, from and to where it belongs. Small collectives
// would spend half of their time in setting up the windows of route_run.cpp.
#pragma once

#include <algorithm>

#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_run.h"

namespace thinwire {

// Lives in the frame of the coroutine that awaits `exchange`, as do `lane` and `run`.
class RouteAtOnce {
 public:
  // Nothing is compressed or passed on.
  static bool fits(const GroupLane& lane, const RouteRun& run) {
    if (run.flow_count > 1 || run.call_count() > 1 || run.calls[0].coder != nullptr || run.passes_on() || run.before ||
        run.passed != nullptr || run.kept != nullptr || lane.fault != RouteFault::kNone)
      return false;
    const int64_t most = std::min(run.chunk, static_cast<int64_t>(kLargestMessage / size_of(run.dtypes[0])));
    return std::ranges::all_of(run.stops(), [most](const Stop& stop) { return stop.slice.count <= most; });
  }
  // Bytes that such a run takes of the pool.
  static int64_t space(const RouteRun& run) {
    const Stop* const sum = sum_of(run);
    if (sum == nullptr) return 0;
    return sum->from.peers() * static_cast<int64_t>(stride(run, *sum)) + sum->from.size * int64_t{sizeof(void*)};
  }

  RouteAtOnce(const GroupLane& lane, const RouteRun& run)
      : exchange(lane), lane_(lane), run_(run), add_(sum_of(run)), space_(lane.pool(), space(run)) {
    if (add_ == nullptr) return;
    stride_ = stride(run, *add_);
    sources_ = reinterpret_cast<const void**>(space_.data() + static_cast<size_t>(add_->from.peers()) * stride_);
  }
  // First: what comes before its receive was posted is copied once more.
  void receive() {
    for (const Stop& stop : run_.stops()) {
      if (stop.slice.count == 0) continue;
      for (int i = 1; i <= stop.from.peers(); ++i) {
        const int place = (stop.from.at + stop.from.size - i) % stop.from.size;
        void* const where =
            stop.kind == StopKind::kAdd ? landing(place) : run_.part(stop.result, 0, stop.slice.count).data;
        exchange.receive(where, bytes(stop), lane_.peer(stop.from.member(place)));
      }
    }
  }
  void send() {
    for (const Stop& stop : run_.stops()) {
      if (stop.kind != StopKind::kSend || stop.slice.count == 0) continue;
      const void* const own = run_.part(stop.own, 0, stop.slice.count).data;
      for (const Circle* const to : {&stop.to, &stop.also})
        for (int i = 1; i <= to->peers(); ++i) exchange.send(own, bytes(stop), lane_.peer(to->to(i)));
    }
  }
  // Once all is here.
  void add_up() {
    if (add_ == nullptr) return;
    const int64_t count = add_->slice.count;
    for (int place = 0; place < add_->from.size; ++place)
      sources_[place] = place == add_->from.at ? run_.part(add_->own, 0, count).data : landing(place);
    const View out = run_.part(add_->result, 0, count);
    combine_in_rank_order(run_.calls[0].kind, run_.dtypes[0], sources_, add_->from.size, out.dtype, out.data, count,
                          run_.accumulate);
  }

  Exchange exchange;

 private:
  // The stop that adds: at most one.
  static const Stop* sum_of(const RouteRun& run) {
    const Stop* sum = nullptr;
    for (const Stop& stop : run.stops()) {
      if (stop.kind != StopKind::kAdd || stop.slice.count == 0) continue;
      TW_CHECK(sum == nullptr);
      sum = &stop;
    }
    return sum;
  }
  static size_t stride(const RouteRun& run, const Stop& sum) {
    return (static_cast<size_t>(sum.slice.count) * size_of(run.dtypes[0]) + 63) / 64 * 64;
  }
  size_t bytes(const Stop& stop) const { return static_cast<size_t>(stop.slice.count) * size_of(run_.dtypes[0]); }
  // Of what the peer at that place sends. This rank's own share stays where it is.
  char* landing(int place) const {
    return space_.data() + static_cast<size_t>(place < add_->from.at ? place : place - 1) * stride_;
  }

  const GroupLane& lane_;
  const RouteRun& run_;
  const Stop* add_;
  size_t stride_ = 0;
  Scratch<char> space_;             // what it waits for, by place but its own
  const void** sources_ = nullptr;  // behind that
};

}  // namespace thinwire
