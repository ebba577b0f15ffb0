// Starts gathers and reductions of units at the events of a stage, and waits for them where their memory is needed.
#include "parallel/zero/unit_traffic.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

// Collectives started ahead of their use. More would share the wire with the one that is needed next.
constexpr int kGathersAhead = 3;
constexpr int kPublicationsAhead = 6;

// What of `ranges` of the unit lies in a buffer whose first element is the unit's element `first`.
void zero_ranges(Device& device, View buffer, int64_t first, std::span<const Range> ranges, Stream& stream) {
  for (const Range& range : ranges) {
    const int64_t from = std::max(range.first - first, int64_t{0});
    const int64_t to = std::min(range.first + range.count - first, buffer.count());
    if (from >= to) continue;
    const View part = buffer.element_range(from, to - from);
    device.fill_zero(part.data, part.bytes(), stream);
  }
}

// Elements of a unit's gradient buffer: all of it, but for `keep`, is zeroed.
void zero_outside(Device& device, View buffer, Range keep, Stream& stream) {
  const View before = buffer.element_range(0, keep.first);
  const View behind = buffer.element_range(keep.first + keep.count, buffer.count() - keep.first - keep.count);
  if (before.count() > 0) device.fill_zero(before.data, before.bytes(), stream);
  if (behind.count() > 0) device.fill_zero(behind.data, behind.bytes(), stream);
}

}  // namespace

GatherCounts count_gathers(const std::vector<UnitMemory>& units, std::span<const UnitUse> uses) {
  GatherCounts counts{std::vector<int64_t>(units.size()), std::vector<int64_t>(units.size())};
  std::vector<int> occupants;
  std::vector<bool> whole(units.size()), kept(units.size());
  for (const UnitUse& use : uses) {
    const size_t u = static_cast<size_t>(use.unit);
    const UnitMemory& unit = units[u];
    if (whole[u] || unit.shard.gather.members.size() < 2) continue;
    ++(use.backward && kept[u] ? counts.kept : counts.whole)[u];
    whole[u] = true;
    kept[u] = !unit.shard.keep.members.empty();
    if (unit.place < 0) continue;
    occupants.resize(std::max(occupants.size(), static_cast<size_t>(unit.place) + 1), -1);
    int& occupant = occupants[static_cast<size_t>(unit.place)];
    if (occupant >= 0) whole[static_cast<size_t>(occupant)] = false;
    occupant = use.unit;
  }
  return counts;
}

struct UnitTraffic::Impl {
  // What is under way for a unit.
  struct UnitState {
    Ticket gather, publication, reduction;
    bool whole = false;      // `full` holds the weights, or a gather into it was started
    bool kept = false;       // the secondary copy is that of the weights
    bool gathering = false;  // a gather was started that nobody has waited for
    int coming = 0;          // uses whose gather was started (or found done) and that were not acquired yet
    int acquired = 0;        // uses that were not released yet
    int node_releases = 0;   // of them, those that end with the node
    int publish_place = -1;  // in publish_order, until it was acquired
    bool reduced = false;    // a reduction was started whose leftovers are not zeroed yet
    bool listed = false;     // in reduce_order
    bool begun = false;      // between gradients_begin and gradients_complete
  };

  Impl(std::vector<UnitMemory> units_, const Placement& placement_, Ports& ports_, Device& device_, Stream& stream_)
      : units(std::move(units_)),
        states(units.size()),
        placement(placement_),
        ports(ports_),
        device(device_),
        stream(stream_) {
    for (const UnitMemory& unit : units) {
      gathers = gathers || unit.shard.gather.members.size() > 1;
      sharded_gradients = sharded_gradients || unit.shard.shard.members.size() > 1;
      publishes = publishes || unit.shard.update.members.size() > 1;
      const int place = std::max(unit.place, unit.gradient_place);
      if (place >= static_cast<int>(occupants.size())) {
        occupants.resize(static_cast<size_t>(place) + 1, -1);
        gradient_occupants.resize(static_cast<size_t>(place) + 1, -1);
      }
    }
    for (size_t u = 0; u < units.size(); ++u) {
      UnitMemory& unit = units[u];
      if (unit.count > 0 && unit.pieces.empty())
        unit.pieces.push_back(make_piece({0, unit.count}, static_cast<uint32_t>(u), true, unit.shard));
    }
    reduce_order.reserve(units.size());
    leftovers.reserve(units.size());
    publish_order.reserve(units.size());
    list_publications();
  }

  UnitMemory& memory(int unit) {
    TW_CHECK(unit >= 0 && unit < static_cast<int>(units.size()), "unit ", unit);
    return units[static_cast<size_t>(unit)];
  }
  UnitState& state(int unit) { return states[static_cast<size_t>(unit)]; }

  // Gathers
  // -------------------------------------------------------------------------------------------------------------

  ZeroParameter::What what(int u) {
    const UnitMemory& unit = memory(u);
    return {u, unit.tied, unit.coded_weights, unit.awaited};
  }

  bool sharded(const UnitMemory& unit) const { return unit.shard.gather.members.size() > 1; }

  // Starts the gathers of the uses to come, in order, until memory or the number of open ones says stop.
  void start_gathers() {
    while (started < uses.size() && open_gathers < kGathersAhead && start_gather(uses[started])) ++started;
  }

  bool start_gather(const UnitUse& use) {
    UnitMemory& unit = memory(use.unit);
    UnitState& s = state(use.unit);
    if (!s.whole) {
      if (unit.place >= 0) {
        int& occupant = occupants[static_cast<size_t>(unit.place)];
        if (occupant >= 0 && occupant != use.unit) {
          UnitState& other = state(occupant);
          if (other.coming > 0 || other.acquired > 0) return false;
          other.whole = false;
        }
        occupant = use.unit;
      }
      wait_publication(use.unit);
      if (!use.backward || !s.kept)
        s.gather = ports.zero.gather(what(use.unit), unit.shard, unit.weights, unit.full, stream);
      else if (unit.shard.keep.members.size() > 1)
        s.gather = ports.zero.gather_kept(what(use.unit), unit.shard, unit.kept, unit.full, stream);
      else
        s.gather = device.copy(unit.full.data, unit.kept.data, unit.kept.bytes(), stream);
      if (!placement.overlap && !unit.tied) s.gather.wait(stream);
      s.whole = true;
      s.gathering = true;
      ++open_gathers;
    }
    ++s.coming;
    return true;
  }

  // What was announced and not used is forgotten; what was gathered for it stays.
  void abandon_uses() {
    for (UnitState& s : states) {
      s.gather.wait(stream);
      s.gathering = false;
      s.coming = 0;
    }
    next = started = uses.size();
    open_gathers = 0;
  }

  void begin(std::span<const UnitUse> coming) {
    clear_leftovers();
    abandon_uses();
    uses.assign(coming.begin(), coming.end());
    next = started = 0;
    if (gathers) start_gathers();
  }

  void acquire(int u, bool backward) {
    UnitMemory& unit = memory(u);
    ports.tp.enter_unit(u);
    if (unit.count == 0 || !(gathers || publishes)) return;
    UnitState& s = state(u);
    if (!sharded(unit)) {
      wait_publication(u);
      return;
    }
    TW_CHECK(next < uses.size() && uses[next].unit == u && uses[next].backward == backward, "use ", next, " of ",
             uses.size(), " is of unit ", next < uses.size() ? uses[next].unit : -1, ", acquired is ", u);
    if (started == next) start_gathers();
    TW_CHECK(started > next, "the place of unit ", u, " is still in use");
    ++next, --s.coming, ++s.acquired;
    if (s.gathering) {
      s.gather.wait(stream);
      s.gathering = false;
      --open_gathers;
      if (unit.shard.secondary.count > 0 && !s.kept) {
        const View slice = unit.full.element_range(unit.shard.secondary.first, unit.shard.secondary.count);
        device.copy(unit.kept.data, slice.data, slice.bytes(), stream).wait(stream);
      }
      s.kept = !unit.shard.keep.members.empty();
    }
    start_gathers();
  }

  void release(int u) {
    UnitMemory& unit = memory(u);
    if (unit.count == 0 || !sharded(unit)) return;
    UnitState& s = state(u);
    TW_CHECK(s.acquired > s.node_releases, "unit ", u, " is released more often than acquired");
    if (placement.hold == Hold::kMicroBatch) {
      ++s.node_releases;
      return;
    }
    --s.acquired;
    start_gathers();
  }

  void end_node() {
    if (!gathers) return;
    for (UnitState& s : states) s.acquired -= std::exchange(s.node_releases, 0);
    start_gathers();
  }

  // Publications
  // --------------------------------------------------------------------------------------------------------

  // The tied embedding first (see the header), then in the order in which units are used.
  void list_publications() {
    publish_order.clear();
    const auto add = [&](int u) {
      if (memory(u).shard.update.members.size() < 2 || state(u).publish_place >= 0) return;
      state(u).publish_place = static_cast<int>(publish_order.size());
      publish_order.push_back(u);
    };
    for (UnitState& s : states) s.publish_place = -1;
    const int count = static_cast<int>(units.size());
    for (int u = 0; u < count; ++u) {
      if (memory(u).tied) add(u);
    }
    for (const UnitUse& use : uses) add(use.unit);
    for (int u = 0; u < count; ++u) add(u);
    published = publish_order.size();  // none is due
  }

  Ticket publish(int u, Stream& s) {
    UnitMemory& unit = memory(u);
    zero_ranges(device, unit.weights, unit.shard.weights.first, unit.padding, s);
    ZeroParameter::What which = what(u);
    which.coded = which.coded && !publishing_raw;
    return ports.zero.publish(which, unit.shard, publishing_raw ? View{} : unit.master, unit.weights, s);
  }

  void start_publications(size_t up_to) {
    for (up_to = std::min(up_to, publish_order.size()); published < up_to; ++published) {
      const int u = publish_order[published];
      UnitMemory& unit = memory(u);
      state(u).publication = publish(u, stream);
      if (!placement.overlap && !unit.tied) state(u).publication.wait(stream);
    }
  }

  void wait_publication(int u) {
    UnitState& s = state(u);
    if (s.publish_place < 0 || !publishing) return;
    start_publications(static_cast<size_t>(s.publish_place) + 1 + kPublicationsAhead);
    s.publication.wait(stream);
  }

  void mark_stale() {
    abandon_uses();
    for (size_t u = 0; u < units.size(); ++u) {
      TW_CHECK(states[u].acquired == 0, "unit ", u, " is in use while its copy is forgotten");
      states[u].whole = states[u].kept = false;
    }
  }

  void publish_all(bool raw, const BeforePublication& before) {
    publishing_raw = raw;
    mark_stale();
    if (!publishes) return clear_leftovers();
    for (UnitState& s : states) s.publication.wait(stream);
    list_publications();
    published = 0;
    publishing = true;
    const size_t at_once = placement.overlap ? kPublicationsAhead : publish_order.size();
    for (size_t i = 0; i < publish_order.size(); ++i) {
      if (before) before(publish_order[i]);
      if (i < at_once) start_publications(i + 1);
    }
    clear_leftovers();  // the first weights are on their way, and nothing can be computed without them
  }

  // Reductions
  // ----------------------------------------------------------------------------------------------------------

  // The unit's reduction has ended and what it left behind is zeroed: the buffer may be added to.
  void settle(int u) {
    UnitMemory& unit = memory(u);
    UnitState& s = state(u);
    if (waiting.unit == u) flush();
    if (!s.reduced) return;
    s.reduction.wait(stream);
    if (sharded_gradients) device.fill_zero(unit.gradient.data, unit.gradient.bytes(), stream);
    s.reduced = false;
  }

  void gradients_begin(int u) {
    UnitMemory& unit = memory(u);
    if (unit.count == 0 || !sharded_gradients) return;
    UnitState& s = state(u);
    if (unit.gradient_place >= 0) {
      int& occupant = gradient_occupants[static_cast<size_t>(unit.gradient_place)];
      if (occupant >= 0) {
        TW_CHECK(occupant == u || !state(occupant).begun, "units ", occupant, " and ", u, " sum in one buffer");
        settle(occupant);
      }
      occupant = u;
    }
    settle(u);
    s.begun = true;
  }

  void gradients_complete(int u) {
    UnitMemory& unit = memory(u);
    if (unit.count == 0 || !unit.gradient) return;
    if (!sharded_gradients && !last) return;
    // Everything may have gone with an earlier micro-batch (whose input half was later than another's): then zeros go.
    UnitState& s = state(u);
    if (!std::exchange(s.begun, false)) settle(u);
    if (unit.tp_partial.empty() || ports.tp.size() == 1) {
      flush();
      start_reduction(u, last);
      return;
    }
    // The tensor ranks' parts are summed while the next unit is at work, unless that one needs the buffer soon.
    next_packed ^= 1;
    const int64_t parts = pack(unit, true, packed[next_packed]);
    Waiting mine{u, last, packed[next_packed].element_range(0, parts), {}};
    mine.sum = ports.tp.sum_gradients(mine.packed, stream);
    flush();
    waiting = std::move(mine);
    if (unit.gradient_place >= 0) flush();
  }

  // Copies the runs of tensor-parallel parts out of the gradient, or back in; returns their number of elements.
  int64_t pack(UnitMemory& unit, bool out, View buffer) {
    int64_t at = 0;
    for (const Range& r : unit.tp_partial) {
      const View run = unit.gradient.element_range(r.first, r.count), place = buffer.element_range(at, r.count);
      device.copy(out ? place.data : run.data, out ? run.data : place.data, run.bytes(), stream).wait(stream);
      at += r.count;
    }
    return at;
  }

  void flush() {
    if (waiting.unit < 0) return;
    waiting.sum.wait(stream);
    const int u = std::exchange(waiting.unit, -1);
    pack(memory(u), false, waiting.packed);
    start_reduction(u, waiting.last);
  }

  void start_reduction(int u, bool is_last) {
    UnitMemory& unit = memory(u);
    UnitState& s = state(u);
    const GradientBuffers buffers{unit.gradient, unit.gradient_shard};
    s.reduction.wait(stream);
    if (sent_value != nullptr) sent_value->transform(u, unit.gradient, placement.replicas * (unit.tied ? 2 : 1));
    s.reduction = unit.tied ? ports.embedding.reduce(unit.shard, unit.pieces, buffers, is_last, stream)
                            : ports.dp.reduce(unit.shard, unit.pieces, buffers, is_last, stream);
    if (!placement.overlap && !unit.tied) s.reduction.wait(stream);
    s.reduced = true;
    if (is_last && !s.listed) s.listed = true, reduce_order.push_back(u);
  }

  void finish_reductions() {
    flush();
    for (int u : reduce_order) {
      const UnitMemory& unit = memory(u);
      settle(u);
      zero_ranges(device, unit.gradient_shard, sharded_gradients ? unit.shard.gradients.first : 0, unit.padding,
                  stream);
      state(u).listed = false;
    }
    leftovers.assign(reduce_order.begin(), reduce_order.end());
    reduce_order.clear();
  }

  // What others own of reduced gradients: parts of sums.
  void clear_leftovers() {
    for (int u : leftovers) {
      const UnitMemory& unit = memory(u);
      const Range& owned = unit.shard.optimizer;
      zero_outside(device, unit.gradient_shard,
                   {owned.first - (sharded_gradients ? unit.shard.gradients.first : 0), owned.count}, stream);
    }
    leftovers.clear();
  }

  // All of them, also when one has failed; then rethrows the first failure.
  void wait_all() {
    std::exception_ptr failure;
    const auto wait = [&](Ticket& ticket) {
      try {
        ticket.wait(stream);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    wait(waiting.sum);
    for (UnitState& s : states) {
      wait(s.gather);
      wait(s.publication);
      wait(s.reduction);
    }
    if (failure) std::rethrow_exception(failure);
  }

  std::vector<UnitMemory> units;
  std::vector<UnitState> states;
  Placement placement;
  Ports& ports;
  Device& device;
  Stream& stream;
  SentValue* sent_value = nullptr;
  bool gathers = false, sharded_gradients = false, publishes = false, last = false;

  std::vector<UnitUse> uses;
  size_t next = 0, started = 0;                    // use that is acquired next; first one whose gather was not started
  int open_gathers = 0;                            // started and not acquired
  std::vector<int> occupants, gradient_occupants;  // unit per place, -1: none yet

  std::vector<int> publish_order;
  size_t published = 0;
  bool publishing = false, publishing_raw = false;

  struct Waiting {
    int unit = -1;
    bool last = false;
    View packed;
    Ticket sum;
  };
  Waiting waiting;  // its tensor-parallel parts are being summed
  View packed[2];
  int next_packed = 0;
  std::vector<int> reduce_order, leftovers;  // the latter: see clear_leftovers
};

UnitTraffic::UnitTraffic(std::vector<UnitMemory> units, const Placement& placement, Ports& ports, Device& device,
                         Stream& stream, View packed[2])
    : impl_(std::make_unique<Impl>(std::move(units), placement, ports, device, stream)) {
  impl_->packed[0] = packed[0], impl_->packed[1] = packed[1];
}

// In an error the peers may never come: tickets that are dropped take their transfers back.
UnitTraffic::~UnitTraffic() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    drain();
  } catch (const std::exception&) {
  }
}

void UnitTraffic::begin(std::span<const UnitUse> uses) {
  impl_->begin(uses);
}
void UnitTraffic::set_sent_value(SentValue* value) {
  TW_CHECK(value == nullptr || !impl_->sharded_gradients, "only replicated gradients can be sent as something else");
  impl_->sent_value = value;
}
void UnitTraffic::set_last(bool last) {
  impl_->last = last;
}
void UnitTraffic::set_node_end() {
  impl_->end_node();
}
void UnitTraffic::acquire(int unit, bool backward) {
  impl_->acquire(unit, backward);
}
void UnitTraffic::release(int unit, bool) {
  impl_->release(unit);
}
void UnitTraffic::gradients_begin(int unit) {
  impl_->gradients_begin(unit);
}
void UnitTraffic::gradients_complete(int unit) {
  impl_->gradients_complete(unit);
}
void UnitTraffic::finish_reductions() {
  impl_->finish_reductions();
}
void UnitTraffic::publish_all(const BeforePublication& before) {
  impl_->publish_all(false, before);
}
void UnitTraffic::publish_raw() {
  impl_->publish_all(true, nullptr);
}
void UnitTraffic::forget_gathered() {
  impl_->clear_leftovers();
  impl_->mark_stale();
}

void UnitTraffic::finish_publications() {
  if (!impl_->publishing) return;
  impl_->start_publications(impl_->publish_order.size());
  for (Impl::UnitState& s : impl_->states) s.publication.wait(impl_->stream);
}
void UnitTraffic::drain() {
  impl_->wait_all();
}

}  // namespace thinwire
