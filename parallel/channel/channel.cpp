// The verbs of a communicator under a rule: which messages are coded, by which coder, with which state.
#include "parallel/channel/channel.h"

#include "engine/base/core/check.h"
#include "parallel/collective/pieces.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"
#include "parallel/wire/host_staging.h"

namespace thinwire {
namespace {

// A matrix codec: whether factors and what travels beside them are fewer numbers than the message.
bool thinner(const RoundCodec& rounds, const MessageKey& key, int64_t count) {
  if (key.matrices.empty()) return false;
  int64_t numbers = 0;
  for (int r = 0; r < rounds.rounds(); ++r) numbers += rounds.bound(r, count, 1, key.matrices);
  return numbers < count;
}

constexpr uint64_t kPartSeed = 0x8CB92BA72F3D8DD7u;  // parts of a message round by chances of their own

}  // namespace

bool is_coded(const SiteCompression& compression, int64_t step, const MessageKey& key, int64_t count, DType dtype,
              bool summed) {
  if (key.rule < 0 || count == 0 || step < compression.rule.warmup_steps) return false;
  if (count * static_cast<int64_t>(size_of(dtype)) < compression.rule.min_bytes) return false;
  if (summed && compression.rounds != nullptr)
    return !compression.rounds->traits().matrices || thinner(*compression.rounds, key, count);
  return compression.first != nullptr && compression.first->shrinks(count, dtype);
}

Channel::Channel(std::unique_ptr<Communicator> communicator, SiteCompressions compressions,
                 const CompressionClock* clock, SiteCounters* counters, std::shared_ptr<ChannelStates> states,
                 uint64_t draws)
    : communicator_(std::move(communicator)),
      compressions_(std::move(compressions)),
      clock_(clock),
      counters_(counters),
      states_(std::move(states)),
      draws_(draws) {
  TW_CHECK(communicator_ != nullptr);
  TW_CHECK(clock_ != nullptr && counters_ != nullptr && states_ != nullptr);
}

bool Channel::codes(const MessageKey& key, int64_t count, DType dtype, bool summed) const {
  if (!communicator_ || this->compression(key) == nullptr) return false;
  const SiteCompression& compression = compression_of(key);
  return !clock_->off[static_cast<size_t>(compression.site)] &&
         is_coded(compression, clock_->step, key, key.largest_part > 0 ? key.largest_part : count, dtype, summed);
}

// rows: of the one matrix that a message without a list of matrices is; 0: it has none.
ChannelStates::Slot& Channel::open_slot(const MessageKey& key, int64_t count, int64_t rows) {
  ChannelStates::Slot& slot = states_->slot(key);
  if (slot.count == 0) {
    slot.count = count;
    slot.matrices.assign(key.matrices.begin(), key.matrices.end());
    if (slot.matrices.empty() && rows > 0) slot.matrices.push_back({0, rows, count / rows});
  }
  const SiteCompression& compression = compression_of(key);
  TW_CHECK(slot.count == count || (compression.rounds == nullptr && !compression.first->traits().stateful), "slot ",
           key.slot, " held ", slot.count, " elements and now ", count);
  return slot;
}

void Channel::prepare(const MessageKey& key, int64_t count, ChannelUse use, std::span<const int64_t> bounds) {
  const SiteCompression* const compression = communicator_ ? this->compression(key) : nullptr;
  if (compression == nullptr || count == 0) return;
  if (price_ != nullptr) {
    price_->state_bytes += state_bytes(*compression, key.matrices, count, use);
    return;
  }
  ChannelStates::Slot& slot = open_slot(key, count, 0);
  const SlotStates states = states_of(*compression, key.matrices, use);
  if (states.rounds) round_call(*compression, Msg{}, slot);
  if (states.first) call(compression->first.get(), key, Msg{}, slot, slot.first);
  if (states.sums) call(compression->sums.get(), key, Msg{}, slot, slot.sums);
  if (!states_->over_data() || way_of(*compression) == RuleAlgorithm::kTwoLevel) return;
  slot.me = rank();
  slot.owners.assign(bounds.begin(), bounds.end());
  const int64_t unit = common_unit(compression->first.get(), compression->sums.get());
  for (int r = 0; use == ChannelUse::kAllReduce && r <= size(); ++r)
    slot.owners.push_back(part_bound(count, size(), r, unit));
}

Msg Channel::next_message(const MessageKey& key, ChannelStates::Slot& slot) {
  if (slot.pass != clock_->pass) slot.pass = clock_->pass, slot.sequence = 0;
  Msg msg;
  msg.seed = clock_->seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(communicator_->site()) + 1 +
             draws_ * 0xD1B54A32D192ED03u + static_cast<uint64_t>(key.part) * kPartSeed;
  msg.slot = key.slot;
  msg.sequence = slot.sequence++;
  msg.step = clock_->step;
  msg.loss_scale = traits_of(communicator_->site()).gradients ? clock_->loss_scale : 1.0f;
  msg.rank = rank();
  msg.ranks = size();
  msg.threads = clock_->threads;
  msg.train = clock_->train;
  msg.matrices = slot.matrices;
  return msg;
}

CodedCall Channel::call(const Coder* coder, const MessageKey& key, const Msg& msg, ChannelStates::Slot& slot,
                        std::unique_ptr<CompressionState>& state) {
  CodedCall call;
  call.coder = coder;
  call.msg = msg;
  call.stats = &counters_->compression;
  call.counters = counters_;
  call.site = communicator_->site();
  if (coder != nullptr && coder->traits().stateful && price_ == nullptr) {
    TW_CHECK(key.as == nullptr, "another site's coding keeps states");
    if (!state) state = coder->make_state(slot.count, slot.matrices);
    call.state = state.get();
  }
  return call;
}

RoundCall Channel::round_call(const SiteCompression& compression, const Msg& msg, ChannelStates::Slot& slot) {
  RoundCall call;
  call.codec = compression.rounds.get();
  call.msg = msg;
  call.stats = &counters_->compression;
  call.counters = counters_;
  call.site = communicator_->site();
  if (!slot.rounds) slot.rounds = compression.rounds->make_state(slot.count, slot.matrices);
  call.state = slot.rounds.get();
  if (compression.rule.residual.kind != ResidualKind::kNone) {
    if (!slot.round_residual)
      slot.round_residual = std::make_unique<StateVector<float>>(slot.count, compression.rule.residual.on_skip);
    call.residual = slot.round_residual.get();
  }
  return call;
}

int64_t Channel::rounds_bytes(const RoundCodec& rounds, const MessageKey& key, int64_t count) const {
  CommTuning tuning = communicator_->tuning();
  tuning.checksums = checksums(key);
  const GroupLane lane = checked(communicator_->lane(), key);
  rehearse_rounds(lane, rounds, count, key.matrices);
  lane.place.begin();
  lane.place.over();
  // Where lengths vary, a shorter payload may fall among the small ones that go to everybody at once.
  const int64_t slack = rounds.traits().framed ? rounds.rounds() * (size() - 1) * tuning.small_bytes : 0;
  return rounds_all_reduce_bytes(rounds, tuning, communicator_->nodes(), size(), rank(), count, key.matrices) + slack;
}

GroupLane Channel::checked(GroupLane lane, const MessageKey& key) const {
  lane.checksums = checksums(key);
  return lane;
}

template <typename Verb>
Task Channel::count(const MessageKey& key, int64_t bytes, bool exact, const Verb& plain) {
  const GroupLane lane = checked(communicator_->lane(), key);
  price_->add(bytes, logical_bytes(lane, plain), exact);
  return nothing(lane);
}

template <typename Plain, typename Verb>
Task Channel::carry(const MessageKey& key, const Plain& plain, bool exact, const Verb& verb) {
  const GroupLane lane = checked(communicator_->lane(), key);
  if (price_ == nullptr) return verb(lane);
  const int64_t sent = rehearsed_bytes(lane, verb, true);
  price_->add(sent, logical_bytes(lane, plain), exact);
  return nothing(lane);
}

RuleAlgorithm Channel::way_of(const SiteCompression& compression) const {
  const RuleAlgorithm way = compression.rule.algorithm;
  const bool levels = way == RuleAlgorithm::kTwoLevel && node_grid(communicator_->nodes(), size()).two_level();
  return levels || way == RuleAlgorithm::kRing ? way : RuleAlgorithm::kDirect;
}

Task Channel::all_reduce_task(View data, ReduceKind kind, const MessageKey& key) {
  const auto plain = [&](const GroupLane& lane) { return plain_all_reduce(lane, data, kind); };
  if (kind != ReduceKind::kSum || !codes(key, data.count(), data.dtype, true))
    return is_usual(key) ? communicator_->all_reduce_task(data, kind) : carry(key, plain, true, plain);
  const SiteCompression& compression = compression_of(key);
  ChannelStates::Slot& slot = open_slot(key, data.count(), data.rank > 1 ? data.rows() : 0);
  const Msg msg = next_message(key, slot);
  if (compression.rounds != nullptr) {
    if (price_ == nullptr)
      return rounds_all_reduce(checked(communicator_->lane(), key), round_call(compression, msg, slot), data);
    return count(key, rounds_bytes(*compression.rounds, key, data.count()), !compression.rounds->traits().framed,
                 plain);
  }
  const CodedCall first = call(compression.first.get(), key, msg, slot, slot.first),
                  back = call(compression.sums.get(), key, msg, slot, slot.sums);
  const RuleAlgorithm way = way_of(compression);
  return carry(key, plain, !is_framed(first.coder) && !is_framed(back.coder), [&](const GroupLane& lane) {
    // The hop between nodes and the way back pack different elements: they share a state.
    if (way == RuleAlgorithm::kTwoLevel) return coded_two_level_all_reduce(lane, first, back, back, data);
    if (way == RuleAlgorithm::kRing) return coded_ring_all_reduce(lane, first, back, data);
    return coded_all_reduce(lane, first, back, data);
  });
}

Task Channel::reduce_scatter_task(View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                                  const MessageKey& key) {
  const auto plain = [&](const GroupLane& lane) {
    return plain_reduce_scatter(lane, whole, Bounds(lane.pool(), bounds), out, accumulate);
  };
  if (!codes(key, whole.count(), whole.dtype, true)) {
    return is_usual(key) ? communicator_->reduce_scatter_task(whole, bounds, out, accumulate)
                         : carry(key, plain, true, plain);
  }
  const SiteCompression& compression = compression_of(key);
  ChannelStates::Slot& slot = open_slot(key, whole.count(), whole.rank > 1 ? whole.rows() : 0);
  const Msg msg = next_message(key, slot);
  if (compression.rounds != nullptr) {
    if (price_ != nullptr)
      return count(key, rounds_bytes(*compression.rounds, key, whole.count()), !compression.rounds->traits().framed,
                   plain);
    return rounds_reduce_scatter(checked(communicator_->lane(), key), round_call(compression, msg, slot), whole,
                                 Bounds(communicator_->pool(), bounds), out, accumulate);
  }
  const RuleAlgorithm way = way_of(compression);
  const CodedCall first = call(compression.first.get(), key, msg, slot, slot.first);
  CodedCall inter;
  if (way == RuleAlgorithm::kTwoLevel) inter = call(compression.sums.get(), key, msg, slot, slot.sums);
  return carry(key, plain, !is_framed(first.coder) && !is_framed(inter.coder), [&](const GroupLane& lane) {
    Bounds kept(lane.pool(), bounds);
    if (way == RuleAlgorithm::kTwoLevel)
      return coded_two_level_reduce_scatter(lane, first, inter, whole, std::move(kept), out, accumulate);
    if (way == RuleAlgorithm::kRing)
      return coded_ring_reduce_scatter(lane, first, whole, std::move(kept), out, accumulate);
    return coded_reduce_scatter(lane, first, whole, std::move(kept), out, accumulate);
  });
}

Task Channel::all_gather_task(View mine, View whole, std::span<const int64_t> bounds, const MessageKey& key) {
  const auto me = static_cast<size_t>(rank());
  const View place = whole.element_range(bounds[me], bounds[me + 1] - bounds[me]);
  const auto plain = [&](const GroupLane& lane) {
    return plain_all_gather(lane, place, whole, Bounds(lane.pool(), bounds));
  };
  if (!codes(key, whole.count(), whole.dtype, false)) {
    if (price_ != nullptr) return carry(key, plain, true, plain);
    if (mine.dtype == whole.dtype && is_usual(key)) return communicator_->all_gather_task(mine, whole, bounds);
    convert(mine, place);
    return is_usual(key) ? communicator_->all_gather_task(place, whole, bounds) : carry(key, plain, true, plain);
  }
  const SiteCompression& compression = compression_of(key);
  ChannelStates::Slot& slot = open_slot(key, whole.count(), whole.rank > 1 ? whole.rows() : 0);
  const CodedCall first = call(compression.first.get(), key, next_message(key, slot), slot, slot.first);
  const bool named = way_of(compression) == RuleAlgorithm::kTwoLevel;
  const int64_t bytes = static_cast<int64_t>(payload_bytes(first.coder, whole.count(), whole.dtype));
  return carry(key, plain, !is_framed(first.coder), [&](const GroupLane& lane) {
    Bounds kept(lane.pool(), bounds);
    // Payloads are forwarded as they are: in two levels they cross nodes once, and the bits stay.
    const bool levels = named || choose_algorithm(*lane.tuning, Verb::kAllGather, lane.nodes, lane.size(), bytes) ==
                                     Algorithm::kTwoLevel;
    return levels ? coded_two_level_all_gather(lane, first, mine, whole, std::move(kept))
                  : coded_all_gather(lane, first, mine, whole, std::move(kept));
  });
}

Task Channel::all_to_all_task(View from, std::span<const int64_t> from_bounds, View to,
                              std::span<const int64_t> to_bounds, const MessageKey& key) {
  const auto verb = [&](const CodedCall& call) {
    return [&, call](const GroupLane& lane) {
      return coded_all_to_all(lane, call, from, Bounds(lane.pool(), from_bounds), to, Bounds(lane.pool(), to_bounds));
    };
  };
  const auto plain = verb(plain_call());
  if (!codes(key, from.count(), from.dtype, false))
    return is_usual(key) ? communicator_->all_to_all_task(from, from_bounds, to, to_bounds)
                         : carry(key, plain, true, plain);
  ChannelStates::Slot& slot = open_slot(key, from.count(), 0);
  const CodedCall first = call(compression_of(key).first.get(), key, next_message(key, slot), slot, slot.first);
  TW_CHECK(first.state == nullptr, "an all-to-all with a state");
  return carry(key, plain, !is_framed(first.coder), verb(first));
}

Ticket Channel::all_reduce(View data, ReduceKind kind, Stream& stream, const MessageKey& key) {
  if (!communicator_) return Ticket::finished();
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, data, true);
        there != nullptr && kind == ReduceKind::kSum && DeviceCommunicator::sums(data.dtype))
      return there->all_reduce(data, stream);
    HostStaging staged(stream);
    const View there = staged.both(data);
    return staged.finish(all_reduce(there, kind, staged.host(), key));
  }
  return communicator_->start(all_reduce_task(data, kind, key), "all_reduce", static_cast<int64_t>(data.bytes()));
}

Ticket Channel::reduce_scatter(View whole, std::span<const int64_t> bounds, View out, bool accumulate, Stream& stream,
                               const MessageKey& key) {
  if (!communicator_) {
    TW_CHECK(out.data == whole.data && out.count() == whole.count(),
             "an empty channel moves nothing: the result has to be where the contribution is");
    return Ticket::finished();
  }
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, whole, true);
        there != nullptr && DeviceCommunicator::sums(whole.dtype))
      return there->reduce_scatter(whole, bounds, out, accumulate, stream);
    HostStaging staged(stream);
    const View there = staged.in(whole), result = accumulate ? staged.both(out) : staged.out(out);
    return staged.finish(reduce_scatter(there, bounds, result, accumulate, staged.host(), key));
  }
  return communicator_->start(reduce_scatter_task(whole, bounds, out, accumulate, key), "reduce_scatter",
                              static_cast<int64_t>(whole.bytes()));
}

Ticket Channel::all_gather(View mine, View whole, std::span<const int64_t> bounds, Stream& stream,
                           const MessageKey& key) {
  if (!communicator_) {
    TW_CHECK(mine.count() == whole.count() && mine.data == whole.data,
             "an empty channel moves nothing: the result has to be where the contribution is");
    return Ticket::finished();
  }
  if (stream.device() != nullptr) {
    // (Under a rule `mine` may be of another type than `whole`, and must be converted.)
    if (DeviceCommunicator* const there = on_device(stream); there != nullptr && is_plain(key))
      return there->all_gather(mine, whole, bounds, stream);
    HostStaging staged(stream);
    const View there = staged.both(whole), part = staged.in(mine);
    return staged.finish(all_gather(part, there, bounds, staged.host(), key));
  }
  return communicator_->start(all_gather_task(mine, whole, bounds, key), "all_gather",
                              static_cast<int64_t>(whole.bytes()));
}

Ticket Channel::all_to_all(View from, std::span<const int64_t> from_bounds, View to, std::span<const int64_t> to_bounds,
                           Stream& stream, const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank has nobody to exchange with");
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, from, false))
      return there->all_to_all(from, from_bounds, to, to_bounds, stream);
    HostStaging staged(stream);
    const View there = staged.in(from), result = staged.out(to);
    return staged.finish(all_to_all(there, from_bounds, result, to_bounds, staged.host(), key));
  }
  return communicator_->start(all_to_all_task(from, from_bounds, to, to_bounds, key), "all_to_all",
                              static_cast<int64_t>(from.bytes()));
}

RingMessage Channel::start_ring(View part, int64_t total, int64_t most, Stream& stream, const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank is no ring");
  RingMessage ring;
  ring.key_ = key;
  if (!codes(key, total, part.dtype, false)) {
    ring.call_ = plain_call();
    return ring;
  }
  if (stream.device() != nullptr) {
    HostStaging staged(stream);
    const View there = staged.both(part);
    ring = start_ring(there, total, most, staged.host(), key);
    staged.finish(Ticket::finished()).wait(stream);
    return ring;
  }
  ChannelStates::Slot& slot = open_slot(key, total, 0);
  ring.call_ = call(compression_of(key).first.get(), key, next_message(key, slot), slot, slot.first);
  TW_CHECK(ring.call_.state == nullptr, "a ring with a state");
  if (price_ != nullptr) return ring;
  for (Payloads& payloads : ring.payloads_)
    payloads = Payloads(communicator_->pool(), communicator_->tuning(), *ring.call_.coder, part.dtype, most);
  communicator_
      ->start(coded_pack(communicator_->lane(), ring.call_, part, &ring.payloads_[0]), "pack",
              static_cast<int64_t>(part.bytes()))
      .wait_on_host();
  return ring;
}

Ticket Channel::hop(RingMessage& ring, View held, View next, Stream& stream) {
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream);
        there != nullptr && ring.call_.coder == nullptr && !is_proved(ring.key_)) {
      ++ring.hops_;
      return there->send_and_receive(held, (rank() + 1) % size(), next, (rank() + size() - 1) % size(), stream);
    }
    HostStaging staged(stream);
    const View there = staged.in(held), result = staged.out(next);
    return staged.finish(hop(ring, there, result, staged.host()));
  }
  const int at = ring.hops_++ % 2, ahead = (rank() + 1) % size(), behind = (rank() + size() - 1) % size();
  const auto verb = [&](const CodedCall& call) {
    const bool coded = call.coder != nullptr && price_ == nullptr;
    return [&, call, coded](const GroupLane& lane) {
      return coded_hop(lane, call, held, ahead, next, behind, ring.owner(rank(), size()),
                       coded ? &ring.payloads_[at] : nullptr, coded ? &ring.payloads_[1 - at] : nullptr);
    };
  };
  return communicator_->start(carry(ring.key_, verb(plain_call()), !is_framed(ring.call_.coder), verb(ring.call_)),
                              "hop", static_cast<int64_t>(held.bytes()));
}

Ticket Channel::hand_back(View from, View to, int distance, int64_t total, Stream& stream, const MessageKey& key) {
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream);
        there != nullptr && !codes(key, total, from.dtype, false) && !is_proved(key))
      return there->send_and_receive(from, (rank() + size() - distance) % size(), to, (rank() + distance) % size(),
                                     stream);
    HostStaging staged(stream);
    const View there = staged.in(from), result = staged.out(to);
    return staged.finish(hand_back(there, result, distance, total, staged.host(), key));
  }
  const int behind = (rank() + size() - distance) % size(), ahead = (rank() + distance) % size();
  const auto verb = [&](const CodedCall& call) {
    return [&, call](const GroupLane& lane) { return coded_hop(lane, call, from, behind, to, ahead, ahead); };
  };
  CodedCall coded = plain_call();
  if (codes(key, total, from.dtype, false)) {
    ChannelStates::Slot& slot = open_slot(key, total, 0);
    coded = call(compression_of(key).first.get(), key, next_message(key, slot), slot, slot.first);
    TW_CHECK(coded.state == nullptr, "a ring with a state");
  }
  return communicator_->start(carry(key, verb(plain_call()), !is_framed(coded.coder), verb(coded)), "hand_back",
                              static_cast<int64_t>(from.bytes()));
}

Ticket Channel::broadcast(View data, int root, Stream& stream) {
  return communicator_ ? communicator_->broadcast(data, root, stream) : Ticket::finished();
}

Ticket Channel::send(View data, int peer, Stream& stream, const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank has nobody to send to");
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, data, false)) return there->send(data, peer, stream);
    HostStaging staged(stream);
    const View there = staged.in(data);
    return staged.finish(send(there, peer, staged.host(), key));
  }
  const bool is_plain = !codes(key, data.count(), data.dtype, false);
  const auto plain = [&](const GroupLane& lane) { return coded_send(lane, plain_call(), data, peer); };
  const auto bytes = static_cast<int64_t>(data.bytes());
  if (is_plain && price_ != nullptr) return communicator_->start(carry(key, plain, true, plain), "send", bytes, peer);
  if (is_plain && key.largest_part == 0 && is_usual(key)) return communicator_->send(data, peer, stream);
  // With checksums, or in the pieces in which it is handed on.
  if (is_plain)
    return communicator_->start(coded_send(checked(communicator_->lane_to(peer), key), plain_call(), data, peer),
                                "send", bytes, peer);
  ChannelStates::Slot& slot = open_slot(key, data.count(), data.rank > 1 ? data.rows() : 0);
  CodedCall coded = call(compression_of(key).first.get(), key, next_message(key, slot), slot, slot.first);
  if (price_ != nullptr) {
    const auto verb = [&](const GroupLane& lane) { return coded_send(lane, coded, data, peer); };
    return communicator_->start(carry(key, plain, !is_framed(coded.coder), verb), "send", bytes, peer);
  }
  if (coded.state != nullptr) coded.packing = &communicator_->packing(key.slot);
  return communicator_->start(coded_send(checked(communicator_->lane_to(peer), key), coded, data, peer), "send", bytes,
                              peer);
}

Ticket Channel::receive(View data, int peer, Stream& stream, const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank has nobody to receive from");
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, data, false))
      return there->receive(data, peer, stream);
    HostStaging staged(stream);
    const View there = staged.out(data);
    return staged.finish(receive(there, peer, staged.host(), key));
  }
  const bool is_coded = codes(key, data.count(), data.dtype, false);
  const auto bytes = static_cast<int64_t>(data.bytes());
  if (price_ != nullptr) {  // nothing to count; whoever watches is told
    CodedCall coming = plain_call();
    if (is_coded) coming = CodedCall(), coming.coder = compression_of(key).first.get();
    const GroupLane lane = checked(communicator_->lane(), key);
    static_cast<void>(rehearsed_bytes(
        lane, [&](const GroupLane& same) { return coded_receive(same, coming, data, peer); }, true));
    return communicator_->start(nothing(lane), "receive", bytes, peer);
  }
  if (!is_coded) {
    if (key.largest_part == 0 && is_usual(key)) return communicator_->receive(data, peer, stream);
    return communicator_->start(coded_receive(checked(communicator_->lane_from(peer), key), plain_call(), data, peer),
                                "receive", bytes, peer);
  }
  // What was sent from slot k is received in slot k: both ends count the same messages. A stage may be at both ends of
  // one slot only if it sends to itself, which point-to-point messages do not.
  ChannelStates::Slot& slot = open_slot(key, data.count(), data.rank > 1 ? data.rows() : 0);
  CodedCall coded;
  coded.coder = compression_of(key).first.get();
  coded.msg = next_message(key, slot);
  coded.msg.rank = peer;
  coded.stats = &counters_->compression;
  coded.counters = counters_;
  coded.site = communicator_->site();
  return communicator_->start(coded_receive(checked(communicator_->lane_from(peer), key), coded, data, peer), "receive",
                              bytes, peer);
}

Ticket Channel::receive_parts(View whole, std::span<const int64_t> bounds, int peer, Channel& parts, Stream& stream,
                              const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr && static_cast<int>(bounds.size()) == parts.size() + 1 && key.largest_part > 0);
  if (stream.device() != nullptr) {
    DeviceCommunicator* const there = on_device(stream, key, whole, false);
    DeviceCommunicator* const others = parts.on_device(stream);
    if (there != nullptr && others != nullptr) return there->receive_parts(whole, bounds, peer, *others, stream);
    HostStaging staged(stream);
    const View host = staged.out(whole);
    return staged.finish(receive_parts(host, bounds, peer, parts, staged.host(), key));
  }
  CodedCall call = plain_call();
  std::vector<Msg> messages;
  if (codes(key, 0, whole.dtype, false)) {
    const auto me = static_cast<size_t>(key.part);
    const int64_t cols = whole.rank > 1 ? whole.cols() : 0;
    const auto rows_of = [&](size_t part) { return cols > 0 ? (bounds[part + 1] - bounds[part]) / cols : 0; };
    ChannelStates::Slot& slot = open_slot(key, bounds[me + 1] - bounds[me], rows_of(me));
    while (cols > 0 && slot.parts.size() + 1 < bounds.size())
      slot.parts.push_back({0, rows_of(slot.parts.size()), cols});
    call = CodedCall();
    call.coder = compression_of(key).first.get();
    call.msg = next_message(key, slot);
    call.msg.rank = peer;
    call.stats = &counters_->compression;
    call.counters = counters_;
    call.site = communicator_->site();
    messages.assign(bounds.size() - 1, call.msg);
    for (size_t p = 0; p < messages.size(); ++p) {
      messages[p].seed += (p - me) * kPartSeed;
      if (!slot.parts.empty()) messages[p].matrices = {&slot.parts[p], 1};
    }
  }
  const auto verb = [&](const CodedCall& of, const GroupLane& others) {
    return [&](const GroupLane& lane) { return coded_receive_parts(lane, of, others, whole, bounds, messages, peer); };
  };
  // What is handed on is proved like the message that it is a part of.
  const Checksums handed_on =
      checksums(key) == Checksums::kAll ? Checksums::kAll : parts.communicator_->tuning().checksums;
  GroupLane others = parts.communicator_->lane();
  others.checksums = handed_on;
  if (price_ != nullptr) {
    const GroupLane lane = checked(communicator_->lane(), key);
    GroupLane unchecked = others;
    unchecked.checksums = Checksums::kNone;
    const int64_t sent = rehearsed_bytes(lane, verb(call, others), true);
    parts.price_->add(sent, logical_bytes(lane, verb(plain_call(), unchecked)), !is_framed(call.coder));
    others.place.begin();
    others.place.over();
    return communicator_->start(nothing(lane), "receive", static_cast<int64_t>(whole.bytes()), peer);
  }
  return communicator_->start(verb(call, others)(checked(communicator_->lane_from(peer), key)), "receive",
                              static_cast<int64_t>(whole.bytes()), peer);
}

Ticket Channel::barrier() {
  return communicator_ ? communicator_->barrier() : Ticket::finished();
}

}  // namespace thinwire
