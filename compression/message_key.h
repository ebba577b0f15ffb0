// The key of random numbers of one message: seed, slot, sequence, step and rank all count.
#pragma once

#include "compression/codec.h"
#include "engine/base/core/philox.h"

namespace thinwire {

inline PhiloxKey message_key(const Msg& msg, RandomPurpose purpose) {
  const uint64_t step = static_cast<uint64_t>(msg.step);
  const PhiloxBlock a = philox(
      seed_key(msg.seed), {msg.slot, msg.sequence, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)});
  const PhiloxBlock b =
      philox({a[0], a[1]}, {static_cast<uint32_t>(msg.rank), a[2], a[3], static_cast<uint32_t>(purpose)});
  return {b[0], b[1]};
}

}  // namespace thinwire
