// A latency between nodes that the network beneath does not have, for a lab whose kernel cannot delay packets:
// emulated.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "parallel/wire/transport.h"

namespace thinwire {

// Passes on to `beneath`; a receive from another node (`nodes`: per world rank) is over `delay` after its message can
// have arrived, at the earliest: after it was sent, and after the last poll that looked for it and did not find it. The
// first travels in front of every message as a small one of its own, so all ranks need the same delay, and one clock:
// one machine.
std::unique_ptr<Transport> delayed_transport(std::unique_ptr<Transport> beneath, std::vector<int> nodes,
                                             std::chrono::microseconds delay);

// THINWIRE_DELAY_US of the environment; 0 without. Throws Error(kBadConfig) where it is no number of at most 10 s.
std::chrono::microseconds wished_delay();

}  // namespace thinwire
