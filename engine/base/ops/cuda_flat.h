// One kernel for all ops that treat elements alike: N neighbours at a time, several such groups in flight per thread.
#pragma once

#include "engine/base/ops/cuda_vector.h"

namespace thinwire {

constexpr int kFlatThreads = 256;

// Body: a plain struct with a constant kWidth (neighbours that 16-byte access covers), and for W = kWidth and W = 1
//   template <int W> struct Data;                          what a group needs between its loads and its stores
//   template <int W> void load(int64_t i, Data<W>&);       elements [i, i + W)
//   template <int W> void finish(int64_t i, Data<W>&);     arithmetic and stores
// Every group is loaded by the thread that stores it, before it does: outputs may alias inputs element by element.
template <typename Body, int kGroups>
TW_KERNEL void __launch_bounds__(kFlatThreads, 4)
    flat_kernel(const TW_GRID_CONSTANT Body body, int64_t count, bool vectors) {
  constexpr int W = Body::kWidth;
  constexpr int64_t kPerBlock = static_cast<int64_t>(kFlatThreads) * W * kGroups;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kPerBlock;
  if (vectors && start + kPerBlock <= count) {
    typename Body::template Data<W> data[kGroups];
    const int64_t mine = start + static_cast<int64_t>(threadIdx.x) * W;
    TW_UNROLL
    for (int g = 0; g < kGroups; ++g) body.template load<W>(mine + static_cast<int64_t>(g) * kFlatThreads * W, data[g]);
    TW_UNROLL
    for (int g = 0; g < kGroups; ++g)
      body.template finish<W>(mine + static_cast<int64_t>(g) * kFlatThreads * W, data[g]);
    return;
  }
  const int64_t end = start + kPerBlock < count ? start + kPerBlock : count;
  int64_t rest = start;
  if (vectors) {
    rest = start + (end - start) / W * W;
    for (int64_t i = start + static_cast<int64_t>(threadIdx.x) * W; i < rest; i += kFlatThreads * W) {
      typename Body::template Data<W> data;
      body.template load<W>(i, data);
      body.template finish<W>(i, data);
    }
  }
  for (int64_t i = rest + threadIdx.x; i < end; i += kFlatThreads) {
    typename Body::template Data<1> data;
    body.template load<1>(i, data);
    body.template finish<1>(i, data);
  }
}

// A body for flat_kernel: out[i] = f(a[i], b[i]) in fp32. F: a plain struct with float operator()(float, float) const.
template <typename T, typename F>
struct PairBody {
  static constexpr int kWidth = kVector<T>;
  const T *a, *b;
  T* out;
  F f;
  template <int W>
  struct Data {
    T a[W], b[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_values<W>(a + i, d.a);
    load_values<W>(b + i, d.b);
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    float values[W];
    TW_UNROLL
    for (int k = 0; k < W; ++k) values[k] = f(widen(d.a[k]), widen(d.b[k]));
    store_floats<W>(out + i, values);
  }
};

// `vectors`: all tensors allow 16-byte access.
template <int kGroups = 4, typename Body>
void launch_flat(CudaQueue& queue, const char* what, const Body& body, int64_t count, bool vectors) {
  constexpr int64_t kPerBlock = static_cast<int64_t>(kFlatThreads) * Body::kWidth * kGroups;
  queue.launch(what, flat_kernel<Body, kGroups>, {ceil_div(count, kPerBlock)}, kFlatThreads, 0, body, count, vectors);
}

template <int kGroups, typename T, typename F>
void launch_pairs(CudaQueue& queue, const char* what, const View& a, const View& b, const View& out, const F& f) {
  const PairBody<T, F> body = {a.as<T>(), b.as<T>(), out.as<T>(), f};
  launch_flat<kGroups>(queue, what, body, a.count(), aligned16(body.a, body.b, body.out));
}

}  // namespace thinwire
