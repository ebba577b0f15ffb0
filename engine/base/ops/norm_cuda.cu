// LayerNorm and RMSNorm on CUDA: a block per row (forward) or per run of rows (backward), the row in registers.
//
// A row is read once: residual addition, dropout, statistics and the scaled output come from one visit. Rows that are
// too long for the registers, or that 16-byte access does not fit, take the streaming kernels, which visit the row
// again where the cache has it.
#include <algorithm>

#include "engine/base/ops/cuda_dropout.h"
#include "engine/base/ops/cuda_kernel.h"
#include "engine/base/ops/cuda_reduce.h"
#include "engine/base/ops/cuda_vector.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kMostThreads = 512;
constexpr int kManyPacks = 4;          // 16-byte packs per thread where one is not enough
constexpr int kBackwardThreads = 256;  // a row keeps four tensors and the sums of its columns in registers

template <typename T>
struct ForwardArgs {
  const T *x, *branch;
  T* sum;
  const T *weight, *bias;
  T* y;
  float *mean, *rstd;
  int64_t cols;
  float eps;
  DropoutPlan dropout;
};

// The weights of a pack of columns; without a weight they are ones.
template <int W, typename T>
TW_DEVICE void load_gain(const T* weight, int c, float (&gain)[W]) {
  TW_UNROLL
  for (int k = 0; k < W; ++k) gain[k] = 1.0f;
  if (weight != nullptr) load_floats<W>(weight + c, gain);
}

// y from the statistics of a row, for the elements that the caller holds.
TW_DEVICE float scaled(float v, float mean, float rstd, float weight, bool has_bias, float bias) {
  const float unit = (v - mean) * rstd;
  return has_bias ? fmaf(unit, weight, bias) : unit * weight;
}

template <typename T, bool kLayer, bool kDropout, int kPacks>
TW_KERNEL void __launch_bounds__(kMostThreads) forward_kernel(ForwardArgs<T> a) {
  constexpr int W = kVector<T>;
  TW_SHARED_ARRAY(float, slots, 3 * kMostWarps);
  const int cols = static_cast<int>(a.cols);
  const int64_t base = static_cast<int64_t>(blockIdx.x) * cols;
  const auto column = [&](int p) { return static_cast<int>(p * blockDim.x + threadIdx.x) * W; };
  float v[kPacks][W];
  float total = 0.0f;
  TW_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int c = column(p);
    if (c >= cols) continue;
    load_floats<W>(a.x + base + c, v[p]);
    if (a.branch != nullptr) {
      float branch[W];
      load_floats<W>(a.branch + base + c, branch);
      if constexpr (kDropout) {
        float keep[W];
        keep_factors<W>(a.dropout, base + c, keep);
        TW_UNROLL
        for (int k = 0; k < W; ++k) branch[k] *= keep[k];
      }
      T sum[W];
      TW_UNROLL
      for (int k = 0; k < W; ++k) {
        narrow(v[p][k] + branch[k], sum[k]);
        v[p][k] = widen(sum[k]);
      }
      store_values<W>(a.sum + base + c, sum);
    }
    TW_UNROLL
    for (int k = 0; k < W; ++k) total = kLayer ? total + v[p][k] : fmaf(v[p][k], v[p][k], total);
  }
  const float inverse = 1.0f / static_cast<float>(cols);
  float mean = 0.0f, variance = block_sum(total, slots) * inverse;
  if constexpr (kLayer) {
    // Second pass around the rounded mean; its own sum corrects the mean and the variance for that rounding.
    mean = variance;
    float first = 0.0f, second = 0.0f;
    TW_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= cols) continue;
      TW_UNROLL
      for (int k = 0; k < W; ++k) {
        const float d = v[p][k] - mean;
        first += d;
        second = fmaf(d, d, second);
      }
    }
    block_sums(first, second, slots + kMostWarps);
    const float shift = first * inverse;
    mean += shift;
    variance = second * inverse - shift * shift;
  }
  const float rstd = 1.0f / sqrtf(variance + a.eps);
  if (threadIdx.x == 0) {
    if (kLayer && a.mean != nullptr) a.mean[blockIdx.x] = mean;
    if (a.rstd != nullptr) a.rstd[blockIdx.x] = rstd;
  }
  TW_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int c = column(p);
    if (c >= cols) continue;
    float weight[W], bias[W] = {};
    load_gain<W>(a.weight, c, weight);
    if (a.bias != nullptr) load_floats<W>(a.bias + c, bias);
    TW_UNROLL
    for (int k = 0; k < W; ++k) weight[k] = scaled(v[p][k], mean, rstd, weight[k], a.bias != nullptr, bias[k]);
    store_floats<W>(a.y + base + c, weight);
  }
}

// Any width and alignment; every thread reads back only what it wrote itself.
template <typename T, bool kLayer>
TW_KERNEL void __launch_bounds__(kMostThreads) forward_streaming_kernel(ForwardArgs<T> a) {
  TW_SHARED_ARRAY(float, slots, 3 * kMostWarps);
  const int64_t cols = a.cols, base = static_cast<int64_t>(blockIdx.x) * cols;
  const T* x = a.branch != nullptr ? a.sum + base : a.x + base;
  float total = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    float v = widen(a.x[base + c]);
    if (a.branch != nullptr) {
      float keep[1] = {1.0f};
      if (a.dropout.active) keep_factors<1>(a.dropout, base + c, keep);
      T sum;
      narrow(v + widen(a.branch[base + c]) * keep[0], sum);
      a.sum[base + c] = sum;
      v = widen(sum);
    }
    total = kLayer ? total + v : fmaf(v, v, total);
  }
  const float inverse = 1.0f / static_cast<float>(cols);
  float mean = 0.0f, variance = block_sum(total, slots) * inverse;
  if constexpr (kLayer) {
    mean = variance;
    float first = 0.0f, second = 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
      const float d = widen(x[c]) - mean;
      first += d;
      second = fmaf(d, d, second);
    }
    block_sums(first, second, slots + kMostWarps);
    const float shift = first * inverse;
    mean += shift;
    variance = second * inverse - shift * shift;
  }
  const float rstd = 1.0f / sqrtf(variance + a.eps);
  if (threadIdx.x == 0) {
    if (kLayer && a.mean != nullptr) a.mean[blockIdx.x] = mean;
    if (a.rstd != nullptr) a.rstd[blockIdx.x] = rstd;
  }
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float bias = a.bias != nullptr ? widen(a.bias[c]) : 0.0f;
    const float weight = a.weight != nullptr ? widen(a.weight[c]) : 1.0f;
    narrow(scaled(widen(x[c]), mean, rstd, weight, a.bias != nullptr, bias), a.y[base + c]);
  }
}

template <typename T>
struct BackwardArgs {
  const T *dy, *x, *weight;
  const float *mean, *rstd;
  const T* residual;
  T* dx;
  float* partials;  // [blocks][1 or 2][cols], or null: no parameter gradients
  bool with_bias;
  int64_t rows, cols, step;  // rows per block
};

// What every element of a row shares in the backward.
struct RowTerms {
  float mean, rstd, offset, slope;
};

TW_DEVICE float input_gradient(float dy, float weight, float unit, const RowTerms& r) {
  return (fmaf(-unit, r.slope, dy * weight) - r.offset) * r.rstd;
}

template <typename T, bool kLayer, int kPacks>
TW_KERNEL void __launch_bounds__(kBackwardThreads, kPacks == 1   ? 3
                                                   : kPacks == 2 ? 2
                                                                 : 1) backward_kernel(BackwardArgs<T> a) {
  constexpr int W = kVector<T>;
  TW_SHARED_ARRAY(float, slots, 4 * kMostWarps);
  const int cols = static_cast<int>(a.cols);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.step;
  const int64_t last = first + a.step < a.rows ? first + a.step : a.rows;
  const auto column = [&](int p) { return static_cast<int>(p * blockDim.x + threadIdx.x) * W; };
  const float inverse = 1.0f / static_cast<float>(cols);
  T weight[kPacks][W], dy_next[kPacks][W], x_next[kPacks][W], residual_next[kPacks][W];
  float dweight[kPacks][W] = {}, dbias[kPacks][W] = {};
  const auto fetch = [&](int64_t row) {
    TW_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = row * cols + column(p);
      if (column(p) >= cols) continue;
      load_values<W>(a.dy + at, dy_next[p]);
      load_values<W>(a.x + at, x_next[p]);
      if (a.residual != nullptr) load_values<W>(a.residual + at, residual_next[p]);
    }
  };
  TW_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    TW_UNROLL
    for (int k = 0; k < W; ++k) narrow(1.0f, weight[p][k]);
    if (a.weight != nullptr && column(p) < cols) load_values<W>(a.weight + column(p), weight[p]);
  }
  // The next row is fetched while this one is reduced, where registers allow it; else the row is widened twice.
  constexpr bool kAhead = kPacks == 1;
  if (kAhead) fetch(first);
  for (int64_t row = first; row < last; ++row) {
    if (!kAhead) fetch(row);
    RowTerms r = {kLayer ? a.mean[row] : 0.0f, a.rstd[row], 0.0f, 0.0f};
    float dy[kPacks][W], unit[kPacks][W];
    T residual[kPacks][W];
    float sum = 0.0f, product = 0.0f;
    TW_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= cols) continue;
      TW_UNROLL
      for (int k = 0; k < W; ++k) {
        dy[p][k] = widen(dy_next[p][k]);
        const float distance = widen(x_next[p][k]) - r.mean, g = dy[p][k] * widen(weight[p][k]);
        if constexpr (kLayer) sum += g;
        product = fmaf(g, distance, product);
        unit[p][k] = distance * r.rstd;
        residual[p][k] = residual_next[p][k];
      }
    }
    if (kAhead && row + 1 < last) fetch(row + 1);  // in flight during the reduction
    // Rows alternate between two sets of slots: a barrier per row is enough.
    block_sums(sum, product, slots + (row & 1) * 2 * kMostWarps);
    r.offset = kLayer ? sum * inverse : 0.0f;
    r.slope = product * r.rstd * inverse;
    TW_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= cols) continue;
      float out[W];
      TW_UNROLL
      for (int k = 0; k < W; ++k) {
        const float g = kAhead ? dy[p][k] : widen(dy_next[p][k]);
        const float u = kAhead ? unit[p][k] : (widen(x_next[p][k]) - r.mean) * r.rstd;
        dweight[p][k] = fmaf(g, u, dweight[p][k]);
        dbias[p][k] += g;
        out[k] = input_gradient(g, widen(weight[p][k]), u, r);
        if (a.residual != nullptr) out[k] += widen(kAhead ? residual[p][k] : residual_next[p][k]);
      }
      store_floats<W>(a.dx + row * cols + column(p), out);
    }
  }
  if (a.partials == nullptr) return;
  float* mine = a.partials + static_cast<int64_t>(blockIdx.x) * (a.with_bias ? 2 : 1) * cols;
  TW_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int c = column(p);
    if (c >= cols) continue;
    TW_UNROLL
    for (int k = 0; k < W; ++k) {
      mine[c + k] = dweight[p][k];
      if (a.with_bias) mine[cols + c + k] = dbias[p][k];
    }
  }
}

template <typename T, bool kLayer>
TW_KERNEL void __launch_bounds__(kMostThreads) backward_streaming_kernel(BackwardArgs<T> a) {
  TW_SHARED_ARRAY(float, slots, 4 * kMostWarps);
  const int64_t cols = a.cols, first = static_cast<int64_t>(blockIdx.x) * a.step;
  const int64_t last = first + a.step < a.rows ? first + a.step : a.rows;
  const float inverse = 1.0f / static_cast<float>(cols);
  const auto gain = [&](int64_t c) { return a.weight != nullptr ? widen(a.weight[c]) : 1.0f; };
  float* mine =
      a.partials == nullptr ? nullptr : a.partials + static_cast<int64_t>(blockIdx.x) * (a.with_bias ? 2 : 1) * cols;
  for (int64_t row = first; row < last; ++row) {
    RowTerms r = {kLayer ? a.mean[row] : 0.0f, a.rstd[row], 0.0f, 0.0f};
    float sum = 0.0f, product = 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
      const float g = widen(a.dy[row * cols + c]) * gain(c);
      if constexpr (kLayer) sum += g;
      product = fmaf(g, widen(a.x[row * cols + c]) - r.mean, product);
    }
    block_sums(sum, product, slots + (row & 1) * 2 * kMostWarps);
    r.offset = kLayer ? sum * inverse : 0.0f;
    r.slope = product * r.rstd * inverse;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
      const int64_t at = row * cols + c;
      const float dy = widen(a.dy[at]), unit = (widen(a.x[at]) - r.mean) * r.rstd;
      float out = input_gradient(dy, gain(c), unit, r);
      if (a.residual != nullptr) out += widen(a.residual[at]);
      narrow(out, a.dx[at]);
      if (mine == nullptr) continue;
      mine[c] = row == first ? dy * unit : fmaf(dy, unit, mine[c]);
      if (a.with_bias) mine[cols + c] = row == first ? dy : mine[cols + c] + dy;
    }
  }
}

// Threads of a block and packs per thread for a row that 16-byte access fits; packs 0: too long for registers.
struct Shape {
  int threads, packs;
};
int whole_warps(int64_t threads) {
  return static_cast<int>(ceil_div(threads, kWarp) * kWarp);
}
Shape forward_shape(int64_t packs) {
  if (packs <= kMostThreads) return {whole_warps(packs), 1};
  if (packs <= kManyPacks * kMostThreads) return {whole_warps(ceil_div(packs, kManyPacks)), kManyPacks};
  return {kMostThreads, 0};
}
Shape backward_shape(int64_t packs) {
  for (int many : {1, 2, kManyPacks}) {
    if (packs <= many * kBackwardThreads) return {whole_warps(ceil_div(packs, many)), many};
  }
  return {kMostThreads, 0};
}

int streaming_threads(int64_t cols) {
  return static_cast<int>(std::clamp<int64_t>(whole_warps(cols), kWarp, kMostThreads));
}

template <typename T, bool kLayer>
void queue_forward(CudaQueue& queue, const ForwardArgs<T>& a, int64_t rows) {
  constexpr int W = kVector<T>;
  const bool vectors =
      a.cols % W == 0 && aligned16(a.x, a.branch, a.sum, a.weight, a.bias, a.y) && groups_allowed(a.dropout, W);
  const Shape shape = forward_shape(a.cols / W);
  if (!vectors || shape.packs == 0) {
    queue.launch("norm_forward", forward_streaming_kernel<T, kLayer>, {rows}, streaming_threads(a.cols), 0, a);
    return;
  }
  const auto kernel =
      a.dropout.active
          ? (shape.packs == 1 ? forward_kernel<T, kLayer, true, 1> : forward_kernel<T, kLayer, true, kManyPacks>)
          : (shape.packs == 1 ? forward_kernel<T, kLayer, false, 1> : forward_kernel<T, kLayer, false, kManyPacks>);
  queue.launch("norm_forward", kernel, {rows}, shape.threads, 0, a);
}

template <typename T, bool kLayer>
void queue_backward(CudaQueue& queue, const BackwardArgs<T>& a, int64_t blocks) {
  constexpr int W = kVector<T>;
  const bool vectors = a.cols % W == 0 && aligned16(a.dy, a.x, a.weight, a.residual, a.dx);
  const Shape shape = backward_shape(a.cols / W);
  if (!vectors || shape.packs == 0) {
    queue.launch("norm_backward", backward_streaming_kernel<T, kLayer>, {blocks}, streaming_threads(a.cols), 0, a);
    return;
  }
  const auto kernel = shape.packs == 1   ? backward_kernel<T, kLayer, 1>
                      : shape.packs == 2 ? backward_kernel<T, kLayer, 2>
                                         : backward_kernel<T, kLayer, kManyPacks>;
  queue.launch("norm_backward", kernel, {blocks}, shape.threads, 0, a);
}

}  // namespace

void norm_forward_cuda(Exec& exec, const NormForward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const DType t = op.x.dtype;
  CudaQueue queue(exec);
  with_storage(t, [&](auto type) {
    using T = decltype(type);
    const ForwardArgs<T> args = {op.x.as<T>(),
                                 static_cast<const T*>(op.branch.data),
                                 static_cast<T*>(op.sum.data),
                                 static_cast<const T*>(op.weight.data),
                                 static_cast<const T*>(op.bias.data),
                                 op.y.as<T>(),
                                 static_cast<float*>(op.mean.data),
                                 static_cast<float*>(op.rstd.data),
                                 cols,
                                 op.eps,
                                 op.branch ? make_dropout_plan(op.dropout, rows, cols) : DropoutPlan{}};
    if (op.kind == NormKind::kLayerNorm)
      queue_forward<T, true>(queue, args, rows);
    else
      queue_forward<T, false>(queue, args, rows);
  });
}

void norm_backward_cuda(Exec& exec, const NormBackward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const DType t = op.x.dtype;
  const bool layer = op.kind == NormKind::kLayerNorm;
  CudaQueue queue(exec);
  const int64_t step = norm_rows_per_partial(rows), blocks = ceil_div(rows, step);
  const int64_t per_block = (op.dbias ? 2 : 1) * cols;
  float* partials = nullptr;
  if (op.dweight || op.dbias) {
    partials = reinterpret_cast<float*>(queue.scratch(static_cast<size_t>(blocks * per_block) * sizeof(float)));
  }
  with_storage(t, [&](auto type) {
    using T = decltype(type);
    const BackwardArgs<T> args = {op.dy.as<T>(),
                                  op.x.as<T>(),
                                  static_cast<const T*>(op.weight.data),
                                  static_cast<const float*>(op.mean.data),
                                  static_cast<const float*>(op.rstd.data),
                                  static_cast<const T*>(op.residual.data),
                                  op.dx.as<T>(),
                                  partials,
                                  static_cast<bool>(op.dbias),
                                  rows,
                                  cols,
                                  step};
    if (layer)
      queue_backward<T, true>(queue, args, blocks);
    else
      queue_backward<T, false>(queue, args, blocks);
  });
  if (op.dweight) add_partials_cuda(queue, op.dweight.as<float>(), partials, per_block, blocks, cols);
  if (op.dbias) add_partials_cuda(queue, op.dbias.as<float>(), partials + cols, per_block, blocks, cols);
}

}  // namespace thinwire
