// Site control: losses, norms, overflow flags and votes. Never coded, always exact, summed in rank order.
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/group.h"

namespace thinwire {

class Control {
 public:
  explicit Control(Group group) : group_(group) { require_single(group, "control"); }
  // Sums fp64 values over the group, in place, in rank order.
  Ticket sum(View values, Stream& stream) {
    (void)values, (void)stream;
    return Ticket::finished();
  }
  // The largest value any rank gave: how ranks agree to stop, to skip a step, to save.
  int agree_max(int value) const { return value; }

 private:
  Group group_;
};

}  // namespace thinwire
