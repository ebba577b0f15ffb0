// Sites tp.forward and tp.backward: what tensor-parallel ranks exchange before and after their shard of a layer.
//
// The sharded part of a layer is between enter and leave. Without sequence parallelism every rank holds the full
// activations outside it: enter_forward sends nothing and enter_backward all-reduces the input gradient; leave_forward
// all-reduces the partial results and leave_backward sends nothing. With it a rank holds only its rows outside: enter
// gathers rows (backward: reduce-scatters), leave reduce-scatters (backward: gathers). Views are [rows, h]; `part` is
// this rank's rows, `whole` all N of them. Without sequence parallelism both are the same view, and nothing is copied.
#pragma once

#include <span>
#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/channel/channel.h"

namespace thinwire {

class TpActivation {
 public:
  TpActivation() = default;  // one rank
  TpActivation(Channel forward, Channel backward, Channel control, bool sequence_parallel);

  int rank() const { return forward_.rank(); }
  int size() const { return forward_.size(); }
  bool sequence_parallel() const { return sequence_parallel_; }
  // The messages from now on are of this unit of the model (model_units.h), for rules that name layers.
  void enter_unit(int unit) { unit_ = unit; }
  // The rule of each unit, indexed by unit; empty: the first for all.
  void use_rules(std::vector<int> forward, std::vector<int> backward) {
    forward_rules_ = std::move(forward), backward_rules_ = std::move(backward);
  }

  // Rows of N that this rank holds outside a sharded part: [first, first + count).
  int64_t first_row(int64_t rows) const;
  int64_t part_rows(int64_t rows) const;

  Ticket enter_forward(View part, View whole, Stream& stream);
  Ticket leave_forward(View whole, View part, Stream& stream);
  Ticket leave_backward(View part, View whole, Stream& stream);  // first in the backward pass
  Ticket enter_backward(View whole, View part, Stream& stream);
  // Sequence parallelism: gathers the rows of an activation once more, for a weight gradient (site tp.backward), coded
  // as in the forward pass, so that the gradient is of the activation that was computed with.
  Ticket gather_again(View part, View whole, Stream& stream);

  // Sums over the tensor ranks the gradients of replicated tensors, of which each rank has a partial sum (site
  // tp.backward).
  Ticket sum_gradients(View packed, Stream& stream);
  // The vocabulary-parallel loss: every rank gives `mine` [n] fp32 and receives all of them in `all` [size, n], in rank
  // order (site control).
  Ticket gather_statistics(View mine, View all, Stream& stream);

 private:
  std::span<const int64_t> row_bounds(View whole);  // in elements, until the next call
  MessageKey forward_key() const { return MessageKey::of_unit(unit_, forward_rules_); }
  MessageKey backward_key() const { return MessageKey::of_unit(unit_, backward_rules_); }

  Channel forward_, backward_, control_;
  bool sequence_parallel_ = false;
  int unit_ = 0;
  std::vector<int> forward_rules_, backward_rules_;
  std::vector<int64_t> bounds_ = {0, 0};
};

}  // namespace thinwire
