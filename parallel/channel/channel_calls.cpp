// How a message is coded, if it is: slots and their states, message numbers, coders of the host or of a device.
#include "engine/base/core/check.h"
#include "parallel/channel/channel.h"
#include "parallel/collective/pieces.h"

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

bool Channel::codes(const MessageKey& key, int64_t count, DType dtype, bool summed) const {
  if (!communicator_ || this->compression(key) == nullptr) return false;
  const SiteCompression& compression = compression_of(key);
  return clock_->ways[static_cast<size_t>(compression.site)] != CodingWay::kPlain &&
         is_coded(compression, clock_->step, key, key.largest_part > 0 ? key.largest_part : count, dtype, summed);
}

// rows: of the one matrix that a message without a list of matrices is; 0: it has none.
ChannelStates::Slot& Channel::open_slot(const MessageKey& key, int64_t count, int64_t rows) {
  ChannelStates::Slot& slot = states_->slot(key);
  if (slot.count == 0) {
    slot.count = count;
    slot.matrices.assign(key.matrices.begin(), key.matrices.end());
    slot.padding.assign(key.padding.begin(), key.padding.end());
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
  const bool there = codes_on_device(key);
  if (states.rounds) round_call(*compression, Msg{}, slot, there);
  if (states.first) call(*compression, false, key, Msg{}, slot, there);
  if (states.sums) call(*compression, true, key, Msg{}, slot, there);
  if (!states_->over_data() || way_of(*compression) == Algorithm::kTwoLevel) return;
  slot.me = rank();
  slot.owners.assign(bounds.begin(), bounds.end());
  const int64_t unit = common_unit(compression->first.get(), compression->sums.get());
  for (int r = 0; use == ChannelUse::kAllReduce && r <= size(); ++r)
    slot.owners.push_back(part_bound(count, size(), r, unit));
}

Msg Channel::next_message(const MessageKey& key, const ChannelStates::Slot& slot) {
  Msg msg;
  msg.seed = clock_->seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(communicator_->site()) + 1 +
             draws_ * 0xD1B54A32D192ED03u + static_cast<uint64_t>(key.part) * kPartSeed;
  msg.slot = key.slot;
  msg.sequence = states_->next_sequence(key.slot, clock_->pass);
  msg.step = clock_->step;
  msg.loss_scale = traits_of(communicator_->site()).gradients ? clock_->loss_scale : 1.0f;
  msg.rank = rank();
  msg.ranks = size();
  msg.threads = clock_->threads;
  msg.train = clock_->train;
  msg.matrices = slot.matrices;
  msg.padding = slot.padding;
  return msg;
}

CodedCall Channel::without_state(const SiteCompression& compression, bool of_sums, const Msg& msg,
                                 bool on_device) const {
  CodedCall call;
  call.coder = (of_sums ? compression.sums : compression.first).get();
  call.msg = msg;
  call.stats = &counters_->compression;
  call.counters = counters_;
  call.site = communicator_->site();
  if (call.coder != nullptr && on_device) {
    call.device = (of_sums ? compression.sums_on_device : compression.first_on_device).get();
    call.tally = communicator_->device()->traffic().tally(call.site);
  }
  return call;
}

CodedCall Channel::call(const SiteCompression& compression, bool of_sums, const MessageKey& key, const Msg& msg,
                        ChannelStates::Slot& slot, bool on_device) {
  CodedCall call = without_state(compression, of_sums, msg, on_device);
  if (call.coder != nullptr && call.coder->traits().stateful && price_ == nullptr) {
    TW_CHECK(key.as == nullptr, "another site's coding keeps states");
    std::unique_ptr<CompressionState>& state = of_sums ? slot.sums : slot.first;
    if (!state && on_device) {
      DeviceTraffic& traffic = communicator_->device()->traffic();
      state = call.device->make_state(slot.count, slot.matrices, {&traffic.device(), &traffic.stream()});
    }
    if (!state) state = call.coder->make_state(slot.count, slot.matrices);
    call.state = state.get();
  }
  return call;
}

CodedCall Channel::coming(const MessageKey& key, ChannelStates::Slot& slot, int peer, bool on_device) {
  Msg msg = next_message(key, slot);
  msg.rank = peer;
  return without_state(compression_of(key), false, msg, on_device);
}

bool Channel::codes_on_device(const MessageKey& key) const {
  if (!communicator_ || communicator_->device() == nullptr || price_ != nullptr || key.staged) return false;
  const SiteCompression* const compression = this->compression(key);
  return compression != nullptr && compression->on_device && !is_proved(key);
}

DeviceWork Channel::work_on_device(Stream& stream, const char* verb, const MessageKey& key, int64_t count, DType dtype,
                                   bool summed, int peer) const {
  if (!codes(key, count, dtype, summed) || !codes_on_device(key)) return {};
  return {communicator_->on_device(stream), &stream, verb, peer, {}};
}

RoundCall Channel::round_call(const SiteCompression& compression, const Msg& msg, ChannelStates::Slot& slot,
                              bool on_device) {
  RoundCall call;
  call.codec = compression.rounds.get();
  call.msg = msg;
  call.stats = &counters_->compression;
  call.counters = counters_;
  call.site = communicator_->site();
  if (price_ != nullptr) return call;
  DevicePlace place;
  if (on_device) {
    DeviceTraffic& traffic = communicator_->device()->traffic();
    place = {&traffic.device(), &traffic.stream()};
    call.device = compression.rounds_on_device.get();
    call.tally = traffic.tally(call.site);
  }
  if (!slot.rounds)
    slot.rounds = on_device ? call.device->make_state(slot.count, slot.matrices, place)
                            : compression.rounds->make_state(slot.count, slot.matrices);
  call.state = slot.rounds.get();
  if (compression.rule.residual.kind == ResidualKind::kNone) return call;
  const ResidualSpec residual = {.kind = ResidualKind::kErrorFeedback, .on_skip = compression.rule.residual.on_skip};
  if (on_device) {
    if (!slot.round_residual)
      slot.round_residual = std::make_unique<DeviceCoderState>(residual, slot.count, nullptr, place);
    call.residual_on_device = &dynamic_cast<DeviceCoderState&>(*slot.round_residual);
  } else {
    if (!slot.round_residual) slot.round_residual = std::make_unique<CoderState>(residual, slot.count, nullptr);
    call.residual = &dynamic_cast<CoderState&>(*slot.round_residual).residual();
  }
  return call;
}

CodedCall Channel::coming_parts(View whole, std::span<const int64_t> bounds, const MessageKey& key, int peer,
                                std::vector<Msg>& messages, bool on_device) {
  const auto me = static_cast<size_t>(key.part);
  const int64_t cols = whole.rank > 1 ? whole.cols() : 0;
  const auto rows_of = [&](size_t part) { return cols > 0 ? (bounds[part + 1] - bounds[part]) / cols : 0; };
  ChannelStates::Slot& slot = open_slot(key, bounds[me + 1] - bounds[me], rows_of(me));
  while (cols > 0 && slot.parts.size() + 1 < bounds.size()) slot.parts.push_back({0, rows_of(slot.parts.size()), cols});
  const CodedCall call = coming(key, slot, peer, on_device);
  messages.assign(bounds.size() - 1, call.msg);
  for (size_t p = 0; p < messages.size(); ++p) {
    messages[p].seed += (p - me) * kPartSeed;
    if (!slot.parts.empty()) messages[p].matrices = {&slot.parts[p], 1};
  }
  return call;
}

}  // namespace thinwire
