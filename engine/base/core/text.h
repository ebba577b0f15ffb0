// Numbers as text, lists of words, and how far two words are from each other.
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// What std::snprintf would write, as a string of its length.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

std::string join(const std::vector<std::string>& words, const std::string& between);
// The words of a text: what stands between white space.
std::vector<std::string> split_words(const std::string& text);

// Optimal string alignment distance (insert, delete, replace, swap of neighbours).
int edit_distance(const std::string& a, const std::string& b);

}  // namespace thinwire
