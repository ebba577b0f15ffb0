// Numbers as text, and how far two words are from each other.
#pragma once

#include <limits>
#include <string>
#include <string_view>

namespace thinwire {

// What std::snprintf would write, as a string of its length.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

// Optimal string alignment distance (insert, delete, replace, swap of neighbours). `most`: a larger distance may be
// told as any number above it, which takes less time.
int edit_distance(std::string_view a, std::string_view b, int most = std::numeric_limits<int>::max());

}  // namespace thinwire
