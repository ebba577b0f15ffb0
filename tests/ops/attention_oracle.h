// Causal attention in float64 loops, forward and backward, with bounds on what rounding may do to each output; and
// random cases.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/cpu_state.h"
#include "tests/support/op_test_support.h"
#include "tests/support/thorough.h"

namespace thinwire::test {

enum class Packing {
  kInterleaved,  // a token's row is, per group, [q_0 .. q_{r-1} | k | v] (or `apart`, qkv_layout); q_len == kv_len
  kCache,  // q rows of their own with room behind them; k and v in caches [batch, capacity, groups, d], capacity >
           // kv_len
};

struct AttentionCase {
  DType dtype = DType::f32;
  Packing packing = Packing::kInterleaved;
  int64_t batch = 1, q_len = 1, kv_len = 1, groups = 1, heads_per_group = 1, head_dim = 16;
  float scale = 0.25f;
  float dropout = 0.0f;
  double spread = 1.0;   // standard deviation of q and k
  int64_t document = 0;  // tokens of a document, about; 0: one of all
  int64_t window = kNoWindow;
  bool apart = false;

  int64_t heads() const { return groups * heads_per_group; }
  std::string name() const {
    return std::string(name_of(dtype)) + (packing == Packing::kInterleaved ? " interleaved" : " cache") + " batch " +
           std::to_string(batch) + " q " + std::to_string(q_len) + " kv " + std::to_string(kv_len) + " groups " +
           std::to_string(groups) + "x" + std::to_string(heads_per_group) + " d " + std::to_string(head_dim) + " p " +
           std::to_string(dropout) + " document " + std::to_string(document) + " window " + std::to_string(window) +
           (apart ? " apart" : "");
  }
};

// The tensors of a case. What the layouts do not address holds NaN, which must not reach any result.
class AttentionTensors {
 public:
  AttentionTensors(const AttentionCase& c, std::mt19937& rng)
      : shape{c.batch, c.q_len, c.kv_len, c.groups, c.heads_per_group, c.head_dim} {
    const int64_t d = c.head_dim, r = c.heads_per_group;
    if (c.packing == Packing::kInterleaved) {
      const QkvLayout at = qkv_layout(c.groups, r, d, c.apart);
      const int64_t row = at.q.token;
      q_at = at.q, k_at = at.k, v_at = at.v;
      q_at.batch = k_at.batch = v_at.batch = c.q_len * row;
      q = Tensor(c.dtype, {c.batch * c.q_len, row});
    } else {
      const int64_t q_row = c.heads() * d + 3, capacity = c.kv_len + 5, row = c.groups * d;
      q_at = {2, c.q_len * q_row, q_row, r * d, d};
      k_at = {0, capacity * row, row, d, 0};
      v_at = {7, capacity * row + 1, row, d, 0};
      q = Tensor(c.dtype, {2 + c.batch * c.q_len * q_row});
      k = constant_tensor(c.dtype, {c.batch * capacity * row}, std::nan(""));
      v = constant_tensor(c.dtype, {7 + c.batch * (capacity * row + 1)}, std::nan(""));
    }
    for (int64_t i = 0; i < q.count(); ++i) q.set(i, std::nan(""));
    std::normal_distribution<double> normal;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t g = 0; g < c.groups; ++g) {
        for (int64_t e = 0; e < d; ++e) {
          for (int64_t t = 0; t < c.q_len; ++t) {
            for (int64_t j = 0; j < r; ++j) q.set(at(q_at, b, t, g, j) + e, c.spread * normal(rng));
          }
          for (int64_t t = 0; t < c.kv_len; ++t) {
            k_tensor().set(at(k_at, b, t, g, 0) + e, c.spread * normal(rng));
            v_tensor().set(at(v_at, b, t, g, 0) + e, normal(rng));
          }
        }
      }
    }
    for (int64_t b = 0; b < c.batch && c.document > 0; ++b) {
      int64_t start = 0;
      for (int64_t i = 0; i < c.kv_len; ++i) {
        if (rng() % static_cast<uint64_t>(c.document) == 0) start = i;
        const int64_t t = i - (c.kv_len - c.q_len);
        if (t >= 0) first_keys.push_back(static_cast<int32_t>(start));
      }
    }
    for (int64_t b = 0; b < c.batch; ++b) sample_ids.push_back(100003 * b + (int64_t{5} << 33));
    dropout.p = c.dropout;
    dropout.key = seed_key(77);
    dropout.purpose = RandomPurpose::kAttentionDropout;
    dropout.layer = 3;
    dropout.batch = c.batch;
    dropout.sample_ids = sample_ids.data();
    scale = c.scale, window = c.window;
    out = Tensor(c.dtype, {c.batch * c.q_len, c.heads() * d});
    lse = Tensor(DType::f32, {c.batch, c.heads(), c.q_len});
    dout = random_tensor(rng, c.dtype, {c.batch * c.q_len, c.heads() * d});
    dq = gradient_like(q);
    dk = gradient_like(k);
    dv = gradient_like(v);
  }
  AttentionTensors(const AttentionTensors&) = delete;

  static int64_t at(const HeadLayout& l, int64_t b, int64_t t, int64_t g, int64_t j) {
    return l.offset + b * l.batch + t * l.token + g * l.group + j * l.head;
  }
  // k and v lie in q's tensor when they are interleaved.
  Tensor& k_tensor() { return k.count() > 1 ? k : q; }
  Tensor& v_tensor() { return v.count() > 1 ? v : q; }
  Tensor& dk_tensor() { return k.count() > 1 ? dk : dq; }
  Tensor& dv_tensor() { return v.count() > 1 ? dv : dq; }

  AttentionForward forward_op() {
    AttentionForward op;
    fill_common(op);
    return op;
  }
  AttentionBackward backward_op() {
    AttentionBackward op;
    fill_common(op);
    op.dout = dout;
    op.dq = dq;
    op.dk = dk_tensor();
    op.dv = dv_tensor();
    return op;
  }
  void run_forward(Exec& exec) { exec.ops.attention_forward(exec, forward_op()); }
  void run_backward(Exec& exec) { exec.ops.attention_backward(exec, backward_op()); }

  AttentionShape shape;
  HeadLayout q_at, k_at, v_at;
  float scale = 1.0f;
  int64_t window = kNoWindow;
  Dropout dropout;
  std::vector<int64_t> sample_ids;
  std::vector<int32_t> first_keys;
  Tensor q, k, v, out, lse, dout, dq, dk, dv;

 private:
  template <typename Op>
  void fill_common(Op& op) {
    op.shape = shape;
    op.scale = scale, op.window = window;
    if (!first_keys.empty())
      op.first_keys = View(first_keys.data(), DType::i32, {static_cast<int64_t>(first_keys.size())});
    op.q = q;
    op.k = k_tensor();
    op.v = v_tensor();
    op.q_at = q_at;
    op.k_at = k_at;
    op.v_at = v_at;
    op.out = out;
    op.lse = lse;
    op.dropout = dropout;
  }
  // Gradients start as a number that no op writes: what the layouts do not address must keep it.
  static constexpr double kUntouched = -7.0;
  static Tensor gradient_like(const Tensor& x) {
    if (x.view().data == nullptr) return Tensor();
    Tensor g(x.view().dtype, {x.count()});
    for (int64_t i = 0; i < g.count(); ++i) g.set(i, kUntouched);
    return g;
  }

 public:
  static constexpr double untouched() { return kUntouched; }
};

// Results in float64, and how far rounding may take an implementation from them.
struct AttentionOracle {
  std::vector<double> out, out_bound, lse, lse_bound;  // as the op's tensors
  std::vector<double> dq, dq_bound, dk, dk_bound, dv,
      dv_bound;  // as q, k, v's tensors; dk, dv of an interleaved case are in dq's
};

// Derivation of the bounds. u = 2^-24 is the rounding unit of fp32, U that of the tensors' type, W = U where P and dS
// may enter products as bf16 and 0 elsewhere. A sum of n products in fp32 is off by at most (n + 2) u times the sum of
// absolute products.
//   score s = scale q.k:       es  = (d + 4) u scale |q|.|k|, and 4u |s| for the change of unit to log2
//   probability, relative:     ep  = 2 max es + (n + 16) u       (own error, that of the row's sum, 2^x to 2 ulp)
//   out:                       sum p |v| (ep + W + (n + 2) u) + U |out|
//   lse:                       max es + (n + 16) u + 4 u |lse|
//   P in the backward:         rp  = ep + its lse's error
//   dS = P (dP - delta):       P [rp (|dP| + |delta|) + (d + 4) u (|dout|.|v| + |dout|.|out|) + |dout|.(bound of out)]
//   + W |dS|
//   dq = scale sum dS k:       scale sum (error of dS) |k| + (n + 2) u scale sum |dS| |k| + U |dq|, and dk
//   likewise over queries dv = sum P dout:           sum P |dout| (rp + W + (n + 2) u) + U |dv|
// Below the type's smallest step nothing is promised.
//
// In parts: each merge turns lse into units of log2 and back, 4u |lse| + 16u of every probability, and a sum in pieces
// has so many additions more. narrow: sums are kept in the type, U of their absolute products at each. rounded: what a
// part gives is rounded to the type before it is added, U of their absolute products, in fp16 2^-25 at least each time.
//
// By a library's kernels on 16-bit types (cuDNN; its deterministic backward pass keeps dP in them): P, dP and dS are
// rounded to the type, U |P dP| + U |P delta| + U |dS| of dS; in fp16, whose small numbers have fixed steps, each to
// 2^-25 at least, dS behind its factor `scale` maybe. dk and dv of each q head are rounded before the sum over a group,
// U of their absolute products. Sums inside tensor cores cut instead of rounding: their unit is 2u (matmul_cuda_test).
struct AttentionParts {
  int merges = 0;
  bool narrow = false;
  bool library = false;
  bool rounded = false;
};
inline AttentionOracle attention_oracle(AttentionTensors& x, bool backward, const AttentionParts& parts = {}) {
  const AttentionShape& s = x.shape;
  const DType type = x.q.view().dtype;
  const double tiny = std::max(1e-12, tiny_of(type)) * (parts.rounded ? parts.merges + 1 : 1);
  const double u = parts.library ? 0x1p-23 : 0x1p-24, unit = unit_of(type),
               rounded = type == DType::bf16 || parts.library ? unit : 0.0, narrow = parts.library ? unit : 0.0,
               step = parts.library && type == DType::f16 ? 0x1p-25 : 0.0;
  const double merges = parts.merges,
               again = merges * (parts.narrow ? unit : u) + (parts.rounded ? unit : 0.0);  // of a sum, at its merges
  const int64_t d = s.head_dim, behind = s.kv_len - s.q_len, heads = s.heads();
  const double scale = x.scale;
  const std::vector<double> q = x.q.values(), k = x.k_tensor().values(), v = x.v_tensor().values(),
                            dout = x.dout.values();
  AttentionOracle r;
  r.out.assign(static_cast<size_t>(x.out.count()), 0.0);
  r.out_bound = r.out;
  r.lse.assign(static_cast<size_t>(x.lse.count()), 0.0);
  r.lse_bound = r.lse;
  const size_t nq = q.size(), nk = k.size(), nv = v.size();
  if (backward) {
    r.dq.assign(nq, 0.0);
    r.dk.assign(nk, 0.0);
    r.dv.assign(nv, 0.0);
    r.dq_bound = r.dq;
    r.dk_bound = r.dk;
    r.dv_bound = r.dv;
  }
  std::vector<double> p(static_cast<size_t>(s.kv_len)), factor(p.size());
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / s.heads_per_group, j = h % s.heads_per_group;
      for (int64_t t = 0; t < s.q_len; ++t) {
        const int64_t n = t + behind + 1;
        const int64_t document = x.first_keys.empty() ? 0 : x.first_keys[static_cast<size_t>(b * s.q_len + t)];
        const int64_t first = x.window == kNoWindow ? document : std::max(document, n - 1 - x.window);
        const double* query = &q[static_cast<size_t>(AttentionTensors::at(x.q_at, b, t, g, j))];
        const auto key = [&](int64_t i) { return &k[static_cast<size_t>(AttentionTensors::at(x.k_at, b, i, g, 0))]; };
        const auto value = [&](int64_t i) { return &v[static_cast<size_t>(AttentionTensors::at(x.v_at, b, i, g, 0))]; };
        double most = -INFINITY, es = 0.0;
        for (int64_t i = first; i < n; ++i) {
          double sum = 0.0, size = 0.0;
          for (int64_t e = 0; e < d; ++e) {
            sum += query[e] * key(i)[e];
            size += std::abs(query[e] * key(i)[e]);
          }
          p[static_cast<size_t>(i)] = scale * sum;
          most = std::max(most, scale * sum);
          es = std::max(es, (static_cast<double>(d) + 4) * u * std::abs(scale) * size + 4 * u * std::abs(scale * sum));
        }
        double total = 0.0;
        for (int64_t i = first; i < n; ++i) total += std::exp(p[static_cast<size_t>(i)] - most);
        const double lse = most + std::log(total), merged = merges * (4 * u * std::abs(lse) + 16 * u),
                     ep = 2 * es + (static_cast<double>(n) + 16) * u + merged;
        const size_t at_lse = static_cast<size_t>((b * heads + h) * s.q_len + t);
        r.lse[at_lse] = lse;
        r.lse_bound[at_lse] = es + (static_cast<double>(n) + 16) * u + 4 * u * std::abs(lse) + merged + tiny;
        for (int64_t i = first; i < n; ++i) {
          const size_t at = static_cast<size_t>(i);
          p[at] = std::exp(p[at] - lse);
          factor[at] = x.dropout.p == 0.0f ? 1.0
                                           : dropout_factor(x.dropout, s.batch * heads * s.q_len * s.kv_len,
                                                            ((b * heads + h) * s.q_len + t) * s.kv_len + i);
        }
        const size_t row = static_cast<size_t>(((b * s.q_len + t) * heads + h) * d);
        const double loose = ep + rounded + again + (static_cast<double>(n) + 2) * u;
        for (int64_t i = first; i < n; ++i) {
          const double w = p[static_cast<size_t>(i)] * factor[static_cast<size_t>(i)];
          if (w == 0.0) continue;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
            r.out[row + e] += w * value(i)[e];
            r.out_bound[row + e] += (w * loose + step) * std::abs(value(i)[e]);
          }
        }
        for (size_t e = 0; e < static_cast<size_t>(d); ++e)
          r.out_bound[row + e] += unit * std::abs(r.out[row + e]) + tiny;
        if (!backward) continue;

        double delta = 0.0, delta_size = 0.0, delta_error = 0.0;
        for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
          delta += dout[row + e] * r.out[row + e];
          delta_size += std::abs(dout[row + e] * r.out[row + e]);
          delta_error += std::abs(dout[row + e]) * r.out_bound[row + e];
        }
        const double rp = ep + r.lse_bound[at_lse];
        const size_t at_q = static_cast<size_t>(AttentionTensors::at(x.q_at, b, t, g, j));
        for (int64_t i = first; i < n; ++i) {
          const double pi = p[static_cast<size_t>(i)], fi = factor[static_cast<size_t>(i)];
          double dp = 0.0, dp_size = 0.0;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
            dp += fi * dout[row + e] * value(i)[e];
            dp_size += fi * std::abs(dout[row + e] * value(i)[e]);
          }
          const double ds = pi * (dp - delta);
          const double ds_error = pi * (rp * (std::abs(dp) + std::abs(delta)) +
                                        (static_cast<double>(d) + 4) * u * (dp_size + delta_size) + delta_error) +
                                  rounded * std::abs(ds) + narrow * pi * (std::abs(dp) + std::abs(dp - delta)) +
                                  step * (std::abs(dp - delta) + pi);
          const size_t at_k = static_cast<size_t>(AttentionTensors::at(x.k_at, b, i, g, 0));
          const size_t at_v = static_cast<size_t>(AttentionTensors::at(x.v_at, b, i, g, 0));
          const double last_step = step * std::max(1.0, std::abs(scale));
          const double along_keys =
              std::abs(scale) * (ds_error + (again + (static_cast<double>(n) + 2) * u) * std::abs(ds)) + last_step;
          const double queries = static_cast<double>(s.q_len * s.heads_per_group);
          const double heads_apart = s.heads_per_group > 1 ? narrow : 0.0;
          const double along_queries =
              std::abs(scale) * (ds_error + (again + heads_apart + (queries + 2) * u) * std::abs(ds)) + last_step;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
            r.dq[at_q + e] += scale * ds * key(i)[e];
            r.dq_bound[at_q + e] += along_keys * std::abs(key(i)[e]);
            r.dk[at_k + e] += scale * ds * query[e];
            r.dk_bound[at_k + e] += along_queries * std::abs(query[e]);
            r.dv[at_v + e] += pi * fi * dout[row + e];
            r.dv_bound[at_v + e] +=
                std::abs(dout[row + e]) * (pi * fi * (rp + rounded + again + heads_apart + (queries + 2) * u) + step);
          }
        }
      }
    }
  }
  if (!backward) return r;
  // What no layout addresses must keep what it held; an interleaved case has all three gradients in one tensor.
  const auto finish = [&](std::vector<double>& gradient, std::vector<double>& bound, const HeadLayout& at,
                          int64_t length, int64_t members, std::vector<char>& seen) {
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t m = 0; m < s.groups * members; ++m) {
          const size_t first = static_cast<size_t>(AttentionTensors::at(at, b, t, m / members, m % members));
          for (size_t e = first; e < first + static_cast<size_t>(d); ++e) {
            bound[e] += unit * std::abs(gradient[e]) + tiny;
            seen[e] = 1;
          }
        }
      }
    }
  };
  std::vector<char> seen_q(nq), seen_k(nk), seen_v(nv);
  finish(r.dq, r.dq_bound, x.q_at, s.q_len, s.heads_per_group, seen_q);
  finish(r.dk, r.dk_bound, x.k_at, s.kv_len, 1, seen_k);
  finish(r.dv, r.dv_bound, x.v_at, s.kv_len, 1, seen_v);
  const bool one_tensor = x.k.view().data == nullptr;
  if (one_tensor) {
    for (size_t e = 0; e < nq; ++e) {
      r.dq[e] += r.dk[e] + r.dv[e];
      r.dq_bound[e] += r.dk_bound[e] + r.dv_bound[e];
      seen_q[e] = static_cast<char>(seen_q[e] | seen_k[e] | seen_v[e]);
    }
  }
  const auto keep_rest = [](std::vector<double>& gradient, const std::vector<char>& seen) {
    for (size_t e = 0; e < gradient.size(); ++e) {
      if (!seen[e]) gradient[e] = AttentionTensors::untouched();
    }
  };
  keep_rest(r.dq, seen_q);
  keep_rest(r.dk, seen_k);
  keep_rest(r.dv, seen_v);
  return r;
}

inline void expect_within(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound,
                          const std::string& what) {
  expect_close(
      actual, expected, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, what);
}

// Random shapes with a fixed seed: lengths around the tile edges, every kind of head size, groups, both packings.
inline std::vector<AttentionCase> random_attention_cases(std::mt19937& rng, int count, int64_t longest,
                                                         bool masked = false) {
  const int64_t sizes[] = {5, 8, 16, 24, 40, 64, 80, 96, 128, 160, 37};
  const int64_t lengths[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 129, 200, 255};
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  std::vector<AttentionCase> cases;
  longest = sized(longest, 70);
  if (emulated() && !thorough()) count /= 3;
  for (int64_t i = 0; i < sized(count, 12); ++i) {
    AttentionCase c;
    c.dtype = compute_types()[static_cast<size_t>(i) % 3];
    c.packing = pick(2) == 0 ? Packing::kInterleaved : Packing::kCache;
    c.batch = 1 + pick(2);
    c.q_len = std::min(longest, lengths[pick(std::size(lengths))]);
    c.kv_len = c.packing == Packing::kInterleaved ? c.q_len : c.q_len + (pick(3) == 0 ? 0 : pick(100));
    c.groups = 1 + pick(3);
    c.heads_per_group = 1 + pick(4);
    c.head_dim = sizes[pick(std::size(sizes))];
    c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
    if (pick(4) == 0) c.scale = -1.7f * c.scale;
    c.apart = pick(2) == 0;
    if (pick(3) == 0) c.dropout = 0.1f + 0.1f * static_cast<float>(pick(5));
    if (masked) {
      c.document = pick(3) == 0 ? 0 : 1 + pick(80);
      c.window = pick(2) == 0 ? kNoWindow : pick(100);
    }
    cases.push_back(c);
  }
  return cases;
}

}  // namespace thinwire::test
