// Counters of sent messages: bytes, time on the wire, and the part of that time that compute waited for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

// The counters of one site on one rank. Their owner (a site of the mesh, a benchmark) passes them to the operations
// that it issues, and reads and resets them between steps, while no operation is open. Written under the progress lock
// (progress.h), except exposed_ns, which the waiting thread writes.
struct WireCounters {
  // What the same algorithm would send uncoded, in the wire dtype of the run and without checksums.
  int64_t logical_bytes = 0;
  int64_t wire_bytes = 0;  // what was handed to the transport
  int64_t messages = 0;
  int64_t operations = 0;
  int64_t busy_ns = 0;     // time during which at least one operation was open
  int64_t exposed_ns = 0;  // time that the compute thread waited for them

  int open = 0;           // operations under way
  int64_t opened_at = 0;  // since when at least one is: not yet in busy_ns
};

// checksum: its bytes, which are sent beside the message.
inline void count_sent(WireCounters* counters, size_t bytes, size_t checksum = 0) {
  if (counters == nullptr) return;
  counters->wire_bytes += static_cast<int64_t>(bytes + checksum);
  counters->logical_bytes += static_cast<int64_t>(bytes);
  ++counters->messages;
}

}  // namespace thinwire
