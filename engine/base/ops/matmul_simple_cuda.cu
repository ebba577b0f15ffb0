// A plain tiled product for what the library has no kernel for: every shape, alignment and mix of dtypes of
// ops.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kTile = 32, kRowsPerThread = 4;  // a block of 32 x 8 threads makes a tile of 32 x 32

__device__ float widened(float v) {
  return v;
}
__device__ float widened(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
__device__ float widened(__half v) {
  return __half2float(v);
}
template <typename T>
__device__ T narrowed(float v) {
  if constexpr (sizeof(T) == 4)
    return v;
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(v);
  else
    return __float2bfloat16_rn(v);
}

// Element (row, k) of op(a) is a[row * a_row + k * a_k], element (k, col) of op(b) is b[k * b_k + col * b_col].
template <typename T, typename C>
__global__ void __launch_bounds__(256)
    product(const T* a, const T* b, const T* bias, C* c, int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t a_k,
            int64_t b_k, int64_t b_col, bool accumulate) {
  __shared__ float a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile,
                first_col = static_cast<int64_t>(blockIdx.x) * kTile;
  float sum[kRowsPerThread] = {};
  for (int64_t k0 = 0; k0 < k; k0 += kTile) {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int r = static_cast<int>(threadIdx.y) + i * 8;
      const int64_t row = first_row + r, ak = k0 + threadIdx.x;
      a_tile[r][threadIdx.x] = row < m && ak < k ? widened(a[row * a_row + ak * a_k]) : 0.0f;
      const int64_t bk = k0 + r, col = first_col + threadIdx.x;
      b_tile[r][threadIdx.x] = bk < k && col < n ? widened(b[bk * b_k + col * b_col]) : 0.0f;
    }
    __syncthreads();
    const int depth = static_cast<int>(k - k0 < kTile ? k - k0 : kTile);  // zeros past the end would turn Inf into NaN
    for (int j = 0; j < depth; ++j) {
      const float right = b_tile[j][threadIdx.x];
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) sum[i] += a_tile[threadIdx.y + i * 8][j] * right;
    }
    __syncthreads();
  }
  const int64_t col = first_col + threadIdx.x;
  if (col >= n) return;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = first_row + threadIdx.y + i * 8;
    if (row >= m) continue;
    float value = sum[i];
    if (bias != nullptr) value += widened(bias[col]);
    C& to = c[row * n + col];
    if (accumulate) value += widened(to);
    to = narrowed<C>(value);
  }
}

template <typename T, typename C>
void launch(const Matmul& op, cudaStream_t stream) {
  const int64_t m = op.c.shape[0], n = op.c.shape[1], k = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  const int64_t bands = (m + kTile - 1) / kTile;
  constexpr int64_t kMostBands = 65535;  // of a grid's second extent
  for (int64_t first = 0; first < bands; first += kMostBands) {
    const int64_t rows_before = first * kTile, here = bands - first < kMostBands ? bands - first : kMostBands;
    const dim3 grid(static_cast<unsigned>((n + kTile - 1) / kTile), static_cast<unsigned>(here)), block(kTile, 8);
    const int64_t a_row = op.trans_a ? 1 : k, a_k = op.trans_a ? m : 1, b_k = op.trans_b ? 1 : n,
                  b_col = op.trans_b ? k : 1;
    product<T, C><<<grid, block, 0, stream>>>(static_cast<const T*>(op.a.data) + rows_before * a_row,
                                              static_cast<const T*>(op.b.data), static_cast<const T*>(op.bias.data),
                                              static_cast<C*>(op.c.data) + rows_before * n, m - rows_before, n, k,
                                              a_row, a_k, b_k, b_col, op.accumulate);
    TW_CUDA_LAUNCHED("matmul_simple", stream);
  }
}

}  // namespace

void matmul_simple_cuda(Exec& exec, const Matmul& op) {
  const cudaStream_t stream = stream_of(exec);
  if (op.c.count() == 0) return;
  const bool wide = op.c.dtype == DType::f32;
  switch (op.a.dtype) {
    case DType::f32:
      return launch<float, float>(op, stream);
    case DType::bf16:
      return wide ? launch<__nv_bfloat16, float>(op, stream) : launch<__nv_bfloat16, __nv_bfloat16>(op, stream);
    case DType::f16:
      return wide ? launch<__half, float>(op, stream) : launch<__half, __half>(op, stream);
    default:
      TW_CHECK(false, "matmul of ", name_of(op.a.dtype));
  }
}

}  // namespace thinwire
