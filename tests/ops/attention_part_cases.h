// Attention over parts of a sequence through a library, against the float64 oracle: queries chunk by chunk, keys part
// by part, as layers take them. One list of cases and one check, for the real library on a GPU and for a stand-in.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/ops/attention_oracle.h"

namespace thinwire::test {

struct PartsCase {
  AttentionCase c;
  int64_t queries = 64, keys = 64;  // so many at a time
  bool at_once = true;              // keys_at_once; else an op for each part, the last keys first
  bool kv_rows = true;              // keys and values in rows of their own, else among the queries
  bool wide = true;                 // out, dq, dk and dv are fp32
  std::string name() const {
    return c.name() + ", " + std::to_string(queries) + " queries and " + std::to_string(keys) + " keys at a time" +
           (at_once ? "" : ", last keys first") + (kv_rows ? "" : ", keys among queries") +
           (wide ? "" : ", sums in 16 bits");
  }
};

// length: of a sequence, of about four parts. Keys as many as queries, more, all (the diagonal ends at the last key)
// and others, whose parts no library knows.
inline std::vector<PartsCase> attention_part_cases(int64_t length, int64_t part) {
  std::vector<PartsCase> cases;
  int i = 0;
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (int64_t members : {1, 4, 3}) {
      for (int64_t d : {64, 128}) {
        PartsCase p;
        p.c.dtype = dtype, p.c.batch = 1 + i % 2, p.c.groups = members == 3 ? 4 : 2, p.c.heads_per_group = members;
        p.c.q_len = p.c.kv_len = length - (i % 3 == 0 ? 0 : 2 * i);  // lse of the last chunk: on 16 bytes, or not
        p.c.head_dim = d, p.c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
        p.c.apart = members == 4;
        p.queries = part, p.at_once = i % 4 != 3, p.kv_rows = i % 5 != 4, p.wide = i % 3 != 2;
        p.keys = i % 4 == 1 ? part / 2 : i % 4 == 2 && i % 8 == 2 ? length : part;
        cases.push_back(p);
        ++i;
      }
    }
  }
  return cases;
}

struct PartsResult {
  Tensor out, lse, gradients;  // as the tensors of the case; gradients of q, k and v in one
};

// Hold: made of a host tensor, has view() for ops and read().
template <typename Hold>
struct PartsRunner {
  std::function<std::unique_ptr<Hold>(const Tensor&)> hold;
  std::function<void(const AttentionForward&)> forward;
  std::function<void(const AttentionBackward&)> backward;

  // What the case's ops are before they are cut.
  template <typename Op>
  static Op queries_of(Op op, int64_t sample, int64_t first, int64_t count) {
    op.shape.length = op.shape.kv_len, op.shape.first_query = first;
    op.shape.batch = 1, op.shape.q_len = count, op.shape.kv_len = first + count;
    op.q_at.offset += sample * op.q_at.batch + first * op.q_at.token;
    op.k_at.offset += sample * op.k_at.batch, op.v_at.offset += sample * op.v_at.batch;
    return op;
  }
  // body(op, whether it is the first of these queries)
  template <typename Op, typename Body>
  static void for_keys(const PartsCase& p, const Op& op, const Body& body) {
    if (p.at_once) {
      Op all = op;
      all.keys_at_once = p.keys;
      return body(all, true);
    }
    const int64_t end = op.shape.kv_len;
    for (int64_t k = (end - 1) / p.keys * p.keys; k >= 0; k -= p.keys) {
      Op part = op;
      part.shape.kv_len = std::min(p.keys, end - k), part.shape.first_key = k;
      part.k_at.offset += k * op.k_at.token, part.v_at.offset += k * op.v_at.token;
      body(part, k + p.keys >= end);
    }
  }

  PartsResult run(const PartsCase& p, AttentionTensors& x) const {
    const AttentionShape s = x.shape;
    const int64_t n = s.q_len, heads = s.heads(), d = s.head_dim, width = heads * d, w = s.groups * 2 * d;
    const DType type = p.c.dtype, sums = p.wide ? DType::f32 : type;
    HeadLayout k_at = x.k_at, v_at = x.v_at;
    Tensor kv = x.q;
    if (p.kv_rows) {
      kv = Tensor(type, {s.batch * n, w});
      k_at = {0, n * w, w, 2 * d, 0}, v_at = {d, n * w, w, 2 * d, 0};
      for_each_key(s, [&](int64_t b, int64_t t, int64_t g, int64_t e) {
        kv.set(AttentionTensors::at(k_at, b, t, g, 0) + e, x.q.at(AttentionTensors::at(x.k_at, b, t, g, 0) + e));
        kv.set(AttentionTensors::at(v_at, b, t, g, 0) + e, x.q.at(AttentionTensors::at(x.v_at, b, t, g, 0) + e));
      });
    }
    // NaN where the first part has to write, and must not read.
    const auto unwritten = [&](DType t, int64_t count) { return hold(constant_tensor(t, {count}, std::nan(""))); };
    const auto q_held = hold(x.q), kv_held = hold(kv), dout_held = hold(x.dout);
    const auto out_held = unwritten(sums, s.batch * n * width), lse_held = unwritten(DType::f32, s.batch * n * heads);
    const auto dq_held = unwritten(sums, x.q.count()), dkv_held = unwritten(sums, kv.count());
    const auto common = [&](auto op) {
      op.q = q_held->view(), op.k = op.v = kv_held->view(), op.k_at = k_at, op.v_at = v_at;
      return op;
    };
    const auto rows = [&](const auto& held, int64_t b, int64_t q, int64_t count, int64_t cols) {
      return held->view().element_range((b * n + q) * cols, count * cols);
    };
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t q = 0; q < n; q += p.queries) {
        const int64_t count = std::min(p.queries, n - q);
        AttentionForward op = queries_of(common(x.forward_op()), b, q, count);
        op.out = rows(out_held, b, q, count, width), op.lse = rows(lse_held, b, q, count, heads);
        for_keys(p, op, [&](AttentionForward part, bool first) {
          part.merge = !first;
          forward(part);
        });
      }
    }
    PartsResult r{out_held->read(), Tensor(DType::f32, {x.lse.count()}), x.dq};
    Tensor whole(type, {x.out.count()});
    for (int64_t i = 0; i < whole.count(); ++i) whole.set(i, r.out.at(i));
    const auto whole_held = hold(whole);
    const View dk = p.kv_rows ? dkv_held->view() : dq_held->view();
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t q = (n - 1) / p.queries * p.queries; q >= 0; q -= p.queries) {
        const int64_t count = std::min(p.queries, n - q);
        AttentionBackward op = queries_of(common(x.backward_op()), b, q, count);
        op.out = rows(whole_held, b, q, count, width), op.lse = rows(lse_held, b, q, count, heads);
        op.dout = rows(dout_held, b, q, count, width);
        op.dq = dq_held->view(), op.dk = op.dv = dk, op.add_dkv = q + count < n;
        for_keys(p, op, [&](AttentionBackward part, bool first) {
          part.add_dq = !first;
          backward(part);
        });
      }
    }
    const Tensor lse = lse_held->read(), dq = dq_held->read(), dkv = p.kv_rows ? dkv_held->read() : Tensor();
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t t = 0; t < n; ++t) {
          const int64_t q = t / p.queries * p.queries, count = std::min(p.queries, n - q);
          r.lse.set((b * heads + h) * n + t, lse.at((b * n + q) * heads + h * count + t - q));
        }
    r.gradients = dq;
    if (p.kv_rows)
      for_each_key(s, [&](int64_t b, int64_t t, int64_t g, int64_t e) {
        for (const auto& [to, from] : {std::pair{&x.k_at, &k_at}, {&x.v_at, &v_at}})
          r.gradients.set(AttentionTensors::at(*to, b, t, g, 0) + e,
                          dkv.at(AttentionTensors::at(*from, b, t, g, 0) + e));
      });
    return r;
  }

 private:
  template <typename Body>
  static void for_each_key(const AttentionShape& s, const Body& body) {
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t t = 0; t < s.kv_len; ++t)
        for (int64_t g = 0; g < s.groups; ++g)
          for (int64_t e = 0; e < s.head_dim; ++e) body(b, t, g, e);
  }
};

// How many of out, lse and the gradients lie within the bounds; 3 is right. Parts are written in 16 bits.
inline int parts_within_bounds(const PartsCase& p, AttentionTensors& x, const PartsResult& got, bool report) {
  const int64_t merges = std::max(p.c.q_len / p.queries, p.c.q_len / p.keys) + 1;
  const AttentionOracle want = attention_oracle(
      x, true, {.merges = static_cast<int>(merges), .narrow = !p.wide, .library = true, .rounded = true});
  int within = 0;
  const auto check = [&](const Tensor& tensor, const std::vector<double>& value, const std::vector<double>& bound,
                         const char* what) {
    int64_t outside = 0, first = -1, worst = -1;
    double ratio = 0.0;
    for (size_t i = 0; i < value.size(); ++i) {
      const double off = std::abs(tensor.at(static_cast<int64_t>(i)) - value[i]) / bound[i];
      if (off <= 1.0) continue;  // NaN is never within
      if (outside++ == 0) first = static_cast<int64_t>(i);
      if (worst < 0 || off > ratio || std::isnan(off)) worst = static_cast<int64_t>(i), ratio = off;
    }
    if (outside == 0) {
      ++within;
      return;
    }
    if (!report) return;
    const auto at = [&](int64_t i) {
      return std::to_string(i) + " is " + std::to_string(tensor.at(i)) + " instead of " +
             std::to_string(value[static_cast<size_t>(i)]) + " +- " + std::to_string(bound[static_cast<size_t>(i)]);
    };
    ADD_FAILURE() << what << " of " << p.name() << ": " << outside << " of " << value.size() << " outside; element "
                  << at(first) << "; the worst, " << ratio << " times the bound: " << at(worst);
  };
  check(got.out, want.out, want.out_bound, "out");
  check(got.lse, want.lse, want.lse_bound, "lse");
  check(got.gradients, want.dq, want.dq_bound, "gradients");
  return within;
}

}  // namespace thinwire::test
