// State machine of the dynamic loss scale.
#include "optim/loss_scaler.h"

#include <algorithm>

namespace thinwire {

LossScaler::LossScaler(const OptimConfig& config, bool active)
    : dynamic_(active && config.dynamic_loss_scale),
      minimum_(config.min_loss_scale),
      window_(config.loss_scale_window),
      full_hysteresis_(std::max<int64_t>(1, config.hysteresis)),
      scale_(active ? config.loss_scale : 1.0),
      hysteresis_left_(full_hysteresis_) {}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    clean_updates_ = 0;
    if (hysteresis_left_ > 1) {
      --hysteresis_left_;
    } else {
      scale_ = std::max(minimum_, scale_ / 2.0);
    }
    return;
  }
  if (++clean_updates_ % window_ == 0) {
    hysteresis_left_ = full_hysteresis_;
    scale_ = std::min(scale_ * 2.0, 0x1p100);
  }
}

void LossScaler::visit(StateVisitor& visitor) {
  double scale = scale_;
  int64_t hysteresis_left = hysteresis_left_, clean_updates = clean_updates_;
  visitor.real("loss_scaler/scale", scale);
  visitor.integer("loss_scaler/hysteresis_left", hysteresis_left);
  visitor.integer("loss_scaler/clean_updates", clean_updates);
  if (!dynamic_) return;  // the configuration's scale, whatever the run before had
  scale_ = std::max(minimum_, scale);
  hysteresis_left_ = std::min(full_hysteresis_, hysteresis_left);
  clean_updates_ = clean_updates;
}

}  // namespace thinwire
