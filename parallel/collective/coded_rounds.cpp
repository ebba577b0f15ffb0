// Codecs whose payloads add up: each round is a plain reduction of its payload.
#include <algorithm>

#include "parallel/collective/coded.h"
#include "parallel/collective/pieces.h"
#include "parallel/collective/rank_sum.h"
#include "parallel/collective/route_on_device.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"

namespace thinwire {
namespace {

ReduceKind kind_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return ReduceKind::kSum;
    case Reduction::kMax:
      return ReduceKind::kMax;
    case Reduction::kOr:
      return ReduceKind::kOr;
  }
  return ReduceKind::kSum;
}

// The input of a message with the residual added, and the residual behind it. Residuals are kept without the loss
// scale. Outside of training they are neither added nor changed.
class RoundInput {
 public:
  RoundInput(const RoundCall& call, View data)
      : call_(call), feeds_back_(call.residual != nullptr && call.residual->count() > 0 && call.msg.train), x_(data) {
    TW_CHECK(data.dtype == DType::f32, "rounds take fp32, not ", name_of(data.dtype));
    if (!feeds_back_) return;
    TW_CHECK(call.residual->count() == data.count());
    float* const e = call.residual->write();
    const float* const in = data.as<float>();
    const float scale = call.msg.loss_scale;
    for (int64_t i = 0; i < data.count(); ++i) e[i] = in[i] + e[i] * scale;
    x_ = View(e, DType::f32, {data.count()});
  }
  View view() const { return x_; }
  // After the last round.
  void keep_error(CompressionStats& stats) {
    if (!feeds_back_) return;
    float* const e = x_.as<float>();
    double signal = 0.0, error = 0.0, residual = 0.0;
    for (int64_t i = 0; i < x_.count(); ++i) signal += static_cast<double>(e[i]) * e[i];
    call_.codec->own_error(call_.msg, x_, *call_.state);
    for_padding(call_.msg, 0, x_.count(), [e](int64_t from, int64_t to) { std::fill(e + from, e + to, 0.0f); });
    const float unscale = 1.0f / call_.msg.loss_scale;
    for (int64_t i = 0; i < x_.count(); ++i) {
      error += static_cast<double>(e[i]) * e[i];
      e[i] *= unscale;
      residual += static_cast<double>(e[i]) * e[i];
    }
    stats.signal_square += signal;
    stats.error_square += error;
    stats.residual_square += residual;
  }

 private:
  const RoundCall& call_;
  bool feeds_back_;
  View x_;
};

// All rounds but, where `bounds` cuts a sliceable last one, that one over the whole group; then the result.
// bounds == nullptr: everybody gets all of it.
Task perform(GroupLane lane, RoundCall call, View whole, const Bounds* bounds, View out, bool accumulate) {
  using Clock = OperationSink::Clock;
  const auto ns_since = [](Clock::time_point from) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - from).count();
  };
  CompressionStats stats;
  const RoundCodec& codec = *call.codec;
  call.msg.first = 0;
  call.msg.rank = lane.me;
  call.msg.ranks = lane.size();
  const int64_t count = whole.count();
  Clock::time_point from = Clock::now();
  RoundInput input(call, whole);
  for (int r = 0; r < codec.rounds(); ++r) {
    const Round round = codec.round(r, call.msg, count, *call.state);
    const Scratch<char> space(lane.pool(), round.count * static_cast<int64_t>(size_of(round.dtype)));
    const View payload(space.data(), round.dtype, {round.count});
    const bool finite = codec.pack(r, call.msg, input.view(), payload, *call.state);
    if (r == 0 && !finite) ++stats.non_finite;
    stats.encode_ns += ns_since(from);
    if (codec.traits().selects && round.sliceable && round.count == count) ++stats.dense;
    const bool sliced = bounds != nullptr && round.sliceable && r == codec.rounds() - 1;
    View mine = payload;
    int64_t slice_first = 0;
    if (sliced) {
      TW_CHECK(round.reduction == Reduction::kSum);
      Bounds places(lane.pool(), lane.size() + 1);
      for (int m = 0; m <= lane.size(); ++m) places[m] = codec.payload_index(r, (*bounds)[m], *call.state);
      slice_first = places[lane.me];
      mine = payload.element_range(slice_first, places[lane.me + 1] - slice_first);
      Task reduce = plain_reduce_scatter(lane, payload, std::move(places), mine, false);
      co_await reduce;
    } else {
      Task reduce = plain_all_reduce(lane, payload, kind_of(round.reduction));
      co_await reduce;
    }
    from = Clock::now();
    codec.absorb(r, call.msg, mine, slice_first, *call.state);
    stats.decode_ns += ns_since(from);
    from = Clock::now();
  }
  input.keep_error(stats);
  stats.encode_ns += ns_since(from);
  from = Clock::now();
  codec.result(call.msg, bounds != nullptr ? (*bounds)[lane.me] : 0, out, accumulate, *call.state);
  stats.decode_ns += ns_since(from);
  if (call.stats != nullptr) call.stats->add(stats);
}

// The same between devices: everything is queued, and payloads are reduced where they lie.
void queue_rounds(GroupLane lane, RoundCall call, View whole, int64_t first, View out, bool accumulate,
                  int64_t logical) {
  DeviceWork& work = *lane.device;
  DeviceTraffic& traffic = work.there->traffic();
  const DeviceRounds& codec = *call.device;
  TW_CHECK(whole.dtype == DType::f32, "rounds take fp32, not ", name_of(whole.dtype));
  call.msg.first = 0;
  call.msg.rank = lane.me;
  call.msg.ranks = lane.size();
  const auto room = static_cast<int64_t>(codec.room_bytes(*call.state));
  const VerbSpace space(lane, room);
  RoundJob job;
  job.count = whole.count();
  job.in = whole.as<float>();
  job.room = reinterpret_cast<float*>(space.data());
  job.tally = call.tally;
  if (call.residual_on_device != nullptr && call.msg.train) {
    const auto kept = call.residual_on_device->open(0, whole.count(), call.msg.step).values;
    job.old = kept.read, job.now = kept.write;
  }
  const size_t kept_bytes = job.now != nullptr ? whole.bytes() : 0;
  const Touched touched[] = {{whole.data, whole.bytes(), false},
                             {out.data, out.bytes(), true},
                             {space.data(), static_cast<size_t>(room), true},
                             {job.old, kept_bytes, false},
                             {job.now, kept_bytes, true}};
  const auto kernels = [&]() -> Exec& { return traffic.calls().kernels(touched); };
  const OperationNote note = work.there->issue(work.verb, static_cast<int64_t>(whole.bytes()));
  traffic.follow(*work.stream);
  for (int r = 0; r < codec.rounds(); ++r) {
    logical -= work.there->queue_all_reduce(codec.queue_pack(r, kernels(), call.msg, job, *call.state));
    codec.queue_absorb(r, kernels(), call.msg, job, *call.state);
  }
  codec.queue_result(kernels(), call.msg, job, first, out, accumulate, *call.state);
  if (job.now != nullptr)
    for_padding(call.msg, 0, job.count,
                [&](int64_t from, int64_t to) { call.residual_on_device->forget(from, to - from); });
  work.ticket = traffic.finish(note);
  if (call.counters == nullptr) return;
  const IssueLock lock(*lane.core);
  call.counters->logical_bytes += logical;  // what was sent is counted as such
}

// What the rounds of an all-reduce would send; a scatter sends no more.
Task rehearse(GroupLane lane, RoundCall call, int64_t count) {
  const RoundCodec& codec = *call.codec;
  Rehearsal& rehearsal = *lane.rehearsal;
  if (rehearsal.watch != nullptr) rehearsal.watch->rounds(codec, count);
  Msg msg;
  msg.matrices = call.msg.matrices;
  msg.ranks = lane.size();
  msg.rank = lane.me;
  const std::unique_ptr<CompressionState> state = codec.make_state(count, msg.matrices);
  for (int r = 0; r < codec.rounds(); ++r) {
    const Round round = codec.round(r, msg, count, *state);
    const View payload = nowhere(round.dtype, codec.bound(r, count, lane.size(), msg.matrices));
    const RehearsedBlocks block(rehearsal.watch, {static_cast<int64_t>(payload.bytes())});
    const int64_t before = rehearsal.bytes, others = lane.size() - 1;
    Task reduce = plain_all_reduce(lane, payload, kind_of(round.reduction));
    co_await reduce;
    if (!codec.traits().framed) continue;
    // A shorter payload may fall among the small ones that go to everybody at once, or be cut a vector further.
    const int64_t small = std::min(lane.tuning->small_bytes, static_cast<int64_t>(payload.bytes()));
    rehearsal.bytes = std::max(rehearsal.bytes, before + others * small) +
                      others * kVector * static_cast<int64_t>(size_of(round.dtype));
  }
}

// Without bounds an all-reduce.
Task run_rounds(GroupLane lane, RoundCall call, View whole, Bounds bounds, View out, bool accumulate) {
  const bool scatters = bounds.count() > 0;
  if (lane.rehearsal != nullptr) {
    Task told = rehearse(lane, call, whole.count());
    co_await told;
    co_return;
  }
  const int64_t logical = logical_bytes(lane, [&](const GroupLane& plain) {
    return scatters
               ? plain_reduce_scatter(plain, whole, Bounds(lane.pool(), group_of(lane, bounds).bounds), whole, false)
               : plain_all_reduce(plain, whole, ReduceKind::kSum);
  });
  if (lane.device != nullptr) {
    queue_rounds(lane, call, whole, scatters ? bounds[lane.me] : 0, out, accumulate, logical);
    co_return;
  }
  const CounterScope tally(lane, call.counters, logical);
  Task task = perform(lane, call, whole, scatters ? &bounds : nullptr, out, accumulate);
  co_await task;
}

}  // namespace

Task rounds_all_reduce(GroupLane lane, RoundCall call, View data) {
  return run_rounds(lane, call, data, Bounds(), data, false);
}

Task rounds_reduce_scatter(GroupLane lane, RoundCall call, View whole, Bounds bounds, View out, bool accumulate) {
  return run_rounds(lane, call, whole, std::move(bounds), out, accumulate);
}

}  // namespace thinwire
