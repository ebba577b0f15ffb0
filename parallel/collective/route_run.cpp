// The executor of routes: pieces, their coders and the windows of payloads that are under way.
#include "parallel/collective/route_run.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "engine/base/core/error.h"
#include "parallel/collective/rank_sum.h"
#include "parallel/collective/rehearsal.h"
#include "parallel/collective/route_at_once.h"
#include "parallel/collective/route_on_device.h"

namespace thinwire {

namespace {

static_assert(std::endian::native == std::endian::little, "lengths travel little endian");
constexpr const char* kBadLength = "its length is beyond what the codec can write, or 0";

size_t rounded(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// A CodedCall on the members of a lane.
class PieceCoder {
 public:
  PieceCoder(const GroupLane& lane, const CodedCall& call)
      : lane_(lane),
        call_(call),
        exact_(call.coder != nullptr && call.coder->traits().lossless),
        sources_(lane.pool(), call.coder == nullptr || exact_ ? std::max(2, lane.size()) : 0) {
    if (call_.stats == nullptr) call_.stats = &unread_;
    call_.msg.ranks = lane.size();
  }
  // What comes is of this message from now on.
  void expect(const Msg& msg) {
    call_.msg = msg;
    call_.msg.ranks = lane_.size();
  }
  bool plain() const { return call_.coder == nullptr; }
  bool framed() const { return is_framed(call_.coder); }
  size_t bytes(int64_t count, DType dtype) const { return payload_bytes(call_.coder, count, dtype); }

  // in: elements from `first` on of the lane's message. Not for plain calls. Returns the payload's length. own: where
  // the packer, too, gets what the others decode; complete once absorb_own() was called.
  size_t pack(View in, View reference, int64_t first, char* out, View own = View()) {
    Msg msg = call_.msg;
    msg.first = first;
    msg.rank = lane_.me;
    const size_t bound = bytes(in.count(), in.dtype);
    const std::span<std::byte> room(reinterpret_cast<std::byte*>(out), bound);
    if (!call_.coder->keeps_decoded(msg)) own = View();
    const size_t length = call_.coder->pack(msg, in, reference, room, call_.state, *call_.stats, own);
    TW_CHECK(framed() ? length <= bound : length == bound, call_.coder->name(), " packed ", in.count(),
             " elements into ", length, " bytes where ", bound, " were promised");
    return length;
  }
  void absorb_own(const char* payload, size_t bytes, DType dtype, View own, int64_t first, int64_t k) {
    if (!call_.coder->keeps_decoded(call_.msg)) absorb_one(payload, bytes, lane_.me, dtype, own, first, k);
  }
  // out = or += the sum of the shares, in their order; k: number of the piece, for messages. dtype: of what was packed,
  // and of raw shares, which are all that plain calls have. `out` is not one of the raw shares.
  void absorb(std::span<const Share> shares, DType dtype, View out, bool accumulate, int64_t first, int64_t k) {
    Msg msg = call_.msg;
    msg.first = first;
    if (!plain() && !exact_) return decode_sum(msg, shares, out, accumulate, k);
    const int64_t count = out.count();
    const auto stride = static_cast<int64_t>(rounded(static_cast<size_t>(count) * size_of(dtype)));
    const Scratch<char> decoded(lane_.pool(), plain() ? 0 : stride * static_cast<int64_t>(shares.size()));
    for (size_t i = 0; i < shares.size(); ++i) {
      const void* elements = shares[i].raw.data;
      if (!shares[i].raw) {
        const View part(decoded.data() + static_cast<int64_t>(i) * stride, dtype, {count});
        decode_sum(msg, shares.subspan(i, 1), part, false, k);
        elements = part.data;
      }
      sources_[static_cast<int64_t>(i)] = elements;
    }
    combine_in_rank_order(call_.kind, dtype, sources_.data(), static_cast<int>(shares.size()), out.dtype, out.data,
                          count, accumulate);
  }
  // One payload as it came.
  void absorb_one(const char* payload, size_t bytes, int member, DType dtype, View out, int64_t first, int64_t k) {
    const Share one = share(payload, bytes, member, dtype, out.count());
    if (plain()) return convert(one.raw, out);
    Msg msg = call_.msg;
    msg.first = first;
    if (!exact_ || out.dtype == dtype) return decode_sum(msg, {&one, 1}, out, false, k);
    const Scratch<char> decoded(lane_.pool(), out.count() * static_cast<int64_t>(size_of(dtype)));
    const View part(decoded.data(), dtype, {out.count()});
    decode_sum(msg, {&one, 1}, part, false, k);
    convert(part, out);
  }
  Share share(const char* payload, size_t bytes, int member, DType dtype, int64_t count) const {
    Share share;
    share.rank = member;
    if (plain()) {
      share.raw = View(const_cast<char*>(payload), dtype, {count});
    } else {
      share.payload = {reinterpret_cast<const std::byte*>(payload), bytes};
    }
    return share;
  }
  [[noreturn]] void bad_payload(int member, int64_t k, const char* what) const {
    const std::string peer = member < 0 ? std::string("a peer") : "rank " + std::to_string(lane_.world_rank(member));
    throw_bad_data(peer + " sent a bad payload at site " + std::string(name_of(call_.site)) + ", chunk " +
                   std::to_string(k) + " of its message: " + what +
                   "; the data was damaged on the way, or the ranks run different versions or rules");
  }

 private:
  void decode_sum(const Msg& msg, std::span<const Share> shares, View out, bool accumulate, int64_t k) {
    Msg named = msg;
    named.rank = shares[0].rank;
    try {
      call_.coder->absorb(named, shares, out, accumulate, *call_.stats);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadData) throw;
      bad_payload(culprit(msg, shares, out.count()), k, error.what());
    }
  }
  // Only one payload of a sum need be bad: each is tried alone. -1: all are good by themselves.
  int culprit(const Msg& msg, std::span<const Share> shares, int64_t count) const {
    if (shares.size() == 1) return shares[0].rank;
    const Scratch<float> nowhere(lane_.pool(), count);
    const View out(nowhere.data(), DType::f32, {count});
    for (const Share& s : shares) {
      if (s.payload.empty()) continue;
      CompressionStats unread;
      Msg alone = msg;
      alone.rank = s.rank;
      try {
        call_.coder->absorb(alone, {&s, 1}, out, false, unread);
      } catch (const Error&) {
        return s.rank;
      }
    }
    return -1;
  }
  GroupLane lane_;
  CodedCall call_;
  bool exact_;  // lossless: payloads become elements again, which are summed as plain ones are
  CompressionStats unread_;
  Scratch<const void*> sources_;
};

// Payloads on their way out: `exchanges` (at most kInFlight) groups of `group` slots. Before the first of a group is
// used again, departures() of it are awaited. Framed lengths travel under `length_tag`.
class Outbox {
 public:
  Outbox(const GroupLane& lane, const RouteSpace::Way& way, int tag, int length_tag, int exchanges, int64_t group)
      : way_(way),
        tag_(tag),
        length_tag_(length_tag),
        count_(exchanges),
        group_(group),
        space_(lane.pool(), way.bytes()),
        lengths_(lane.pool(), way.framed ? way.places * way.slots : 0),
        exchanges_{Exchange(lane), Exchange(lane), Exchange(lane)} {
    std::fill_n(lengths_.data(), lengths_.count(), ~uint64_t{0});
  }
  char* of(int64_t k, int place) const { return space_.data() + static_cast<size_t>(buffer(k, place)) * way_.stride(); }
  Exchange& departures(int64_t k) { return exchanges_[k / group_ % count_]; }
  // bytes at `data`, which is of(k, place) or memory of the caller's that lives as long.
  void send(int64_t k, int place, const char* data, size_t bytes, Peer peer) {
    Exchange& exchange = departures(k);
    if (way_.framed) {
      uint64_t& length = lengths_[buffer(k, place)];
      // Several peers may get one payload: what the first of them reads already is not written again.
      if (length != bytes) length = bytes;
      exchange.send(&length, kLengthBytes, peer, length_tag_);
    }
    for (size_t first = 0; first < bytes; first += kLargestMessage)
      exchange.send(data + first, std::min(kLargestMessage, bytes - first), peer, tag_);
  }

 private:
  int64_t buffer(int64_t k, int place) const { return k % way_.slots * way_.places + place; }
  RouteSpace::Way way_;
  int tag_, length_tag_, count_;
  int64_t group_;
  Scratch<char> space_;
  Scratch<uint64_t> lengths_;
  Exchange exchanges_[kInFlight];
};

// Payloads on their way in. For each piece k: clear(), expect() every payload, await lengths(k), follow(k), await
// arrivals(k). Posted for `ahead` pieces at most; above kMostAhead some are awaited together.
class Inbox {
 public:
  Inbox(const GroupLane& lane, const RouteSpace::Way& way, int tag, int length_tag, int ahead)
      : way_(way),
        tag_(tag),
        length_tag_(length_tag),
        waits_(std::min(ahead, kMostAhead)),
        space_(lane.pool(), way.bytes()),
        entries_(lane.pool(), way.places * way.slots),
        lengths_in_{Exchange(lane), Exchange(lane), Exchange(lane), Exchange(lane)},
        payloads_in_{Exchange(lane), Exchange(lane), Exchange(lane), Exchange(lane)} {}
  void clear(int64_t k) {
    for (int place = 0; place < way_.places; ++place) entry(k, place) = {nullptr, 0, 0, {}};
  }
  // bytes: of the payload, or its bound. where: where it goes, nullptr: here.
  void expect(int64_t k, int place, size_t bytes, Peer peer, char* where = nullptr) {
    Entry& e = entry(k, place);
    char* const here = space_.data() + static_cast<size_t>(k % way_.slots * way_.places + place) * way_.stride();
    e = {where != nullptr ? where : here, bytes, bytes, peer};
    if (way_.framed) {
      lengths(k).receive(&e.length, kLengthBytes, peer, length_tag_);
    } else {
      post(k, e);
    }
  }
  Exchange& lengths(int64_t k) { return lengths_in_[k % waits_]; }
  // Framed payloads are posted now that their lengths are known. Returns the place of one that is too long, or -1.
  int follow(int64_t k) {
    if (!way_.framed) return -1;
    for (int place = 0; place < way_.places; ++place) {
      const Entry& e = entry(k, place);
      if (e.peer.rank < 0) continue;
      if (e.length == 0 || e.length > e.bound) return place;
      post(k, e);
    }
    return -1;
  }
  Exchange& arrivals(int64_t k) { return payloads_in_[k % waits_]; }
  const char* data(int64_t k, int place) const { return entry(k, place).where; }
  size_t bytes(int64_t k, int place) const { return static_cast<size_t>(entry(k, place).length); }

 private:
  struct Entry {
    char* where;
    size_t bound;
    uint64_t length;
    Peer peer;
  };
  Entry& entry(int64_t k, int place) const { return entries_[k % way_.slots * way_.places + place]; }
  void post(int64_t k, const Entry& e) {
    for (size_t first = 0; first < e.length; first += kLargestMessage)
      arrivals(k).receive(e.where + first, std::min<size_t>(kLargestMessage, e.length - first), e.peer, tag_);
  }
  RouteSpace::Way way_;
  int tag_, length_tag_, waits_;
  Scratch<char> space_;
  Scratch<Entry> entries_;
  Exchange lengths_in_[kMostAhead], payloads_in_[kMostAhead];
};

// --- the run ----------------------------------------------------------------------

// Buffers and compressions of a run. Lives in the frame of run_route().
class Runner {
 public:
  Runner(const GroupLane& lane, const RouteRun& run)
      : lane_(lane), run_(run), space_(run), in_order_(std::ranges::is_sorted(run.stops(), {}, &Stop::start)) {
    coders_[0].emplace(lane, run.calls[0]);
    if (run.call_count() > 1) coders_[1].emplace(lane_of(1), run.calls[1]);
    for (int f = 0; f < run.flow_count; ++f) {
      const RouteFlow& flow = run.flows[f];
      const GroupLane& of = lane_of(f);
      const bool own_tags = f > 0 && run.beyond;
      // Lengths travel under the second tag: framed flows share the first.
      const int tag = own_tags || space_.in[f].framed || space_.out[f].framed ? of.tag : of.tag + f;
      const int length_tag = run.message && !own_tags ? of.tag : of.tag + 1;
      in_[f].emplace(of, space_.in[f], tag, length_tag, flow.ahead);
      out_[f].emplace(of, space_.out[f], fails(RouteFault::kWrongTag, f) ? tag + 2 : tag, length_tag, flow.exchanges,
                      flow.group);
    }
    partial_.emplace(lane.pool(), space_.partial);
    shares_.emplace(lane.pool(), space_.shares);
  }

  int64_t ticks() const { return space_.ticks; }
  int64_t own_ticks() const { return space_.own_ticks; }  // own slices have left before this one
  // What has to be over before number u of a flow leaves; nullptr: nothing.
  Exchange* before(int f, int64_t u) {
    const bool waits = u % run_.flows[f].group == 0 && lane_.fault != RouteFault::kReusedTooEarly;
    return waits ? &out_[f]->departures(u) : nullptr;
  }
  Exchange& departures(int f, int exchange) { return out_[f]->departures(exchange * run_.flows[f].group); }
  Exchange& lengths(int f, int64_t t) { return in_[f]->lengths(t); }
  Exchange& arrivals(int f, int64_t t) { return in_[f]->arrivals(t); }
  // The same for what arrives in flow 0 at tick t and is passed on: in the last flow.
  Exchange* before_passing_on(int64_t t) { return before(run_.flow_count - 1, t + run_.flows[0].shift); }

  void post(int f, int64_t t) {
    if (t >= ticks()) return;
    in_[f]->clear(t);
    for (const Stop& stop : due(t)) {
      if (stop.flow != f || stop.from.peers() == 0) continue;
      const int64_t count = count_at(stop, t);
      if (count == 0) continue;
      char* const where = in_place(stop)         ? static_cast<char*>(view(stop, stop.result, t).data)
                          : run_.kept != nullptr ? run_.kept->of(t - stop.start)
                                                 : nullptr;
      const bool missing = t == 0 && fails(RouteFault::kReceiveTooFew, f);
      const size_t bytes = missing ? 0 : coder(stop.call).bytes(count, run_.dtypes[stop.call]);
      for (int i = 1; i <= stop.from.peers(); ++i) {
        const int place = (stop.from.at + stop.from.size - i) % stop.from.size;
        const int member = stop.from.member(place);
        in_[f]->expect(t, buffer(stop, place), bytes, lane_of(f).peer(member), where);
      }
    }
  }

  void send_own(int64_t t) {
    if (t >= own_ticks()) return;
    for (const Stop& stop : due(t)) {
      if (stop.kind != StopKind::kSend || count_at(stop, t) == 0) continue;
      const View part = view(stop, stop.own, t);
      if (run_.passed != nullptr) {
        send(stop, t, run_.passed->of(t), run_.passed->lengths[t]);
      } else if (coder(stop.call).plain()) {
        send(stop, t, static_cast<const char*>(part.data), part.bytes());
      } else {
        const View result = view(stop, stop.result, t);
        pack_and_send(stop, stop.call, t, t, part, result);
      }
    }
  }

  void follow(int f, int64_t t) {
    const int bad = in_[f]->follow(t);
    if (bad < 0) return;
    for (const Stop& stop : due(t)) {
      if (stop.flow != f || stop.from.peers() == 0 || count_at(stop, t) == 0) continue;
      for (int place = 0; place < stop.from.size; ++place)
        if (place != stop.from.at && buffer(stop, place) == bad)
          coder(stop.call).bad_payload(stop.packer >= 0 ? stop.packer : stop.from.member(place), t - stop.start,
                                       kBadLength);
    }
  }

  void take(int f, int64_t t) {
    const std::span<const Stop> all = run_.stops();
    while (over_ < all.size() && all[over_].start + pieces(all[over_]) <= t) ++over_;
    for (const Stop& stop : due(t)) {
      if (stop.flow != f || stop.from.peers() == 0 || count_at(stop, t) == 0) continue;
      stop.kind == StopKind::kAdd ? add_up(stop, t) : store(stop, t);
    }
  }

 private:
  // The stops with a piece at tick t, and few others: a ring has as many ticks as stops, or more.
  std::span<const Stop> due(int64_t t) const {
    const std::span<const Stop> left = run_.stops().subspan(over_);
    return in_order_
               ? left.first(static_cast<size_t>(std::ranges::upper_bound(left, t, {}, &Stop::start) - left.begin()))
               : left;
  }
  const GroupLane& lane_of(int f) const { return f > 0 && run_.beyond ? *run_.beyond : lane_; }
  PieceCoder& coder(int call) { return *coders_[call]; }
  bool fails(RouteFault fault, int f) const { return lane_.fault == fault && f == run_.flow_count - 1; }
  int64_t pieces(const Stop& stop) const { return pieces_of(stop.slice.count, run_.chunk); }
  // Elements of the piece that is due at tick t; 0: none.
  int64_t count_at(const Stop& stop, int64_t t) const {
    const int64_t k = t - stop.start;
    if (k < 0 || k >= pieces(stop)) return 0;
    return std::min(run_.chunk, stop.slice.count - k * run_.chunk);
  }
  int64_t first_at(const Stop& stop, int64_t t) const { return stop.slice.first + (t - stop.start) * run_.chunk; }
  bool in_place(const Stop& stop) { return stop.kind == StopKind::kStore && coder(stop.call).plain(); }
  // Of what the peer at `place` sends.
  static int buffer(const Stop& stop, int place) { return stop.place + (place < stop.from.at ? place : place - 1); }
  View view(const Stop& stop, const Spot& spot, int64_t t) const {
    if (spot.space == Space::kNone) return View();
    return run_.part(spot, (t - stop.start) * run_.chunk, count_at(stop, t));
  }

  void send(const Stop& stop, int64_t u, const char* payload, size_t bytes) {
    for (const Circle* const to : {&stop.to, &stop.also})
      for (int i = 1; i <= to->peers(); ++i)
        out_[stop.out_flow]->send(u, stop.place, payload, bytes, lane_of(stop.out_flow).peer(to->to(i)));
  }

  // result: where this rank, too, gets what the others decode; before that, with value difference, what they hold.
  void pack_and_send(const Stop& stop, int call, int64_t t, int64_t u, View part, View result) {
    const CodedCall& coded = run_.calls[call];
    const bool stays = stop.receivers() == 0;
    char* const room = stays ? run_.kept->of(t) : out_[stop.out_flow]->of(u, stop.place);
    const int64_t first = first_at(stop, t);
    const size_t bytes = coder(call).pack(part, coded.coder->value_difference() ? result : View(), first, room, result);
    if (stays) run_.kept->lengths[t] = bytes;
    send(stop, u, room, bytes);
    if (result) coder(call).absorb_own(room, bytes, part.dtype, result, first, t - stop.start);
  }

  void add_up(const Stop& stop, int64_t t) {
    const int64_t count = count_at(stop, t), first = first_at(stop, t), k = t - stop.start;
    const DType dtype = run_.dtypes[stop.call];
    for (int place = 0; place < stop.from.size; ++place) {
      if (place == stop.from.at) {
        Share raw;
        raw.raw = view(stop, stop.own, t);
        raw.rank = lane_.me;
        (*shares_)[place] = raw;
      } else {
        const int at = buffer(stop, place);
        (*shares_)[place] = coder(stop.call).share(in_[stop.flow]->data(t, at), in_[stop.flow]->bytes(t, at),
                                                   stop.from.member(place), dtype, count);
      }
    }
    const std::span<const Share> all(shares_->data(), static_cast<size_t>(stop.from.size));
    const View result = view(stop, stop.result, t);
    if (stop.receivers() == 0) return coder(stop.call).absorb(all, dtype, result, run_.accumulate, first, k);
    const int64_t u = t + run_.flows[stop.flow].shift;
    const DType sum_type = run_.dtypes[stop.out_call];
    if (coder(stop.out_call).plain()) {
      const View sum = result ? result : View(out_[stop.out_flow]->of(u, stop.place), sum_type, {count});
      coder(stop.call).absorb(all, dtype, sum, false, first, k);
      send(stop, u, static_cast<const char*>(sum.data), sum.bytes());
    } else {
      const View sum(partial_->data(), sum_type, {count});
      coder(stop.call).absorb(all, dtype, sum, false, first, k);
      pack_and_send(stop, stop.out_call, t, u, sum, result);
    }
  }

  void store(const Stop& stop, int64_t t) {
    const View result = view(stop, stop.result, t);
    const Inbox& in = *in_[stop.flow];
    const int at = buffer(stop, 1 - stop.from.at);
    if (stop.receivers() > 0) send(stop, t + run_.flows[stop.flow].shift, in.data(t, at), in.bytes(t, at));
    if (in_place(stop)) return;
    if (run_.kept != nullptr) run_.kept->lengths[t - stop.start] = in.bytes(t, at);
    const int packer = stop.packer >= 0 ? stop.packer : stop.from.member(1 - stop.from.at);
    if (run_.messages && stop.packer >= 0) coder(stop.call).expect((*run_.messages)[packer]);
    coder(stop.call).absorb_one(in.data(t, at), in.bytes(t, at), packer, run_.dtypes[stop.call], result,
                                first_at(stop, t), t - stop.start);
  }

  const GroupLane& lane_;
  const RouteRun& run_;
  const RouteSpace space_;
  const bool in_order_;  // stops begin one behind the other, or together
  size_t over_ = 0;      // so many of the first ones were over at an earlier tick
  std::optional<PieceCoder> coders_[2];
  std::optional<Inbox> in_[2];
  std::optional<Outbox> out_[2];
  std::optional<Scratch<char>> partial_;
  std::optional<Scratch<Share>> shares_;
};

RehearsedBlocks::Sizes blocks_of(const GroupLane& lane, const RouteRun& run) {
  if (RouteAtOnce::fits(lane, run)) return {RouteAtOnce::space(run)};
  const RouteSpace space(run);
  const auto block = [](const RouteSpace::Way& way) {
    return RehearsedBlocks::Block{way.bytes(), std::min(way.bytes(), way.payloads)};
  };
  return {block(space.in[0]), block(space.in[1]), block(space.out[0]), block(space.out[1]), space.partial};
}

}  // namespace

Task run_route(GroupLane lane, RouteRun run) {
  const auto due = [&](int64_t tick) { return run.before ? run.before(tick) : Task(); };
  if (lane.rehearsal != nullptr) {
    RehearsalWatch* const watch = lane.rehearsal->watch;
    const RehearsedBlocks held(watch, watch != nullptr ? blocks_of(lane, run) : RehearsedBlocks::Sizes());
    for (Task task = due(kUncut); task; task = due(kUncut)) co_await task;
    if (watch != nullptr) watch->route(lane, run);
    co_return;
  }
  if (lane.device != nullptr) {
    for (Task task = due(kUncut); task; task = due(kUncut)) co_await task;
    run.before = nullptr;
    queue_route(lane, std::move(run));
    co_return;
  }
  if (run.rounded_from) convert(run.rounded_from, run.rounded_to);
  std::optional<QueuedSend> turn;
  if (run.queue != nullptr) turn.emplace(lane, *run.queue);
  std::optional<CounterScope> tally;
  if (run.logical_to != nullptr)
    tally.emplace(run.beyond ? *run.beyond : lane, run.logical_to,
                  run.sent_elements() * static_cast<int64_t>(size_of(run.logical_dtype)));
  if (RouteAtOnce::fits(lane, run)) {
    RouteAtOnce all(lane, run);
    all.receive();
    if (turn) {
      QueuedSend& mine = *turn;
      co_await mine;
      mine.release();
    }
    all.send();
    run.keep_own();
    co_await all.exchange;
    all.add_up();
    co_return;
  }
  Runner runner(lane, run);
  const auto send_own = [&](int64_t t) {
    // The last message is about to be posted.
    if (turn && t + 1 >= runner.own_ticks()) turn->release();
    runner.send_own(t);
  };
  // Tick by tick: flows that share a tag are told apart by their order.
  for (int64_t t = 0; t < std::max(run.flows[0].ahead, run.flows[run.flow_count - 1].ahead); ++t)
    for (int f = 0; f < run.flow_count; ++f)
      if (t < run.flows[f].ahead) runner.post(f, t);
  if (turn) {
    QueuedSend& mine = *turn;
    co_await mine;
  }
  const int64_t ahead = run.flows[0].own_ahead;
  for (int64_t t = 0; t <= ahead; ++t) {
    for (Task task = due(t); task; task = due(t)) co_await task;
    if (t < ahead) send_own(t);
  }
  run.keep_own();
  for (int64_t t = 0; t < runner.ticks(); ++t) {
    if (t + ahead < runner.own_ticks()) {
      if (Exchange* const sent = runner.before(0, t + ahead)) {
        Exchange& before = *sent;  // named: GCC 12 would copy what an expression gives
        co_await before;
      }
      send_own(t + ahead);
    }
    for (int f = 0; f < run.flow_count; ++f) {
      Exchange& lengths = runner.lengths(f, t);
      co_await lengths;
      runner.follow(f, t);
      Exchange& arrivals = runner.arrivals(f, t);
      co_await arrivals;
      if (Exchange* const sent = f == 0 && run.passes_on() ? runner.before_passing_on(t) : nullptr) {
        Exchange& before = *sent;
        co_await before;
      }
      runner.take(f, t);
    }
    for (int f = 0; f < run.flow_count; ++f) runner.post(f, t + run.flows[f].ahead);
  }
  for (int f = 0; f < run.flow_count; ++f) {
    for (int i = 0; i < run.flows[f].exchanges; ++i) {
      Exchange& departures = runner.departures(f, i);
      co_await departures;
    }
  }
}

}  // namespace thinwire
