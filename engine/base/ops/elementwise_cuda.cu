// Element-by-element ops and column sums on CUDA. Each reads its input once.
#include <type_traits>

#include "engine/base/ops/cuda_dropout.h"
#include "engine/base/ops/cuda_flat.h"
#include "engine/base/ops/cuda_kernel.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

template <typename T>
struct ResidualDropoutBody {
  static constexpr int kWidth = kVector<T>;
  const T* x;
  const T* branch;
  T* y;
  DropoutPlan plan;
  template <int W>
  struct Data {
    T x[W], branch[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_values<W>(x + i, d.x);
    load_values<W>(branch + i, d.branch);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    float out[W], keep[W];
    keep_factors<W>(plan, i, keep);
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] = widen(d.x[k]) + widen(d.branch[k]) * keep[k];
    store_floats<W>(y + i, out);
  }
};

template <typename T>
struct DropoutBody {
  static constexpr int kWidth = kVector<T>;
  const T* x;
  T* y;
  DropoutPlan plan;
  template <int W>
  struct Data {
    T x[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_values<W>(x + i, d.x);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    float out[W];
    keep_factors<W>(plan, i, out);
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] *= widen(d.x[k]);
    store_floats<W>(y + i, out);
  }
};

template <typename From, typename To>
struct CastBody {
  static constexpr int kWidth = kVector<From> < kVector<To> ? kVector<From> : kVector<To>;
  const From* src;
  To* dst;
  template <int W>
  struct Data {
    From x[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_values<W>(src + i, d.x);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    if constexpr (std::is_same_v<From, To>) {  // bits are kept, those of NaN too
      store_values<W>(dst + i, d.x);
    } else {
      float out[W];
      TW_UNROLL
      for (int k = 0; k < W; ++k) out[k] = widen(d.x[k]);
      store_floats<W>(dst + i, out);
    }
  }
};

struct Plus {
  TW_DEVICE float operator()(float x, float y) const { return x + y; }
};
struct ScaledPlus {
  float alpha, beta;
  TW_DEVICE float operator()(float x, float y) const { return fmaf(alpha, x, y * beta); }
};

// Elements are numbered through all runs. Vector access needs a width and strides that are multiples of kWidth.
template <typename T>
struct CopyRunsBody {
  static constexpr int kWidth = kVector<T>;
  const T* from;
  T* to;
  int64_t width, inner, from_outer, from_inner, to_outer, to_inner;
  template <int W>
  struct Data {
    T value[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    if constexpr (W > 1)
      load_values<W>(from + place(i, from_outer, from_inner), d.value);
    else
      d.value[0] = from[place(i, from_outer, from_inner)];
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    if constexpr (W > 1)
      store_values<W>(to + place(i, to_outer, to_inner), d.value);
    else
      to[place(i, to_outer, to_inner)] = d.value[0];
  }
  TW_DEVICE int64_t place(int64_t i, int64_t outer_stride, int64_t inner_stride) const {
    const int64_t run = quotient(i, width), outer = quotient(run, inner);
    return outer * outer_stride + (run - outer * inner) * inner_stride + (i - run * width);
  }
};

template <typename T>
struct FillBody {
  static constexpr int kWidth = kVector<T>;
  float value;
  T* x;
  template <int W>
  struct Data {};
  template <int W>
  TW_DEVICE void load(int64_t, Data<W>&) const {}
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>&) const {
    float out[W];
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] = value;
    store_floats<W>(x + i, out);
  }
};

constexpr int kColumnLanes = 8;  // rows that a block of column_sums_kernel reads at once

// partials[blockIdx.y][c] = sum of dy[row][c] over the `step` rows from blockIdx.y * step on. A block is kColumnLanes
// warps, one row each; a thread has W columns.
template <typename T, int W>
TW_KERNEL void __launch_bounds__(kWarp* kColumnLanes)
    column_sums_kernel(const T* dy, float* partials, int64_t rows, int64_t cols, int64_t step) {
  TW_SHARED_ARRAY(float, lanes, kColumnLanes* kWarp* W);
  const int group = static_cast<int>(threadIdx.x % kWarp), lane = static_cast<int>(threadIdx.x / kWarp);
  const int64_t slab = static_cast<int64_t>(blockIdx.x) * kWarp * W, c = slab + group * W;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * step, last = first + step < rows ? first + step : rows;
  float sums[W] = {};
  if (c < cols) {  // W divides cols
    TW_UNROLL_BY(4)
    for (int64_t r = first + lane; r < last; r += kColumnLanes) {
      float v[W];
      load_floats<W>(dy + r * cols + c, v);
      TW_UNROLL
      for (int k = 0; k < W; ++k) sums[k] += v[k];
    }
  }
  TW_UNROLL
  for (int k = 0; k < W; ++k) lanes[(lane * kWarp + group) * W + k] = sums[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWarp * W && slab + i < cols; i += kWarp * kColumnLanes) {
    float sum = 0.0f;
    for (int l = 0; l < kColumnLanes; ++l) sum += lanes[l * kWarp * W + i];
    partials[static_cast<int64_t>(blockIdx.y) * cols + slab + i] = sum;
  }
}

constexpr int kPartialSlices = 32;  // warps of a block; each adds a run of neighbouring partials

TW_KERNEL void __launch_bounds__(kWarp* kPartialSlices)
    add_partials_kernel(float* out, const float* partials, int64_t stride, int64_t parts, int64_t cols) {
  TW_SHARED_ARRAY(float, slices, kPartialSlices* kWarp);
  const int column = static_cast<int>(threadIdx.x % kWarp), slice = static_cast<int>(threadIdx.x / kWarp);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarp + column;
  const int64_t per_slice = (parts + kPartialSlices - 1) / kPartialSlices, first = slice * per_slice;
  const int64_t last = first + per_slice < parts ? first + per_slice : parts;
  float sum = 0.0f;
  if (c < cols) {
    TW_UNROLL_BY(8)
    for (int64_t p = first; p < last; ++p) sum += partials[p * stride + c];
  }
  slices[slice * kWarp + column] = sum;
  __syncthreads();
  if (slice == 0 && c < cols) {
    sum = 0.0f;
    for (int s = 0; s < kPartialSlices; ++s) sum += slices[s * kWarp + column];
    out[c] += sum;
  }
}

}  // namespace

void residual_add_cuda(Exec& exec, const ResidualAdd& op) {
  const int64_t n = op.x.count();
  const DropoutPlan plan = make_dropout_plan(op.dropout, op.x.rows(), op.x.cols());
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (!plan.active) return launch_pairs<4, T>(queue, "residual_add", op.x, op.branch, op.y, Plus{});
    const ResidualDropoutBody<T> body = {op.x.as<T>(), op.branch.as<T>(), op.y.as<T>(), plan};
    launch_flat<2>(queue, "residual_add", body, n,
                   aligned16(body.x, body.branch, body.y) && groups_allowed(plan, kVector<T>));
  });
}

void dropout_apply_cuda(Exec& exec, const DropoutApply& op) {
  const int64_t n = op.x.count();
  const DropoutPlan plan = make_dropout_plan(op.dropout, op.x.rows(), op.x.cols());
  if (!plan.active) return cast_cuda(exec, {op.x, op.y});
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = op.x.as<T>();
    T* y = op.y.as<T>();
    launch_flat<2>(queue, "dropout_apply", DropoutBody<T>{x, y, plan}, n,
                   aligned16(x, y) && groups_allowed(plan, kVector<T>));
  });
}

void cast_cuda(Exec& exec, const Cast& op) {
  const int64_t n = op.src.count();
  if (op.src.data == op.dst.data && op.src.dtype == op.dst.dtype) return;
  CudaQueue queue(exec);
  with_storage(op.src.dtype, [&](auto from) {
    with_storage(op.dst.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const From* src = op.src.as<From>();
      To* dst = op.dst.as<To>();
      launch_flat(queue, "cast", CastBody<From, To>{src, dst}, n, aligned16(src, dst));
    });
  });
}

void axpy_cuda(Exec& exec, const Axpy& op) {
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    launch_pairs<4, decltype(type)>(queue, "axpy", op.x, op.y, op.y, ScaledPlus{op.alpha, op.beta});
  });
}

void fill_constant_cuda(Exec& exec, const FillConstant& op) {
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    T* x = op.x.as<T>();
    launch_flat(queue, "fill_constant", FillBody<T>{op.value, x}, op.x.count(), aligned16(x));
  });
}

void copy_runs_cuda(Exec& exec, const CopyRuns& op) {
  CudaQueue queue(exec);
  with_storage(op.from.dtype, [&](auto type) {
    using T = decltype(type);
    const CopyRunsBody<T> body{op.from.as<T>() + op.from_first,
                               op.to.as<T>() + op.to_first,
                               op.width,
                               op.counts[1],
                               op.from_strides[0],
                               op.from_strides[1],
                               op.to_strides[0],
                               op.to_strides[1]};
    const auto whole = [](auto... sizes) { return ((sizes % kVector<T> == 0) && ...); };
    const bool vectors = aligned16(body.from, body.to) &&
                         whole(op.width, op.from_strides[0], op.from_strides[1], op.to_strides[0], op.to_strides[1]);
    launch_flat(queue, "copy_runs", body, op.counts[0] * op.counts[1] * op.width, vectors);
  });
}

void bias_gradient_cuda(Exec& exec, const BiasGradient& op) {
  const int64_t rows = op.dy.rows(), cols = op.dy.cols();
  const int64_t step = rows_per_partial(rows), parts = ceil_div(rows, step);
  CudaQueue queue(exec);
  auto* partials = reinterpret_cast<float*>(queue.scratch(static_cast<size_t>(parts * cols) * sizeof(float)));
  with_storage(op.dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int W = kVector<T>;
    const T* dy = op.dy.as<T>();
    const bool vectors = aligned16(dy) && cols % W == 0;
    queue.launch("bias_gradient", vectors ? column_sums_kernel<T, W> : column_sums_kernel<T, 1>,
                 {ceil_div(cols, kWarp * (vectors ? W : 1)), parts}, kWarp * kColumnLanes, 0, dy, partials, rows, cols,
                 step);
  });
  add_partials_cuda(queue, op.dbias.as<float>(), partials, cols, parts, cols);
}

void add_partials_cuda(CudaQueue& queue, float* out, const float* partials, int64_t stride, int64_t parts,
                       int64_t cols) {
  queue.launch("add_partials", add_partials_kernel, {ceil_div(cols, kWarp)}, kWarp * kPartialSlices, 0, out, partials,
               stride, parts, cols);
}

}  // namespace thinwire
