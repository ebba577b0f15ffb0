// Point-to-point messages between neighbouring stages of the ring.
#include "parallel/sites/pp_boundary.h"

namespace thinwire {
PpBoundary::PpBoundary(Channel forward, Channel backward)
    : forward_(std::move(forward)), backward_(std::move(backward)) {}

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
  const MatrixShape matrix{0, rows, cols};
  MessageKey key{static_cast<uint32_t>(edge), rule};
  key.matrices = {&matrix, 1};
  (forward ? forward_ : backward_).prepare(key, rows * cols, ChannelUse::kSend);
}

}  // namespace thinwire
