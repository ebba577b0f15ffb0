// Blocks of coded and plain updates in turn, and one comparison.
#include "engine/run/train/coding_controller.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace thinwire {
namespace {

// Plain updates would take so much longer that trying them is a waste.
constexpr double kHopeless = 1.3;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

CodingController::CodingController(bool enabled, Mesh* mesh, Control& control)
    : enabled_(enabled && mesh != nullptr), mesh_(mesh), control_(&control) {}

// Behind the warm-up: coded, plain, coded, plain.
bool CodingController::plain_now() const {
  const int64_t since = seen_ - kWarmUp;
  return since >= 0 && since / kBlock % 2 == 1;
}

void CodingController::apply() {
  const bool off = decided_ != 0 ? off_ != 0 : plain_now();
  mesh_->clock().off.fill(off);
}

void CodingController::before() {
  if (enabled_) apply();
}

// Of this rank's sends while all ranks send: the second of two sums, long enough to see through a shaper's burst.
double CodingController::measure_bytes_per_ms() {
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

std::string CodingController::after(double step_ms, int64_t update, int64_t logical_bytes) {
  if (!enabled_ || decided_ != 0) return "";
  const int64_t since = seen_ - kWarmUp;
  const bool was_plain = plain_now();
  ++seen_;
  if (since < 0) return "";
  // All ranks compare the slowest rank's times: equal numbers, equal decisions.
  const double ms = static_cast<double>(control_->agree_max(static_cast<int64_t>(step_ms * 1e3))) * 1e-3;
  if (since % kBlock > 0)
    (was_plain ? plain_ms_ : coded_ms_).push_back(ms);  // the first of a block still sees the other kind
  char text[200];
  if (since == kBlock - 1) {
    const double plain_wire = static_cast<double>(control_->agree_max(logical_bytes)) / measure_bytes_per_ms();
    if (plain_wire > kHopeless * median(coded_ms_)) {
      decided_ = 1, off_ = 0, revised_at_ = update;
      std::snprintf(text, sizeof text,
                    "compression stays on: coded updates take %.1f ms, the plain wire alone would take about %.1f ms",
                    median(coded_ms_), plain_wire);
      return text;
    }
  }
  if (since + 1 < 2 * kRounds * kBlock) return "";
  decided_ = 1, off_ = median(plain_ms_) <= median(coded_ms_) ? 1 : 0, revised_at_ = update;
  std::snprintf(text, sizeof text,
                "plan revision after update %lld: compression %s (coded updates take %.1f ms, plain ones %.1f ms)",
                static_cast<long long>(update), off_ != 0 ? "off" : "stays on", median(coded_ms_), median(plain_ms_));
  return text;
}

void CodingController::visit(StateVisitor& visitor) {
  if (!enabled_) return;
  visitor.integer("revision/decided", decided_);
  visitor.integer("revision/off", off_);
  visitor.integer("revision/update", revised_at_);
}

}  // namespace thinwire
