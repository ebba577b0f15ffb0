// Numbers, times, lists of words and their distances, see text.h.
#include "engine/base/core/text.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <sstream>
#include <vector>

namespace thinwire {

std::string printed(const char* format, ...) {
  std::va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  return text;
}

std::string mebibytes(uint64_t bytes) {
  constexpr uint64_t kMebibyte = uint64_t{1} << 20;
  return std::to_string(bytes / kMebibyte + (bytes % kMebibyte != 0 ? 1 : 0)) + " MiB";
}

std::string utc_text(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : between) + w;
  return text;
}

std::string some_of(const std::vector<int>& numbers, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), most); ++i)
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
  return numbers.size() <= most ? text : text + " and " + std::to_string(numbers.size() - most) + " more";
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

int edit_distance(std::string_view a, std::string_view b, int most) {
  // What one word is longer, and letters that the other does not have: no less than that, and found at once.
  uint64_t in_a = 0, in_b = 0;
  for (const char c : a) in_a |= uint64_t{1} << (c & 63);
  for (const char c : b) in_b |= uint64_t{1} << (c & 63);
  const size_t n = a.size(), m = b.size();
  const int longer = static_cast<int>(n > m ? n - m : m - n);
  const int least = std::max({longer, std::popcount(in_a & ~in_b), std::popcount(in_b & ~in_a)});
  if (least > most) return least;
  // Rows i - 2, i - 1 and i.
  std::vector<int> before(m + 1), last(m + 1), row(m + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= n; ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= m; ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last), last.swap(row);
    // From here on it only grows.
    if (std::ranges::min(last) > most && std::ranges::min(before) > most) return most + 1;
  }
  return last[m];
}

}  // namespace thinwire
