// The embedding table, on CUDA; contracts in ops.h. A token outside of the vocabulary, which only the device sees, sets
// a bit of the fault word (cuda_state.h), reads as zero and adds nothing.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void embedding_forward_cuda(Exec& exec, const EmbeddingForward& op);
void embedding_backward_cuda(Exec& exec, const EmbeddingBackward& op);

}  // namespace thinwire
