// Enter and leave of tensor-parallel layers, as collectives on the two channels.
#include "parallel/sites/tp_activation.h"

#include "engine/base/core/check.h"

namespace thinwire {

TpActivation::TpActivation(Channel forward, Channel backward, Channel control, bool sequence_parallel)
    : forward_(std::move(forward)),
      backward_(std::move(backward)),
      control_(std::move(control)),
      sequence_parallel_(sequence_parallel && forward_.size() > 1),
      bounds_(static_cast<size_t>(forward_.size()) + 1) {}

int64_t TpActivation::first_row(int64_t rows) const {
  return sequence_parallel_ ? rows * rank() / size() : 0;
}

int64_t TpActivation::part_rows(int64_t rows) const {
  return sequence_parallel_ ? rows * (rank() + 1) / size() - rows * rank() / size() : rows;
}

std::span<const int64_t> TpActivation::row_bounds(View whole) {
  for (int r = 0; r <= size(); ++r) bounds_[static_cast<size_t>(r)] = whole.rows() * r / size() * whole.cols();
  return bounds_;
}

Ticket TpActivation::enter_forward(View part, View whole, Stream& stream) {
  if (!sequence_parallel_) return Ticket::finished();
  return forward_.all_gather(part, whole, row_bounds(whole), stream, forward_key());
}

Ticket TpActivation::leave_forward(View whole, View part, Stream& stream) {
  if (!sequence_parallel_) return forward_.all_reduce(whole, ReduceKind::kSum, stream, forward_key());
  return forward_.reduce_scatter(whole, row_bounds(whole), part, false, stream, forward_key());
}

Ticket TpActivation::leave_backward(View part, View whole, Stream& stream) {
  if (!sequence_parallel_) return Ticket::finished();
  return backward_.all_gather(part, whole, row_bounds(whole), stream, backward_key());
}

Ticket TpActivation::enter_backward(View whole, View part, Stream& stream) {
  if (!sequence_parallel_) return backward_.all_reduce(whole, ReduceKind::kSum, stream, backward_key());
  return backward_.reduce_scatter(whole, row_bounds(whole), part, false, stream, backward_key());
}

Ticket TpActivation::gather_again(View part, View whole, Stream& stream) {
  if (!sequence_parallel_) return Ticket::finished();
  return backward_.all_gather(part, whole, row_bounds(whole), stream, forward_.coded_as_here(forward_key()));
}

Ticket TpActivation::sum_gradients(View packed, Stream& stream) {
  return backward_.all_reduce(packed, ReduceKind::kSum, stream, {.rule = kNoRule});
}

Ticket TpActivation::gather_statistics(View mine, View all, Stream& stream) {
  TW_CHECK(all.count() == mine.count() * size(), all.count(), " elements for ", size(), " ranks");
  for (int r = 0; r <= size(); ++r) bounds_[static_cast<size_t>(r)] = mine.count() * r;
  return control_.all_gather(mine, all, bounds_, stream);
}

}  // namespace thinwire
