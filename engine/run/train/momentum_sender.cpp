// Finds a unit's momentum among the optimizer's pieces, and turns gradients into shares of the next momentum.
#include "engine/run/train/momentum_sender.h"

#include <algorithm>
#include <string>

#include "engine/base/core/check.h"

namespace thinwire {

MomentumSender::MomentumSender(const RunConfig& config, const ParamStore& store, const Optimizer& optimizer)
    : store_(store), optimizer_(optimizer), beta1_(config.optim.beta1) {
  warmup_ = 1;
  for (const SiteRule& rule : config.compression.at(Site::kDpGradient)) warmup_ = std::max(warmup_, rule.warmup_steps);
  TW_CHECK(config.optim.kind == OptimizerKind::kAdamW && optimizer.pieces().size() == store.owned().size());
}

void MomentumSender::begin(Exec& exec, int64_t updates, double loss_scale) {
  exec_ = &exec;
  loss_scale_ = loss_scale;
  active_ = updates >= warmup_;  // after a resume with a longer warm-up v follows again
}

void MomentumSender::transform(int unit, View gradient, int shares) {
  if (!active_) return;
  exec_->ops.axpy(*exec_, {.alpha = static_cast<float>(beta1_ * loss_scale_ / shares),
                           .x = momentum_of(unit, gradient.count()),
                           .y = gradient,
                           .beta = static_cast<float>(1.0 - beta1_)});
}

// Pieces are runs of the flat layout that may go on over several units.
View MomentumSender::momentum_of(int unit, int64_t count) const {
  const std::vector<Unit>& units = store_.layout().units;
  const int64_t first = units[static_cast<size_t>(unit)].first;
  for (size_t i = 0; i < store_.owned().size(); ++i) {
    const OwnedPiece& piece = store_.owned()[i];
    const int64_t at = first - (units[static_cast<size_t>(piece.unit)].first + piece.range.first);
    if (at >= 0 && at + count <= piece.range.count) return optimizer_.pieces()[i].m.element_range(at, count);
  }
  check_failed(__FILE__, __LINE__, "one piece holds the unit", "unit " + std::to_string(unit));
}

}  // namespace thinwire
