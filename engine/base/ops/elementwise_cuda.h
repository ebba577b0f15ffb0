// Element-by-element ops and column sums, on CUDA; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void residual_add_cuda(Exec& exec, const ResidualAdd& op);
void dropout_apply_cuda(Exec& exec, const DropoutApply& op);
void cast_cuda(Exec& exec, const Cast& op);
void axpy_cuda(Exec& exec, const Axpy& op);
void fill_constant_cuda(Exec& exec, const FillConstant& op);
void bias_gradient_cuda(Exec& exec, const BiasGradient& op);

}  // namespace thinwire
