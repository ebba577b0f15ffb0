// The loss scale of fp16 training: static, or dynamic with window, hysteresis and minimum (DeepSpeed's rules).
#pragma once

#include <cstdint>

#include "engine/base/core/state_visitor.h"
#include "optim/optim_config.h"

namespace thinwire {

// Dynamic: an overflow uses up one unit of hysteresis; when none is left the scale halves (not below the minimum).
// After `window` steps in a row without overflow since the last one the scale doubles and hysteresis is refilled. At
// the minimum an overflow changes nothing: the budget of skipped steps in a row is what ends a run that cannot go on.
class LossScaler {
 public:
  // `active`: fp16. Otherwise the scale is 1 for ever.
  LossScaler(const OptimConfig& config, bool active);

  double scale() const { return scale_; }
  void update(bool overflow);
  // Loading changes a dynamic scale alone, and not beyond the minimum and the hysteresis of this configuration: these
  // keys may change from one job of a run to the next.
  void visit(StateVisitor& visitor);

 private:
  bool dynamic_;
  double minimum_;
  int64_t window_, full_hysteresis_;
  double scale_ = 1.0;
  int64_t hysteresis_left_, clean_updates_ = 0;
};

}  // namespace thinwire
