// Sites tp.forward and tp.backward: the sums over tensor-parallel ranks behind row-parallel linears and the embedding
// (forward) and in front of column-parallel ones (backward).
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/group.h"

namespace thinwire {

class TpActivation {
 public:
  explicit TpActivation(Group group) : group_(group) { require_single(group, "tp.forward"); }
  // Sums `partial` [N,h] over the group, in place. The view is leased until the ticket is done.
  Ticket sum_forward(View partial, Stream& stream) {
    (void)partial, (void)stream;
    return Ticket::finished();
  }
  // Sums the input gradient `partial` [N,h] over the group, in place.
  Ticket sum_backward(View partial, Stream& stream) {
    (void)partial, (void)stream;
    return Ticket::finished();
  }
  const Group& group() const { return group_; }

 private:
  Group group_;
};

}  // namespace thinwire
