// Softmax cross entropy, on CUDA; contracts in ops.h. A target outside of the valid columns, which only the device
// sees, sets a bit of the fault word (cuda_state.h) and makes its row's loss NaN.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void cross_entropy_cuda(Exec& exec, const CrossEntropy& op);
void vocab_statistics_cuda(Exec& exec, const VocabStatistics& op);
void vocab_loss_cuda(Exec& exec, const VocabLoss& op);

}  // namespace thinwire
