// Numbers and times as text, lists of words, and how far two words are from each other.
#pragma once

#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// What std::snprintf would write, as a string of its length.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

// "12 MiB", rounded up.
std::string mebibytes(uint64_t bytes);
// As times are written: "2025-01-31T12:00:00Z".
std::string utc_text(std::time_t time);

std::string join(const std::vector<std::string>& words, const std::string& between);
// "1, 2, 3", of a long list "1, 2, 3 and 2045 more": for messages about the ranks of a large job.
std::string some_of(const std::vector<int>& numbers, size_t most = 16);
// The words of a text: what stands between white space.
std::vector<std::string> split_words(const std::string& text);

// Optimal string alignment distance (insert, delete, replace, swap of neighbours). `most`: a larger distance may be
// told as any number above it, which takes less time.
int edit_distance(std::string_view a, std::string_view b, int most = std::numeric_limits<int>::max());

}  // namespace thinwire
