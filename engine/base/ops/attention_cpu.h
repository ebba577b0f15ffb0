// Attention on CPU: checks, and how the work is dealt out to threads (contract in ops.h).
#pragma once

#include <cstdint>

#include "engine/base/ops/ops.h"

namespace thinwire {

// q, k, v (and dq, dk, dv) share one dtype: fp32, bf16 or fp16. Arithmetic is fp32; with AVX512-BF16, bf16 operands, P
// and dS enter the products as bf16 with fp32 sums, as flash attention does on GPUs. The bits do not depend on the
// number of threads. CHECKs: kv_len >= q_len >= 0, positive heads and head_dim, sizes of out, dout and lse, and that
// every head that the layouts address lies inside its view. dq, dk and dv may share memory with one another
// (interleaved), not with the inputs.
void attention_forward_cpu(Exec& exec, const AttentionForward& op);
void attention_backward_cpu(Exec& exec, const AttentionBackward& op);

// Bytes of scratch that a call takes from the Exec; grows with the number of threads, at most linearly with kv_len.
int64_t attention_forward_scratch(const AttentionForward& op, int threads);
int64_t attention_backward_scratch(const AttentionBackward& op, int threads);

}  // namespace thinwire
