// Attention backward by our own kernels, without atomics: probabilities made again from lse, one owner per gradient.
//
// Three kernels: dout . out per query and head; dk and dv with a block per tile of keys of one group, which walks the
// heads of the group and their queries in order; dq with a block per tile of queries, which walks the keys. Scores are
// made twice that way, and every sum has one fixed order.
#include "engine/base/ops/attention_tile_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

// One warp per query and head, in the order of `out`.
template <typename T>
TW_KERNEL void __launch_bounds__(kTileThreads) attention_delta_kernel(const TW_GRID_CONSTANT TileArgs<T> a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kTileThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t rows = a.batch * a.q_len * a.heads;
  float sum = 0.0f;
  if (row < rows) {
    for (int e = static_cast<int>(threadIdx.x % kWarp); e < a.d; e += kWarp) {
      sum = fmaf(widen(a.dout[row * a.d + e]), widen(a.out[row * a.d + e]), sum);
    }
  }
  sum = warp_sum(sum);
  if (row >= rows || threadIdx.x % kWarp != 0) return;
  const int64_t head = row % a.heads, token = row / a.heads;
  a.delta[(token / a.q_len * a.heads + head) * a.q_len + token % a.q_len] = sum;
}

// P (with dropout) and dS of one query and key.
struct Pair {
  float p, ds;
};
template <typename T>
TW_DEVICE Pair pair_of(const TileArgs<T>& a, int64_t sample, int64_t head, int64_t query, int64_t key, float score,
                       float dp, float lse, float delta) {
  if (query >= a.q_len || key >= a.kv_len || key > query + a.behind() || key < a.first_key(sample, query))
    return {0.0f, 0.0f};
  const float p = exp2f(fmaf(score, a.scale * kLog2e, -lse));
  const float keep = a.dropout.active ? a.keep(sample, head, query, key) : 1.0f;
  return {p * keep, p * (dp * keep - delta)};
}

template <int kM>
size_t shared_bytes(int d, int products) {
  constexpr int kTile = kSide * kM;
  return static_cast<size_t>(4 * kTile * tile_stride(d) + products * kTile * (kTile + 1)) * sizeof(float);
}

template <typename T, int kM, int kCols>
TW_KERNEL void __launch_bounds__(kTileThreads, 1) attention_keys_kernel(const TW_GRID_CONSTANT TileArgs<T> a) {
  constexpr int kTile = kSide * kM;
  TW_DYNAMIC_SHARED(shared);
  const int stride = stride_of(a.d), ty = static_cast<int>(threadIdx.x) / kSide,
            tx = static_cast<int>(threadIdx.x) % kSide;
  float* keys = reinterpret_cast<float*>(shared);
  float* values = keys + kTile * stride;
  float* queries = values + kTile * stride;
  float* douts = queries + kTile * stride;
  float* p = douts + kTile * stride;  // [key][query]
  float* ds = p + kTile * (kTile + 1);
  // The first keys are seen by most queries: they go first.
  const int64_t units = a.batch * a.groups, unit = blockIdx.x % units, k0 = blockIdx.x / units * kTile;
  const int64_t sample = unit / a.groups, group = unit % a.groups;
  const int64_t nk = a.kv_len - k0 < kTile ? a.kv_len - k0 : kTile;
  load_tile<kTile>(keys, a.k + head_start(a.k_at, sample, k0, group, 0), a.k_at.token, nk, a.d, a.vectors);
  load_tile<kTile>(values, a.v + head_start(a.v_at, sample, k0, group, 0), a.v_at.token, nk, a.d, a.vectors);
  float dk[kM][kCols], dv[kM][kCols];
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    TW_UNROLL
    for (int j = 0; j < kCols; ++j) dk[i][j] = dv[i][j] = 0.0f;
  }
  const int64_t none[kM] = {};
  const int64_t first_query = k0 > a.behind() ? (k0 - a.behind()) / kTile * kTile : 0;  // a tile that sees key k0
  for (int64_t member = 0; member < a.members; ++member) {
    const int64_t head = group * a.members + member;
    const float* lse = a.lse + (sample * a.heads + head) * a.q_len;
    const float* delta = a.delta + (sample * a.heads + head) * a.q_len;
    for (int64_t q0 = first_query; q0 < a.q_len; q0 += kTile) {
      const int64_t nq = a.q_len - q0 < kTile ? a.q_len - q0 : kTile;
      __syncthreads();  // the last tile's products have been used
      load_tile<kTile>(queries, a.q + head_start(a.q_at, sample, q0, group, member), a.q_at.token, nq, a.d, a.vectors);
      load_tile<kTile>(douts, a.dout + ((sample * a.q_len + q0) * a.heads + head) * a.d, a.heads * a.d, nq, a.d,
                       a.vectors);
      __syncthreads();
      float s[kM][kM], dp[kM][kM];
      tile_scores<kM>(keys, queries, a.d, s);
      tile_scores<kM>(values, douts, a.d, dp);
      TW_UNROLL
      for (int j = 0; j < kM; ++j) {
        const int64_t query = q0 + tx + kSide * j;
        const float lse2 = query < a.q_len ? lse[query] * kLog2e : 0.0f, d = query < a.q_len ? delta[query] : 0.0f;
        TW_UNROLL
        for (int i = 0; i < kM; ++i) {
          const Pair pair = pair_of(a, sample, head, query, k0 + ty + kSide * i, s[i][j], dp[i][j], lse2, d);
          p[(ty + kSide * i) * (kTile + 1) + tx + kSide * j] = pair.p;
          ds[(ty + kSide * i) * (kTile + 1) + tx + kSide * j] = pair.ds;
        }
      }
      __syncthreads();
      tile_accumulate<false>(p, douts, static_cast<int>(nq), a.d, none, dv);
      tile_accumulate<false>(ds, queries, static_cast<int>(nq), a.d, none, dk);
    }
  }
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    const int64_t key = ty + kSide * i;
    if (key >= nk) continue;
    store_row(a.dk, a.wide_dk, head_start(a.k_at, sample, k0 + key, group, 0), dk[i], a.scale, a.d, a.add_dkv);
    store_row(a.dv, a.wide_dv, head_start(a.v_at, sample, k0 + key, group, 0), dv[i], 1.0f, a.d, a.add_dkv);
  }
}

template <typename T, int kM, int kCols>
TW_KERNEL void __launch_bounds__(kTileThreads, 1) attention_queries_kernel(const TW_GRID_CONSTANT TileArgs<T> a) {
  constexpr int kTile = kSide * kM;
  TW_DYNAMIC_SHARED(shared);
  const int stride = stride_of(a.d), ty = static_cast<int>(threadIdx.x) / kSide,
            tx = static_cast<int>(threadIdx.x) % kSide;
  float* keys = reinterpret_cast<float*>(shared);
  float* values = keys + kTile * stride;
  float* queries = values + kTile * stride;
  float* douts = queries + kTile * stride;
  float* ds = douts + kTile * stride;  // [query][key]
  const int64_t units = a.batch * a.heads, unit = blockIdx.x % units, tiles = (a.q_len + kTile - 1) / kTile;
  const int64_t q0 = (tiles - 1 - blockIdx.x / units) * kTile;
  const int64_t sample = unit / a.heads, head = unit % a.heads, group = head / a.members, member = head % a.members;
  const int64_t nq = a.q_len - q0 < kTile ? a.q_len - q0 : kTile, k_end = a.end_of_keys(q0 + nq);
  load_tile<kTile>(queries, a.q + head_start(a.q_at, sample, q0, group, member), a.q_at.token, nq, a.d, a.vectors);
  load_tile<kTile>(douts, a.dout + ((sample * a.q_len + q0) * a.heads + head) * a.d, a.heads * a.d, nq, a.d, a.vectors);
  float lse2[kM], delta[kM], dq[kM][kCols];
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    const int64_t query = q0 + ty + kSide * i, at = (sample * a.heads + head) * a.q_len + query;
    lse2[i] = query < a.q_len ? a.lse[at] * kLog2e : 0.0f;
    delta[i] = query < a.q_len ? a.delta[at] : 0.0f;
    TW_UNROLL
    for (int j = 0; j < kCols; ++j) dq[i][j] = 0.0f;
  }
  const int64_t none[kM] = {};
  for (int64_t k0 = a.first_key(sample, q0) / kTile * kTile; k0 < k_end; k0 += kTile) {
    const int64_t nk = k_end - k0 < kTile ? k_end - k0 : kTile;
    __syncthreads();  // the last tile's products have been used
    load_tile<kTile>(keys, a.k + head_start(a.k_at, sample, k0, group, 0), a.k_at.token, nk, a.d, a.vectors);
    load_tile<kTile>(values, a.v + head_start(a.v_at, sample, k0, group, 0), a.v_at.token, nk, a.d, a.vectors);
    __syncthreads();
    float s[kM][kM], dp[kM][kM];
    tile_scores<kM>(queries, keys, a.d, s);
    tile_scores<kM>(douts, values, a.d, dp);
    TW_UNROLL
    for (int i = 0; i < kM; ++i) {
      TW_UNROLL
      for (int j = 0; j < kM; ++j) {
        const Pair pair =
            pair_of(a, sample, head, q0 + ty + kSide * i, k0 + tx + kSide * j, s[i][j], dp[i][j], lse2[i], delta[i]);
        ds[(ty + kSide * i) * (kTile + 1) + tx + kSide * j] = pair.ds;
      }
    }
    __syncthreads();
    tile_accumulate<false>(ds, keys, static_cast<int>(nk), a.d, none, dq);
  }
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    const int64_t query = ty + kSide * i;
    if (query < nq)
      store_row(a.dq, a.wide_dq, head_start(a.q_at, sample, q0 + query, group, member), dq[i], a.scale, a.d, a.add_dq);
  }
}

template <typename T, int kM, int kCols>
void queue_backward(CudaQueue& queue, const TileArgs<T>& a) {
  constexpr int kTile = kSide * kM;
  queue.launch("attention_keys", attention_keys_kernel<T, kM, kCols>, {ceil_div(a.kv_len, kTile) * a.batch * a.groups},
               kTileThreads, shared_bytes<kM>(a.d, 2), a);
  queue.launch("attention_queries", attention_queries_kernel<T, kM, kCols>,
               {ceil_div(a.q_len, kTile) * a.batch * a.heads}, kTileThreads, shared_bytes<kM>(a.d, 1), a);
}

}  // namespace

void attention_backward_cuda(Exec& exec, const AttentionBackward& op) {
  CudaQueue queue(exec);
  with_storage(op.q.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t rows = op.shape.batch * op.shape.heads() * op.shape.q_len;
    uint32_t* bits;
    auto* delta =
        reinterpret_cast<float*>(scratch_with_bits(queue, op, static_cast<size_t>(rows) * sizeof(float), bits));
    bool made = false;
    for_key_parts(op, [&](const AttentionBackward& part) {
      TileArgs<T> args = tile_args<T>(part);
      args.dout = part.dout.as<T>();
      sums_of(part.dq, part.q.dtype, args.dq, args.wide_dq);
      sums_of(part.dk, part.q.dtype, args.dk, args.wide_dk);
      sums_of(part.dv, part.q.dtype, args.dv, args.wide_dv);
      args.add_dq = part.add_dq, args.add_dkv = part.add_dkv;
      args.vectors = args.vectors && aligned16(args.dout);
      args.delta = delta;
      queue_bits(queue, args, bits);
      if (!made)
        queue.launch("attention_delta", attention_delta_kernel<T>, {ceil_div(rows, kTileThreads / kWarp)}, kTileThreads,
                     0, args);
      made = true;
      if (args.d <= 64)
        queue_backward<T, 4, 4>(queue, args);
      else if (args.d <= 128)
        queue_backward<T, 4, 8>(queue, args);
      else
        queue_backward<T, 2, 16>(queue, args);  // smaller tiles: four of 64 rows would not fit shared memory
    });
  });
}

}  // namespace thinwire
