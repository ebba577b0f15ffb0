// Sites pp.forward and pp.backward: activations go down to the next stage, their gradients come back up.
#pragma once

#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/channel/channel.h"

namespace thinwire {

// Stages form a ring, so that virtual chunks wrap from the last stage to the first. Messages of one direction between
// two stages are matched in the order of the plan. A key's slot is the edge, as in schedule/plan.h.
//
// Tensor ranks that hold the same activation send a part of its rows each, and the tensor ranks of the receiving stage
// hand each other what came, as it came (sites tp.forward, tp.backward).
class PpBoundary {
 public:
  PpBoundary() = default;  // one stage
  // ..._parts: channels of the tensor ranks that send an activation in parts; empty: this rank sends all that it is
  // given.
  PpBoundary(Channel forward, Channel backward, Channel forward_parts = {}, Channel backward_parts = {});

  int stage() const { return forward_.pipeline.rank(); }
  int stages() const { return forward_.pipeline.size(); }
  Ticket send_forward(View activation, Stream& stream, const MessageKey& key = {});     // to the next stage
  Ticket receive_forward(View activation, Stream& stream, const MessageKey& key = {});  // from the stage before
  Ticket send_backward(View gradient, Stream& stream, const MessageKey& key = {});      // to the stage before
  Ticket receive_backward(View gradient, Stream& stream, const MessageKey& key = {});   // from the next stage
  // Around the messages of one exchange of the plan. Devices send and receive them as one group, when it ends: their
  // tickets are waited for only then.
  void begin_exchange(Stream& stream);
  void end_exchange(Stream& stream);
  // Makes the states of the messages that this rank sends over `edge`, of activations [rows, cols].
  void prepare(int edge, int rule, bool forward, int64_t rows, int64_t cols);

 private:
  // One direction: the channel between stages, and that of the tensor ranks who hand each other the parts.
  struct Way {
    Channel pipeline, parts;
    std::vector<int64_t> bounds;  // of the parts of the message at hand, in elements: whole rows
    MessageKey cut(const MessageKey& key, int64_t rows, int64_t cols);
    Ticket send(View data, int peer, Stream& stream, const MessageKey& key);
    Ticket receive(View data, int peer, Stream& stream, const MessageKey& key);
  };
  Way forward_, backward_;
};

}  // namespace thinwire
