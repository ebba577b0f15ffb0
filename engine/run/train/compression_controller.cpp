// Blocks of steps each way in turn, and one comparison.
#include "engine/run/train/compression_controller.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace thinwire {
namespace {

// Plain steps would take so much longer that trying them is a waste.
constexpr double kHopeless = 1.3;
// Medians of six steps, two rounds, tell ways apart that differ by so much; on a noisy machine not those that are
// closer, for which it takes more.
constexpr double kClose = 0.05;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

CompressionController::CompressionController(bool enabled, int variants, int64_t begin, Mesh* mesh, Control& control)
    : enabled_(enabled && mesh != nullptr), begin_(begin), mesh_(mesh), control_(&control), ways_{kCoded} {
  for (int v = 1; v < variants; ++v) ways_.push_back(static_cast<Way>(kPlain + v));
  ways_.push_back(kPlain);
  tried_ = ways_;
}

CompressionController::Way CompressionController::way_now() const {
  if (decided_ != 0) return static_cast<Way>(way_);
  const int64_t since = std::max<int64_t>(0, seen_ - kWarmUp);
  return tried_[static_cast<size_t>((since - round_began_) / kBlock)];
}

void CompressionController::before() {
  if (!enabled_) return;
  mesh_->clock().off.fill(way_now() == kPlain);
  mesh_->clock().variant = std::max(0, static_cast<int>(way_now() - kPlain));
}

// Of this rank's sends while all ranks send: the second of two sums, long enough to see through a shaper's burst.
double CompressionController::measure_bytes_per_ms() {
  constexpr int64_t kCount = 256 << 10;
  std::vector<double> values(static_cast<size_t>(kCount), 1.0);
  HostStream stream;
  double ms = 0.0;
  for (int round = 0; round < 2; ++round) {
    control_->barrier();
    const auto start = std::chrono::steady_clock::now();
    control_->sum(View(values.data(), DType::f64, {kCount}), stream).wait(stream);
    ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  const double ranks = control_->size();
  const double slowest = static_cast<double>(control_->agree_max(static_cast<int64_t>(ms * 1e3) + 1)) * 1e-3;
  return 2.0 * (ranks - 1.0) / ranks * static_cast<double>(kCount) * sizeof(double) / slowest;
}

std::string CompressionController::after(double step_ms, int64_t step, int64_t logical_bytes) {
  if (!enabled_ || decided_ != 0 || step <= begin_) return "";
  const int64_t since = seen_ - kWarmUp;
  const Way was = way_now();
  ++seen_;
  if (since < 0) return "";
  // All ranks compare the slowest rank's times: equal numbers, equal decisions.
  const double ms = static_cast<double>(control_->agree_max(static_cast<int64_t>(step_ms * 1e3))) * 1e-3;
  if (since % kBlock > 0) ms_[was].push_back(ms);  // the first of a block still sees another way
  if (since == kBlock - 1) {
    const double plain_wire = static_cast<double>(control_->agree_max(logical_bytes)) / measure_bytes_per_ms();
    if (plain_wire > kHopeless * median_of(kCoded)) tried_.pop_back();
    if (tried_.size() == 1) {
      decided_ = 1, revised_at_ = step;
      char text[200];
      std::snprintf(
          text, sizeof text,
          "compression stays on: compressed steps take %.1f ms, the plain wire alone would take about %.1f ms",
          median_of(kCoded), plain_wire);
      return text;
    }
  }
  if (since + 1 - round_began_ < kBlock * static_cast<int64_t>(tried_.size())) return "";
  ++round_, round_began_ = since + 1;
  if (round_ < kRounds) return "";
  leave_out_the_slow();
  return tried_.size() > 1 && round_ < kMostRounds ? "" : decide(step);
}

double CompressionController::median_of(Way way) const {
  return median(ms_.at(way));
}

void CompressionController::leave_out_the_slow() {
  double least = median_of(tried_.front());
  for (const Way way : tried_) least = std::min(least, median_of(way));
  const double close = 1.0 + kClose * std::sqrt(static_cast<double>(kRounds) / round_);
  std::erase_if(tried_, [&](Way way) { return median_of(way) > close * least; });
}

std::string CompressionController::decide(int64_t step) {
  constexpr const char* kNames[] = {"compressed", "plain", "lightly compressed"};
  constexpr const char* kVerdicts[] = {"stays on", "off", "light"};
  const auto word = [](int64_t way) { return static_cast<size_t>(std::min<int64_t>(way, 2)); };
  std::string times;
  double least = 0.0;
  for (const Way way : ways_) {
    if (ms_.count(way) == 0) continue;
    const double ms = median_of(way);
    // What was left out was measured in other minutes.
    const bool tried = std::find(tried_.begin(), tried_.end(), way) != tried_.end();
    if (tried && (least == 0.0 || ms <= least)) least = ms, way_ = way;
    char text[80];
    std::snprintf(text, sizeof text, "%s%s steps take %.1f ms", times.empty() ? "" : ", ", kNames[word(way)], ms);
    times += text;
  }
  decided_ = 1, revised_at_ = step;
  return "plan revision after step " + std::to_string(step) + ": compression " + kVerdicts[word(way_)] + " (" + times +
         ")";
}

void CompressionController::visit(StateVisitor& visitor) {
  if (!enabled_) return;
  visitor.integer("revision/decided", decided_);
  visitor.integer("revision/way", way_);
  visitor.integer("revision/update", revised_at_);
}

}  // namespace thinwire
