// Attention backward over tiles: probabilities made again from lse, then the five products; compiled once per
// instruction set.
#include "engine/base/ops/attention_kernel.h"
#include "engine/base/ops/attention_mask.h"
#include "engine/base/ops/attention_pack.h"
#include "engine/base/ops/attention_tile.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

constexpr float kLog2e = 1.44269504088896341f;

// Where the pieces of scratch lie. "rows" hold neighbours along the head in a word, "steps" neighbours along tokens;
// where a word is one float both are the same memory.
template <class Form>
struct BackwardTiles {
  float *key_rows, *key_steps, *value_rows, *scores, *grads, *factors, *rows;
  float *p_rows, *ds_rows, *ds_steps;
  float *dk, *dv;
  // Per head and strip.
  float *queries, *query_steps, *douts, *dout_steps, *lse, *delta, *dq;
  int64_t words, floats, bytes;

  TW_INLINE BackwardTiles(const AttentionBackward& op, int64_t queries_at_a_time, int64_t keys, void* scratch)
      : words(row_words<Form>(op.shape.head_dim)), floats(row_floats(op.shape.head_dim)) {
    Cutter cut{(char*)scratch};
    const int64_t states = (queries_at_a_time + kStrip - 1) / kStrip * op.shape.heads_per_group;
    key_rows = cut.take(kKeys * words);
    value_rows = cut.take(kKeys * words);
    scores = cut.take(kKeys * kStrip);
    grads = cut.take(kKeys * kStrip);
    factors = cut.take(op.dropout.p > 0.0f ? kKeys * kStrip : 0);
    if constexpr (Form::kPack == 1) {
      key_steps = key_rows;
      p_rows = scores;
      ds_rows = ds_steps = grads;
      rows = nullptr;
    } else {
      key_steps = cut.take(kKeys / Form::kPack * floats);
      p_rows = cut.take(kKeys * kStrip / Form::kPack);
      ds_rows = cut.take(kKeys * kStrip / Form::kPack);
      ds_steps = cut.take(kKeys * kStrip / Form::kPack);
      rows = cut.take(kStrip * words);
    }
    dk = cut.take(keys * floats);
    dv = cut.take(keys * floats);
    queries = cut.take(states * words * kStrip);
    douts = cut.take(states * words * kStrip);
    query_steps = cut.take(states * kStrip / Form::kPack * floats);
    dout_steps = cut.take(states * kStrip / Form::kPack * floats);
    lse = cut.take(states * kStrip);
    delta = cut.take(states * kStrip);
    dq = cut.take(states * kStrip * floats);
    bytes = cut.used;
  }
};

// a . b over n elements, in a fixed order.
template <typename T>
TW_INLINE float dot(const T* a, const T* b, int64_t n) {
  VecF sum = {};
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) sum = fma(load(a + e), load(b + e), sum);
  if (e < n) sum = fma(load_first(a + e, n - e), load_first(b + e, n - e), sum);
  return reduce_add(sum);
}

// Both forms of n rows of one head: `turned` [words][strip] for the scores, `steps` for products that sum over tokens.
template <class Form>
TW_INLINE void pack_both(const typename Form::Element* src, int64_t stride, int64_t n, int64_t d, int64_t words,
                         Word* rows, Word* turned, Word* steps, int64_t ahead) {
  pack_steps<Form>(src, stride, n, d, steps, ahead);
  if constexpr (Form::kPack == 1) {
    transpose_rows(steps, words, n, turned, kStrip);
  } else {
    pack_rows<Form>(src, stride, n, d, rows);
    transpose_rows(rows, words, n, turned, kStrip);
  }
}

// One vector of queries: scores and dP become P (with dropout) and dS, in the forms that the products read.
template <class Form, bool kDropout>
TW_INLINE void gradient_column(const BackwardTiles<Form>& tiles, int64_t t, const Column& see, int64_t nk, VecF unit,
                               VecF lse, VecF delta) {
  const auto values = [&](int64_t i, VecF & p, VecF & ds) __attribute__((always_inline)) {
    const int64_t at = i * kStrip + t;
    const VecF q = vexp2(fma(load(tiles.scores + at), unit, -lse));
    VecF g = load(tiles.grads + at);
    p = q;
    if constexpr (kDropout) {
      const VecF factor = load(tiles.factors + at);
      p = p * factor;
      g = g * factor;
    }
    ds = q * (g - delta);
  };
  const auto masked_values = [&](int64_t i, VecF & p, VecF & ds) __attribute__((always_inline)) {
    p = ds = VecF{};
    if (i >= see.some) return;
    values(i, p, ds);
    p = see.select(i, p, VecF{});
    ds = see.select(i, ds, VecF{});
  };
  int64_t i = 0;
  if constexpr (Form::kPack == 1) {
    for (; i + 4 <= see.full; i += 4) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        VecF p, ds;
        values(i + j, p, ds);
        store(tiles.scores + (i + j) * kStrip + t, p);
        store(tiles.grads + (i + j) * kStrip + t, ds);
      }
    }
    for (; i < nk; ++i) {
      VecF p, ds;
      masked_values(i, p, ds);
      store(tiles.scores + i * kStrip + t, p);
      store(tiles.grads + i * kStrip + t, ds);
    }
  } else {
#ifdef __AVX512BF16__
    const auto put = [&](int64_t row, const VecF(&p)[2], const VecF(&ds)[2]) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const int64_t at = ((row + j) * kStrip + t) / 2;
        _mm256_storeu_si256((__m256i*)(tiles.p_rows + at), (__m256i)_mm512_cvtneps_pbh((__m512)p[j]));
        _mm256_storeu_si256((__m256i*)(tiles.ds_rows + at), (__m256i)_mm512_cvtneps_pbh((__m512)ds[j]));
      }
      store(tiles.ds_steps + row / 2 * kStrip + t, round_pairs(ds[0], ds[1]));
    };
    for (; i + 2 <= see.full; i += 2) {
      VecF p[2], ds[2];
      values(i, p[0], ds[0]);
      values(i + 1, p[1], ds[1]);
      put(i, p, ds);
    }
    for (; i < nk; i += 2) {  // an odd last row writes one more, which is zero
      VecF p[2], ds[2];
      masked_values(i, p[0], ds[0]);
      masked_values(i + 1, p[1], ds[1]);
      put(i, p, ds);
    }
#endif
  }
}

// Fills the states of queries [q_first, q_end): packed queries and output gradients, lse in units of log2, delta, zero
// sums.
template <class Form>
void prepare_queries(const AttentionBackward& op, const AttentionRange& range, int64_t q_first, int64_t q_end,
                     int64_t strips, const BackwardTiles<Form>& tiles) {
  using Element = typename Form::Element;
  const AttentionShape& shape = op.shape;
  const int64_t d = shape.head_dim, members = shape.heads_per_group, heads = shape.groups * members;
  for (int64_t head = 0; head < members; ++head) {
    const int64_t h = range.group * members + head;
    for (int64_t q0 = q_first, state = head * strips; q0 < q_end; q0 += kStrip, ++state) {
      const int64_t nq = smaller(kStrip, q_end - q0);
      const int64_t row0 = range.batch * shape.q_len + q0;
      pack_both<Form>(head_at<Element>(op.q.data, op.q_at, range.batch, q0, range.group, head), op.q_at.token, nq, d,
                      tiles.words, tiles.rows, tiles.queries + state * tiles.words * kStrip,
                      tiles.query_steps + state * kStrip / Form::kPack * tiles.floats, op.q_at.group);
      const Element* dout = (const Element*)op.dout.data + (row0 * heads + h) * d;
      const Element* out = (const Element*)op.out.data + (row0 * heads + h) * d;
      pack_both<Form>(dout, heads * d, nq, d, tiles.words, tiles.rows, tiles.douts + state * tiles.words * kStrip,
                      tiles.dout_steps + state * kStrip / Form::kPack * tiles.floats, members * d);
      float* lse = tiles.lse + state * kStrip;
      float* delta = tiles.delta + state * kStrip;
      fill(lse, kStrip, 0.0f);
      fill(delta, kStrip, 0.0f);
      for (int64_t t = 0; t < nq; ++t) {
        lse[t] = ((float*)op.lse.data)[(range.batch * heads + h) * shape.q_len + q0 + t] * kLog2e;
        prefetch_row(out + t * heads * d, members * d, d);
        delta[t] = dot(dout + t * heads * d, out + t * heads * d, d);
      }
      fill(tiles.dq + state * kStrip * tiles.floats, kStrip * tiles.floats, 0.0f);
    }
  }
}

template <class Form>
void backward_range(const AttentionBackward& op, const DropoutPlan& dropout, const AttentionRange& range,
                    int64_t queries_at_a_time, bool want_dq, bool want_dkv, void* scratch) {
  using Element = typename Form::Element;
  using Multiply = typename Form::Multiply;
  constexpr int64_t kPack = Form::kPack;
  const AttentionShape& shape = op.shape;
  const int64_t d = shape.head_dim, members = shape.heads_per_group;
  const int64_t behind = behind_of(shape);  // query t sees no key behind t + behind
  FirstKeys first_keys(op, range.batch);
  const BackwardTiles<Form> tiles(op, queries_at_a_time, want_dkv ? range.k_end - range.k_first : 0, scratch);
  const int64_t words = tiles.words, floats = tiles.floats;
  const int64_t steps = (d + kPack - 1) / kPack, strips = queries_at_a_time / kStrip;
  const VecF unit = splat(op.scale * kLog2e);
  const auto write = [&](const View& to, const HeadLayout& at, int64_t token, int64_t head, const float* row,
                         float factor, bool add) {
    with_sums<Form>(
        to, head_start(at, range.batch, token, range.group, head), [&](auto* dst) __attribute__((always_inline)) {
          write_row(row, d, factor, dst, add);
        });
  };
  if (want_dkv) {
    fill(tiles.dk, (range.k_end - range.k_first) * floats, 0.0f);
    fill(tiles.dv, (range.k_end - range.k_first) * floats, 0.0f);
  }
  bool any = false;

  for (int64_t q_first = range.q_first; q_first < range.q_end; q_first += queries_at_a_time) {
    const int64_t q_end = smaller(range.q_end, q_first + queries_at_a_time);
    const int64_t k_end = smaller(range.k_end, q_end + behind);
    const bool seen = k_end > range.k_first && !first_keys.hides(q_first, k_end);
    if (!seen && (!want_dq || op.add_dq)) continue;
    any |= seen;
    prepare_queries<Form>(op, range, q_first, q_end, strips, tiles);

    for (int64_t k0 = larger(range.k_first, first_keys.tile_of(q_first)); k0 < k_end; k0 += kKeys) {
      const int64_t tile_keys = smaller(kKeys, k_end - k0);
      const Element* k = head_at<Element>(op.k.data, op.k_at, range.batch, k0, range.group, 0);
      const Element* v = head_at<Element>(op.v.data, op.v_at, range.batch, k0, range.group, 0);
      pack_rows<Form>(k, op.k_at.token, tile_keys, d, tiles.key_rows, op.k_at.group);
      pack_rows<Form>(v, op.v_at.token, tile_keys, d, tiles.value_rows, op.v_at.group);
      if constexpr (kPack > 1) {
        if (want_dq) pack_steps<Form>(k, op.k_at.token, tile_keys, d, tiles.key_steps);
      }
      for (int64_t head = 0; head < members; ++head) {
        for (int64_t q0 = q_first, state = head * strips; q0 < q_end; q0 += kStrip, ++state) {
          const int64_t nq = smaller(kStrip, q_end - q0);
          const int64_t shift = q0 + behind - k0;
          const int64_t nk = smaller(tile_keys, nq + shift);
          if (nk <= 0 || first_keys.hides(q0, k0 + nk)) continue;
          const int32_t* first = first_keys.strip(q0, nq, k0);
          const int64_t vectors = (nq + kLanes - 1) / kLanes;
          product_scores<Multiply>(tiles.key_rows, words, tiles.queries + state * words * kStrip, kStrip, steps, nk,
                                   vectors, shift, tiles.scores);
          product_scores<Multiply>(tiles.value_rows, words, tiles.douts + state * words * kStrip, kStrip, steps, nk,
                                   vectors, shift, tiles.grads);
          if (dropout.active) {
            dropout_tile(dropout, range.batch, range.group * members + head, q0, nq, k0, nk, shift, tiles.factors);
          }
          for (int64_t t = 0; t < nq; t += kLanes) {
            const Column see(nk, t + shift, first == nullptr ? nullptr : first + t);
            const VecF lse = load(tiles.lse + state * kStrip + t), delta = load(tiles.delta + state * kStrip + t);
            if (dropout.active)
              gradient_column<Form, true>(tiles, t, see, nk, unit, lse, delta);
            else
              gradient_column<Form, false>(tiles, t, see, nk, unit, lse, delta);
          }
          if (want_dkv) {
            product_keys<Multiply>(tiles.p_rows, kStrip / kPack, tiles.dout_steps + state * kStrip / kPack * floats,
                                   floats, kPack, nq, nk, shift, tiles.dv + (k0 - range.k_first) * floats);
            product_keys<Multiply>(tiles.ds_rows, kStrip / kPack, tiles.query_steps + state * kStrip / kPack * floats,
                                   floats, kPack, nq, nk, shift, tiles.dk + (k0 - range.k_first) * floats);
          }
          if (want_dq) {
            product_queries<Multiply>(tiles.ds_steps, kStrip, tiles.key_steps, floats, kPack, nq, nk, shift,
                                      tiles.dq + state * kStrip * floats, Merge::kAdd, nullptr);
          }
        }
      }
    }
    if (!want_dq) continue;
    for (int64_t head = 0; head < members; ++head) {
      for (int64_t q = q_first; q < q_end; ++q) {
        const int64_t state = head * strips + (q - q_first) / kStrip, t = (q - q_first) % kStrip;
        write(op.dq, op.q_at, q, head, tiles.dq + (state * kStrip + t) * floats, op.scale, op.add_dq);
      }
    }
  }

  if (!want_dkv || (op.add_dkv && !any)) return;
  for (int64_t key = range.k_first; key < range.k_end; ++key) {
    write(op.dk, op.k_at, key, 0, tiles.dk + (key - range.k_first) * floats, op.scale, op.add_dkv);
    write(op.dv, op.v_at, key, 0, tiles.dv + (key - range.k_first) * floats, 1.0f, op.add_dkv);
  }
}

int64_t backward_scratch(const AttentionBackward& op, int64_t queries, int64_t keys) {
  return with_form(op.q.dtype, [&]<class Form>(Form) { return BackwardTiles<Form>(op, queries, keys, nullptr).bytes; });
}

void backward_run(const AttentionBackward& op, const DropoutPlan& dropout, const AttentionRange& range, int64_t queries,
                  bool want_dq, bool want_dkv, void* scratch) {
  with_form(op.q.dtype,
            [&]<class Form>(Form) { backward_range<Form>(op, dropout, range, queries, want_dq, want_dkv, scratch); });
}

}  // namespace

constinit const AttentionBackwardKernels attention_backward_kernels = {backward_scratch, backward_run};

}  // namespace thinwire::TW_ISA
