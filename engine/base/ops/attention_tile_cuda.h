// Tiles of attention on CUDA: rows of heads in shared memory as fp32, and the two kinds of products between them.
//
// A block has 16 x 16 threads. Thread (ty, tx) holds elements (ty + 16 i, tx + 16 j) of every tile product: a warp then
// reads 16 neighbouring rows or columns at a time, and an odd row length keeps them in different banks.
#pragma once

#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/attention_parts.h"
#include "engine/base/ops/cuda_dropout.h"
#include "engine/base/ops/cuda_reduce.h"

namespace thinwire {

constexpr int kSide = 16;
constexpr int kTileThreads = kSide * kSide;
constexpr int kMostHeadDim = 256;
constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.69314718055994531f;

// AttentionForward / AttentionBackward as kernels take them.
template <typename T>
struct TileArgs {
  int64_t batch, q_len, kv_len, groups, members, heads;
  int d;
  float scale;
  const T *q, *k, *v;
  HeadLayout q_at, k_at, v_at;
  T* out;
  float* lse;
  const T* dout;
  T *dq, *dk, *dv;
  // Parts: where results are sums in fp32 they go there instead.
  float *wide_out, *wide_dq, *wide_dk, *wide_dv;
  bool part, merge, add_dq, add_dkv;
  int64_t key_offset, first_key_here;  // query t sees no key behind t + key_offset; which token the first key is
  float* delta;                        // [batch, heads, q_len]: dout . out
  const int32_t* first_keys;           // [batch, q_len]: the first key that a query sees; nullptr: 0
  int64_t window;                      // keys in front of its own that a query sees; negative: all
  DropoutPlan dropout;
  const uint32_t* kept;  // [batch, heads, q_len, words]: what dropout keeps, a bit per key; nullptr: not known yet
  bool vectors;          // rows of heads allow 16-byte access

  TW_DEVICE int64_t behind() const { return key_offset; }
  // Behind the last key that a query before q_end sees.
  TW_DEVICE int64_t end_of_keys(int64_t q_end) const {
    return q_end + key_offset < kv_len ? q_end + key_offset : kv_len;
  }
  TW_DEVICE int64_t first_key(int64_t sample, int64_t query) const {
    const int64_t document = first_keys != nullptr ? first_keys[sample * q_len + query] - first_key_here : 0;
    const int64_t seen = window >= 0 ? query + behind() - window : 0, first = document > seen ? document : seen;
    return first > 0 ? first : 0;
  }
  TW_DEVICE int64_t words() const { return (kv_len + 31) / 32; }
  TW_DEVICE float keep(int64_t sample, int64_t head, int64_t query, int64_t key) const {
    if (kept != nullptr) {
      const uint32_t word = kept[((sample * heads + head) * q_len + query) * words() + (key >> 5)];
      return word >> (key & 31) & 1u ? dropout.scale : 0.0f;
    }
    return keep_factor(
        dropout, static_cast<uint64_t>(dropout.sample_ids[sample]),
        static_cast<uint64_t>(dropout.first + head * dropout.per_head + query * dropout.per_query + key));
  }
};

TW_DEVICE int64_t head_start(const HeadLayout& at, int64_t sample, int64_t token, int64_t group, int64_t member) {
  return at.offset + sample * at.batch + token * at.token + group * at.group + member * at.head;
}

// Floats from one row of a tile to the next.
constexpr int tile_stride(int d) {
  return d | 1;
}
TW_DEVICE int stride_of(int d) {
  return d | 1;
}

template <typename T, int kRows, int W>
TW_DEVICE void load_rows(float* to, const T* from, int64_t token_stride, int64_t rows, int d) {
  const int groups = d / W, stride = stride_of(d);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * groups; i += kTileThreads) {
    const int r = i / groups, c = (i - r * groups) * W;
    float v[W] = {};
    if (r < rows) load_floats<W>(from + r * token_stride + c, v);
    TW_UNROLL
    for (int k = 0; k < W; ++k) to[r * stride + c + k] = v[k];
  }
}

// kRows rows of d elements to shared memory; rows from `rows` on are zero.
template <int kRows, typename T>
TW_DEVICE void load_tile(float* to, const T* from, int64_t token_stride, int64_t rows, int d, bool vectors) {
  if (vectors)
    load_rows<T, kRows, kVector<T>>(to, from, token_stride, rows, d);
  else
    load_rows<T, kRows, 1>(to, from, token_stride, rows, d);
}

// s[i][j] = a[ty + 16 i] . b[tx + 16 j] over d.
template <int kM>
TW_DEVICE void tile_scores(const float* a, const float* b, int d, float (&s)[kM][kM]) {
  const int stride = stride_of(d);
  const float* rows = a + static_cast<int>(threadIdx.x) / kSide * stride;
  const float* columns = b + static_cast<int>(threadIdx.x) % kSide * stride;
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    TW_UNROLL
    for (int j = 0; j < kM; ++j) s[i][j] = 0.0f;
  }
  for (int e = 0; e < d; ++e) {
    float x[kM], y[kM];
    TW_UNROLL
    for (int i = 0; i < kM; ++i) {
      x[i] = rows[i * kSide * stride + e];
      y[i] = columns[i * kSide * stride + e];
    }
    TW_UNROLL
    for (int i = 0; i < kM; ++i) {
      TW_UNROLL
      for (int j = 0; j < kM; ++j) s[i][j] = fmaf(x[i], y[j], s[i][j]);
    }
  }
}

// sum[i][j] += w[ty + 16 i][k] * x[k][tx + 16 j] over k < n; w has rows of 16 kM + 1 floats. kGuarded: row i takes part
// only up to k = last[i], whatever x holds behind it.
template <bool kGuarded, int kM, int kCols>
TW_DEVICE void tile_accumulate(const float* w, const float* x, int n, int d, const int64_t (&last)[kM],
                               float (&sum)[kM][kCols]) {
  const int stride = stride_of(d), tx = static_cast<int>(threadIdx.x) % kSide;
  const float* rows = w + static_cast<int>(threadIdx.x) / kSide * (kSide * kM + 1);
  for (int k = 0; k < n; ++k) {
    float y[kCols];
    TW_UNROLL
    for (int j = 0; j < kCols; ++j) y[j] = tx + kSide * j < d ? x[k * stride + tx + kSide * j] : 0.0f;
    TW_UNROLL
    for (int i = 0; i < kM; ++i) {
      if (kGuarded && k > last[i]) continue;
      const float weight = rows[i * kSide * (kSide * kM + 1) + k];
      TW_UNROLL
      for (int j = 0; j < kCols; ++j) sum[i][j] = fmaf(weight, y[j], sum[i][j]);
    }
  }
}

// Over the 16 threads of one ty, which are half a warp.
TW_DEVICE float side_sum(float v) {
  TW_UNROLL
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) v += shuffle_xor(v, lanes);
  return v;
}
TW_DEVICE float side_max(float v) {
  TW_UNROLL
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) v = fmaxf(v, shuffle_xor(v, lanes));
  return v;
}

// Row r of a tile product, times `factor`, to its head: from element `at` of `wide`, if there is one, or of `to`.
template <int kCols, typename T>
TW_DEVICE void store_row(T* to, float* wide, int64_t at, const float (&sum)[kCols], float factor, int d, bool add) {
  TW_UNROLL
  for (int j = 0; j < kCols; ++j) {
    const int c = static_cast<int>(threadIdx.x) % kSide + kSide * j;
    if (c >= d) continue;
    const float before = !add ? 0.0f : wide != nullptr ? wide[at + c] : widen(to[at + c]);
    const float value = add ? before + sum[j] * factor : sum[j] * factor;
    if (wide != nullptr)
      wide[at + c] = value;
    else
      narrow(value, to[at + c]);
  }
}

// Host side: memory of T, or of fp32 in its place.
template <typename T>
void sums_of(const View& view, DType dtype, T*& narrow_to, float*& wide_to) {
  if (view.dtype == dtype)
    narrow_to = view.as<T>();
  else
    wide_to = view.as<float>();
}

// Every word of random numbers decides about four keys, which different threads hold: drawn here once for all kernels.
template <typename T>
TW_KERNEL void __launch_bounds__(kTileThreads)
    attention_kept_kernel(const TW_GRID_CONSTANT TileArgs<T> a, uint32_t* to) {
  const int64_t words = a.words(), i = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (i >= a.batch * a.heads * a.q_len * words) return;
  const int64_t row = i / words, key = i % words * 32, query = row % a.q_len, unit = row / a.q_len;
  const int64_t sample = unit / a.heads, head = unit % a.heads;
  uint32_t bits = 0;
  if (key <= query + a.behind()) {
    const auto id = static_cast<uint64_t>(a.dropout.sample_ids[sample]);
    const auto first =
        static_cast<uint64_t>(a.dropout.first + head * a.dropout.per_head + query * a.dropout.per_query + key);
    const int shift = static_cast<int>(first & 3);
    for (int group = 0; 4 * group - shift < 32; ++group) {
      const Words drawn = dropout_words(a.dropout, id, (first >> 2) + static_cast<uint64_t>(group));
      TW_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int bit = 4 * group + k - shift;
        if (bit >= 0 && bit < 32 && drawn.w[k] >= a.dropout.threshold) bits |= 1u << bit;
      }
    }
  }
  to[i] = bits;
}

// Host side: room for the bits of the largest part of an op, behind `before` bytes of its own, in the op's scratch.
template <typename Op>
std::byte* scratch_with_bits(CudaQueue& queue, const Op& op, size_t before, uint32_t*& bits) {
  const size_t own = (before + 15) / 16 * 16, bytes = op.dropout.p > 0.0f ? attention_bit_bytes(op.shape) : 0;
  std::byte* scratch = own + bytes > 0 ? queue.scratch(own + bytes) : nullptr;
  bits = bytes > 0 ? reinterpret_cast<uint32_t*>(scratch + own) : nullptr;
  return scratch;
}

template <typename T>
void queue_bits(CudaQueue& queue, TileArgs<T>& a, uint32_t* bits) {
  if (bits == nullptr) return;
  queue.launch("attention_kept", attention_kept_kernel<T>,
               {ceil_div(a.batch * a.heads * a.q_len * ((a.kv_len + 31) / 32), kTileThreads)}, kTileThreads, 0, a,
               bits);
  a.kept = bits;
}

// What forward and backward share. first_head numbers the heads of dropout in the whole.
template <typename T, typename Op>
TileArgs<T> tile_args(const Op& op) {
  const AttentionShape& s = op.shape;
  TW_CHECK(s.head_dim <= kMostHeadDim, "heads of ", s.head_dim, " elements; the CUDA kernels take ", kMostHeadDim);
  TileArgs<T> a = {};
  a.batch = s.batch, a.q_len = s.q_len, a.kv_len = s.kv_len;
  a.groups = s.groups, a.members = s.heads_per_group, a.heads = s.heads();
  a.d = static_cast<int>(s.head_dim);
  a.scale = op.scale;
  a.q = op.q.template as<T>(), a.k = op.k.template as<T>(), a.v = op.v.template as<T>();
  a.first_keys = static_cast<const int32_t*>(op.first_keys.data);
  a.window = op.window;
  a.q_at = op.q_at, a.k_at = op.k_at, a.v_at = op.v_at;
  a.part = s.part(), a.key_offset = s.behind(), a.first_key_here = s.first_key;
  sums_of(op.out, op.q.dtype, a.out, a.wide_out);
  a.lse = static_cast<float*>(op.lse.data);
  a.dropout = make_dropout_plan(op.dropout, s);
  constexpr int64_t W = kVector<T>;
  a.vectors = s.head_dim % W == 0 && aligned16(a.q, a.k, a.v, op.out.data);
  const HeadLayout layouts[] = {op.q_at, op.k_at, op.v_at};
  for (const HeadLayout& at : layouts) {
    a.vectors = a.vectors && at.offset % W == 0 && at.batch % W == 0 && at.token % W == 0 && at.group % W == 0 &&
                at.head % W == 0;
  }
  return a;
}

}  // namespace thinwire
