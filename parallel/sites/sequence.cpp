// Gathers and sums of keys and values, as collectives on the two channels.
#include "parallel/sites/sequence.h"

#include <algorithm>

#include "engine/base/core/check.h"

namespace thinwire {

SequenceExchange::SequenceExchange(Channel forward, Channel backward)
    : forward_(std::move(forward)),
      backward_(std::move(backward)),
      bounds_(static_cast<size_t>(forward_.size()) + 1),
      even_(bounds_) {}

std::span<const int64_t> SequenceExchange::bounds(View part, const SequenceCut& cut) {
  TW_CHECK(cut.size == size() && cut.rank == rank(), "rank ", cut.rank, " of ", cut.size, " in a group of ", size());
  const int64_t own = cut.count(), samples = own > 0 ? part.rows() / own : 0;
  TW_CHECK(samples * own == part.rows(), part.rows(), " rows of samples with ", own);
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<size_t>(r);
    bounds_[i + 1] = bounds_[i] + samples * cut.of(r).count() * part.cols();
  }
  return bounds_;
}

Ticket SequenceExchange::gather(View part, View all, const SequenceCut& cut, int unit, Stream& stream) {
  return forward_.all_gather(part, all, bounds(part, cut), stream, forward_key(unit));
}

Ticket SequenceExchange::gather_again(View part, View all, const SequenceCut& cut, int unit, Stream& stream) {
  return backward_.all_gather(part, all, bounds(part, cut), stream, forward_.coded_as_here(forward_key(unit)));
}

Ticket SequenceExchange::sum(View all, View part, const SequenceCut& cut, int unit, Stream& stream) {
  return backward_.reduce_scatter(all, bounds(part, cut), part, false, stream, backward_key(unit));
}

void SequenceExchange::start_ring(View part, const SequenceCut& cut, int unit, bool again, Stream& stream) {
  const std::span<const int64_t> all = bounds(part, cut);
  int64_t most = 0;
  for (size_t r = 1; r < all.size(); ++r) most = std::max(most, all[r] - all[r - 1]);
  ring_backward_ = again;
  ring_ = (again ? backward_ : forward_)
              .start_ring(part, all.back(), most, stream,
                          again ? forward_.coded_as_here(forward_key(unit)) : forward_key(unit));
}

Ticket SequenceExchange::hop(View held, View next, Stream& stream) {
  return (ring_backward_ ? backward_ : forward_).hop(ring_, held, next, stream);
}

Ticket SequenceExchange::hand_back(View gradients, View mine, int distance, const SequenceCut& cut, int unit,
                                   Stream& stream) {
  return backward_.hand_back(gradients, mine, distance, bounds(mine, cut).back(), stream, backward_key(unit));
}

Ticket SequenceExchange::exchange(View by_rank, View all, bool to_all, const SequenceCut& cut, int unit, bool backward,
                                  Stream& stream) {
  const int64_t each = by_rank.count() / size(), columns = all.cols();
  for (int r = 0; r < size(); ++r) even_[static_cast<size_t>(r) + 1] = even_[static_cast<size_t>(r)] + each;
  const std::span<const int64_t> uneven = bounds(View(by_rank.data, by_rank.dtype, {each / columns, columns}), cut);
  const MessageKey by = backward ? backward_key(unit) : forward_key(unit);
  Channel& channel = backward ? backward_ : forward_;
  return to_all ? channel.all_to_all(by_rank, even_, all, uneven, stream, by)
                : channel.all_to_all(all, uneven, by_rank, even_, stream, by);
}

}  // namespace thinwire
