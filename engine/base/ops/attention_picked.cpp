// Which attention runs: the fused one where it takes the shape, else our own kernels.
#include "engine/base/ops/attention_cuda.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/cuda_state.h"

namespace thinwire {

void attention_forward_picked(Exec& exec, const AttentionForward& op) {
  FusedAttention* fused = state_of(exec).fused_attention();
  if (fused == nullptr || !fused->forward(exec, op)) attention_forward_cuda(exec, op);
}

void attention_backward_picked(Exec& exec, const AttentionBackward& op) {
  FusedAttention* fused = state_of(exec).fused_attention();
  if (fused == nullptr || !fused->backward(exec, op)) attention_backward_cuda(exec, op);
}

}  // namespace thinwire
