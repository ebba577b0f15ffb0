// GELU and SwiGLU on the CPU; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void gelu_forward_cpu(Exec& exec, const GeluForward& op);
void gelu_backward_cpu(Exec& exec, const GeluBackward& op);
void swiglu_forward_cpu(Exec& exec, const SwigluForward& op);
void swiglu_backward_cpu(Exec& exec, const SwigluBackward& op);

}  // namespace thinwire
