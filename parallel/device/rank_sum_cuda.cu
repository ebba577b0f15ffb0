// Sums of what ranks contribute, one pass over memory: each thread adds the ranks in their order.
#include <type_traits>

#include "engine/base/ops/cuda_flat.h"
#include "parallel/device/rank_sum_cuda.h"

namespace thinwire {
namespace {

// What a number is added as: fp32, or fp64 for itself.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
TW_DEVICE Wide<T> to_wide(T v) {
  if constexpr (std::is_same_v<T, double>) {
    return v;
  } else {
    return widen(v);
  }
}

template <typename In, typename Out>
struct RankSumBody {
  static constexpr int kWidth = kVector<In>;
  const In* own;
  const char* others;
  int64_t stride;
  Out* out;
  int rank, ranks;
  bool accumulate;
  TW_DEVICE const In* of_rank(int r) const {
    return r == rank ? own : reinterpret_cast<const In*>(others + r * stride);
  }
  template <int W>
  struct Data {
    Wide<In> sum[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    In values[W];
    load_values<W>(of_rank(0) + i, values);
    TW_UNROLL
    for (int k = 0; k < W; ++k) d.sum[k] = to_wide(values[k]);
    for (int r = 1; r < ranks; ++r) {
      load_values<W>(of_rank(r) + i, values);
      TW_UNROLL
      for (int k = 0; k < W; ++k) d.sum[k] += to_wide(values[k]);
    }
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    Wide<In> sum[W];
    TW_UNROLL
    for (int k = 0; k < W; ++k) sum[k] = d.sum[k];
    if (accumulate) {
      Out before[W];
      load_values<W>(out + i, before);
      TW_UNROLL
      for (int k = 0; k < W; ++k) sum[k] = to_wide(before[k]) + sum[k];
    }
    if constexpr (std::is_same_v<Out, double>) {
      store_values<W>(out + i, sum);
    } else {
      store_floats<W>(out + i, sum);
    }
  }
};

template <typename In, typename Out>
void queue(CudaQueue& queue, const RankSum& s) {
  const RankSumBody<In, Out> body = {
      s.own.as<In>(), static_cast<const char*>(s.others), s.stride, s.out.as<Out>(), s.rank, s.ranks, s.accumulate};
  const bool vectors = aligned16(body.own, body.others, body.out) && s.stride % 16 == 0;
  launch_flat<2>(queue, "rank_sum", body, s.own.count(), vectors);
}

}  // namespace

void rank_sum_cuda(Exec& exec, const RankSum& s) {
  TW_CHECK(s.own.count() == s.out.count() && s.rank >= 0 && s.rank < s.ranks);
  CudaQueue on(exec);
  if (s.own.dtype == DType::f64) return queue<double, double>(on, s);
  with_storage(s.own.dtype, [&](auto type) {
    using In = decltype(type);
    if (s.out.dtype == DType::f32) return queue<In, float>(on, s);
    queue<In, In>(on, s);
  });
}

}  // namespace thinwire
