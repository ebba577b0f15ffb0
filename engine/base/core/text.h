// Numbers as text, and how far two words are from each other.
#pragma once

#include <string>

namespace thinwire {

// What std::snprintf would write, as a string of its length.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

// Optimal string alignment distance (insert, delete, replace, swap of neighbours).
int edit_distance(const std::string& a, const std::string& b);

}  // namespace thinwire
