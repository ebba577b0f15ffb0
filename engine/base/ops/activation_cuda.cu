// GELU and SwiGLU on CUDA: one pass over memory each.
#include "engine/base/ops/activation_math_cuda.h"
#include "engine/base/ops/cuda_flat.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

template <typename T>
constexpr bool kFast = sizeof(T) == 2;

template <typename T, bool kTanh>
struct GeluForwardBody {
  static constexpr int kWidth = kVector<T>;
  const T* x;
  T* y;
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
    TW_UNROLL
    for (int k = 0; k < W; ++k) {
      out[k] = kTanh ? gelu_tanh<kFast<T>>(widen(d.x[k])) : gelu_exact<kFast<T>>(widen(d.x[k]));
    }
    store_floats<W>(y + i, out);
  }
};

template <bool kTanh, bool kFastMath>
struct GeluGradient {
  TW_DEVICE float operator()(float x, float dy) const {
    return dy * (kTanh ? gelu_tanh_slope<kFastMath>(x) : gelu_exact_slope<kFastMath>(x));
  }
};

// Element i of the output is column i % cols of row i / cols; its gate lies at i + row * cols of [N, 2 cols], its up
// `cols` behind.
TW_DEVICE int64_t gate_of(int64_t i, int64_t cols) {
  return i + quotient(i, cols) * cols;
}

template <typename T>
struct SwigluForwardBody {
  static constexpr int kWidth = kVector<T>;
  const T* x;
  T* y;
  int64_t cols;
  template <int W>
  struct Data {
    T gate[W], up[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    const T* at = x + gate_of(i, cols);
    load_values<W>(at, d.gate);
    load_values<W>(at + cols, d.up);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    float out[W];
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] = silu<kFast<T>>(widen(d.gate[k])) * widen(d.up[k]);
    store_floats<W>(y + i, out);
  }
};

template <typename T>
struct SwigluBackwardBody {
  static constexpr int kWidth = kVector<T>;
  const T *x, *dy;
  T* dx;
  int64_t cols;
  template <int W>
  struct Data {
    T gate[W], up[W], dy[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    const T* at = x + gate_of(i, cols);
    load_values<W>(at, d.gate);
    load_values<W>(at + cols, d.up);
    load_values<W>(dy + i, d.dy);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    float dgate[W], dup[W];
    TW_UNROLL
    for (int k = 0; k < W; ++k) {
      float value, slope;
      silu_and_slope<kFast<T>>(widen(d.gate[k]), value, slope);
      const float g = widen(d.dy[k]);
      dgate[k] = g * widen(d.up[k]) * slope;
      dup[k] = g * value;
    }
    T* at = dx + gate_of(i, cols);
    store_floats<W>(at, dgate);
    store_floats<W>(at + cols, dup);
  }
};

}  // namespace

void gelu_forward_cuda(Exec& exec, const GeluForward& op) {
  const int64_t n = op.x.count();
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = op.x.as<T>();
    T* y = op.y.as<T>();
    if (op.kind == GeluKind::kTanh)
      launch_flat(queue, "gelu_forward", GeluForwardBody<T, true>{x, y}, n, aligned16(x, y));
    else
      launch_flat<2>(queue, "gelu_forward", GeluForwardBody<T, false>{x, y}, n, aligned16(x, y));
  });
}

void gelu_backward_cuda(Exec& exec, const GeluBackward& op) {
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (op.kind == GeluKind::kTanh)
      launch_pairs<2, T>(queue, "gelu_backward", op.x, op.dy, op.dx, GeluGradient<true, kFast<T>>{});
    else
      launch_pairs<2, T>(queue, "gelu_backward", op.x, op.dy, op.dx, GeluGradient<false, kFast<T>>{});
  });
}

void swiglu_forward_cuda(Exec& exec, const SwigluForward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols() / 2;
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = op.x.as<T>();
    T* y = op.y.as<T>();
    launch_flat<2>(queue, "swiglu_forward", SwigluForwardBody<T>{x, y, cols}, rows * cols,
                   aligned16(x, y) && cols % kVector<T> == 0);
  });
}

void swiglu_backward_cuda(Exec& exec, const SwigluBackward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols() / 2;
  CudaQueue queue(exec);
  with_storage(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T *x = op.x.as<T>(), *dy = op.dy.as<T>();
    T* dx = op.dx.as<T>();
    launch_flat<2>(queue, "swiglu_backward", SwigluBackwardBody<T>{x, dy, dx, cols}, rows * cols,
                   aligned16(x, dy, dx) && cols % kVector<T> == 0);
  });
}

}  // namespace thinwire
