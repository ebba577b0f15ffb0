// Column sums in a fixed order: partial rows of sums, one per block of rows, and the kernel that adds them up.
#pragma once

#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

// out[c] += partials[0][c] + partials[1][c] + ... for c < cols; partial p starts at partials + p * stride. Pieces of
// neighbouring partials are added first, then the pieces in order: the order depends on `parts` alone. Defined in
// elementwise_cuda.cu.
void add_partials_cuda(CudaQueue& queue, float* out, const float* partials, int64_t stride, int64_t parts,
                       int64_t cols);

}  // namespace thinwire
