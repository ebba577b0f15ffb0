// What one rank sends in one step, site by site, worked out beforehand: by the same plans, placements and bounds that
// a run uses, so that counters of a run agree to the byte.
#pragma once

#include <array>
#include <cstdint>

#include "engine/run/train/replica.h"

namespace thinwire {

struct SitePrices {
  SitePrices() { exact.fill(true); }
  std::array<int64_t, kSiteNames.size()> bytes{};        // sent by this rank
  std::array<int64_t, kSiteNames.size()> plain_bytes{};  // the same messages uncoded
  std::array<bool, kSiteNames.size()> exact{};           // false: bytes is a bound, lengths depend on values
  std::array<int64_t, kSiteNames.size()> operations{};   // collectives, or messages sent
  int64_t operator[](Site site) const { return bytes[static_cast<size_t>(site)]; }
};

// One step of `micro_batches` on the replica's rank; the replica may be a measuring one. Site control counts what the
// step itself does: losses of the vocabulary's shards, and the sum over all ranks that decides about the step.
SitePrices price_sites(const Replica& replica, int micro_batches);

}  // namespace thinwire
