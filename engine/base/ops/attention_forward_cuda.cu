// Attention forward by our own kernel: a block per tile of queries of one head, online softmax over tiles of keys.
//
// Plain fp32 arithmetic on shared memory for every type, head size up to 256, grouped heads, caches and dropout: the
// oracle of the fused kernels, and what runs where those do not apply.
#include "engine/base/ops/attention_tile_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kM = 4, kTile = kSide * kM;  // queries and keys of a tile

size_t shared_bytes(int d) {
  return static_cast<size_t>(2 * kTile * tile_stride(d) + kTile * (kTile + 1)) * sizeof(float);
}

template <typename T, int kCols>
TW_KERNEL void __launch_bounds__(kTileThreads) attention_forward_kernel(const TW_GRID_CONSTANT TileArgs<T> a) {
  TW_DYNAMIC_SHARED(shared);
  const int stride = stride_of(a.d), ty = static_cast<int>(threadIdx.x) / kSide,
            tx = static_cast<int>(threadIdx.x) % kSide;
  float* queries = reinterpret_cast<float*>(shared);
  float* keys = queries + kTile * stride;  // then the values
  float* weights = keys + kTile * stride;
  // The last queries see most keys: they go first, and what is left for the end is short.
  const int64_t units = a.batch * a.heads, unit = blockIdx.x % units, tiles = (a.q_len + kTile - 1) / kTile;
  const int64_t q0 = (tiles - 1 - blockIdx.x / units) * kTile;
  const int64_t sample = unit / a.heads, head = unit % a.heads, group = head / a.members, member = head % a.members;
  const int64_t nq = a.q_len - q0 < kTile ? a.q_len - q0 : kTile, k_end = a.end_of_keys(q0 + nq);
  const float unit_scale = a.scale * kLog2e;
  const int64_t k_first = a.first_key(sample, q0) / kTile * kTile;
  if (a.merge && k_first >= k_end) return;

  load_tile<kTile>(queries, a.q + head_start(a.q_at, sample, q0, group, member), a.q_at.token, nq, a.d, a.vectors);
  float maximum[kM], total[kM], sum[kM][kCols];
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    maximum[i] = -INFINITY;
    total[i] = 0.0f;
    TW_UNROLL
    for (int j = 0; j < kCols; ++j) sum[i][j] = 0.0f;
    const int64_t query = ty + kSide * i;
    if (!a.merge || query >= nq) continue;
    // The result over other keys counts as one key: with score lse, and that result as its value.
    const float lse = a.lse[(sample * a.heads + head) * a.q_len + q0 + query];
    const int64_t row = ((sample * a.q_len + q0 + query) * a.heads + head) * a.d;
    maximum[i] = lse * kLog2e;
    total[i] = lse == -INFINITY ? 0.0f : 1.0f;
    TW_UNROLL
    for (int j = 0; j < kCols; ++j) {
      const int c = tx + kSide * j;
      if (c < a.d) sum[i][j] = a.wide_out != nullptr ? a.wide_out[row + c] : widen(a.out[row + c]);
    }
  }
  for (int64_t k0 = k_first; k0 < k_end; k0 += kTile) {
    const int64_t nk = k_end - k0 < kTile ? k_end - k0 : kTile;
    __syncthreads();  // the values and weights of the last tile have been used
    load_tile<kTile>(keys, a.k + head_start(a.k_at, sample, k0, group, 0), a.k_at.token, nk, a.d, a.vectors);
    __syncthreads();
    float s[kM][kM];
    tile_scores<kM>(queries, keys, a.d, s);
    int64_t first[kM], last[kM];  // keys of the tile that a row sees
    TW_UNROLL
    for (int i = 0; i < kM; ++i) {
      const int64_t query = ty + kSide * i;
      first[i] = query < nq ? a.first_key(sample, q0 + query) - k0 : 0;
      last[i] = query < nq ? q0 + query + a.behind() - k0 : -1;
      if (last[i] >= nk) last[i] = nk - 1;
      float best = -INFINITY;
      TW_UNROLL
      for (int j = 0; j < kM; ++j) {
        if (tx + kSide * j >= first[i] && tx + kSide * j <= last[i]) best = fmaxf(best, s[i][j] * unit_scale);
      }
      const float now = fmaxf(maximum[i], side_max(best));
      const float base = now == -INFINITY ? 0.0f : now;  // all scores -inf so far: exponents of -inf, not of NaN
      const float shrink = exp2f(maximum[i] - base);
      float added = 0.0f;
      TW_UNROLL
      for (int j = 0; j < kM; ++j) {
        const int key = tx + kSide * j;
        float p = 0.0f;
        if (key >= first[i] && key <= last[i]) {
          p = exp2f(fmaf(s[i][j], unit_scale, -base));
          added += p;
          if (a.dropout.active) p *= a.keep(sample, head, q0 + query, k0 + key);
        }
        weights[(ty + kSide * i) * (kTile + 1) + key] = p;
      }
      maximum[i] = now;
      total[i] = fmaf(total[i], shrink, side_sum(added));
      TW_UNROLL
      for (int j = 0; j < kCols; ++j) sum[i][j] *= shrink;
    }
    __syncthreads();  // weights are written, keys have been used
    load_tile<kTile>(keys, a.v + head_start(a.v_at, sample, k0, group, 0), a.v_at.token, nk, a.d, a.vectors);
    __syncthreads();
    if (k0 + kTile - 1 <= q0 + a.behind())
      tile_accumulate<false>(weights, keys, static_cast<int>(nk), a.d, last, sum);
    else
      tile_accumulate<true>(weights, keys, static_cast<int>(nk), a.d, last, sum);
  }
  TW_UNROLL
  for (int i = 0; i < kM; ++i) {
    const int64_t query = ty + kSide * i;
    if (query >= nq) continue;
    store_row(a.out, a.wide_out, ((sample * a.q_len + q0 + query) * a.heads + head) * a.d, sum[i],
              a.part && total[i] == 0.0f ? 0.0f : 1.0f / total[i], a.d, false);
    if (a.lse != nullptr && tx == 0) {
      a.lse[(sample * a.heads + head) * a.q_len + q0 + query] = (maximum[i] + log2f(total[i])) * kLn2;
    }
  }
}

}  // namespace

void attention_forward_cuda(Exec& exec, const AttentionForward& op) {
  CudaQueue queue(exec);
  with_storage(op.q.dtype, [&](auto type) {
    using T = decltype(type);
    uint32_t* bits;
    scratch_with_bits(queue, op, 0, bits);
    for_key_parts(op, [&](const AttentionForward& part) {
      TileArgs<T> args = tile_args<T>(part);
      args.merge = part.merge;
      queue_bits(queue, args, bits);
      const auto kernel = args.d <= 64    ? attention_forward_kernel<T, 4>
                          : args.d <= 128 ? attention_forward_kernel<T, 8>
                                          : attention_forward_kernel<T, 16>;
      queue.launch("attention_forward", kernel, {ceil_div(args.q_len, kTile) * args.batch * args.heads}, kTileThreads,
                   shared_bytes(args.d), args);
    });
  });
}

}  // namespace thinwire
