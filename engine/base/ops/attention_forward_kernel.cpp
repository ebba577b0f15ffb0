// Attention forward over tiles: scores, online softmax, product with the values; compiled once per instruction set.
#include "engine/base/ops/attention_kernel.h"
#include "engine/base/ops/attention_mask.h"
#include "engine/base/ops/attention_pack.h"
#include "engine/base/ops/attention_tile.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.69314718055994531f;

// Where the pieces of scratch lie. Per head and strip: transposed queries, sums of the output, running maximum and sum.
template <class Form>
struct ForwardTiles {
  float *keys, *values, *scores, *factors, *alpha;
  float *queries, *sums, *maximum, *total;
  int64_t words, floats, strips, bytes;

  TW_INLINE ForwardTiles(const AttentionForward& op, int64_t query_count, void* scratch)
      : words(row_words<Form>(op.shape.head_dim)),
        floats(row_floats(op.shape.head_dim)),
        strips((query_count + kStrip - 1) / kStrip) {
    Cutter cut{(char*)scratch};
    const int64_t states = strips * op.shape.heads_per_group;
    keys = cut.take(kKeys * words);
    values = cut.take(kKeys / Form::kPack * floats);
    scores = cut.take(kKeys * kStrip);
    factors = cut.take(op.dropout.p > 0.0f ? kKeys * kStrip : 0);
    alpha = cut.take(kStrip);
    queries = cut.take(states * words * kStrip);
    sums = cut.take(states * floats * kStrip);
    maximum = cut.take(states * kStrip);
    total = cut.take(states * kStrip);
    bytes = cut.used;
  }
};

// One vector of queries: scores become probabilities relative to the new running maximum (in units of log2), which
// `alpha` converts older sums to. A word of the result holds Form::kPack keys.
template <class Form, bool kDropout>
TW_INLINE void softmax_column(float* scores, const Column& see, int64_t nk, VecF unit, float* maximum, float* total,
                              float* alpha, const float* factors) {
  const VecF none = splat(-__builtin_inff());
  const int64_t rows = round_up(nk, Form::kPack) / Form::kPack;
  if (see.some == 0) {
    store(alpha, splat(1.0f));
    for (int64_t i = 0; i < rows; ++i) store(scores + i * kStrip, VecF{});
    return;
  }
  VecF best[4] = {none, none, none, none};
  int64_t i = 0;
  for (; i + 4 <= see.full; i += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) best[j] = vmax(best[j], load(scores + (i + j) * kStrip) * unit);
  }
  for (; i < see.full; ++i) best[0] = vmax(best[0], load(scores + i * kStrip) * unit);
  for (; i < see.some; ++i) best[0] = vmax(best[0], see.select(i, load(scores + i * kStrip) * unit, none));

  const VecF old = load(maximum);
  const VecF now = vmax(old, vmax(vmax(best[0], best[1]), vmax(best[2], best[3])));
  const VecF base = now == none ? VecF{} : now;  // all scores -inf so far: exponents of -inf, not of NaN
  const VecF shrink = vexp2(old - base);
  store(maximum, now);
  store(alpha, shrink);

  const auto probability = [&](int64_t key) __attribute__((always_inline)) {
    return vexp2(fma(load(scores + key * kStrip), unit, -base));
  };
  const auto dropped = [&](int64_t key, VecF p) __attribute__((always_inline)) {
    if constexpr (kDropout)
      return p * load(factors + key * kStrip);
    else
      return p;
  };
  VecF sum[4] = {};
  i = 0;
  if constexpr (Form::kPack == 1) {
    for (; i + 4 <= see.full; i += 4) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const VecF p = probability(i + j);
        sum[j] = sum[j] + p;
        store(scores + (i + j) * kStrip, dropped(i + j, p));
      }
    }
    for (; i < see.some; ++i) {
      const VecF p = see.select(i, probability(i), VecF{});
      sum[0] = sum[0] + p;
      store(scores + i * kStrip, see.select(i, dropped(i, p), VecF{}));
    }
  } else {
#ifdef __AVX512BF16__
    // Row i / 2 was read before it is overwritten: i / 2 <= i.
    for (; i + 4 <= see.full; i += 4) {
      VecF p[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        p[j] = probability(i + j);
        sum[j] = sum[j] + p[j];
        p[j] = dropped(i + j, p[j]);
      }
      store(scores + i / 2 * kStrip, round_pairs(p[0], p[1]));
      store(scores + (i / 2 + 1) * kStrip, round_pairs(p[2], p[3]));
    }
    for (; i < see.some; i += 2) {
      VecF p[2] = {};
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        if (i + j >= see.some) continue;
        const VecF q = see.select(i + j, probability(i + j), VecF{});
        sum[j] = sum[j] + q;
        p[j] = see.select(i + j, dropped(i + j, q), VecF{});
      }
      store(scores + i / 2 * kStrip, round_pairs(p[0], p[1]));
    }
#endif
  }
  for (int64_t row = round_up(i, Form::kPack) / Form::kPack; row < rows; ++row) store(scores + row * kStrip, VecF{});
  store(total, fma(load(total), shrink, (sum[0] + sum[1]) + (sum[2] + sum[3])));
}

// The state of queries whose result over other keys is known: a sum of exponents of 1 that stands for all of them.
template <class Form>
void resume(const AttentionForward& op, int64_t batch, int64_t head, int64_t q_first, int64_t nq, float* sums,
            int64_t floats, float* maximum, float* total) {
  const AttentionShape& shape = op.shape;
  const int64_t d = shape.head_dim, heads = shape.groups * shape.heads_per_group;
  for (int64_t t = 0; t < nq; ++t) {
    const float lse = ((const float*)op.lse.data)[(batch * heads + head) * shape.q_len + q_first + t];
    maximum[t] = lse * kLog2e;
    total[t] = lse == -__builtin_inff() ? 0.0f : 1.0f;
    with_sums<Form>(
        op.out,
        ((batch * shape.q_len + q_first + t) * heads + head) * d, [&](const auto* row) __attribute__((always_inline)) {
          read_row(row, d, sums + t * floats);
        });
  }
}

template <class Form>
void forward_range(const AttentionForward& op, const DropoutPlan& dropout, const AttentionRange& range, void* scratch) {
  using Element = typename Form::Element;
  using Multiply = typename Form::Multiply;
  const AttentionShape& shape = op.shape;
  const int64_t d = shape.head_dim, members = shape.heads_per_group;
  const ForwardTiles<Form> tiles(op, range.q_end - range.q_first, scratch);
  const int64_t words = tiles.words, floats = tiles.floats;
  const int64_t steps = (d + Form::kPack - 1) / Form::kPack;
  const VecF unit = splat(op.scale * kLog2e);
  const int64_t behind = behind_of(shape);  // query t sees no key behind t + behind
  FirstKeys first_keys(op, range.batch);
  const int64_t k_first = first_keys.tile_of(range.q_first), k_end = smaller(shape.kv_len, range.q_end + behind);
  if (op.merge && k_first >= k_end) return;

  for (int64_t head = 0, state = 0; head < members; ++head) {
    for (int64_t strip = 0; strip < tiles.strips; ++strip, ++state) {
      const int64_t q0 = range.q_first + strip * kStrip, nq = smaller(kStrip, range.q_end - q0);
      // The sums' memory holds the rows while they are turned: row_words <= row_floats.
      float* rows = tiles.sums + state * floats * kStrip;
      pack_rows<Form>(head_at<Element>(op.q.data, op.q_at, range.batch, q0, range.group, head), op.q_at.token, nq, d,
                      rows, op.q_at.group);
      transpose_rows(rows, words, nq, tiles.queries + state * words * kStrip, kStrip);
      fill(rows, floats * kStrip, 0.0f);
      fill(tiles.maximum + state * kStrip, kStrip, -__builtin_inff());
      fill(tiles.total + state * kStrip, kStrip, 0.0f);
      if (op.merge)
        resume<Form>(op, range.batch, range.group * members + head, q0, nq, rows, floats,
                     tiles.maximum + state * kStrip, tiles.total + state * kStrip);
    }
  }

  for (int64_t k0 = k_first; k0 < k_end; k0 += kKeys) {
    const int64_t tile_keys = smaller(kKeys, k_end - k0);
    pack_rows<Form>(head_at<Element>(op.k.data, op.k_at, range.batch, k0, range.group, 0), op.k_at.token, tile_keys, d,
                    tiles.keys, op.k_at.group);
    pack_steps<Form>(head_at<Element>(op.v.data, op.v_at, range.batch, k0, range.group, 0), op.v_at.token, tile_keys, d,
                     tiles.values, op.v_at.group);
    for (int64_t head = 0, state = 0; head < members; ++head) {
      for (int64_t strip = 0; strip < tiles.strips; ++strip, ++state) {
        const int64_t q0 = range.q_first + strip * kStrip, nq = smaller(kStrip, range.q_end - q0);
        const int64_t shift = q0 + behind - k0;
        const int64_t nk = smaller(tile_keys, nq + shift);
        if (nk <= 0 || first_keys.hides(q0, k0 + nk)) continue;
        const int32_t* first = first_keys.strip(q0, nq, k0);
        const int64_t vectors = (nq + kLanes - 1) / kLanes;
        product_scores<Multiply>(tiles.keys, words, tiles.queries + state * words * kStrip, kStrip, steps, nk, vectors,
                                 shift, tiles.scores);
        if (dropout.active) {
          dropout_tile(dropout, range.batch, range.group * members + head, q0, nq, k0, nk, shift, tiles.factors);
        }
        for (int64_t t = 0; t < nq; t += kLanes) {
          const Column see(nk, t + shift, first == nullptr ? nullptr : first + t);
          float* maximum = tiles.maximum + state * kStrip + t;
          float* total = tiles.total + state * kStrip + t;
          if (dropout.active) {
            softmax_column<Form, true>(tiles.scores + t, see, nk, unit, maximum, total, tiles.alpha + t,
                                       tiles.factors + t);
          } else {
            softmax_column<Form, false>(tiles.scores + t, see, nk, unit, maximum, total, tiles.alpha + t, nullptr);
          }
        }
        product_queries<Multiply>(tiles.scores, kStrip, tiles.values, floats, Form::kPack, nq, nk, shift,
                                  tiles.sums + state * floats * kStrip, Merge::kScale, tiles.alpha);
      }
    }
  }

  for (int64_t head = 0; head < members; ++head) {
    const int64_t h = range.group * members + head;
    for (int64_t q = range.q_first; q < range.q_end; ++q) {
      const int64_t state = head * tiles.strips + (q - range.q_first) / kStrip, t = (q - range.q_first) % kStrip;
      const float total = tiles.total[state * kStrip + t];
      const float factor = shape.length > 0 && total == 0.0f ? 0.0f : 1.0f / total;  // a part of which it sees nothing
      with_sums<Form>(
          op.out, ((range.batch * shape.q_len + q) * shape.groups * members + h) * d,
          [&](auto* out) __attribute__((always_inline)) {
            write_row(tiles.sums + (state * kStrip + t) * floats, d, factor, out, false);
          });
      if (op.lse.data != nullptr) {
        ((float*)op.lse.data)[(range.batch * shape.groups * members + h) * shape.q_len + q] =
            (tiles.maximum[state * kStrip + t] + __builtin_log2f(total)) * kLn2;
      }
    }
  }
}

int64_t forward_scratch(const AttentionForward& op, int64_t queries) {
  return with_form(op.q.dtype, [&]<class Form>(Form) { return ForwardTiles<Form>(op, queries, nullptr).bytes; });
}

void forward_run(const AttentionForward& op, const DropoutPlan& dropout, const AttentionRange& range, void* scratch) {
  with_form(op.q.dtype, [&]<class Form>(Form) { forward_range<Form>(op, dropout, range, scratch); });
}

}  // namespace

constinit const AttentionForwardKernels attention_forward_kernels = {forward_scratch, forward_run};

}  // namespace thinwire::TW_ISA
