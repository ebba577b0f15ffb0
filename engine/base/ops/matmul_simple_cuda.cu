// A plain tiled product for what the library has no kernel for: every shape, alignment and mix of dtypes of
// ops.h.
#include "engine/base/ops/cuda_vector.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kTile = 32, kRowsPerThread = 4;  // a block of 32 x 8 threads makes a tile of 32 x 32

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
      a_tile[r][threadIdx.x] = row < m && ak < k ? widen(a[row * a_row + ak * a_k]) : 0.0f;
      const int64_t bk = k0 + r, col = first_col + threadIdx.x;
      b_tile[r][threadIdx.x] = bk < k && col < n ? widen(b[bk * b_k + col * b_col]) : 0.0f;
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
    if (bias != nullptr) value += widen(bias[col]);
    C& to = c[row * n + col];
    if (accumulate) value += widen(to);
    narrow(value, to);
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
  if (op.c.count() == 0) return;
  with_storage(op.a.dtype, [&](auto type) {
    using T = decltype(type);
    return op.c.dtype == DType::f32 ? launch<T, float>(op, stream_of(exec)) : launch<T, T>(op, stream_of(exec));
  });
}

}  // namespace thinwire
