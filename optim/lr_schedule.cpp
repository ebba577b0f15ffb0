// The formulas of lr_schedule.h.
#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr double kPi = 3.14159265358979323846;

double wsd_factor(WsdDecay kind, double z) {
  switch (kind) {
    case WsdDecay::kLinear:
      return 1.0 - z;
    case WsdDecay::kCosine:
      return 0.5 * (std::cos(kPi * z) + 1.0);
    case WsdDecay::kExponential:
      return 2.0 * std::pow(0.5, z) - 1.0;
    case WsdDecay::kMinusSqrt:
      return 1.0 - std::sqrt(z);
  }
  return 0.0;
}

}  // namespace

double learning_rate(const OptimConfig& c, int64_t finished) {
  TW_CHECK(finished >= 0);
  const bool neox = c.warmup_convention == WarmupConvention::kNeox;
  const double t = static_cast<double>(neox ? std::max<int64_t>(1, finished) : finished);
  const double w = static_cast<double>(c.warmup_iters), d = static_cast<double>(c.decay_iters);
  if (w > 0.0 && t <= w) {
    const double init = neox ? 0.0 : c.warmup_init;
    return init + (c.lr - init) * t / w;
  }
  if (c.decay == LrDecay::kConstant) return c.lr;
  if (t > d) return c.min_lr;
  if (c.decay == LrDecay::kInverseSqrt)
    return std::max(c.min_lr, c.lr * std::sqrt(std::max(w, 1.0) / std::max(t, 1.0)));
  if (d <= w) return c.min_lr;
  const double x = (t - w) / (d - w);
  double factor = 1.0;
  switch (c.decay) {
    case LrDecay::kLinear:
      factor = 1.0 - x;
      if (neox) return std::max(c.min_lr, factor * c.lr);
      break;
    case LrDecay::kCosine:
      factor = 0.5 * (std::cos(kPi * x) + 1.0);
      break;
    case LrDecay::kWsd: {
      const double tail = static_cast<double>(c.wsd_decay_iters), start = d - tail;
      factor = t <= start || tail <= 0.0 ? 1.0 : wsd_factor(c.wsd_decay, (t - start) / tail);
      break;
    }
    case LrDecay::kConstant:
    case LrDecay::kInverseSqrt:
      break;
  }
  return c.min_lr + factor * (c.lr - c.min_lr);
}

}  // namespace thinwire
