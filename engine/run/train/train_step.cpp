// The story of a step: forward and backward of every micro-batch, gradients reduced as they finish, one agreed
// decision, update.
#include "engine/run/train/train_step.h"

#include <cmath>
#include <vector>

#include "optim/clip.h"
#include "optim/lr_schedule.h"

namespace thinwire {

TrainStep::TrainStep(Replica& replica) : replica_(replica) {}

StepOutcome TrainStep::run(int micro_batches, const std::function<Batch()>& next_micro, TrainProgress& progress,
                           LossScaler& scaler, StepTimer& timer) {
  Replica& r = replica_;
  const Plan plan = one_stage_plan(micro_batches);
  StepOutcome outcome;
  outcome.loss_scale = scaler.scale();
  const float scale = static_cast<float>(outcome.loss_scale);
  r.write(r.buffers().dlogits_scale, &scale, sizeof scale);
  r.zero(r.buffers().loss_sum);
  std::vector<Ticket> reductions;

  for (const PlanNode& node : plan.nodes) {
    switch (node.kind) {
      case NodeKind::kForward: {
        Batch batch;
        {
          const auto t = timer.measure(StepPart::kData);
          batch = next_micro();
        }
        const auto t = timer.measure(StepPart::kForward);
        r.stage().forward(r.exec(), r.upload(batch, micro_batches, true), 0);
        progress.consumed_samples += batch.rows;
        progress.consumed_tokens += batch.rows * r.shape().length;
        break;
      }
      case NodeKind::kBackward: {
        const auto t = timer.measure(StepPart::kBackward);
        r.stage().backward(r.exec(), 0, [&](int unit) {
          if (!node.last) return;  // later micro-batches still add to this unit
          const Unit& u = r.store().layout().units[static_cast<size_t>(unit)];
          reductions.push_back(
              r.ports().dp.reduce_unit(unit, r.store().gradient_flat().element_range(u.first, u.count), r.stream()));
        });
        break;
      }
      case NodeKind::kReduce:
        for (Ticket& ticket : reductions) ticket.wait(r.stream());
        break;
      case NodeKind::kControl: {
        const auto t = timer.measure(StepPart::kOptimizer);
        control(outcome, progress, scaler);
        break;
      }
      case NodeKind::kOptimizer: {
        const auto t = timer.measure(StepPart::kOptimizer);
        update(outcome);
        break;
      }
      case NodeKind::kGather: {
        for (size_t u = 0; u < r.store().layout().units.size(); ++u)
          r.ports().zero.acquire(static_cast<int>(u), {}, r.stream()).wait(r.stream());
        break;
      }
      case NodeKind::kBackwardInput:
      case NodeKind::kBackwardWeight:
        TW_CHECK(false, "a one-stage plan does not split its backward");
        break;
    }
  }

  ++progress.step;
  if (outcome.skipped) {
    ++progress.skipped;
    ++progress.skipped_in_a_row;
  } else {
    ++progress.updates;
    progress.skipped_in_a_row = 0;
  }
  scaler.update(outcome.skipped);
  return outcome;
}

// All ranks decide the same: loss and squared norm are summed first, and everything below follows from those sums
// alone.
void TrainStep::control(StepOutcome& outcome, const TrainProgress& progress, LossScaler&) {
  Replica& r = replica_;
  const OptimConfig& optim = r.config().optim;
  r.zero(r.buffers().norm_squared);
  r.exec().ops.sum_squares(r.exec(), {r.store().gradient_flat(), r.buffers().norm_squared});
  r.ports().control.sum(r.buffers().norm_squared, r.stream()).wait(r.stream());
  r.ports().control.sum(r.buffers().loss_sum, r.stream()).wait(r.stream());
  outcome.loss = r.read_scalar(r.buffers().loss_sum);
  outcome.grad_norm = std::sqrt(r.read_scalar(r.buffers().norm_squared)) / outcome.loss_scale;
  outcome.lr = learning_rate(optim, progress.updates + 1);
  outcome.skipped = !std::isfinite(outcome.grad_norm) || !std::isfinite(outcome.loss);
  if (outcome.skipped) {
    outcome.non_finite = std::isfinite(outcome.grad_norm) ? "loss" : first_non_finite();
    return;
  }
  const double t = static_cast<double>(progress.updates + 1);
  StepState state;
  state.lr = static_cast<float>(outcome.lr);
  state.bias_correction1 = static_cast<float>(1.0 - std::pow(optim.beta1, t));
  state.bias_correction2 = static_cast<float>(1.0 - std::pow(optim.beta2, t));
  state.grad_scale = static_cast<float>(clip_coefficient(outcome.grad_norm, optim.clip) / outcome.loss_scale);
  state.loss_scale = static_cast<float>(outcome.loss_scale);
  state.weight_decay = static_cast<float>(optim.weight_decay);
  r.write(r.buffers().state, &state, sizeof state);
}

void TrainStep::update(const StepOutcome& outcome) {
  Replica& r = replica_;
  if (outcome.skipped) {
    r.zero(r.store().gradient_flat());  // a skipped step leaves no trace
    return;
  }
  r.optimizer().apply(r.exec(), r.buffers().state);  // reads each gradient once and leaves it zero
  r.store().bump_version();
}

std::string TrainStep::first_non_finite() {
  Replica& r = replica_;
  for (const ParamSpec& p : r.store().params()) {
    const View gradient = r.store().gradient(p.name);
    r.zero(r.buffers().norm_squared);
    r.exec().ops.sum_squares(r.exec(), {gradient.element_range(0, gradient.count()), r.buffers().norm_squared});
    if (!std::isfinite(r.read_scalar(r.buffers().norm_squared))) return p.name;
  }
  return "sum of gradients";  // every tensor is finite, their squares together are not
}

}  // namespace thinwire
