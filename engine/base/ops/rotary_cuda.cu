// Rotary position embedding on CUDA: pairs (i, i + half) of every head, in place.
#include "engine/base/ops/cuda_flat.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

// Element i counts pairs: half of them per head, heads per token, tokens in order.
template <typename T>
struct RotaryBody {
  static constexpr int kWidth = kVector<T>;
  T* data;
  HeadLayout at;
  int64_t length, heads, heads_per_group, half, first_position;
  const float *cos, *sin;
  const int32_t* positions;  // nullptr: first_position + token
  bool inverse;
  template <int W>
  struct Data {
    T low[W], high[W];
    T* where;
    int64_t angle;
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    const int64_t row = quotient(i, half), pair = i - row * half;
    const int64_t n = quotient(row, heads), head = row - n * heads;
    const int64_t sample = quotient(n, length), token = n - sample * length;
    const int64_t group = quotient(head, heads_per_group), member = head - group * heads_per_group;
    d.where = data + at.offset + sample * at.batch + token * at.token + group * at.group + member * at.head + pair;
    d.angle = (positions != nullptr ? positions[n] : first_position + token) * half + pair;
    load_values<W>(d.where, d.low);
    load_values<W>(d.where + half, d.high);
  }
  template <int W>
  TW_DEVICE void finish(int64_t, const Data<W>& d) const {
    float c[W], s[W], low[W], high[W];
    load_floats<W>(cos + d.angle, c);
    load_floats<W>(sin + d.angle, s);
    TW_UNROLL
    for (int k = 0; k < W; ++k) {
      const float sine = inverse ? -s[k] : s[k], x = widen(d.low[k]), y = widen(d.high[k]);
      low[k] = fmaf(x, c[k], -y * sine);
      high[k] = fmaf(y, c[k], x * sine);
    }
    store_floats<W>(d.where, low);
    store_floats<W>(d.where + half, high);
  }
};

}  // namespace

void rotary_cuda(Exec& exec, const Rotary& op) {
  const int64_t heads = op.groups * op.heads_per_group, tokens = op.batch * op.length;
  const HeadLayout& at = op.layout;
  const int64_t half = op.rot_dim / 2;
  CudaQueue queue(exec);
  with_storage(op.data.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int64_t W = kVector<T>;
    T* data = op.data.as<T>();
    const float *cos = op.cos.as<float>(), *sin = op.sin.as<float>();
    const bool vectors = aligned16(data, cos, sin) && half % W == 0 && at.offset % W == 0 && at.batch % W == 0 &&
                         at.token % W == 0 && at.group % W == 0 && at.head % W == 0;
    const RotaryBody<T> body = {data,
                                at,
                                op.length,
                                heads,
                                op.heads_per_group,
                                half,
                                op.first_position,
                                cos,
                                sin,
                                static_cast<const int32_t*>(op.positions.data),
                                op.inverse};
    launch_flat<2>(queue, "rotary", body, tokens * heads * half, vectors);
  });
}

}  // namespace thinwire
