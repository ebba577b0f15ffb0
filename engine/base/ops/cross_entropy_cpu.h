// Softmax cross entropy on the CPU; contract in ops.h. A target outside the valid columns is a CHECK failure (unless
// its row has weight 0: its target is not read).
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void cross_entropy_cpu(Exec& exec, const CrossEntropy& op);
// The target may be any column of the vocabulary.
void vocab_statistics_cpu(Exec& exec, const VocabStatistics& op);
void vocab_loss_cpu(Exec& exec, const VocabLoss& op);

}  // namespace thinwire
