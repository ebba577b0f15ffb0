// Matrix products on CUDA; contract in ops.h.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

// c = op(a) op(b) (+ bias) (+ c), see Matmul in ops.h. cuBLASLt with fp32 accumulation (fp32 inputs multiply as fp32:
// TF32 is never asked for), the bias in its epilogue. What the library has no kernel for (K = 0, odd alignments, a
// 16-bit bias over an fp32 result) goes through matmul_simple_cuda. M = 0 or N = 0 does nothing. c aliases nothing.
// The same call gives the same bits (unless Exec::deterministic is false): the algorithm is fixed per shape
// (matmul_plans_cuda.h), and sums that it splits are put together in a fixed order.
void matmul_cuda(Exec& exec, const Matmul& op);

// The same contract without the fused GELU forms by a plain tiled kernel of ours: the fallback, and an oracle for
// tests. Sums run over k in ascending order with one accumulator.
void matmul_simple_cuda(Exec& exec, const Matmul& op);

}  // namespace thinwire
