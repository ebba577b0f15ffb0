// GELU and SwiGLU, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void gelu_forward_cuda(Exec& exec, const GeluForward& op);
void gelu_backward_cuda(Exec& exec, const GeluBackward& op);
void swiglu_forward_cuda(Exec& exec, const SwigluForward& op);
void swiglu_backward_cuda(Exec& exec, const SwigluBackward& op);

}  // namespace thinwire
