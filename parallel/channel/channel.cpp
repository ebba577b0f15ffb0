// The verbs of a communicator under a rule: which messages are coded, by which coder, with which state.
#include "parallel/channel/channel.h"

#include "engine/base/core/check.h"
#include "parallel/collective/pieces.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"
#include "parallel/wire/host_staging.h"

namespace thinwire {
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

GroupLane Channel::checked(GroupLane lane, const MessageKey& key) const {
  lane.checksums = checksums(key);
  return lane;
}

template <typename Plain, typename Verb>
Task Channel::carry(const MessageKey& key, const Plain& plain, bool exact, const Verb& verb, DeviceWork* work) {
  if (work != nullptr) return verb(communicator_->lane_of(*work));
  const GroupLane lane = checked(communicator_->lane(), key);
  if (price_ == nullptr) return verb(lane);
  const int64_t sent = rehearsed_bytes(lane, verb, true);
  price_->add(sent, logical_bytes(lane, plain), exact);
  return nothing(lane);
}

Algorithm Channel::way_of(const SiteCompression& compression) const {
  const RuleAlgorithm way = compression.rule.algorithm;
  const bool levels = way == RuleAlgorithm::kTwoLevel && communicator_->tuning().two_levels &&
                      node_grid(communicator_->nodes(), size()).two_level();
  return levels ? Algorithm::kTwoLevel : way == RuleAlgorithm::kRing ? Algorithm::kRing : Algorithm::kDirect;
}

Task Channel::all_reduce_task(View data, ReduceKind kind, const MessageKey& key, DeviceWork* work) {
  const auto plain = [&](const GroupLane& lane) { return plain_all_reduce(lane, data, kind); };
  if (kind != ReduceKind::kSum || !codes(key, data.count(), data.dtype, true))
    return is_usual(key) ? communicator_->all_reduce_task(data, kind) : carry(key, plain, true, plain);
  const SiteCompression& compression = compression_of(key);
  ChannelStates::Slot& slot = open_slot(key, data.count(), data.rank > 1 ? data.rows() : 0);
  const Msg msg = next_message(key, slot);
  if (compression.rounds != nullptr) {
    const RoundCall rounds = round_call(compression, msg, slot, work != nullptr);
    const auto verb = [&](const GroupLane& lane) { return rounds_all_reduce(lane, rounds, data); };
    return carry(key, plain, !rounds.codec->traits().framed, verb, work);
  }
  const CodedCall first = call(compression, false, key, msg, slot, work != nullptr),
                  back = call(compression, true, key, msg, slot, work != nullptr);
  const Algorithm way = way_of(compression);
  // The hop between nodes and the way back pack different elements: they share a state.
  const auto verb = [&](const GroupLane& lane) { return coded_all_reduce(lane, first, back, data, way, back); };
  return carry(key, plain, !is_framed(first.coder) && !is_framed(back.coder), verb, work);
}

Task Channel::reduce_scatter_task(View whole, std::span<const int64_t> bounds, View out, bool accumulate,
                                  const MessageKey& key, DeviceWork* work) {
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
    const RoundCall rounds = round_call(compression, msg, slot, work != nullptr);
    const auto verb = [&](const GroupLane& lane) {
      return rounds_reduce_scatter(lane, rounds, whole, Bounds(lane.pool(), bounds), out, accumulate);
    };
    return carry(key, plain, !rounds.codec->traits().framed, verb, work);
  }
  const Algorithm way = way_of(compression);
  const CodedCall first = call(compression, false, key, msg, slot, work != nullptr);
  CodedCall inter;
  if (way == Algorithm::kTwoLevel) inter = call(compression, true, key, msg, slot, work != nullptr);
  const auto verb = [&](const GroupLane& lane) {
    return coded_reduce_scatter(lane, first, whole, Bounds(lane.pool(), bounds), out, accumulate, way, inter);
  };
  return carry(key, plain, !is_framed(first.coder) && !is_framed(inter.coder), verb, work);
}

Task Channel::all_gather_task(View mine, View whole, std::span<const int64_t> bounds, const MessageKey& key,
                              DeviceWork* work) {
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
  const CodedCall first = call(compression, false, key, next_message(key, slot), slot, work != nullptr);
  const bool named = way_of(compression) == Algorithm::kTwoLevel;
  const int64_t bytes = static_cast<int64_t>(payload_bytes(first.coder, whole.count(), whole.dtype));
  const auto verb = [&](const GroupLane& lane) {
    // Payloads are forwarded as they are: in two levels they cross nodes once, and the bits stay.
    const bool levels = named || choose_algorithm(*lane.tuning, Collective::kAllGather, lane.nodes, lane.size(),
                                                  bytes) == Algorithm::kTwoLevel;
    return coded_all_gather(lane, first, mine, whole, Bounds(lane.pool(), bounds),
                            levels ? Algorithm::kTwoLevel : Algorithm::kDirect);
  };
  return carry(key, plain, !is_framed(first.coder), verb, work);
}

Task Channel::all_to_all_task(View from, std::span<const int64_t> from_bounds, View to,
                              std::span<const int64_t> to_bounds, const MessageKey& key, DeviceWork* work) {
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
  const CodedCall first = call(compression_of(key), false, key, next_message(key, slot), slot, work != nullptr);
  TW_CHECK(first.state == nullptr, "an all-to-all with a state");
  return carry(key, plain, !is_framed(first.coder), verb(first), work);
}

Ticket Channel::all_reduce(View data, ReduceKind kind, Stream& stream, const MessageKey& key) {
  if (!communicator_) return Ticket::finished();
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, data, true);
        there != nullptr && kind == ReduceKind::kSum && DeviceCommunicator::sums(data.dtype))
      return there->all_reduce(data, stream);
    if (DeviceWork work = work_on_device(stream, "all_reduce", key, data.count(), data.dtype, true);
        work && kind == ReduceKind::kSum)
      return work.run(all_reduce_task(data, kind, key, &work));
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
    if (DeviceWork work = work_on_device(stream, "reduce_scatter", key, whole.count(), whole.dtype, true))
      return work.run(reduce_scatter_task(whole, bounds, out, accumulate, key, &work));
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
    if (DeviceCommunicator* const there = on_device(stream, key, whole, false))
      return there->all_gather(mine, whole, bounds, stream);
    if (DeviceWork work = work_on_device(stream, "all_gather", key, whole.count(), whole.dtype, false))
      return work.run(all_gather_task(mine, whole, bounds, key, &work));
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
    if (DeviceWork work = work_on_device(stream, "all_to_all", key, from.count(), from.dtype, false))
      return work.run(all_to_all_task(from, from_bounds, to, to_bounds, key, &work));
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
  DeviceWork work = work_on_device(stream, "pack", key, total, part.dtype, false);
  if (!work && stream.device() != nullptr) {
    HostStaging staged(stream);
    const View there = staged.both(part);
    ring = start_ring(there, total, most, staged.host(), key);
    staged.finish(Ticket::finished()).wait(stream);
    return ring;
  }
  ChannelStates::Slot& slot = open_slot(key, total, 0);
  ring.call_ = call(compression_of(key), false, key, next_message(key, slot), slot, static_cast<bool>(work));
  TW_CHECK(ring.call_.state == nullptr, "a ring with a state");
  if (price_ != nullptr) return ring;
  for (size_t i = 0; i < 2; ++i) {
    if (!work) {
      ring.payloads_[i] = Payloads(communicator_->pool(), communicator_->tuning(), *ring.call_.coder, part.dtype, most);
      continue;
    }
    const size_t bytes = ring.call_.coder->wire_bytes(most, part.dtype);
    if (ring_memory_[i].bytes() < bytes) ring_memory_[i] = DeviceMemory(*stream.device(), bytes);
    ring.payloads_[i] = Payloads(static_cast<char*>(ring_memory_[i].data()));
  }
  const auto pack = [&](const GroupLane& lane) { return coded_pack(lane, ring.call_, part, &ring.payloads_[0]); };
  if (work)
    work.run(pack(communicator_->lane_of(work))).wait(stream);
  else
    communicator_->start(pack(communicator_->lane()), "pack", static_cast<int64_t>(part.bytes())).wait_on_host();
  return ring;
}

Ticket Channel::hop(RingMessage& ring, View held, View next, Stream& stream) {
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream);
        there != nullptr && ring.call_.coder == nullptr && !is_proved(ring.key_)) {
      ++ring.hops_;
      return there->send_and_receive(held, (rank() + 1) % size(), next, (rank() + size() - 1) % size(), stream);
    }
    if (ring.call_.device == nullptr) {
      HostStaging staged(stream);
      const View there = staged.in(held), result = staged.out(next);
      return staged.finish(hop(ring, there, result, staged.host()));
    }
  }
  const int at = ring.hops_++ % 2, ahead = (rank() + 1) % size(), behind = (rank() + size() - 1) % size();
  const auto verb = [&](const CodedCall& call) {
    const bool coded = call.coder != nullptr && price_ == nullptr;
    return [&, call, coded](const GroupLane& lane) {
      return coded_hop(lane, call, held, ahead, next, behind, ring.owner(rank(), size()),
                       coded ? &ring.payloads_[at] : nullptr, coded ? &ring.payloads_[1 - at] : nullptr);
    };
  };
  if (stream.device() != nullptr) {
    DeviceWork work{on_device(stream), &stream, "hop", -1, {}};
    return work.run(verb(ring.call_)(communicator_->lane_of(work)));
  }
  return communicator_->start(carry(ring.key_, verb(plain_call()), !is_framed(ring.call_.coder), verb(ring.call_)),
                              "hop", static_cast<int64_t>(held.bytes()));
}

Ticket Channel::hand_back(View from, View to, int distance, int64_t total, Stream& stream, const MessageKey& key) {
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream);
        there != nullptr && !codes(key, total, from.dtype, false) && !is_proved(key))
      return there->send_and_receive(from, (rank() + size() - distance) % size(), to, (rank() + distance) % size(),
                                     stream);
    if (DeviceWork work = work_on_device(stream, "hand_back", key, total, from.dtype, false))
      return work.run(hand_back_task(from, to, distance, total, key, &work));
    HostStaging staged(stream);
    const View there = staged.in(from), result = staged.out(to);
    return staged.finish(hand_back(there, result, distance, total, staged.host(), key));
  }
  return communicator_->start(hand_back_task(from, to, distance, total, key), "hand_back",
                              static_cast<int64_t>(from.bytes()));
}

Task Channel::hand_back_task(View from, View to, int distance, int64_t total, const MessageKey& key, DeviceWork* work) {
  const int behind = (rank() + size() - distance) % size(), ahead = (rank() + distance) % size();
  const auto verb = [&](const CodedCall& call) {
    return [&, call](const GroupLane& lane) { return coded_hop(lane, call, from, behind, to, ahead, ahead); };
  };
  CodedCall coded = plain_call();
  if (codes(key, total, from.dtype, false)) {
    ChannelStates::Slot& slot = open_slot(key, total, 0);
    coded = call(compression_of(key), false, key, next_message(key, slot), slot, work != nullptr);
    TW_CHECK(coded.state == nullptr, "a ring with a state");
  }
  return carry(key, verb(plain_call()), !is_framed(coded.coder), verb(coded), work);
}

Ticket Channel::broadcast(View data, int root, Stream& stream) {
  if (!communicator_) return Ticket::finished();
  if (stream.device() == nullptr) return communicator_->broadcast(data, root, stream);
  if (DeviceCommunicator* const there = on_device(stream)) return there->broadcast(data, root, stream);
  HostStaging staged(stream);
  const View there = rank() == root ? staged.in(data) : staged.out(data);
  return staged.finish(broadcast(there, root, staged.host()));
}

Ticket Channel::message(bool sends, View data, int peer, Stream& stream, const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr, "a group of one rank has nobody to ", sends ? "send to" : "receive from");
  const char* const name = sends ? "send" : "receive";
  const auto verb = [&](const CodedCall& call) {
    return [&, call](const GroupLane& lane) {
      return sends ? coded_send(lane, call, data, peer) : coded_receive(lane, call, data, peer);
    };
  };
  // What was sent from slot k is received in slot k: both ends count the same messages. A stage may be at both ends of
  // one slot only if it sends to itself, which point-to-point messages do not.
  const auto next_call = [&](bool there) {
    ChannelStates::Slot& slot = open_slot(key, data.count(), data.rank > 1 ? data.rows() : 0);
    return sends ? call(compression_of(key), false, key, next_message(key, slot), slot, there)
                 : coming(key, slot, peer, there);
  };
  if (stream.device() != nullptr) {
    if (DeviceCommunicator* const there = on_device(stream, key, data, false))
      return sends ? there->send(data, peer, stream) : there->receive(data, peer, stream);
    if (DeviceWork work = work_on_device(stream, name, key, data.count(), data.dtype, false, peer)) {
      const CodedCall coded = next_call(true);
      return work.run(verb(coded)(communicator_->lane_of(work)));
    }
    HostStaging staged(stream);
    const View there = sends ? staged.in(data) : staged.out(data);
    return staged.finish(message(sends, there, peer, staged.host(), key));
  }
  const bool is_coded = codes(key, data.count(), data.dtype, false);
  const auto bytes = static_cast<int64_t>(data.bytes());
  if (price_ != nullptr && !sends) {  // nothing to count; whoever watches is told
    const GroupLane lane = checked(communicator_->lane(), key);
    static_cast<void>(rehearsed_bytes(lane, verb(is_coded ? next_call(false) : plain_call()), true));
    return communicator_->start(nothing(lane), name, bytes, peer);
  }
  if (!is_coded && key.largest_part == 0 && is_usual(key))
    return sends ? communicator_->send(data, peer, stream) : communicator_->receive(data, peer, stream);
  CodedCall coded = is_coded ? next_call(false) : plain_call();  // plain: with checksums, or in the pieces of parts
  if (price_ != nullptr)
    return communicator_->start(carry(key, verb(plain_call()), !is_framed(coded.coder), verb(coded)), name, bytes,
                                peer);
  if (coded.state != nullptr) coded.packing = &communicator_->packing(key.slot);
  const GroupLane lane = sends ? communicator_->lane_to(peer) : communicator_->lane_from(peer);
  return communicator_->start(verb(coded)(checked(lane, key)), name, bytes, peer);
}

Ticket Channel::receive_parts(View whole, std::span<const int64_t> bounds, int peer, Channel& parts, Stream& stream,
                              const MessageKey& key) {
  TW_CHECK(communicator_ != nullptr && static_cast<int>(bounds.size()) == parts.size() + 1 && key.largest_part > 0);
  if (stream.device() != nullptr) {
    DeviceCommunicator* const there = on_device(stream, key, whole, false);
    DeviceCommunicator* const others = parts.on_device(stream);
    if (there != nullptr && others != nullptr) return there->receive_parts(whole, bounds, peer, *others, stream);
    // (By the largest part, as all parts are.)
    DeviceWork work = work_on_device(stream, "receive", key, 0, whole.dtype, false, peer);
    if (work && others != nullptr) {
      DeviceWork handed_on{others, &stream, "receive", -1, {}};
      std::vector<Msg> messages;
      const CodedCall call = coming_parts(whole, bounds, key, peer, messages, true);
      return work.run(coded_receive_parts(communicator_->lane_of(work), call, parts.communicator_->lane_of(handed_on),
                                          whole, bounds, messages, peer));
    }
    HostStaging staged(stream);
    const View host = staged.out(whole);
    return staged.finish(receive_parts(host, bounds, peer, parts, staged.host(), key));
  }
  CodedCall call = plain_call();
  std::vector<Msg> messages;
  if (codes(key, 0, whole.dtype, false)) call = coming_parts(whole, bounds, key, peer, messages, false);
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
