// Communicates a rank's units: starts gathers ahead of the units' use, and reductions behind the backward pass.
//
// The plan gives the order in which a step uses its units: acquiring use k waits for its gather, and starts the next
// ones as soon as their memory is free. Nothing here decides from timing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/device.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/ports.h"
#include "parallel/zero/placement.h"
#include "parallel/zero/sent_value.h"
#include "parallel/zero/unit_events.h"

namespace thinwire {

// One unit of this rank.
struct UnitMemory {
  int64_t count = 0;  // elements, with padding; 0: this rank does not have the unit
  UnitShard shard;
  View weights;   // [shard.weights.count] compute dtype
  View full;      // [count]; the same memory as weights when they are replicated
  View kept;      // [shard.secondary.count], empty without secondary copy
  View gradient;  // [count] fp32
  // [shard.gradients.count] fp32; inside `gradient` when gradients are replicated. On one data-parallel rank it may be
  // bf16: `gradient`, rounded when its sum is complete.
  View gradient_shard;
  int place = -1;                 // units with the same place share `full` (-1: memory of its own)
  int gradient_place = -1;        // and `gradient`
  bool tied = false;              // the embedding that two stages share
  std::vector<Range> tp_partial;  // runs of elements whose gradient is the sum of what each tensor rank has
  // [shard.optimizer.count] fp32, where the parameter all-gather compresses it instead of the range of `weights`.
  View master;
  std::vector<UnitPiece> pieces;  // the messages of its gradient; empty: one, coded as the site is
  MessageKey weights_key;         // of its parameter all-gather and of gathers before use
  // Elements of no tensor, in units that are compressed. A lossy block that holds padding beside tensors decodes it to
  // noise, and no checkpoint holds padding. So it is zeroed behind reductions and before parameter all-gathers.
  std::vector<ElementRange> padding;
  std::vector<ElementRange> weights_padding;  // of it what lies in `weights`, relative to the start of that
};

// Order and waits. All ranks of a data-parallel group run the same plan, so they pass the same events in the same
// order. What is started here depends on events alone, so every communicator sees the same sequence of operations on
// all its ranks. The host waits for what an earlier or the same event started: for a gather or parameter all-gather
// where its unit is acquired or gathered next, for a reduction where its buffer is written next, for a sum over tensor
// ranks before its reduction; and in finish_reductions, finish_param_sync and drain.
//
// No deadlock: every event has its place in the plan of its stage. A wait for an operation of a data-parallel or tensor
// group needs only that the peers reach the same place of the same plan, and plans alone are free of deadlock
// (schedule/validate). Only the tied embedding's groups join two stages, whose places differ. Its gradient is waited
// for in finish_reductions alone, behind all pipeline traffic of both stages, and both have started it by then. Its
// parameter all-gather is the first that start_param_sync starts, before anything waits. So a stage that waits for it
// in its first forward needs nothing of the other stage's next step.
class UnitTraffic final : public UnitEvents {
 public:
  // packed: [max tp_partial elements of a unit] fp32 scratch, two of them (empty where no unit has any). All references
  // outlive this.
  UnitTraffic(std::vector<UnitMemory> units, const Placement& placement, Ports& ports, Device& device, Stream& stream,
              View packed[2]);
  ~UnitTraffic() noexcept override;  // waits for what is open; failures of peers are not reported from here
  UnitTraffic(const UnitTraffic&) = delete;
  UnitTraffic& operator=(const UnitTraffic&) = delete;

  // What the reductions of a step send instead of gradients (sent_value.h); nullptr: gradients. It outlives this.
  void set_sent_value(SentValue* value);
  // Queues from fp32 to bf16; needed where gradient_shard is in bf16.
  void set_rounding(std::function<void(View from, View to)> round) { round_ = std::move(round); }

  // Before a step, or an evaluation: the uses to come, in order (may be empty where weights are replicated).
  void begin(std::span<const UnitUse> uses);
  // Whether the reductions that follow are the units' last of this step.
  void set_last(bool last) { last_ = last; }
  void set_node_end();  // hold = micro_batch: what was acquired in this node is released

  void acquire(int unit, bool backward) override;
  void release(int unit, bool backward) override;
  void gradients_begin(int unit) override;
  void gradients_complete(int unit) override;

  // Waits until all gradients are reduced. Gradient memory that the optimizer does not own holds parts of sums until
  // start_param_sync, forget_gathered or begin makes it zero.
  void finish_reductions();
  // Weights have changed: gathered copies are stale. Starts the parameter all-gathers, those of the first units of the
  // next forward pass first and the rest as it goes on; acquire() waits for each. before (must wait for no peer) is
  // called for every unit that is sent, in that order, before its all-gather starts: its weights may change until then.
  // So the first units travel while the optimizer still steps others.
  using BeforeParamSync = std::function<void(int unit)>;
  void start_param_sync(const BeforeParamSync& before) { sync_params(false, before); }
  // The same without compression, whatever the rule says (after weights were loaded or set).
  void sync_raw_params() { sync_params(true, nullptr); }
  // Starts and finishes what start_param_sync has left for later: weights are whole, and are what computes (before a
  // save of them; all ranks together).
  void finish_param_sync();
  // Gathered copies are stale from here on, although weights have not changed: behind gathers that are not a step's
  // (an evaluation's), so that the next step gathers, compresses and counts as if they had not been.
  void forget_gathered();
  // Waits for everything that is open (before a save, at the end, on an error), also when one has failed; then rethrows
  // the first failure. Starts nothing.
  void drain();

 private:
  // What is under way for a unit.
  struct UnitState {
    Ticket gather, param_sync, reduction;
    bool whole = false;      // `full` holds the weights, or a gather into it was started
    bool kept = false;       // the secondary copy is that of the weights
    bool gathering = false;  // a gather was started that nobody has waited for
    int coming = 0;          // uses whose gather was started (or found done) and that were not acquired yet
    int acquired = 0;        // uses that were not released yet
    int node_releases = 0;   // of them, those that end with the node
    int sync_place = -1;     // in sync_order_; -1: not in it
    bool reduced = false;    // a reduction was started whose leftovers are not zeroed yet
    bool listed = false;     // in reduce_order_
    bool begun = false;      // between gradients_begin and gradients_complete
  };
  // A unit whose tensor-parallel parts are being summed.
  struct Waiting {
    int unit = -1;
    bool last = false;
    View packed;
    Ticket sum;
  };

  UnitMemory& memory(int unit);
  UnitState& state(int unit) { return states_[static_cast<size_t>(unit)]; }
  ZeroParameter& weights_site(const UnitMemory& unit);
  bool start_gather(const UnitUse& use);
  void start_gathers();
  void abandon_uses();
  void mark_stale();
  void list_param_syncs();
  void zero_padding(const UnitMemory& unit, View buffer, int64_t first);  // first: of the unit's elements in the buffer
  Ticket sync_unit(int unit);
  void start_param_syncs(size_t up_to);
  void wait_param_sync(int unit);
  void sync_params(bool raw, const BeforeParamSync& before);
  void settle(int unit);
  int64_t pack(UnitMemory& unit, bool out, View buffer);
  void flush();
  void start_reduction(int unit, bool last);
  void clear_leftovers();

  std::vector<UnitMemory> units_;
  std::vector<UnitState> states_;
  Placement placement_;
  Ports& ports_;
  Device& device_;
  Stream& stream_;
  SentValue* sent_value_ = nullptr;
  bool gathers_ = false, sharded_gradients_ = false, syncs_params_ = false, last_ = false;
  bool summed_apart_ = false;  // gradients are sharded or rounded: their buffers are zeroed for the next unit
  std::function<void(View, View)> round_;

  std::vector<UnitUse> uses_;
  size_t next_ = 0, started_ = 0;  // use that is acquired next; first one whose gather was not started
  int open_gathers_ = 0;           // started and not acquired
  std::vector<int> occupants_, gradient_occupants_;  // unit per place, -1: none yet

  std::vector<int> sync_order_;
  size_t synced_ = 0;  // of sync_order_: started
  bool syncing_ = false, syncing_raw_ = false;

  Waiting waiting_;
  View packed_[2];
  int next_packed_ = 0;
  std::vector<int> reduce_order_, leftovers_;  // the latter: see clear_leftovers
  std::vector<int> joined_;                    // units whose reduction joins two stages at the end
};

}  // namespace thinwire
