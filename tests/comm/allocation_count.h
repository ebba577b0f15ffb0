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

// Of counts at the borders of windows: the growth of the middle one. A list that grows once, where more pieces than
// ever met because a thread stood still, is no steady state.
inline int64_t middle_growth(const std::vector<int64_t>& counts) {
  std::vector<int64_t> growth;
  for (size_t i = 1; i < counts.size(); ++i) growth.push_back(counts[i] - counts[i - 1]);
  std::sort(growth.begin(), growth.end());
  return growth.at(growth.size() / 2);
}

}  // namespace thinwire
