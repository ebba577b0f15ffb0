// The text and the pace of the progress display.
#include "data/tokenizer/tokenize_progress.h"

#include <unistd.h>

#include <algorithm>

#include "engine/base/core/text.h"

namespace thinwire {

std::string with_commas(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string progress_text(const TokenizeProgress& state, double seconds, bool bar) {
  constexpr int kWidth = 24;
  const double done = state.total_bytes == 0
                          ? 1.0
                          : std::min(1.0, static_cast<double>(state.bytes) / static_cast<double>(state.total_bytes));
  const double rate = seconds > 0 ? static_cast<double>(state.bytes) / seconds : 0.0;
  std::string text;
  if (bar) {
    const int filled = static_cast<int>(done * kWidth);
    text += '[';
    for (int i = 0; i < kWidth; ++i) text += i < filled ? '=' : i == filled ? '>' : ' ';
    text += "] ";
  }
  text += printed("%3d%%  %.1f/%.1f MB  %.1f MB/s  %s documents  %.2f M tokens", static_cast<int>(done * 100),
                  static_cast<double>(state.bytes) / 1e6, static_cast<double>(state.total_bytes) / 1e6, rate / 1e6,
                  with_commas(state.documents).c_str(), static_cast<double>(state.tokens) / 1e6);
  if (rate > 0 && state.bytes < state.total_bytes) {
    const auto left = static_cast<long>(static_cast<double>(state.total_bytes - state.bytes) / rate + 0.5);
    text += left >= 3600 ? printed("  ETA %ld:%02ld:%02ld", left / 3600, left / 60 % 60, left % 60)
                         : printed("  ETA %ld:%02ld", left / 60, left % 60);
  }
  return text;
}

TokenizeProgressLine::TokenizeProgressLine() : TokenizeProgressLine(stderr, ::isatty(STDERR_FILENO) == 1) {}

TokenizeProgressLine::TokenizeProgressLine(std::FILE* out, bool terminal)
    : out_(out), terminal_(terminal), start_(Clock::now()), last_(start_) {}

double TokenizeProgressLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void TokenizeProgressLine::update(const TokenizeProgress& state) {
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000))) return;
  last_ = now;
  const std::string text = progress_text(state, seconds(), terminal_);
  std::fprintf(out_, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  std::fflush(out_);
  drawn_ = terminal_;
}

void TokenizeProgressLine::finish() {
  if (drawn_) std::fputs("\r\033[K", out_);
  drawn_ = false;
  std::fflush(out_);
}

}  // namespace thinwire
