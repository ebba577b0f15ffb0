// Matrix products on CPU (contract in ops.h).
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

// c = op(a) op(b) (+ bias) (+ c), see Matmul in ops.h. K = 0 gives the bias (or 0); M = 0 or N = 0 does nothing. c
// aliases nothing.
//
// fp32, and bf16 on machines with AVX-512-bf16, run natively (tiled_product.h); there subnormal bf16 inputs count as
// zero, the rule of the instruction. fp16, and bf16 on older machines, are widened to fp32 in cache-sized pieces and
// rounded once at the end. Bits do not depend on exec.threads. The first call with a combination of shapes, dtypes,
// flags and threads makes primitives and grows scratch in the Exec's CpuOpState; later calls make nothing. `b_version`
// is not used: packing ahead gains nothing here.
void matmul_cpu(Exec& exec, const Matmul& op);

}  // namespace thinwire
