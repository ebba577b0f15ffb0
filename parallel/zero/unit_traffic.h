// The traffic of a rank's units: gathers run ahead of their use, reductions run behind the backward pass.
//
// The order in which units are used in an update is known before step 1 (from the plan): acquiring use k waits for its
// gather and starts the next ones as soon as their memory is free. Nothing here decides from timing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

// One unit of this rank. tp_partial: runs of elements whose gradient each tensor rank holds a part of.
struct UnitMemory {
  int64_t count = 0;  // elements, with padding; 0: this rank does not have the unit
  UnitShard shard;
  View weights;             // [shard.weights.count] compute dtype
  View full;                // [count]; the same memory as weights when they are replicated
  View kept;                // [shard.secondary.count], empty without secondary copy
  View gradient;            // [count] fp32
  View gradient_shard;      // [shard.gradients.count] fp32; inside `gradient` when gradients are replicated
  int place = -1;           // units with the same place share `full` (-1: memory of its own)
  int gradient_place = -1;  // and `gradient`
  bool tied = false;        // the embedding that two stages share
  std::vector<Range> tp_partial;
  // [shard.optimizer.count] fp32, where publications are coded from it instead of from the range of `weights`.
  View master;
  std::vector<UnitPiece> pieces;  // the messages of its gradient; empty: one, coded as the site is
  bool coded_weights = true;      // the rule of zero.parameter is for this unit
  bool awaited = false;           // the update ends with its gradient and begins with its weights (see MessageKey)
  // Elements of no tensor, where something is coded: a lossy block that holds some beside others makes noise of them,
  // which nobody saves, and would make another noise of it next time. Zeroed behind reductions, before publications.
  std::vector<Range> padding;
};

// How often an update gathers each unit that starts out ungathered: from the ranges of the weights, and from the
// secondary copies. For pricing; indexed by unit.
struct GatherCounts {
  std::vector<int64_t> whole, kept;
};
GatherCounts count_gathers(const std::vector<UnitMemory>& units, std::span<const UnitUse> uses);

// Order and waits. All ranks of a data-parallel group run the same plan, so they pass the same events in the same
// order: what is started here depends on events alone, and every communicator sees the same sequence of operations on
// all its ranks. The host waits in acquire (for a gather or a publication that was started by an earlier or the same
// event), gradients_begin (for a reduction whose buffer is written next), finish_reductions and drain. Give every event
// its place in the plan of its stage: a wait for an operation of a data-parallel or tensor group needs only that the
// peers reach the same place of the same plan, and plans alone are free of deadlock (schedule/validate). Only the tied
// embedding's groups join two stages, whose places differ. Its gradient is waited for in finish_reductions alone,
// behind all pipeline traffic of both stages, and both have started it by then. Its publication is the first thing that
// publish_all starts, before anything waits: so a stage that waits for it in its first forward needs nothing of the
// other stage's next update.
class UnitTraffic final : public UnitEvents {
 public:
  // packed: [max tp_partial elements of a unit] fp32 scratch, two of them (empty where no unit has any). All references
  // outlive this.
  UnitTraffic(std::vector<UnitMemory> units, const Placement& placement, Ports& ports, Device& device, Stream& stream,
              View packed[2]);
  ~UnitTraffic() override;  // waits for what is open; failures of peers are not reported from here

  // What the reductions of an update send instead of gradients (sent_value.h); nullptr: gradients. It outlives this.
  void set_sent_value(SentValue* value);

  // Before an update, or an evaluation: the uses to come, in order (may be empty where weights are replicated).
  void begin(std::span<const UnitUse> uses);
  // Whether the reductions that follow are the units' last of this update.
  void set_last(bool last);
  void set_node_end();  // hold = micro_batch: what was acquired in this node is released

  void acquire(int unit, bool backward) override;
  void release(int unit, bool backward) override;
  void gradients_begin(int unit) override;
  void gradients_complete(int unit) override;

  // Waits until all gradients are reduced. Gradient memory that the optimizer does not own holds parts of sums until
  // publish_all, forget_gathered or begin makes it zero.
  void finish_reductions();
  // Weights have changed: gathered copies are stale. Starts the all-gathers behind the update, those of the first units
  // of the next forward pass first and the rest as it goes on; acquire() waits for each.
  // before (must wait for no peer) is called for every unit that is published, in that order, before its all-gather
  // starts: its weights may change until then. So the first ones travel while others are still updated.
  using BeforePublication = std::function<void(int unit)>;
  void publish_all(const BeforePublication& before);
  // As they are, whatever the rule says (after weights were loaded or set).
  void publish_raw();
  // Starts and finishes what publish_all has left for later: weights are whole, and are what computes (before a save of
  // them; all ranks together).
  void finish_publications();
  // Gathered copies are stale from here on, although weights have not changed: behind gathers that are not an update's
  // (an evaluation's), so that the next update gathers, codes and counts as if they had not been.
  void forget_gathered();
  // Waits for everything that is open (before a save, at the end, on an error). Starts nothing.
  void drain();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
