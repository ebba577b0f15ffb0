// Counts every allocation of the program that links allocation_count.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace thinwire {

int64_t allocations_of_the_process();
int64_t live_bytes_of_the_process();  // allocated and not yet freed
// Off while a library is at work whose own allocations are none of ours.
void count_allocations_of_this_thread(bool on);

// The median growth from one count to the next. Where a thread stands still more messages meet than before, and a list
// may grow, once: that is in one or two of five windows. What every operation allocates is in all of them.
inline int64_t middle_growth(const std::vector<int64_t>& counts) {
  std::vector<int64_t> growth;
  for (size_t i = 1; i < counts.size(); ++i) growth.push_back(counts[i] - counts[i - 1]);
  std::sort(growth.begin(), growth.end());
  return growth.at(growth.size() / 2);
}

}  // namespace thinwire
