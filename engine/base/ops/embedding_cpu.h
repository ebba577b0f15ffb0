// The embedding table on the CPU; contracts in ops.h. A token outside the table is a CHECK failure.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void embedding_forward_cpu(Exec& exec, const EmbeddingForward& op);
void embedding_backward_cpu(Exec& exec, const EmbeddingBackward& op);

}  // namespace thinwire
