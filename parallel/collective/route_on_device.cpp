// A route as work on one stream: kernels that pack, a group of sends and receives, kernels that add and store.
#include "parallel/collective/route_on_device.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace thinwire {
namespace {

int64_t padded(size_t bytes) {
  return static_cast<int64_t>((bytes + 63) / 64 * 64);
}

// Exchanges of a piece come one behind the other, each with all that is ready by then. In a ring they are its hops,
// else the flows.
class QueuedRoute {
 public:
  QueuedRoute(const GroupLane& lane, RouteRun run)
      : lanes_{lane, run.beyond ? *run.beyond : lane},
        there_{lane.device->there, lanes_[1].device->there},
        run_(std::move(run)),
        lists_(there_[0]->traffic().take_lists()) {
    lists_->payloads.assign(run_.stops().size(), View());
    lists_->places.assign(run_.stops().size(), 0);
    TW_CHECK(!run_.rounded_from, "elements that are rounded first");
    for (int c = 0; c < run_.call_count(); ++c)
      TW_CHECK(!coded(c) || (call(c).device != nullptr && (call(c).coder->granule() > 0 || run_.message) &&
                             !call(c).coder->traits().lossless),
               "a coder that the device does not know");
    for (const Stop& stop : run_.stops())
      around_ = around_ || (stop.from.peers() > 0 && stop.receivers() > 0 && stop.out_flow == stop.flow);
    chunk_ = cut();
    for (const Stop& stop : run_.stops()) {
      pieces_ = std::max(pieces_, pieces_of(stop.slice.count, chunk_));
      exchanges_ = std::max({exchanges_, in(stop) + 1, stop.receivers() > 0 ? out(stop) + 1 : 0});
    }
  }
  ~QueuedRoute() { traffic().give_back(std::move(lists_)); }
  QueuedRoute(const QueuedRoute&) = delete;
  QueuedRoute& operator=(const QueuedRoute&) = delete;

  DeviceTraffic& traffic() { return there_[0]->traffic(); }
  int64_t pieces() const { return pieces_; }
  // Tells the counters what will be sent; returns the bytes.
  int64_t count() {
    int64_t total = 0;
    const IssueLock lock(*lanes_[0].core);
    for (const Stop& stop : run_.stops()) {
      WireCounters* const counters = lanes_[stop.out_flow].counters;
      for (int64_t k = 0; k < pieces_ && stop.receivers() > 0; ++k) {
        const int64_t sent = static_cast<int64_t>(bytes_out(stop, count_at(stop, k))) * stop.receivers();
        total += sent;
        if (counters == nullptr || sent == 0) continue;
        counters->wire_bytes += sent, counters->messages += stop.receivers();
        if (run_.logical_to == nullptr) counters->logical_bytes += sent;
      }
    }
    if (run_.logical_to != nullptr)
      run_.logical_to->logical_bytes += run_.sent_elements() * static_cast<int64_t>(size_of(run_.logical_dtype));
    return total;
  }
  // Bytes of work space for a piece.
  int64_t room() const {
    int64_t bytes = 0;
    for (const Stop& stop : run_.stops()) {
      const int64_t count = count_at(stop, 0);
      if (stop.from.peers() > 0 && !stays(stop)) bytes += stop.from.size * padded(bytes_in(stop, count));
      if (!packs(stop) || run_.kept != nullptr || run_.passed != nullptr) continue;
      bytes += padded(bytes_out(stop, count));
      if (stop.kind == StopKind::kAdd) bytes += padded(static_cast<size_t>(count) * sizeof(float));
    }
    return bytes;
  }

  // Everything of piece k, in memory that nobody else uses now.
  void queue(int64_t k, char* room) {
    lists_->transfers.clear();
    leave_first(k, room, lists_->transfers);
    traffic().queue_group(lists_->transfers);
    go_on(k);
  }
  // The same in two parts, with the group of the first exchange between.
  void leave_first(int64_t k, char* room, std::vector<DeviceTraffic::Transfer>& transfers) {
    at_ = room;
    lists_->received.clear();
    leave(0, k, transfers);
  }
  void go_on(int64_t k) {
    arrive(0, k);
    for (int exchange = 1; exchange < exchanges_; ++exchange) {
      lists_->transfers.clear();
      leave(exchange, k, lists_->transfers);
      traffic().queue_group(lists_->transfers);
      arrive(exchange, k);
    }
  }

 private:
  const CodedCall& call(int which) const { return run_.calls[which]; }
  static int call_out(const Stop& stop) { return stop.kind == StopKind::kAdd ? stop.out_call : stop.call; }
  bool coded(int which) const { return call(which).coder != nullptr; }
  // The exchange by which a stop gets what it waits for, and by which it sends.
  int in(const Stop& stop) const {
    return around_ ? static_cast<int>(stop.start / run_.flows[0].shift) : stop.from.peers() > 0 ? stop.flow : 0;
  }
  int out(const Stop& stop) const { return stop.kind == StopKind::kSend ? 0 : around_ ? in(stop) + 1 : stop.out_flow; }
  // Whether something is packed at this stop.
  bool packs(const Stop& stop) const { return stop.kind != StopKind::kStore && coded(call_out(stop)) && sends(stop); }
  bool sends(const Stop& stop) const {
    return stop.receivers() > 0 || (stop.kind == StopKind::kSend && run_.kept != nullptr);
  }
  // Whether what comes is received where it stays.
  bool stays(const Stop& stop) const {
    return run_.kept != nullptr || (stop.kind == StopKind::kStore && !coded(stop.call));
  }
  size_t bytes_in(const Stop& stop, int64_t count) const { return bytes_of(stop, stop.call, count); }
  size_t bytes_out(const Stop& stop, int64_t count) const { return bytes_of(stop, call_out(stop), count); }
  // Of what is framed on the host, too, the length is known here, and does not travel.
  size_t bytes_of(const Stop& stop, int which, int64_t count) const {
    const DType dtype = run_.dtypes[which];
    return coded(which) ? call(which).device->wire_bytes(run_.message_of(stop, which), count, dtype)
                        : payload_bytes(nullptr, count, dtype);
  }
  int64_t count_at(const Stop& stop, int64_t k) const {
    return k >= pieces_of(stop.slice.count, chunk_) ? 0 : std::min(chunk_, stop.slice.count - k * chunk_);
  }
  int64_t first_at(const Stop& stop, int64_t k) const { return stop.slice.first + k * chunk_; }
  View view(const Stop& stop, const Spot& spot, int64_t k) const {
    return spot.space == Space::kNone ? View() : run_.part(spot, k * chunk_, count_at(stop, k));
  }
  const DeviceGroup* group(const Stop& stop, bool out) const {
    return &there_[out ? stop.out_flow : stop.flow]->group();
  }
  // By stop: what leaves; and what comes from each place.
  View& payload(size_t stop) { return lists_->payloads[stop]; }
  View& received(size_t stop, int place) { return lists_->received[lists_->places[stop] + static_cast<size_t>(place)]; }
  View take(size_t bytes) {
    char* const place = at_;
    at_ += padded(bytes);
    return View(place, DType::u8, {static_cast<int64_t>(bytes)});
  }
  // As it travels.
  static View payload_at(char* data, size_t bytes) { return View(data, DType::u8, {static_cast<int64_t>(bytes)}); }

  // Elements of a piece. All ranks find the same: by the work space and the number of ranks alone. At most three
  // payloads for each rank are in the work space at once, and what is packed again, in fp32.
  int64_t cut() const {
    if (run_.message || run_.passed != nullptr || run_.kept != nullptr) return kUncut;
    const int n = lanes_[0].size();
    int64_t unit = kVector, each = 0;
    for (int c = 0; c < run_.call_count(); ++c)
      if (coded(c)) unit = std::lcm(unit, call(c).coder->cut_unit());
    for (int c = 0; c < run_.call_count(); ++c)
      each = std::max(each, static_cast<int64_t>(payload_bytes(call(c).coder, unit, run_.dtypes[c])));
    const int64_t payloads = 3 * n + 1, sums = around_ ? n : 1;
    const int64_t scratch = there_[0]->traffic().options().scratch_bytes - 64 * (payloads + sums);
    const int64_t units = scratch / (payloads * each + sums * 4 * unit);
    return std::max<int64_t>(1, units) * unit;
  }

  void leave(int exchange, int64_t k, std::vector<DeviceTraffic::Transfer>& transfers) {
    const std::span<const Stop> stops = run_.stops();
    for (size_t i = 0; i < stops.size(); ++i) {
      const Stop& stop = stops[i];
      const int64_t count = count_at(stop, k);
      if (count == 0) continue;
      if (stop.kind == StopKind::kSend && exchange == 0) payload(i) = own_payload(stop, k);
      if (out(stop) == exchange) {
        for (const Circle* const to : {&stop.to, &stop.also})
          for (int p = 1; p <= to->peers(); ++p) transfers.push_back({true, payload(i), to->to(p), group(stop, true)});
      }
      if (stop.from.peers() == 0 || in(stop) != exchange) continue;
      const size_t bytes = bytes_in(stop, count);
      char* const room = stays(stop) ? nullptr : static_cast<char*>(take(stop.from.size * padded(bytes)).data);
      lists_->places[i] = lists_->received.size();
      lists_->received.resize(lists_->received.size() + static_cast<size_t>(stop.from.size));
      for (int p = 1; p <= stop.from.peers(); ++p) {
        const int place = (stop.from.at + stop.from.size - p) % stop.from.size;
        View& here = received(i, place);
        if (run_.kept != nullptr)
          here = payload_at(run_.kept->of(0), bytes);
        else if (stays(stop))
          here = view(stop, stop.result, k);
        else if (coded(stop.call))
          here = payload_at(room + place * padded(bytes), bytes);
        else
          here = View(room + place * padded(bytes), run_.dtypes[stop.call], {count});
        transfers.push_back({false, here, stop.from.member(place), group(stop, false)});
      }
    }
  }

  void arrive(int exchange, int64_t k) {
    if (exchange == 0 && k == 0 && run_.kept_from) copy(run_.kept_from, run_.kept_to);
    const std::span<const Stop> stops = run_.stops();
    for (size_t i = 0; i < stops.size(); ++i) {
      const Stop& stop = stops[i];
      if (count_at(stop, k) == 0) continue;
      const View result = view(stop, stop.result, k);
      // The packer, too, gets what the others decode.
      const int again = call_out(stop);
      if (packs(stop) && result && out(stop) == exchange && !call(again).coder->keeps_decoded(call(again).msg))
        store(stop, again, payload(i), lanes_[again].me, result, k);
      if (stop.kind == StopKind::kSend && result && exchange == 0 && !coded(stop.call))
        copy(view(stop, stop.own, k), result);
      if (stop.from.peers() == 0 || in(stop) != exchange) continue;
      if (stop.kind == StopKind::kAdd) {
        add_up(stop, i, k);
        continue;
      }
      payload(i) = received(i, 1 - stop.from.at);
      const int packer = stop.packer >= 0 ? stop.packer : stop.from.member(1 - stop.from.at);
      if (coded(stop.call)) store(stop, stop.call, payload(i), packer, result, k);
    }
  }

  void copy(View from, View to) {
    if (from.count() == 0 || from.data == to.data) return;
    TW_CHECK(from.dtype == to.dtype && from.count() == to.count());
    traffic().device().copy(to.data, from.data, from.bytes(), traffic().stream()).wait(traffic().stream());
  }

  View own_payload(const Stop& stop, int64_t k) {
    if (run_.passed != nullptr) return payload_at(run_.passed->of(0), bytes_out(stop, count_at(stop, k)));
    const View part = view(stop, stop.own, k);
    return coded(stop.call) ? pack(stop, stop.call, part, k) : part;
  }

  View pack(const Stop& stop, int which, View part, int64_t k) {
    const CodedCall& coded = call(which);
    Msg msg = coded.msg;
    msg.first = first_at(stop, k);
    msg.rank = lanes_[which].me, msg.ranks = lanes_[which].size();
    const View result = view(stop, stop.result, k);
    const View own = coded.coder->keeps_decoded(msg) ? result : View();
    const size_t bytes = coded.device->wire_bytes(msg, part.count(), part.dtype);
    const View out = run_.kept != nullptr && stop.receivers() == 0 ? payload_at(run_.kept->of(0), bytes) : take(bytes);
    const Touched touched[] = {
        {part.data, part.bytes(), false}, {out.data, bytes, true}, {own.data, own ? own.bytes() : 0, true}};
    coded.device->queue_pack(traffic().calls().kernels(touched), msg, part,
                             coded.coder->value_difference() ? result : View(),
                             {static_cast<std::byte*>(out.data), bytes}, coded.state, coded.tally, own);
    return out;
  }

  void absorb(const Stop& stop, int which, std::span<const Share> shares, View out, bool accumulate, int64_t k) {
    Msg msg = run_.message_of(stop, which);
    msg.first = first_at(stop, k);
    msg.rank = shares[0].rank, msg.ranks = lanes_[which].size();
    std::vector<Touched>& touched = lists_->touched;
    touched.assign({{out.data, out.bytes(), true}});
    for (const Share& share : shares)
      touched.push_back(share.raw ? Touched{share.raw.data, share.raw.bytes(), false}
                                  : Touched{share.payload.data(), share.payload.size(), false});
    call(which).device->queue_absorb(traffic().calls().kernels(touched), msg, shares, out, accumulate,
                                     call(which).tally);
  }
  static Share share_of(View payload, int member) {
    return {{static_cast<const std::byte*>(payload.data), payload.bytes()}, View(), member};
  }
  void store(const Stop& stop, int which, View payload, int member, View out, int64_t k) {
    const Share one = share_of(payload, member);
    absorb(stop, which, {&one, 1}, out, false, k);
  }

  void add_up(const Stop& stop, size_t i, int64_t k) {
    const bool again = stop.receivers() > 0 && coded(stop.out_call);
    const bool last = stop.receivers() == 0;
    const View result = view(stop, stop.result, k), own = view(stop, stop.own, k);
    const int64_t count = count_at(stop, k);
    const View sum = again ? View(take(static_cast<size_t>(count) * sizeof(float)).data, DType::f32, {count}) : result;
    if (coded(stop.call)) {
      std::vector<Share>& shares = lists_->shares;
      shares.clear();
      for (int place = 0; place < stop.from.size; ++place)
        shares.push_back(place == stop.from.at ? Share{{}, own, lanes_[0].me}
                                               : share_of(received(i, place), stop.from.member(place)));
      absorb(stop, stop.call, shares, sum, last && run_.accumulate, k);
    } else {
      const View first = received(i, stop.from.at == 0 ? 1 : 0);
      const int64_t stride = padded(first.bytes());
      traffic().calls().sum_in_rank_order(
          {.own = own,
           .rank = stop.from.at,
           .ranks = stop.from.size,
           .others = static_cast<const char*>(first.data) - (stop.from.at == 0 ? stride : 0),
           .stride = stride,
           .out = sum,
           .accumulate = last && run_.accumulate},
          traffic().stream());
    }
    if (!last) payload(i) = again ? pack(stop, stop.out_call, sum, k) : sum;
  }

  GroupLane lanes_[2];  // by flow, and by call
  DeviceCommunicator* there_[2];
  RouteRun run_;
  bool around_ = false;  // a ring: what comes is passed on within its flow
  int64_t chunk_ = kUncut, pieces_ = 0;
  int exchanges_ = 1;
  char* at_ = nullptr;  // work space of the piece that is queued
  std::unique_ptr<DeviceTraffic::Lists> lists_;
};

}  // namespace

Ticket DeviceWork::run(const Task& task) {
  task.start().resume();
  TW_CHECK(task.returned(), "what is queued on a device waits for nobody");
  if (task.error()) std::rethrow_exception(task.error());
  return std::move(ticket);
}

VerbSpace::VerbSpace(const GroupLane& lane, int64_t bytes)
    : rehearsed_(lane.rehearsal != nullptr ? lane.rehearsal->watch : nullptr, {bytes}),
      host_(lane.pool(), lane.device == nullptr && lane.rehearsal == nullptr ? bytes : 0),
      traffic_(lane.device != nullptr && bytes > 0 ? &lane.device->there->traffic() : nullptr),
      data_(traffic_ != nullptr ? traffic_->lend(bytes) : host_.data()) {}

VerbSpace::~VerbSpace() {
  if (traffic_ != nullptr) traffic_->give_back(data_);
}

void queue_route(const GroupLane& lane, RouteRun run) {
  DeviceWork& work = *lane.device;
  const bool message = run.message;
  const auto route = std::make_shared<QueuedRoute>(lane, std::move(run));
  const OperationNote note = work.there->issue(work.verb, route->count(), work.peer, work.routes++ == 0);
  DeviceTraffic& traffic = route->traffic();
  if (message) {
    work.ticket = traffic.exchange(
        route->room(),
        [route](char* room, std::vector<DeviceTraffic::Transfer>& transfers) {
          route->leave_first(0, room, transfers);
        },
        note, *work.stream, [route] { route->go_on(0); });
    return;
  }
  work.ticket.wait(traffic.stream());
  traffic.follow(*work.stream);
  for (int64_t k = 0; k < route->pieces(); ++k) route->queue(k, traffic.room(route->room()));
  work.ticket = traffic.finish(note);
}

}  // namespace thinwire
