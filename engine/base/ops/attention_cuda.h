// Causal attention by our own kernels: second implementation and oracle of the fused one, and the only one in fp32 and
// with dropout, on CUDA; contracts in ops.h. Heads of up to 256 elements.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void attention_forward_cuda(Exec& exec, const AttentionForward& op);
void attention_backward_cuda(Exec& exec, const AttentionBackward& op);

}  // namespace thinwire
