// Counts every allocation of the program that links allocation_count.cpp.
#pragma once

#include <cstdint>

namespace thinwire {

int64_t allocations_of_the_process();

}  // namespace thinwire
