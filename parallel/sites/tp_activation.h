// Sites tp.forward and tp.backward: what tensor-parallel ranks exchange around their share of a layer.
//
// A layer's sharded part lies between enter and leave. Without sequence parallelism activations outside are whole on
// every rank: entering is free forward and sums the input gradient backward; leaving sums the partial results forward
// and is free backward. With it, outside a rank holds its rows only: entering gathers rows (backward: reduce-scatters),
// leaving reduce-scatters (backward: gathers). Views are [rows, h]; `part` is this rank's rows, `whole` all N of them.
// Without sequence parallelism `part` and `whole` are the same view, and nothing is copied.
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
  // What follows belongs to this unit of the model (model_units.h), for rules that name layers.
  void enter_unit(int unit) { unit_ = unit; }
  // The rules that units fall under, indexed by unit; empty: all under the first.
  void use_rules(std::vector<int> forward, std::vector<int> backward) {
    forward_rules_ = std::move(forward), backward_rules_ = std::move(backward);
  }

  // Rows of N that this rank holds outside a sharded part: [first, first + count).
  int64_t first_row(int64_t rows) const;
  int64_t part_rows(int64_t rows) const;

  Ticket enter_forward(View part, View whole, Stream& stream);
  Ticket leave_forward(View whole, View part, Stream& stream);
  Ticket leave_backward(View part, View whole, Stream& stream);  // the gradient comes back in where the result left
  Ticket enter_backward(View whole, View part, Stream& stream);
  // Rows of an activation again whole for a weight gradient (sequence parallel; site tp.backward), coded as when they
  // were gathered forward: the gradient belongs to the activation that was computed with.
  Ticket gather_again(View part, View whole, Stream& stream);

  // Sums, over the tensor ranks, gradients of replicated tensors that each rank holds a part of (site tp.backward).
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
