// Counts every allocation of the program that links allocation_count.cpp.
#pragma once

#include <cstdint>

namespace thinwire {

int64_t allocations_of_the_process();
int64_t live_bytes_of_the_process();  // allocated and not yet freed
// Off while a library is at work whose own allocations are none of ours.
void count_allocations_of_this_thread(bool on);

}  // namespace thinwire
