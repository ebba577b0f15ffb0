// Point-to-point messages between neighbouring stages of the ring, whole or in parts.
#include "parallel/sites/pp_boundary.h"

namespace thinwire {
PpBoundary::PpBoundary(Channel forward, Channel backward, Channel forward_parts, Channel backward_parts)
    : forward_{std::move(forward), std::move(forward_parts), {}},
      backward_{std::move(backward), std::move(backward_parts), {}} {}

// The key of this rank's part of a message [rows, cols]; bounds are those of all parts then.
MessageKey PpBoundary::Way::cut(const MessageKey& key, int64_t rows, int64_t cols) {
  const int size = parts.size();
  bounds.clear();
  for (int p = 0; p <= size; ++p) bounds.push_back(rows * p / size * cols);
  MessageKey cut = key;
  cut.part = parts.rank();
  cut.largest_part = (rows + size - 1) / size * cols;
  return cut;
}

Ticket PpBoundary::Way::send(View data, int peer, Stream& stream, const MessageKey& key) {
  if (!parts) return pipeline.send(data, peer, stream, key);
  const MessageKey mine = cut(key, data.rows(), data.cols());
  const auto me = static_cast<size_t>(mine.part);
  const int64_t first = bounds[me] / data.cols(), end = bounds[me + 1] / data.cols();
  return pipeline.send(data.row_range(first, end - first), peer, stream, mine);
}

Ticket PpBoundary::Way::receive(View data, int peer, Stream& stream, const MessageKey& key) {
  if (!parts) return pipeline.receive(data, peer, stream, key);
  const MessageKey mine = cut(key, data.rows(), data.cols());
  return pipeline.receive_parts(data, bounds, peer, parts, stream, mine);
}

void PpBoundary::begin_exchange(Stream& stream) {
  if (DeviceCommunicator* const there = forward_.pipeline.on_device(stream)) there->traffic().open_exchange();
}

void PpBoundary::end_exchange(Stream& stream) {
  if (DeviceCommunicator* const there = forward_.pipeline.on_device(stream)) there->traffic().close_exchange();
}

Ticket PpBoundary::send_forward(View activation, Stream& stream, const MessageKey& key) {
  return forward_.send(activation, (stage() + 1) % stages(), stream, key);
}

Ticket PpBoundary::receive_forward(View activation, Stream& stream, const MessageKey& key) {
  return forward_.receive(activation, (stage() + stages() - 1) % stages(), stream, key);
}

Ticket PpBoundary::send_backward(View gradient, Stream& stream, const MessageKey& key) {
  return backward_.send(gradient, (stage() + stages() - 1) % stages(), stream, key);
}

Ticket PpBoundary::receive_backward(View gradient, Stream& stream, const MessageKey& key) {
  return backward_.receive(gradient, (stage() + 1) % stages(), stream, key);
}

void PpBoundary::prepare(int edge, int rule, bool forward, int64_t rows, int64_t cols) {
  Way& way = forward ? forward_ : backward_;
  MessageKey key{static_cast<uint32_t>(edge), rule};
  if (way.parts) {
    key = way.cut(key, rows, cols);
    const auto me = static_cast<size_t>(key.part);
    rows = (way.bounds[me + 1] - way.bounds[me]) / cols;
  }
  const MatrixShape matrix{0, rows, cols};
  key.matrices = {&matrix, 1};
  way.pipeline.prepare(key, rows * cols, ChannelUse::kSend);
}

}  // namespace thinwire
