// How much memory the process uses, as the kernel counts it (resident pages).
#pragma once

#include <cstdint>

namespace thinwire {

// Bytes; 0 where /proc does not tell.
int64_t current_rss_bytes();
int64_t peak_rss_bytes();  // highest since the start, or since the last successful reset

// Starts peak_rss_bytes anew. False where the kernel does not allow it (then the peak stays that of the whole process).
bool reset_peak_rss();

}  // namespace thinwire
