// The traffic of a rank's units: gathers run ahead of their use, reductions run behind the backward pass.
//
// The order in which units are used in an update is known before step 1 (from the plan): acquiring use k waits for its
// gather and starts the next ones as soon as their memory is free. Nothing here decides from timing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/device.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/ports.h"
#include "parallel/zero/placement.h"
#include "parallel/zero/unit_events.h"

namespace thinwire {

// One unit of this rank. tp_partial: runs of elements whose gradient each tensor rank holds a part of.
struct UnitMemory {
  int64_t count = 0;        // elements, with padding; 0: this rank does not have the unit
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
};

class UnitTraffic final : public UnitEvents {
 public:
  // uses: of one update (evaluation walks the forward uses alone). packed: [max tp_partial elements of a unit] fp32
  // scratch, two of them. All references outlive this.
  UnitTraffic(std::vector<UnitMemory> units, const Placement& placement, Ports& ports, Device& device, Stream& stream,
              View packed[2]);
  ~UnitTraffic() override;

  // Before an update, or an evaluation: the uses to come, in order, and how many micro-batches add to each unit.
  void begin(std::span<const UnitUse> uses);
  // Reductions of the current micro-batch (chunk node) are the unit's last of this update.
  void set_last(bool last) { last_ = last; }
  void set_node_end();  // hold = micro_batch: what was acquired in this node is released

  void acquire(int unit, bool backward) override;
  void release(int unit, bool backward) override;
  void gradients_complete(int unit) override;

  // Waits until all gradients are reduced.
  void finish_reductions();
  // Starts the all-gathers behind the update, in the order of the next forward pass; acquire() waits for each.
  void publish_all();
  // Waits for everything still open (before a save, at the end, on an error).
  void drain();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool last_ = false;
};

}  // namespace thinwire
