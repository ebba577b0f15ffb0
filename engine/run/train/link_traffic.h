// What a rank sends beside its gradients while these leave, taken from a rehearsal of its steps, as the planner's tapes
// are (step_tape.h): messages of all other sites, when they are issued and by when somebody needs them.
#pragma once

#include <vector>

#include "engine/run/train/rank_layout.h"

namespace thinwire {

struct LinkMessage {
  Site site = Site::kControl;
  double bytes = 0.0;
  double at = 0.0;  // forward passes of the average layer, from the start of the step, as PlanTimes
  // When it is waited for, infinite: by what closes the step. Of a message between stages: when the step gets longer.
  double due = 0.0;
};

// In the order in which they leave. Inside a node of the plan time goes by the FLOPs of its products. Messages that are
// waited for by `from` are left out: whoever waited was later by them, and so is all that follows. What the step before
// leaves on the link is at 0. Of the first rank of this stage, on nodes as the configuration has them, so that all
// replicas and a dry run get the same.
std::vector<LinkMessage> link_traffic(const RunConfig& config, int stage, const std::vector<Plan>& plans,
                                      const PlanTimes& times, const NodeCosts& costs, double from);

}  // namespace thinwire
