// A stand-in for a library's attention: one call, computed with the roundings of the real one, and with faults.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/ops/attention_oracle.h"

namespace thinwire::test {

// What can go wrong in a library or in how it is called; from kAllMasked on with parts of a sequence.
enum class Fault {
  kNone,
  kSeesTheNextKey,
  kMissesTheFirstKey,
  kNoScale,
  kScaleTwiceInDk,
  kLseInLog2,
  kLseOfTheRoundedSum,
  kNoDelta,
  kHalfOfP,
  kCoarseDp,
  kHeadsOfTheNextGroup,
  kLastRowUnwritten,
  kGradientsOfOneHead,
  kMaskOfTheFirstHead,
  kMaskOfOnes,
  kAllMasked,
  kDiagonalSeenByAll,
  kDiagonalAtTheFirstKey,
  kKeysOffByOne,
  kLseNotMerged,
  kSharesAlike,
  kDkAddedTwice,
  kDqNotAdded,
  kCount
};

inline double rounded(double x, DType type) {
  return type == DType::bf16 ? to_float(to_bf16(static_cast<float>(x))) : to_float(to_fp16(static_cast<float>(x)));
}

inline double element(const View& view, int64_t at) {
  return read_element(view, at);
}

// One call, forward or (b) backward, as cuDNN's kernels do it: fp32 sums (more here), P, dP and dS in the operands'
// type, dk and dv of every q head rounded before they are added; and with a mask, row sums not divided by the rest of
// the factor (attention_dropout_scale). f: its operands. A part is written to `part` (attention_part).
inline void one_call(const AttentionCalls& calls, const AttentionCalls::Start& s, const AttentionForward& f,
                     const AttentionBackward* b, Fault fault, std::byte* part = nullptr) {
  const AttentionCall& c = calls.call;
  const int64_t m = c.q_heads / c.kv_heads, n = c.q_len, keys = c.kv_len, d = c.head_dim;
  const auto place = [](const AttentionCall::Strides& by, int64_t start, int64_t sample, int64_t head, int64_t token) {
    return start + sample * by[0] + head * by[1] + token * by[2];
  };
  // Where a result goes: the op's tensor, or the part's memory.
  const AttentionPart at = attention_part(c);
  struct Result {
    View view;
    AttentionCall::Strides by;
    int64_t start;
  };
  const auto result = [&](const View& view, const AttentionCall::Strides& by, int64_t start, size_t byte,
                          int64_t length, int64_t heads) {
    if (!c.part) return Result{view, by, start};
    return Result{View(part + byte, c.dtype, {c.batch * length * heads * d}), packed_strides(length, heads, d), 0};
  };
  const Result out_to = result(f.out, c.o, s.o, at.q, n, c.q_heads);
  const Result lse_to = {
      c.part ? View(part + at.lse, DType::f32, {c.batch * c.q_heads * n}) : f.lse, {}, c.part ? 0 : s.lse};
  Result dq_to, dk_to, dv_to;
  if (b != nullptr) {
    dq_to = result(b->dq, c.q, s.q, at.q, n, c.q_heads);
    dk_to = result(b->dk, c.k, s.k, at.k, keys, c.kv_heads), dv_to = result(b->dv, c.v, s.v, at.v, keys, c.kv_heads);
  }
  const double scale = fault == Fault::kNoScale ? 1.0 : static_cast<double>(c.scale);
  const auto size = static_cast<size_t>(keys * d);
  bool causal = c.causal;
  if (fault == Fault::kAllMasked || fault == Fault::kDiagonalSeenByAll) causal = fault == Fault::kAllMasked;
  const int64_t behind = fault == Fault::kDiagonalAtTheFirstKey ? 0 : std::max<int64_t>(0, keys - n);
  for (int64_t sample = 0; sample < c.batch; ++sample) {
    std::vector<double> dk(static_cast<size_t>(c.kv_heads) * size), dv(dk);
    for (int64_t head = 0; head < c.q_heads; ++head) {
      int64_t kv = head / m;
      if (fault == Fault::kHeadsOfTheNextGroup) kv = (kv + 1) % c.kv_heads;
      std::vector<double> head_dk(size), head_dv(size);
      // Of the op, by its place in the call's mask.
      const int64_t heads = c.batch * c.q_heads / calls.samples, in_mask = sample * c.q_heads + head;
      const int64_t of_op = fault == Fault::kMaskOfTheFirstHead ? 0 : s.head + in_mask % heads;
      AttentionDropoutScale factors = attention_dropout_scale(c);
      if (fault == Fault::kMaskOfOnes) factors = {1.0f, factors.mask * factors.rest};
      const double rest = factors.rest;
      const auto mask = [&](int64_t query, int64_t key) {
        if (c.dropout == 0.0f) return 1.0;
        return dropout_factor(f.dropout, f.shape.batch * f.shape.heads() * n * n,
                              (((s.sample + in_mask / heads) * f.shape.heads() + of_op) * n + query) * n + key) > 0.0
                   ? static_cast<double>(factors.mask)
                   : 0.0;
      };
      for (int64_t t = 0; t < n; ++t) {
        const int64_t q_at = place(c.q, s.q, sample, head, t), o_at = place(c.o, s.o, sample, head, t);
        const int64_t first = fault == Fault::kMissesTheFirstKey && t > 0 ? 1 : 0;
        const int64_t seen = (causal ? t + behind + 1 : keys) + (fault == Fault::kSeesTheNextKey ? 1 : 0);
        const int64_t last = std::min(keys, seen);
        std::vector<double> p(static_cast<size_t>(last));
        double most = -HUGE_VAL, sum = 0.0, used = 0.0;
        for (int64_t i = first; i < last; ++i) {
          double dot = 0.0;
          for (int64_t e = 0; e < d; ++e)
            dot += element(f.q, q_at + e) * element(f.k, place(c.k, s.k, sample, kv, i) + e);
          p[static_cast<size_t>(i)] = scale * dot;
          most = std::max(most, scale * dot);
        }
        std::vector<double> out(static_cast<size_t>(d));
        for (int64_t i = first; i < last; ++i) {
          const double e_to = std::exp(p[static_cast<size_t>(i)] - most),
                       weight = rounded(e_to * rest * mask(t, i), c.dtype);
          sum += e_to, used += weight;
          for (int64_t e = 0; e < d; ++e)
            out[static_cast<size_t>(e)] += weight * element(f.v, place(c.v, s.v, sample, kv, i) + e);
        }
        double lse = most + std::log(fault == Fault::kLseOfTheRoundedSum ? used : sum);
        if (fault == Fault::kLseInLog2) lse *= 1.4426950408889634;
        const bool skipped = fault == Fault::kLastRowUnwritten && t == n - 1;
        if (b == nullptr) {
          const int64_t to = place(out_to.by, out_to.start, sample, head, t);
          for (int64_t e = 0; e < d && !skipped; ++e)
            write_element(out_to.view, to + e, out[static_cast<size_t>(e)] / sum);
          if (f.lse) write_element(lse_to.view, lse_to.start + (sample * c.q_heads + head) * n + t, lse);
          continue;
        }
        double delta = 0.0;
        for (int64_t e = 0; e < d; ++e) delta += element(b->dout, o_at + e) * element(b->out, o_at + e);
        if (fault == Fault::kNoDelta) delta = 0.0;
        std::vector<double> dq(static_cast<size_t>(d));
        for (int64_t i = first; i < last; ++i) {
          const int64_t k_at = place(c.k, s.k, sample, kv, i), v_at = place(c.v, s.v, sample, kv, i);
          double probability =
              std::exp(p[static_cast<size_t>(i)] - element(b->lse, s.lse + (sample * c.q_heads + head) * n + t));
          if (fault == Fault::kHalfOfP) probability *= 0.5;
          double dp = 0.0;
          for (int64_t e = 0; e < d; ++e) dp += element(b->dout, o_at + e) * element(b->v, v_at + e);
          dp = rounded(dp * mask(t, i), c.dtype);
          if (fault == Fault::kCoarseDp) dp = std::ldexp(std::nearbyint(std::ldexp(dp, 1)), -1);
          const double ds = rounded(rest * probability * (dp - delta), c.dtype);
          for (int64_t e = 0; e < d; ++e) {
            dq[static_cast<size_t>(e)] += scale * ds * element(b->k, k_at + e);
            head_dk[static_cast<size_t>(i * d + e)] +=
                scale * (fault == Fault::kScaleTwiceInDk ? scale : 1.0) * ds * element(b->q, q_at + e);
            head_dv[static_cast<size_t>(i * d + e)] +=
                rounded(rest * probability * mask(t, i), c.dtype) * element(b->dout, o_at + e);
          }
        }
        for (int64_t e = 0; e < d; ++e)
          write_element(dq_to.view, place(dq_to.by, dq_to.start, sample, head, t) + e, dq[static_cast<size_t>(e)]);
      }
      if (fault == Fault::kGradientsOfOneHead && head % m != 0) continue;
      for (size_t i = 0; i < size; ++i) {
        dk[static_cast<size_t>(kv) * size + i] += m > 1 ? rounded(head_dk[i], c.dtype) : head_dk[i];
        dv[static_cast<size_t>(kv) * size + i] += m > 1 ? rounded(head_dv[i], c.dtype) : head_dv[i];
      }
    }
    if (b == nullptr) continue;
    for (int64_t kv = 0; kv < c.kv_heads; ++kv) {
      for (int64_t i = 0; i < keys; ++i) {
        for (int64_t e = 0; e < d; ++e) {
          const size_t from = static_cast<size_t>(kv) * size + static_cast<size_t>(i * d + e);
          write_element(dk_to.view, place(dk_to.by, dk_to.start, sample, kv, i) + e, dk[from]);
          write_element(dv_to.view, place(dv_to.by, dv_to.start, sample, kv, i) + e, dv[from]);
        }
      }
    }
  }
}

}  // namespace thinwire::test
