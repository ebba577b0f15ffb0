// Gathers before use and parameter all-gathers after the step: started at the events of a stage, waited for where the
// weights are read. Reductions: gradient_reduction.cpp.
#include "parallel/sites/unit_traffic.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

// How many collectives are started ahead of their use. More would share the wire with the one that is needed next.
constexpr int kGathersAhead = 3;
constexpr int kParamSyncsAhead = 6;

bool sharded(const UnitMemory& unit) {
  return unit.shard.gather.members.size() > 1;
}

}  // namespace

UnitTraffic::UnitTraffic(std::vector<UnitMemory> units, const Placement& placement, Ports& ports, Device& device,
                         Stream& stream, View packed[2])
    : units_(std::move(units)),
      states_(units_.size()),
      placement_(placement),
      ports_(ports),
      device_(device),
      stream_(stream),
      packed_{packed[0], packed[1]} {
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitMemory& unit = units_[u];
    unit.weights_key.slot = static_cast<uint32_t>(u);
    gathers_ = gathers_ || sharded(unit);
    sharded_gradients_ = sharded_gradients_ || unit.shard.shard.members.size() > 1;
    summed_apart_ = summed_apart_ || sharded_gradients_ || unit.gradient_shard.dtype != unit.gradient.dtype;
    syncs_params_ = syncs_params_ || unit.shard.sync.members.size() > 1;
    const int place = std::max(unit.place, unit.gradient_place);
    if (place >= static_cast<int>(occupants_.size())) {
      occupants_.resize(static_cast<size_t>(place) + 1, -1);
      gradient_occupants_.resize(static_cast<size_t>(place) + 1, -1);
    }
    if (unit.count > 0 && unit.pieces.empty())
      unit.pieces.push_back(make_piece({0, unit.count}, static_cast<uint32_t>(u), 0, unit.shard));
  }
  reduce_order_.reserve(units_.size());
  leftovers_.reserve(units_.size());
  sync_order_.reserve(units_.size());
  list_param_syncs();
}

// While an exception unwinds nothing is waited for: peers may never answer. Dropped tickets withdraw their transfers.
UnitTraffic::~UnitTraffic() noexcept {
  if (std::uncaught_exceptions() > 0) return;
  try {
    drain();
  } catch (const std::exception&) {
  }
}

void UnitTraffic::set_sent_value(SentValue* value) {
  TW_CHECK(value == nullptr || !summed_apart_, "only replicated fp32 gradients can be sent as something else");
  sent_value_ = value;
}

UnitMemory& UnitTraffic::memory(int unit) {
  TW_CHECK(unit >= 0 && unit < static_cast<int>(units_.size()), "unit ", unit);
  return units_[static_cast<size_t>(unit)];
}

// ---- gathers before use

ZeroParameter& UnitTraffic::weights_site(const UnitMemory& unit) {
  return unit.tied ? ports_.embedding_zero : ports_.zero;
}

// Starts gathers for the coming uses, in order, until a buffer is not free or kGathersAhead are open.
void UnitTraffic::start_gathers() {
  while (started_ < uses_.size() && open_gathers_ < kGathersAhead && start_gather(uses_[started_])) ++started_;
}

// False: the unit's buffer holds another unit that is in use, or will be.
bool UnitTraffic::start_gather(const UnitUse& use) {
  UnitMemory& unit = memory(use.unit);
  UnitState& s = state(use.unit);
  if (!s.whole) {
    if (unit.place >= 0) {
      int& occupant = occupants_[static_cast<size_t>(unit.place)];
      if (occupant >= 0 && occupant != use.unit) {
        UnitState& other = state(occupant);
        if (other.coming > 0 || other.acquired > 0) return false;
        other.whole = false;
      }
      occupant = use.unit;
    }
    wait_param_sync(use.unit);
    if (!use.backward || !s.kept)
      s.gather = weights_site(unit).gather(unit.weights_key, unit.shard, unit.weights, unit.full, stream_);
    else if (unit.shard.keep.members.size() > 1)
      s.gather = weights_site(unit).gather_kept(unit.weights_key, unit.shard, unit.kept, unit.full, stream_);
    else
      s.gather = device_.copy(unit.full.data, unit.kept.data, unit.kept.bytes(), stream_);
    if (!placement_.overlap && !unit.tied) s.gather.wait(stream_);
    s.whole = true;
    s.gathering = true;
    ++open_gathers_;
  }
  ++s.coming;
  return true;
}

// Forgets announced uses that were not acquired. Units that were gathered for them stay whole.
void UnitTraffic::abandon_uses() {
  for (UnitState& s : states_) {
    s.gather.wait(stream_);
    s.gathering = false;
    s.coming = 0;
  }
  next_ = started_ = uses_.size();
  open_gathers_ = 0;
}

void UnitTraffic::begin(std::span<const UnitUse> coming) {
  clear_leftovers();
  abandon_uses();
  uses_.assign(coming.begin(), coming.end());
  next_ = started_ = 0;
  if (gathers_) start_gathers();
}

void UnitTraffic::acquire(int u, bool backward) {
  UnitMemory& unit = memory(u);
  ports_.tp.enter_unit(u);
  if (unit.count == 0 || !(gathers_ || syncs_params_)) return;
  UnitState& s = state(u);
  if (!sharded(unit)) {
    wait_param_sync(u);
    return;
  }
  TW_CHECK(next_ < uses_.size() && uses_[next_].unit == u && uses_[next_].backward == backward, "use ", next_, " of ",
           uses_.size(), " is of unit ", next_ < uses_.size() ? uses_[next_].unit : -1, ", acquired is ", u);
  if (started_ == next_) start_gathers();
  TW_CHECK(started_ > next_, "the place of unit ", u, " is still in use");
  ++next_, --s.coming, ++s.acquired;
  if (s.gathering) {
    s.gather.wait(stream_);
    s.gathering = false;
    --open_gathers_;
    if (unit.shard.secondary.count > 0 && !s.kept) {
      const View slice = unit.full.element_range(unit.shard.secondary.first, unit.shard.secondary.count);
      device_.copy(unit.kept.data, slice.data, slice.bytes(), stream_).wait(stream_);
    }
    s.kept = !unit.shard.keep.members.empty();
  }
  start_gathers();
}

void UnitTraffic::release(int u, bool) {
  UnitMemory& unit = memory(u);
  if (unit.count == 0 || !sharded(unit)) return;
  UnitState& s = state(u);
  TW_CHECK(s.acquired > s.node_releases, "unit ", u, " is released more often than acquired");
  if (placement_.hold == Hold::kMicroBatch) {
    ++s.node_releases;
    return;
  }
  --s.acquired;
  start_gathers();
}

void UnitTraffic::set_node_end() {
  if (!gathers_) return;
  for (UnitState& s : states_) s.acquired -= std::exchange(s.node_releases, 0);
  start_gathers();
}

// ---- parameter all-gathers behind the step

// The tied embedding first (against deadlock: unit_traffic.h), then units in the order of their use.
void UnitTraffic::list_param_syncs() {
  sync_order_.clear();
  const auto add = [&](int u) {
    if (memory(u).shard.sync.members.size() < 2 || state(u).sync_place >= 0) return;
    state(u).sync_place = static_cast<int>(sync_order_.size());
    sync_order_.push_back(u);
  };
  for (UnitState& s : states_) s.sync_place = -1;
  const int count = static_cast<int>(units_.size());
  for (int u = 0; u < count; ++u) {
    if (memory(u).tied) add(u);
  }
  for (const UnitUse& use : uses_) add(use.unit);
  for (int u = 0; u < count; ++u) add(u);
  synced_ = sync_order_.size();  // none is due
}

void UnitTraffic::zero_padding(const UnitMemory& unit, View buffer, int64_t first) {
  for (const ElementRange& range : unit.padding) {
    const int64_t from = std::max(range.first - first, int64_t{0});
    const int64_t to = std::min(range.first + range.count - first, buffer.count());
    if (from >= to) continue;
    const View part = buffer.element_range(from, to - from);
    device_.fill_zero(part.data, part.bytes(), stream_);
  }
}

Ticket UnitTraffic::sync_unit(int u) {
  UnitMemory& unit = memory(u);
  zero_padding(unit, unit.weights, unit.shard.weights.first);
  MessageKey key = unit.weights_key;
  key.padding = unit.weights_padding;
  if (syncing_raw_) key.rule = kNoRule;
  return weights_site(unit).sync(key, unit.shard, syncing_raw_ ? View{} : unit.master, unit.weights, stream_);
}

void UnitTraffic::start_param_syncs(size_t up_to) {
  for (up_to = std::min(up_to, sync_order_.size()); synced_ < up_to; ++synced_) {
    const int u = sync_order_[synced_];
    UnitMemory& unit = memory(u);
    state(u).param_sync = sync_unit(u);
    if (!placement_.overlap && !unit.tied) state(u).param_sync.wait(stream_);
  }
}

void UnitTraffic::wait_param_sync(int u) {
  UnitState& s = state(u);
  if (s.sync_place < 0 || !syncing_) return;
  start_param_syncs(static_cast<size_t>(s.sync_place) + 1 + kParamSyncsAhead);
  s.param_sync.wait(stream_);
}

void UnitTraffic::mark_stale() {
  abandon_uses();
  for (size_t u = 0; u < units_.size(); ++u) {
    TW_CHECK(states_[u].acquired == 0, "unit ", u, " is in use while its copy is forgotten");
    states_[u].whole = states_[u].kept = false;
  }
}

void UnitTraffic::sync_params(bool raw, const BeforeParamSync& before) {
  syncing_raw_ = raw;
  mark_stale();
  if (!syncs_params_) return clear_leftovers();
  for (UnitState& s : states_) s.param_sync.wait(stream_);
  list_param_syncs();
  synced_ = 0;
  syncing_ = true;
  const size_t at_once = placement_.overlap ? kParamSyncsAhead : sync_order_.size();
  for (size_t i = 0; i < sync_order_.size(); ++i) {
    if (before) before(sync_order_[i]);
    if (i < at_once) start_param_syncs(i + 1);
  }
  clear_leftovers();  // after the first all-gathers have started: the next forward pass waits for those
}

void UnitTraffic::finish_param_sync() {
  if (!syncing_) return;
  start_param_syncs(sync_order_.size());
  for (UnitState& s : states_) s.param_sync.wait(stream_);
}

void UnitTraffic::forget_gathered() {
  clear_leftovers();
  mark_stale();
}

// All of them, also when one has failed; then rethrows the first failure.
void UnitTraffic::drain() {
  std::exception_ptr failure;
  const auto wait = [&](Ticket& ticket) {
    try {
      ticket.wait(stream_);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  wait(waiting_.sum);
  for (UnitState& s : states_) {
    wait(s.gather);
    wait(s.param_sync);
    wait(s.reduction);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace thinwire
