// Sites pp.forward and pp.backward: activations go down to the next stage, their gradients come back up.
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/comm/channel.h"

namespace thinwire {

// Stages form a ring, so that virtual chunks wrap from the last stage to the first. Messages of one direction between
// two stages are matched in the order of the plan.
class PpBoundary {
 public:
  PpBoundary() = default;  // one stage
  PpBoundary(Channel forward, Channel backward);

  int stage() const { return forward_.rank(); }
  int stages() const { return forward_.size(); }
  Ticket send_forward(View activation, Stream& stream);     // to the next stage
  Ticket receive_forward(View activation, Stream& stream);  // from the stage before
  Ticket send_backward(View gradient, Stream& stream);      // to the stage before
  Ticket receive_backward(View gradient, Stream& stream);   // from the next stage

 private:
  Channel forward_, backward_;
};

}  // namespace thinwire
