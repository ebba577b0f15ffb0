// The largest magnitude of a matrix, and its elements as fp8, as they lie, transposed, or both.
#include <cuda_fp8.h>

#include <algorithm>

#include "engine/base/ops/cuda_vector.h"
#include "engine/base/ops/matmul_plans_cuda.h"

namespace thinwire {
namespace {

constexpr int kThreads = 256, kWidth = 8, kTile = 64;

// 16 bytes: eight numbers.
template <typename T>
struct alignas(16) Eight {
  T v[kWidth];
};

// Bits of non-negative floats are ordered as the floats are, with NaN above infinity: the maximum keeps both.
template <typename T>
__global__ void __launch_bounds__(kThreads) largest_magnitude(const T* x, int64_t count, unsigned* word) {
  unsigned most = 0;
  const int64_t eights = count / kWidth, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < eights; i += step) {
    const Eight<T> e = reinterpret_cast<const Eight<T>*>(x)[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = max(most, __float_as_uint(fabsf(widen(e.v[j]))));
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) atomicMax(word, most);
}

template <__nv_fp8_interpretation_t kFormat>
__device__ float scale_of(unsigned word) {
  constexpr float kLargest = kFormat == __NV_E4M3 ? 448.0f : 57344.0f;
  const float largest = __uint_as_float(word);
  // Below this the quotient would overflow: such a tensor is zero for all that a product can show.
  return largest < 1e-30f ? 1.0f : kLargest / largest;  // NaN for NaN; 0 for infinity, and infinity times 0 is NaN
}

// The factor that undoes the scaling. Where something was infinite it is infinite: zeros times it are NaN.
template <__nv_fp8_interpretation_t kFormat>
__device__ void write_factor(uint32_t* words) {
  reinterpret_cast<float*>(words)[kFp8Factor] = 1.0f / scale_of<kFormat>(words[0]);
}

template <__nv_fp8_interpretation_t kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    rounded(const T* x, int64_t count, __nv_fp8_storage_t* to, uint32_t* words) {
  const float scale = scale_of<kFormat>(words[0]);
  if (blockIdx.x == 0 && threadIdx.x == 0) write_factor<kFormat>(words);
  const int64_t eights = count / kWidth, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < eights; i += step) {
    const Eight<T> e = reinterpret_cast<const Eight<T>*>(x)[i];
    union {
      __nv_fp8_storage_t bytes[kWidth];
      uint2 word;
    } out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      out.bytes[j] = __nv_cvt_float_to_fp8(widen(e.v[j]) * scale, __NV_SATFINITE, kFormat);
    reinterpret_cast<uint2*>(to)[i] = out.word;
  }
}

// A block turns tiles of 64 x 64: rows are read 128 bytes at a time and written 64 bytes at a time. lying: the same as
// it lies, where it is wanted too.
template <__nv_fp8_interpretation_t kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    rounded_transposed(const T* x, int64_t rows, int64_t cols, __nv_fp8_storage_t* to, __nv_fp8_storage_t* lying,
                       uint32_t* words) {
  __shared__ __nv_fp8_storage_t tile[kTile][kTile + 4];
  const float scale = scale_of<kFormat>(words[0]);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) write_factor<kFormat>(words);
  const int64_t first_col = static_cast<int64_t>(blockIdx.x) * kTile,
                first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int part = static_cast<int>(threadIdx.x) % (kTile / kWidth) * kWidth,
            line = static_cast<int>(threadIdx.x) / (kTile / kWidth);
  for (int r = line; r < kTile; r += kThreads / (kTile / kWidth)) {
    const int64_t row = first_row + r, col = first_col + part;
    if (row >= rows || col >= cols) continue;  // columns come in multiples of 16: an eight is inside or outside
    const Eight<T> e = *reinterpret_cast<const Eight<T>*>(x + row * cols + col);
    union {
      __nv_fp8_storage_t bytes[kWidth];
      uint2 word;
    } out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      tile[part + j][r] = out.bytes[j] = __nv_cvt_float_to_fp8(widen(e.v[j]) * scale, __NV_SATFINITE, kFormat);
    if (lying != nullptr) *reinterpret_cast<uint2*>(lying + row * cols + col) = out.word;
  }
  __syncthreads();
  const int quad = static_cast<int>(threadIdx.x) % (kTile / 4) * 4,
            column = static_cast<int>(threadIdx.x) / (kTile / 4);
  for (int c = column; c < kTile; c += kThreads / (kTile / 4)) {
    const int64_t row = first_row + quad, col = first_col + c;
    if (row >= rows || col >= cols) continue;
    *reinterpret_cast<uchar4*>(to + col * rows + row) =
        make_uchar4(tile[c][quad], tile[c][quad + 1], tile[c][quad + 2], tile[c][quad + 3]);
  }
}

template <__nv_fp8_interpretation_t kFormat, typename T>
void queue(const View& x, const Fp8Copy& to, cudaStream_t stream) {
  const T* from = static_cast<const T*>(x.data);
  auto *lying = reinterpret_cast<__nv_fp8_storage_t*>(to.lying),
       *turned = reinterpret_cast<__nv_fp8_storage_t*>(to.turned);
  const int64_t rows = x.shape[0], cols = x.shape[1], count = rows * cols;
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(count / kWidth / kThreads / 4, 1, 2048));
  TW_CUDA(cudaMemsetAsync(to.words, 0, kFp8Words * sizeof(uint32_t), stream));
  largest_magnitude<T><<<blocks, kThreads, 0, stream>>>(from, count, to.words);
  TW_CUDA_LAUNCHED("fp8 largest magnitude", stream);
  if (turned != nullptr) {
    const dim3 grid(static_cast<unsigned>((cols + kTile - 1) / kTile),
                    static_cast<unsigned>((rows + kTile - 1) / kTile));
    rounded_transposed<kFormat, T><<<grid, kThreads, 0, stream>>>(from, rows, cols, turned, lying, to.words);
  } else {
    rounded<kFormat, T><<<blocks, kThreads, 0, stream>>>(from, count, lying, to.words);
  }
  TW_CUDA_LAUNCHED("fp8 rounding", stream);
}

}  // namespace

void queue_fp8(const View& x, Fp8Kind kind, const Fp8Copy& to, cudaStream_t stream) {
  const bool e4m3 = kind == Fp8Kind::kE4m3;
  if (x.dtype == DType::bf16)
    return e4m3 ? queue<__NV_E4M3, Bf16>(x, to, stream) : queue<__NV_E5M2, Bf16>(x, to, stream);
  TW_CHECK(x.dtype == DType::f16, "fp8 of ", name_of(x.dtype));
  return e4m3 ? queue<__NV_E4M3, Fp16>(x, to, stream) : queue<__NV_E5M2, Fp16>(x, to, stream);
}

}  // namespace thinwire
