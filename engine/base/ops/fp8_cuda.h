// Rounding a matrix to fp8 by one scale, as operand of a product.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/base/core/view.h"
#include "engine/base/ops/matmul_plans_cuda.h"

namespace thinwire {

inline constexpr int kFp8Words = 8, kFp8Factor = 4;  // the factor stands on 16 bytes

// Queues: to[c, r] (transposed) or to[r, c] = fp8(x[r, c] * scale) with scale = largest of the format / largest |x|,
// and words[kFp8Factor] = 1 / scale as fp32, which products multiply by. words: kFp8Words of scratch, on 16 bytes. x:
// bf16 or fp16; rows and columns are multiples of 16. What is not finite in x makes all of the product NaN (law 8): a
// scale of 0 or NaN, never a clamped number. All zeros have scale 1. Bits do not depend on timing: a maximum has no
// order.
void queue_fp8(const View& x, bool transposed, Fp8Kind kind, std::byte* to, uint32_t* words, cudaStream_t stream);

}  // namespace thinwire
