// Point-to-point messages between neighbouring stages of the ring.
#include "parallel/sites/pp_boundary.h"

#include "engine/base/core/check.h"

namespace thinwire {

PpBoundary::PpBoundary(Channel forward, Channel backward)
    : forward_(std::move(forward)), backward_(std::move(backward)) {}

Ticket PpBoundary::send_forward(View activation, Stream& stream) {
  return forward_.send(activation, (stage() + 1) % stages(), stream);
}

Ticket PpBoundary::receive_forward(View activation, Stream& stream) {
  return forward_.receive(activation, (stage() + stages() - 1) % stages(), stream);
}

Ticket PpBoundary::send_backward(View gradient, Stream& stream) {
  return backward_.send(gradient, (stage() + stages() - 1) % stages(), stream);
}

Ticket PpBoundary::receive_backward(View gradient, Stream& stream) {
  return backward_.receive(gradient, (stage() + 1) % stages(), stream);
}

}  // namespace thinwire
