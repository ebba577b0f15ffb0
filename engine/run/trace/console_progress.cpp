// Text of the console lines and the bar.
#include "engine/run/trace/console_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/base/core/text.h"

namespace thinwire {
namespace {

int terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

constexpr std::string_view kClearLine = "\r\033[2K";

}  // namespace

std::string format_count(double value) {
  const char* const units[] = {"", "k", "M", "B", "T"};
  size_t unit = 0;
  // 999.95 and above would print as 1000.0 of its unit.
  while (std::abs(value) >= 999.95 && unit + 1 < std::size(units)) {
    value /= 1000.0;
    ++unit;
  }
  const bool whole = unit == 0 && (value == std::floor(value) || std::abs(value) >= 100.0);
  return printed(whole ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

std::string format_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1023.95 && unit + 1 < std::size(units)) {
    bytes /= 1024.0;
    ++unit;
  }
  return printed(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return printed("%.1fs", seconds);
  const auto s = static_cast<long long>(std::min(seconds + 0.5, 1e15));
  if (s < 60) return printed("%llds", s);
  if (s < 3600) return printed("%lldm%02llds", s / 60, s % 60);
  if (s < 86400) return printed("%lldh%02lldm", s / 3600, s / 60 % 60);
  return printed("%lldd%02lldh", s / 86400, s / 3600 % 24);
}

std::string format_scientific(double value) {
  if (value == 0.0) return "0";
  if (!std::isfinite(value)) return printed("%g", value);
  std::string text = printed("%.1e", value);  // 3.0e-04: drop the sign and zeros that carry nothing
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  return text.substr(0, e + 1) + std::to_string(exponent);
}

std::string format_step_line(const StepRecord& r, int64_t total_steps, std::optional<double> eta_seconds) {
  std::string line = "step " + std::to_string(r.step);
  if (total_steps > 0) line.append("/").append(std::to_string(total_steps));
  if (r.listed) return line + " | SKIPPED by iterations_to_skip";
  line += printed(" | loss %.4f | gnorm %.2f", r.loss, std::fabs(r.grad_norm));
  if (r.spike_spreads)
    line += (r.skipped ? " | SKIPPED spike" : " | SPIKE") + printed(" of %.0f spreads", *r.spike_spreads);
  else if (r.skipped)
    line += " | SKIPPED non-finite" + (r.non_finite.empty() ? "" : " in " + r.non_finite);
  line += " | lr " + format_scientific(r.lr);
  if (r.loss_scale != 1.0) line += " | scale " + printed("%g", r.loss_scale);
  line += printed(r.step_ms < 99.95 ? " | %.1f ms" : " | %.0f ms", r.step_ms);
  line += " | " + format_count(r.tokens_per_s) + " tok/s";
  line += printed(r.model_tflops_per_rank < 99.995 ? " | %.2f TFLOP/s" : " | %.0f TFLOP/s", r.model_tflops_per_rank);
  if (r.mfu) line += printed(" (mfu %.1f%%)", *r.mfu * 100.0);
  double logical = 0.0, wire = 0.0, exposed = 0.0;
  for (const SiteRecord& site : r.comm) {
    logical += static_cast<double>(site.logical_bytes);
    wire += static_cast<double>(site.wire_bytes);
    exposed += site.exposed_ms;
  }
  if (wire > 0.0) {
    line += " | wire " + format_bytes(wire) + printed(" (%.1fx, exposed %.0f ms)", logical / wire, exposed);
  }
  line += " | mem " + format_bytes(static_cast<double>(r.memory_peak_bytes));
  if (eta_seconds) line += " | eta " + format_duration(*eta_seconds);
  return line;
}

std::string format_eval_line(const EvalRecord& r) {
  return printed("eval at step %lld%s | loss %.4f | perplexity %.2f | ", static_cast<long long>(r.step),
                 r.split == "valid" ? "" : (" (" + r.split + ")").c_str(), r.eval_loss, r.perplexity) +
         format_duration(r.eval_ms / 1000.0);
}

std::string format_bar(int64_t step, int64_t total_steps, std::optional<double> eta_seconds, int width) {
  width = std::max(width, 40);
  const int64_t total = std::max<int64_t>(total_steps, 1);
  const int64_t at = std::clamp<int64_t>(step, 0, total);
  std::string tail =
      printed(" %3d%% ", static_cast<int>(at * 100 / total)) + std::to_string(at) + "/" + std::to_string(total);
  if (eta_seconds) tail += " eta " + format_duration(*eta_seconds);
  const int inner = std::max(width - 2 - static_cast<int>(tail.size()), 4);
  const int filled = static_cast<int>(at * inner / total);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled > 0 && filled < inner) bar.back() = '>';
  bar.resize(static_cast<size_t>(inner), ' ');
  return "[" + bar + "]" + tail;
}

ConsoleProgress::ConsoleProgress(std::FILE* out, int64_t total_steps, int64_t log_interval, int64_t first_step)
    : out_(out),
      terminal_(::isatty(::fileno(out)) == 1),
      total_steps_(total_steps),
      log_interval_(std::max<int64_t>(log_interval, 1)),
      first_step_(first_step) {}

ConsoleProgress::~ConsoleProgress() {
  clear_bar();
}

std::optional<double> ConsoleProgress::eta(int64_t step) const {
  if (timed_steps_ == 0 || total_steps_ <= 0 || step >= total_steps_) return std::nullopt;
  return seconds_per_step_ * static_cast<double>(total_steps_ - step);
}

void ConsoleProgress::step(const StepRecord& record) {
  const Clock::time_point now = Clock::now();
  // The first step carries one-time costs (page faults, primitives being built): it is timed only by its own duration.
  const double seconds =
      last_step_ ? std::chrono::duration<double>(now - *last_step_).count() : record.step_ms / 1000.0;
  last_step_ = now;
  ++timed_steps_;
  // A plain mean over the first fifty steps that becomes a moving one, so that early slow steps fade. The second step
  // takes the place of the first.
  const double weight = timed_steps_ <= 2 ? 1.0 : 1.0 / static_cast<double>(std::min<int64_t>(timed_steps_ - 1, 50));
  seconds_per_step_ += weight * (seconds - seconds_per_step_);

  const bool shown =
      record.step == first_step_ || record.step % log_interval_ == 0 || record.step == total_steps_ || record.skipped;
  if (shown) print(format_step_line(record, total_steps_, eta(record.step)));
  if (!terminal_ || total_steps_ <= 0 || record.step >= total_steps_) return;
  constexpr std::chrono::milliseconds kRedraw(100);
  if (bar_shown_ && last_bar_ && now - *last_bar_ < kRedraw) return;
  const std::string bar = format_bar(record.step, total_steps_, eta(record.step), terminal_width(out_) - 1);
  std::fwrite(kClearLine.data(), 1, kClearLine.size(), out_);
  std::fwrite(bar.data(), 1, bar.size(), out_);
  std::fflush(out_);
  bar_shown_ = true;
  last_bar_ = now;
}

void ConsoleProgress::eval(const EvalRecord& record) {
  print(format_eval_line(record));
}

void ConsoleProgress::clear_bar() {
  if (!bar_shown_) return;
  std::fwrite(kClearLine.data(), 1, kClearLine.size(), out_);
  std::fflush(out_);
  bar_shown_ = false;
}

void ConsoleProgress::print(const std::string& line) {
  clear_bar();
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fputc('\n', out_);
  std::fflush(out_);
}

}  // namespace thinwire
