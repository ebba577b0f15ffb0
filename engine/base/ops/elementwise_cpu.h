// Element-by-element ops and column sums on the CPU; contracts in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

void residual_add_cpu(Exec& exec, const ResidualAdd& op);
void dropout_apply_cpu(Exec& exec, const DropoutApply& op);
void cast_cpu(Exec& exec, const Cast& op);
void axpy_cpu(Exec& exec, const Axpy& op);
void fill_constant_cpu(Exec& exec, const FillConstant& op);
void bias_gradient_cpu(Exec& exec, const BiasGradient& op);

}  // namespace thinwire
