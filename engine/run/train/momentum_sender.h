// 1-bit Adam's half of the hook in parallel/zero/sent_value.h: ranks send their shares of the new momentum.
#pragma once

#include <cstdint>

#include "engine/base/ops/ops.h"
#include "engine/run/config/run_config.h"
#include "model/param_store.h"
#include "optim/optimizer.h"
#include "parallel/zero/sent_value.h"

namespace thinwire {

// compression.sends = momentum. The first dp.gradient.warmup_steps steps, at least one, are plain AdamW. From then on
// a rank of N sends beta1 * s * m / N + (1 - beta1) * g (g: its share of the mean gradient, times the loss scale s),
// through the same channels, coders and residuals as gradients. The sum, divided by s, is the new m on every rank; v
// and its bias correction stay those of the last plain step, m's correction goes on (MomentSteps in optimizer.h).
// Gradients are not clipped any more: there is no sum of gradients to take a norm of, and the norm that is reported is
// the momentum's.
//
// Every unit takes part, the tied embedding of two stages too (its 2 N holders send shares of 1 / 2 N each, whatever
// the rule of site embedding does with them): so all layouts train alike, and the variance is frozen everywhere at one
// step. Source: 1-bit Adam (Tang et al., 2021); the bound on steps is ours (kMomentumLimit in ops.h): the published
// code needs a hand-made mask for parameters whose gradient is always zero, or they are thrown out by scale / eps.
class MomentumSender final : public SentValue {
 public:
  // store and optimizer outlive this.
  MomentumSender(const RunConfig& config, const ParamStore& store, const Optimizer& optimizer);

  // Before a step. steps: applied so far.
  void begin(Exec& exec, int64_t updates, double loss_scale);
  bool active() const { return active_; }
  Summed summed() const { return active_ ? Summed::kMomentum : Summed::kGradient; }

  void transform(int unit, View gradient, int shares) override;

 private:
  View momentum_of(int unit, int64_t count) const;

  const ParamStore& store_;
  const Optimizer& optimizer_;
  double beta1_;
  int64_t warmup_ = 0;
  // of the step at hand
  Exec* exec_ = nullptr;
  double loss_scale_ = 1.0;
  bool active_ = false;
};

}  // namespace thinwire
