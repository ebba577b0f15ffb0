// Routes as verbs make them: their stops, and in a rehearsal what they would send.
#include <algorithm>

#include "parallel/collective/pieces.h"
#include "parallel/collective/route_run.h"

namespace thinwire {

CounterScope::CounterScope(GroupLane& lane, WireCounters* logical_to, int64_t logical_bytes)
    : wire_to_(lane.counters), logical_to_(logical_to), logical_bytes_(logical_bytes) {
  lane.counters = &own_;
}

CounterScope::~CounterScope() {
  if (wire_to_ != nullptr) {
    wire_to_->wire_bytes += own_.wire_bytes;
    wire_to_->messages += own_.messages;
  }
  if (logical_to_ != nullptr) logical_to_->logical_bytes += logical_bytes_;
}

RouteRun::RouteRun(const GroupLane& lane, int64_t stops, const CodedCall& call, DType dtype, int64_t chunk)
    : calls{call, call},
      dtypes{dtype, dtype},
      chunk(chunk),
      logical_to(call.counters),
      logical_dtype(dtype),
      rehearsed_(lane.rehearsal != nullptr ? &lane : nullptr),
      stops_(lane.pool(), lane.rehearsal != nullptr && lane.rehearsal->watch == nullptr ? 0 : stops) {
  if (!call.in_place) return;
  // Sends of two pieces are under way, so that a message of another operation between the same ranks waits for two
  // pieces, not for the end of a large one.
  flows[0] = {.ahead = 2, .exchanges = 2, .own_ahead = 1};
  flows[1].exchanges = 2;
}

void RouteRun::add(const Stop& stop) {
  sent_elements_ += stop.receivers() * stop.slice.count;
  if (rehearsed_ != nullptr) {
    if (stop.receivers() == 0 && rehearsed_->rehearsal->watch == nullptr) return;
    const int call = stop.kind == StopKind::kAdd ? stop.out_call : stop.call;
    const Coder* const coder = calls[call].coder;
    const GroupLane& lane = stop.out_flow > 0 && beyond ? *beyond : *rehearsed_;
    int checked = 0;
    for (const Circle* const to : {&stop.to, &stop.also})
      for (int i = 1; i <= to->peers(); ++i) checked += lane.is_checked(to->to(i)) ? 1 : 0;
    if (stop.receivers() > 0)
      rehearsed_->rehearsal->bytes +=
          stop.receivers() * sent_bytes(coder, message_of(stop, call), chunk, stop.slice.count, dtypes[call]);
    if (checked > 0)
      rehearsed_->rehearsal->bytes += checked * static_cast<int64_t>(kChecksumOfMessage) *
                                      slice_messages(coder, chunk, stop.slice.count, dtypes[call]);
    if (rehearsed_->rehearsal->watch == nullptr) return;
  }
  TW_CHECK(count_ < stops_.count());
  call_count_ = std::max({call_count_, stop.call + 1, stop.out_call + 1});
  passes_on_ |= stop.from.peers() > 0 && stop.receivers() > 0;
  stops_[count_++] = stop;
}

RouteSpace::RouteSpace(const RouteRun& run) {
  bool passed_on[2] = {};
  const auto bytes = [&](int call, int64_t count) {
    return payload_bytes(run.calls[call].coder, count, run.dtypes[call]);
  };
  const auto all_bytes = [&](int call, int64_t count) {
    return slice_bytes(run.calls[call].coder, run.chunk, count, run.dtypes[call]);
  };
  for (const Stop& stop : run.stops()) {
    const int64_t count = std::min(run.chunk, stop.slice.count),
                  end = stop.start + pieces_of(stop.slice.count, run.chunk);
    const bool stores = stop.kind == StopKind::kStore, adds = stop.kind == StopKind::kAdd;
    ticks = std::max(ticks, end);
    if (stop.kind == StopKind::kSend) own_ticks = std::max(own_ticks, end);
    if (stop.from.peers() > 0) {
      Way& way = in[stop.flow];
      way.places = std::max(way.places, stop.place + stop.from.peers());
      way.framed |= is_framed(run.calls[stop.call].coder);
      if (!(stores && run.calls[stop.call].coder == nullptr) && run.kept == nullptr) {
        way.longest = std::max(way.longest, bytes(stop.call, count));
        way.payloads += stop.from.peers() * all_bytes(stop.call, stop.slice.count);
        passed_on[stop.flow] |= stores && stop.receivers() > 0;
      }
    }
    if (adds) shares = std::max(shares, stop.from.size);
    if (stop.receivers() == 0) continue;
    const int call = adds ? stop.out_call : stop.call;
    const bool coded = run.calls[call].coder != nullptr;
    Way& way = out[stop.out_flow];
    way.places = std::max(way.places, stop.place + 1);
    way.framed |= is_framed(run.calls[call].coder);
    if (stores || !(coded || (adds && stop.result.space == Space::kNone)) || run.passed != nullptr) continue;
    way.longest = std::max(way.longest, bytes(call, count));
    way.payloads += all_bytes(call, stop.slice.count);
    if (adds && coded) partial = std::max(partial, count * static_cast<int64_t>(size_of(run.dtypes[call])));
  }
  for (int f = 0; f < run.flow_count; ++f) {
    const RouteFlow& flow = run.flows[f];
    const int64_t window = flow.exchanges * flow.group;
    in[f].slots = std::min(flow.ahead + (passed_on[f] ? window : 0), ticks);
    out[f].slots = std::min(window, ticks + std::max(run.flows[0].shift, run.flows[1].shift));
  }
}

View RouteRun::part(const Spot& spot, int64_t first, int64_t count) const {
  const View& space = spot.space == Space::kWhole ? whole : spot.space == Space::kOut ? out : mine;
  return space.element_range(spot.at + first, count);
}

void RouteRun::keep_own() const {
  if (kept_from) convert(kept_from, kept_to);
  for (const Stop& stop : stops()) {
    if (stop.kind != StopKind::kSend || stop.result.space == Space::kNone || calls[stop.call].coder != nullptr)
      continue;
    convert(part(stop.own, 0, stop.slice.count), part(stop.result, 0, stop.slice.count));
  }
}

}  // namespace thinwire
