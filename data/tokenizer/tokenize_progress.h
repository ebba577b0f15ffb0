// Shows how far a long job over bytes is: a bar that redraws itself on a terminal, a line now and then in a log.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "data/tokenizer/tokenize_files.h"

namespace thinwire {

// Writes to `out` (stderr by default). Not thread-safe.
class TokenizeProgressLine {
 public:
  TokenizeProgressLine();
  TokenizeProgressLine(std::FILE* out, bool terminal);
  void update(const TokenizeProgress& state);  // at most ten redraws a second, or a line every ten seconds
  void finish();                               // clears the bar
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::FILE* out_;
  bool terminal_, drawn_ = false;
  Clock::time_point start_, last_;
};

// "[=====>    ]  47%  12.3/26.0 MB  41.2 MB/s  12,345 documents  3.1 M tokens  ETA 0:12"; `bar` false leaves the bar
// out.
std::string progress_text(const TokenizeProgress& state, double seconds, bool bar);
std::string with_commas(int64_t n);  // 1234567 -> "1,234,567"

}  // namespace thinwire
