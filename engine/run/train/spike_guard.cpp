// Median, MAD, and the losses as text for a checkpoint.
#include "engine/run/train/spike_guard.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/base/core/text.h"

namespace thinwire {
namespace {

constexpr double kDeviation = 1.4826;  // of a normal distribution, in MADs
constexpr double kLeastSpread = 0.01;  // of the median
constexpr int64_t kLeastLosses = 8;

double median_of(std::vector<double> values) {
  const size_t half = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(half), values.end());
  if (values.size() % 2 == 1) return values[half];
  return (*std::max_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(half)) + values[half]) / 2.0;
}

}  // namespace

SpikeVerdict SpikeGuard::judge(double loss) {
  SpikeVerdict v;
  if (config_.action == SpikeAction::kOff) return v;
  if (static_cast<int64_t>(losses_.size()) >= std::max(kLeastLosses, config_.window / 4)) {
    v.median = median_of(losses_);
    std::vector<double> distances;
    for (const double past : losses_) distances.push_back(std::abs(past - v.median));
    const double spread = std::max(kDeviation * median_of(std::move(distances)), kLeastSpread * std::abs(v.median));
    v.spreads = spread > 0.0 ? (loss - v.median) / spread : 0.0;
    v.spike = v.spreads > config_.threshold;
  }
  if (!v.spike || config_.action == SpikeAction::kWarn) {
    skipped_in_a_row_ = 0;
  } else if (skipped_in_a_row_ < config_.budget) {
    ++skipped_in_a_row_;
    v.skip = true;
    return v;
  } else {
    v.shift = true;
    skipped_in_a_row_ = 0;
    losses_.clear(), next_ = 0;
  }
  remember(loss);
  return v;
}

void SpikeGuard::remember(double loss) {
  if (static_cast<int64_t>(losses_.size()) < config_.window) return losses_.push_back(loss);
  losses_[static_cast<size_t>(next_)] = loss;
  next_ = (next_ + 1) % config_.window;
}

// As text from the oldest on, to the last bit. A window that was made shorter keeps the newest.
void SpikeGuard::visit(StateVisitor& visitor) {
  if (config_.action == SpikeAction::kOff) return;
  std::string text;
  for (size_t i = 0; i < losses_.size(); ++i)
    text += printed("%a ", losses_[(static_cast<size_t>(next_) + i) % losses_.size()]);
  const std::string before = text;
  visitor.text("spike/losses", text);
  visitor.integer("spike/skipped_in_a_row", skipped_in_a_row_);
  if (text == before) return;
  losses_.clear(), next_ = 0;
  const char* at = text.c_str();
  for (char* end = nullptr;; at = end) {
    const double loss = std::strtod(at, &end);
    if (end == at) break;
    losses_.push_back(loss);
  }
  const auto extra = static_cast<int64_t>(losses_.size()) - config_.window;
  if (extra > 0) losses_.erase(losses_.begin(), losses_.begin() + extra);
}

}  // namespace thinwire
