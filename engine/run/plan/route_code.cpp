// The executor of routes, written down as instructions instead of run.
#include "engine/run/plan/route_code.h"

#include <algorithm>

#include "compression/round_codec.h"
#include "parallel/collective/pieces.h"
#include "parallel/collective/route_run.h"
#include "parallel/wire/progress_core.h"

namespace thinwire {

namespace {

constexpr int kManyStops = 4;  // own slices of a tick that leave as one: more would only be more to simulate

// Gradients and weights are touched once between two of their operations, with all others between: no cache holds
// them. Activations have just been computed.
bool comes_from_memory(Site site) {
  return site == Site::kDpGradient || site == Site::kZeroParameter || site == Site::kEmbedding || site == Site::kOuter;
}

}  // namespace

double RouteCode::handling(const TapeLeg& leg, bool is_send) const {
  const MessageCosts& costs = cluster_.costs(cluster_.reach(tape_.rank, leg.peer));
  const auto bytes = static_cast<double>(leg.bytes);
  return is_send ? leg.messages * costs.send_message + bytes * costs.send_byte
                 : leg.messages * costs.receive_message + bytes * costs.receive_byte;
}

void RouteCode::work(double seconds, double extra_from_memory) {
  if (seconds > 0.0) tape_.code.push_back({.code = TapeCode::kWork, .seconds = seconds});
  if (extra_from_memory <= 0.0) return;
  if (tape_.code.size() == ended_ || tape_.code.back().code != TapeCode::kWork)
    tape_.code.push_back({.code = TapeCode::kWork});
  extra_from_memory_.emplace_back(tape_.code.size() - 1, extra_from_memory);
}

void RouteCode::end_operation(Site site) {
  for (const auto& [instruction, seconds] : extra_from_memory_)
    if (comes_from_memory(site)) tape_.code[instruction].seconds += seconds;
  extra_from_memory_.clear();
  ended_ = tape_.code.size();
}

// Operations repeat from layer to layer and from step to step, and legs would be most of a large cluster's tapes.
void RouteCode::put(TapeCode code, std::vector<TapeLeg>& legs) {
  const auto [at, fresh] = leg_places_.try_emplace(legs, static_cast<int>(tape_.legs.size()));
  if (fresh) tape_.legs.insert(tape_.legs.end(), legs.begin(), legs.end());
  tape_.code.push_back(
      {.code = code, .cyclic = cyclic_, .first = at->second, .count = static_cast<int>(legs.size()), .route = route_});
  legs.clear();
}

int RouteCode::send(std::vector<TapeLeg>& legs) {
  double seconds = 0.0;
  for (const TapeLeg& leg : legs) seconds += handling(leg, true);
  work(seconds);
  put(TapeCode::kSend, legs);
  return static_cast<int>(tape_.code.size()) - 1;
}

int RouteCode::post(std::vector<TapeLeg>& legs) {
  if (legs.empty()) return -1;
  put(TapeCode::kPost, legs);
  return static_cast<int>(tape_.code.size()) - 1;
}

void RouteCode::await(int post) {
  if (post < 0) return;
  tape_.code.push_back({.code = TapeCode::kAwait, .first = post});
  const TapeInstruction& posted = tape_.code[static_cast<size_t>(post)];
  double seconds = 0.0;
  for (int l = posted.first; l < posted.first + posted.count; ++l)
    seconds += handling(tape_.legs[static_cast<size_t>(l)], false);
  work(seconds);
}

void RouteCode::await_sent(std::vector<int>& sends) {
  if (sends.empty()) return;
  tape_.code.push_back({.code = TapeCode::kAwaitSent,
                        .first = static_cast<int>(tape_.refs.size()),
                        .count = static_cast<int>(sends.size())});
  tape_.refs.insert(tape_.refs.end(), sends.begin(), sends.end());
  sends.clear();
}

void RouteCode::add_exchange(const GroupLane& lane, std::span<const int> to, std::span<const int> from, int64_t bytes) {
  const int channel = 2 * communicator_of(lane);
  route_ = routes_[communicator_of(lane)]++;
  cyclic_ = to.size() == 1 && lane.size() > 2;
  std::vector<TapeLeg> in, out;
  for (int member : from) in.push_back({.channel = channel, .peer = lane.world_rank(member), .bytes = bytes});
  for (int member : to) out.push_back({.channel = channel, .peer = lane.world_rank(member), .bytes = bytes});
  const int posted = post(in);
  std::vector<int> sent;
  if (!out.empty()) sent.push_back(send(out));
  await(posted);
  await_sent(sent);
}

void RouteCode::add_rounds(const RoundCodec& codec, int64_t count) {
  const CodecRates rates = cluster_.machine.codec(codec.name());
  const double bytes = 4.0 * static_cast<double>(count);
  work(rates.encode_time(bytes, 1.0) + rates.decode_time(bytes, 1.0),
       bytes * (from_memory_.encode + from_memory_.decode));
}

// One route.
class RouteCompiler {
 public:
  // routes: what the instructions of each flow are linked by.
  RouteCompiler(RouteCode& code, const GroupLane& lane, const RouteRun& run, int most_pieces, const int (&routes)[2])
      : code_(code), lane_(lane), run_(run), flows_{run.flows[0], run.flows[1]}, routes_{routes[0], routes[1]} {
    if (most_pieces > 0) merge_pieces(most_pieces);
    for (const Stop& stop : run.stops()) {
      ticks_ = std::max(ticks_, start(stop) + pieces(stop));
      if (stop.kind == StopKind::kSend) own_ticks_ = std::max(own_ticks_, start(stop) + pieces(stop));
    }
    at_.resize(static_cast<size_t>(ticks_));
    for (const Stop& stop : run.stops())
      for (int64_t k = 0; k < pieces(stop); ++k) at_[static_cast<size_t>(start(stop) + k)].push_back(&stop);
    for (int f = 0; f < run.flow_count; ++f) posts_[f].assign(static_cast<size_t>(ticks_), -1);
    const bool framed = is_framed(run.calls[0].coder) || (run.call_count() > 1 && is_framed(run.calls[1].coder));
    for (int f = 0; f < 2; ++f) channel_[f] = 2 * communicator_of(lane_of(f)) + (framed || run.beyond ? 0 : f);
  }

  void compile(std::map<const SendQueue*, int>& queues) {
    for (int64_t t = 0; t < std::max(flows_[0].ahead, flows_[run_.flow_count - 1].ahead); ++t)
      for (int f = 0; f < run_.flow_count; ++f)
        if (t < flows_[f].ahead) post(f, t);
    if (run_.queue != nullptr) {
      queue_ = queues.try_emplace(run_.queue, static_cast<int>(queues.size())).first->second;
      code_.tape_.queues = static_cast<int>(queues.size());
      code_.tape_.code.push_back({.code = TapeCode::kTurn, .first = queue_});
    }
    const int64_t ahead = flows_[0].own_ahead;
    for (int64_t t = 0; t < ahead && t < own_ticks_; ++t) send_own(t);
    for (int64_t t = 0; t < ticks_; ++t) {
      if (t + ahead < own_ticks_) {
        before(0, t + ahead);
        send_own(t + ahead);
      }
      for (int f = 0; f < run_.flow_count; ++f) {
        code_.await(posts_[f][static_cast<size_t>(t)]);
        if (f == 0 && run_.passes_on()) before(run_.flow_count - 1, t + flows_[0].shift);
        take(f, t);
      }
      for (int f = 0; f < run_.flow_count; ++f) post(f, t + flows_[f].ahead);
    }
    release();
    for (int f = 0; f < run_.flow_count; ++f)
      for (std::vector<int>& sends : under_way_[f]) code_.await_sent(sends);
  }

 private:
  // Of so many pieces one is made, that ticks are counted in.
  void merge_pieces(int most_pieces) {
    int64_t longest = 1;
    for (const Stop& stop : run_.stops()) longest = std::max(longest, pieces_of(stop.slice.count, run_.chunk));
    merged_ = (longest + most_pieces - 1) / most_pieces;
    for (RouteFlow& flow : flows_)
      for (int64_t* ticks : {&flow.group, &flow.own_ahead, &flow.shift}) *ticks = (*ticks + merged_ - 1) / merged_;
  }
  int64_t start(const Stop& stop) const { return (stop.start + merged_ - 1) / merged_; }
  int64_t pieces(const Stop& stop) const { return (pieces_of(stop.slice.count, run_.chunk) + merged_ - 1) / merged_; }
  int64_t count_at(const Stop& stop, int64_t t) const {
    if (run_.chunk == kUncut) return stop.slice.count;
    return std::min(merged_ * run_.chunk, stop.slice.count - (t - start(stop)) * merged_ * run_.chunk);
  }
  const GroupLane& lane_of(int flow) const { return flow > 0 && run_.beyond ? *run_.beyond : lane_; }
  const Coder* coder(int call) const { return run_.calls[call].coder; }
  TapeLeg leg(int flow, int member, int call, int64_t count, const Msg& msg) const {
    const auto pieces = static_cast<int>(pieces_of(count, run_.chunk));
    const int64_t bytes = sent_bytes(coder(call), msg, run_.chunk, count, run_.dtypes[call]);
    const bool summed = lane_of(flow).is_checked(member) && bytes > pieces * static_cast<int64_t>(kCheckedCopy);
    return {channel_[flow], lane_of(flow).world_rank(member),
            pieces * (1 + (is_framed(coder(call)) ? 1 : 0) + (summed ? 1 : 0)), bytes};  // checksums travel alone
  }
  CodecRates rates(int call) const { return code_.cluster_.machine.codec(coder(call)->name()); }
  static double fp32_bytes(int64_t count) { return 4.0 * static_cast<double>(count); }

  void post(int f, int64_t t) {
    if (t >= ticks_) return;
    std::vector<TapeLeg> legs;
    for (const Stop* stop : at_[static_cast<size_t>(t)]) {
      if (stop->flow != f || stop->from.peers() == 0) continue;
      for (int i = 1; i <= stop->from.peers(); ++i)
        legs.push_back(leg(f, stop->from.from(i), stop->call, count_at(*stop, t), run_.message_of(*stop, stop->call)));
    }
    code_.route_ = routes_[f];
    posts_[f][static_cast<size_t>(t)] = code_.post(legs);
  }

  // What was sent in the slot of number u of a flow has to be gone.
  void before(int f, int64_t u) {
    if (u % flows_[f].group == 0) code_.await_sent(slot(f, u));
  }
  std::vector<int>& slot(int f, int64_t u) { return under_way_[f][u / flows_[f].group % flows_[f].exchanges]; }

  void add_receivers(const Stop& stop, int call, int64_t t, std::vector<TapeLeg>& legs) const {
    for (const Circle* const to : {&stop.to, &stop.also})
      for (int i = 1; i <= to->peers(); ++i)
        legs.push_back(leg(stop.out_flow, to->to(i), call, count_at(stop, t), run_.message_of(stop, call)));
  }
  void leave(int f, int64_t u, std::vector<TapeLeg>& legs) {
    code_.route_ = routes_[f];
    if (!legs.empty()) slot(f, u).push_back(code_.send(legs));
  }

  double packing(const Stop& stop, int call, int64_t t, bool keeps) const {
    if (coder(call) == nullptr) return 0.0;
    const int64_t count = count_at(stop, t);
    const bool decodes = keeps && !coder(call)->keeps_decoded(run_.calls[call].msg);
    return rates(call).encode_time(fp32_bytes(count), calls(count)) + (decodes ? unpacking(call, count) : 0.0);
  }
  // What a call takes longer from memory: to read a piece for it (a residual or a reference beside it), to write one.
  double reading(int call, int64_t count) const {
    const FromMemory& more = code_.from_memory_;
    if (coder(call) == nullptr) return plain_bytes(call, count) * more.message;
    const bool two = coder(call)->traits().stateful || coder(call)->value_difference();
    return fp32_bytes(count) * (more.encode + (two ? more.residual : 0.0));
  }
  double writing(int call, int64_t count) const {
    const FromMemory& more = code_.from_memory_;
    return coder(call) == nullptr ? plain_bytes(call, count) * more.message : fp32_bytes(count) * more.decode;
  }
  double plain_bytes(int call, int64_t count) const {
    return static_cast<double>(count) * static_cast<double>(size_of(run_.dtypes[call]));
  }
  double calls(int64_t count) const { return static_cast<double>(pieces_of(count, run_.chunk)); }
  double unpacking(int call, int64_t count) const { return rates(call).decode_time(fp32_bytes(count), calls(count)); }

  void release() {
    if (queue_ >= 0) code_.tape_.code.push_back({.code = TapeCode::kRelease, .first = queue_});
    queue_ = -1;
  }

  void send_own(int64_t t) {
    if (t >= own_ticks_) return;
    if (t + 1 >= own_ticks_) release();
    int own = 0;
    for (const Stop* stop : at_[static_cast<size_t>(t)]) own += stop->kind == StopKind::kSend ? 1 : 0;
    std::vector<TapeLeg> legs;
    for (const Stop* stop : at_[static_cast<size_t>(t)]) {
      if (stop->kind != StopKind::kSend) continue;
      const bool keeps = stop->result.space != Space::kNone, codes = coder(stop->call) != nullptr;
      const int64_t count = count_at(*stop, t);
      code_.work(packing(*stop, stop->call, t, keeps),
                 (codes || stop->receivers() > 0 ? reading(stop->call, count) : 0.0) +
                     (codes && keeps ? writing(stop->call, count) : 0.0));
      add_receivers(*stop, stop->call, t, legs);
      if (own <= kManyStops) leave(stop->out_flow, t, legs);
    }
    leave(0, t, legs);
  }

  void take(int f, int64_t t) {
    for (const Stop* stop : at_[static_cast<size_t>(t)]) {
      if (stop->flow != f || stop->from.peers() == 0) continue;
      const double bytes = fp32_bytes(count_at(*stop, t));
      const bool keeps = stop->result.space != Space::kNone;
      const int64_t u = t + flows_[stop->flow].shift;
      std::vector<TapeLeg> legs;
      if (stop->kind == StopKind::kAdd) {
        const double element = static_cast<double>(size_of(run_.dtypes[stop->call])) / 4.0;
        const double adding = bytes / code_.cluster_.machine.sum_bytes_per_second;
        code_.work(coder(stop->call) == nullptr
                       ? stop->from.size * element * adding
                       : adding + stop->from.peers() * unpacking(stop->call, count_at(*stop, t)),
                   coder(stop->call) != nullptr && keeps ? writing(stop->call, count_at(*stop, t)) : 0.0);
        if (stop->receivers() == 0) continue;
        code_.work(packing(*stop, stop->out_call, t, keeps));
        add_receivers(*stop, stop->out_call, t, legs);
        leave(stop->out_flow, u, legs);
      } else {
        if (stop->receivers() > 0) {
          add_receivers(*stop, stop->call, t, legs);
          leave(stop->out_flow, u, legs);
        }
        code_.work(coder(stop->call) == nullptr ? 0.0 : unpacking(stop->call, count_at(*stop, t)),
                   writing(stop->call, count_at(*stop, t)));
      }
    }
  }

  RouteCode& code_;
  const GroupLane& lane_;
  const RouteRun& run_;
  RouteFlow flows_[2];
  int routes_[2];
  int64_t merged_ = 1;
  int64_t ticks_ = 0, own_ticks_ = 0;
  std::vector<std::vector<const Stop*>> at_;
  std::vector<int> posts_[2];
  std::vector<int> under_way_[2][kInFlight];
  int channel_[2] = {0, 0}, queue_ = -1;
};

void RouteCode::add_route(const GroupLane& lane, const RouteRun& run) {
  const int communicator = communicator_of(lane);
  int routes[2];
  const auto first = std::ranges::find_if(run.stops(), [](const Stop& s) { return s.flow == 0; });
  if (run.message && (run.stops().size() == 1 || run.beyond) && first != run.stops().end()) {
    const bool is_send = first->kind == StopKind::kSend;
    const int peer = is_send ? first->to.to(1) : first->from.from(1);
    routes[0] = routes[1] = messages_[{communicator, lane.world_rank(peer), is_send}]++;
  } else {
    routes[0] = routes[1] = routes_[communicator]++;
  }
  if (run.beyond) routes[1] = routes_[communicator_of(*run.beyond)]++;
  cyclic_ = run.flows[0].shift > 0;  // a ring
  RouteCompiler(*this, lane, run, most_pieces_, routes).compile(queues_);
}

}  // namespace thinwire
