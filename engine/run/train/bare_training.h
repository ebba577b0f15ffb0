// Training without a session: steps one after the other, nothing saved, logged or resumed. What is measured or
// compared runs this way.
#pragma once

#include <functional>

#include "engine/run/train/train_step.h"

namespace thinwire {

struct BareTraining {
  // Goes on from the weights that `replica` has; it outlives this.
  explicit BareTraining(Replica& replica)
      : step(replica), scaler(replica.config().optim, replica.config().model.dtype == DType::f16) {}

  // TrainStep::run with what is carried from one step to the next.
  StepOutcome take_step(int micro_batches, const std::function<Batch()>& next_micro) {
    return step.run(micro_batches, next_micro, progress, scaler, timer);
  }

  TrainStep step;
  TrainProgress progress;
  LossScaler scaler;
  StepTimer timer;
};

}  // namespace thinwire
