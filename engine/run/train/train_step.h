// One update: the story of a step, told by walking its plan.
#pragma once

#include <functional>
#include <string>

#include "engine/run/train/replica.h"
#include "engine/run/train/step_timer.h"
#include "optim/loss_scaler.h"
#include "parallel/schedule/plan.h"

namespace thinwire {

struct StepOutcome {
  double loss = 0.0;       // mean over micro-batches of the mean token loss
  double grad_norm = 0.0;  // global L2 norm before clipping, without the loss scale
  double lr = 0.0;
  double loss_scale = 1.0;  // that this step used
  bool skipped = false;     // non-finite: nothing was updated
  std::string non_finite;   // name of the first tensor whose gradient is not finite, or "loss"
};

// Progress of training that is state: goes into every checkpoint.
struct TrainProgress {
  int64_t step = 0;     // updates attempted, skipped ones included
  int64_t updates = 0;  // updates applied: what the schedule and Adam's bias correction count
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped = 0;  // in total
  int64_t skipped_in_a_row = 0;
};

class TrainStep {
 public:
  explicit TrainStep(Replica& replica);

  // Runs one update. next_micro() gives the micro-batches in consumption order.
  StepOutcome run(int micro_batches, const std::function<Batch()>& next_micro, TrainProgress& progress,
                  LossScaler& scaler, StepTimer& timer);

 private:
  void control(StepOutcome& outcome, const TrainProgress& progress, LossScaler& scaler);
  void update(const StepOutcome& outcome);
  std::string first_non_finite();

  Replica& replica_;
};

}  // namespace thinwire
