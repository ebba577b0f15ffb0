// Sites pp.forward and pp.backward: activations go down to the next stage, their gradients come back up.
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/channel/channel.h"

namespace thinwire {

// Stages form a ring, so that virtual chunks wrap from the last stage to the first. Messages of one direction between
// two stages are matched in the order of the plan. A key's slot is the edge, as in schedule/plan.h.
class PpBoundary {
 public:
  PpBoundary() = default;  // one stage
  PpBoundary(Channel forward, Channel backward);

  int stage() const { return forward_.rank(); }
  int stages() const { return forward_.size(); }
  Ticket send_forward(View activation, Stream& stream, const MessageKey& key = {});     // to the next stage
  Ticket receive_forward(View activation, Stream& stream, const MessageKey& key = {});  // from the stage before
  Ticket send_backward(View gradient, Stream& stream, const MessageKey& key = {});      // to the stage before
  Ticket receive_backward(View gradient, Stream& stream, const MessageKey& key = {});   // from the next stage
  // Makes the states of the messages that this rank sends over `edge`, each [rows, cols].
  void prepare(int edge, int rule, bool forward, int64_t rows, int64_t cols);

 private:
  Channel forward_, backward_;
};

}  // namespace thinwire
