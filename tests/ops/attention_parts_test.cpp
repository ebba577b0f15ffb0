// Attention in parts - some queries, some keys, in any order - against the float64 loop over all of them.
#include <algorithm>

#include "engine/base/core/error.h"
#include "tests/ops/attention_oracle.h"

namespace thinwire::test::attention_parts_test {
namespace {

// Places to cut `count` into 1 to 6 parts, none of them empty.
std::vector<int64_t> random_cuts(std::mt19937& rng, int64_t count) {
  std::vector<int64_t> cuts = {0, count};
  for (unsigned i = rng() % 6; i > 0; --i) cuts.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(count)));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Queries [q, q + nq) of sample b, keys [k, k + nk).
template <typename Op>
Op part_of(Op op, AttentionTensors& x, int64_t b, int64_t q, int64_t nq, int64_t k, int64_t nk) {
  const AttentionShape whole = x.shape;
  op.shape.batch = 1, op.shape.q_len = nq, op.shape.kv_len = nk;
  op.shape.length = whole.kv_len, op.shape.first_query = whole.behind() + q, op.shape.first_key = k;
  op.q_at.offset += b * op.q_at.batch + q * op.q_at.token;
  op.k_at.offset += b * op.k_at.batch + k * op.k_at.token;
  op.v_at.offset += b * op.v_at.batch + k * op.v_at.token;
  if (op.first_keys) op.first_keys = op.first_keys.element_range(b * whole.q_len + q, nq);
  op.dropout.sample_ids += b, op.dropout.batch = 1;
  return op;
}

// [heads, nq] of a sample's [heads, q_len].
Tensor lse_rows(const AttentionTensors& x, int64_t b, int64_t q, int64_t nq) {
  Tensor part(DType::f32, {x.shape.heads(), nq});
  for (int64_t h = 0; h < x.shape.heads(); ++h)
    for (int64_t t = 0; t < nq; ++t) part.set(h * nq + t, x.lse.at((b * x.shape.heads() + h) * x.shape.q_len + q + t));
  return part;
}

struct Sums {
  Tensor out, lse, dq, dk, dv;  // as the tensors of a case, but fp32 where `wide`
};

Tensor zeros_like(const Tensor& x, bool wide) {
  return x.view().data == nullptr ? Tensor() : Tensor(wide ? DType::f32 : x.view().dtype, {x.count()});
}

// What lies where gradients go before the first part writes them.
constexpr float kBefore = 7.0f;
Tensor unwritten_like(const Tensor& x, bool wide) {
  Tensor t = zeros_like(x, wide);
  for (int64_t i = 0; t.view().data != nullptr && i < t.count(); ++i) t.set(i, kBefore);
  return t;
}

// Every query part over every key part, in random order. Needs the result over all keys in x for the gradients.
Sums run_parts(AttentionTensors& x, std::mt19937& rng, bool wide, int threads) {
  CpuExec exec(threads);
  const AttentionShape s = x.shape;
  const int64_t width = s.heads() * s.head_dim;
  Sums sums{zeros_like(x.out, wide), Tensor(DType::f32, {x.lse.count()}), unwritten_like(x.dq, wide),
            unwritten_like(x.dk, wide), unwritten_like(x.dv, wide)};
  const bool one_tensor = x.k.view().data == nullptr;
  const std::vector<int64_t> queries = random_cuts(rng, s.q_len), keys = random_cuts(rng, s.kv_len);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (size_t i = 1; i < queries.size(); ++i) {
      const int64_t q = queries[i - 1], nq = queries[i] - q, row = (b * s.q_len + q) * width;
      Tensor lse(DType::f32, {s.heads(), nq});
      const Tensor known = lse_rows(x, b, q, nq);
      std::vector<size_t> order;
      for (size_t j = 1; j < keys.size(); ++j) order.push_back(j);
      std::shuffle(order.begin(), order.end(), rng);
      for (size_t j : order) {
        const int64_t k = keys[j - 1], nk = keys[j] - k;
        auto forward = part_of(x.forward_op(), x, b, q, nq, k, nk);
        forward.out = sums.out.view().element_range(row, nq * width), forward.lse = lse;
        forward.merge = j != order[0];
        exec->ops.attention_forward(*exec, forward);
        auto backward = part_of(x.backward_op(), x, b, q, nq, k, nk);
        backward.out = x.out.view().element_range(row, nq * width), backward.lse = known;
        backward.dout = x.dout.view().element_range(row, nq * width);
        backward.dq = sums.dq;
        backward.dk = one_tensor ? sums.dq : sums.dk, backward.dv = one_tensor ? sums.dq : sums.dv;
        backward.add_dq = j != order[0], backward.add_dkv = i > 1;
        exec->ops.attention_backward(*exec, backward);
      }
      for (int64_t h = 0; h < s.heads(); ++h)
        for (int64_t t = 0; t < nq; ++t) sums.lse.set((b * s.heads() + h) * s.q_len + q + t, lse.at(h * nq + t));
    }
  }
  return sums;
}

void check_parts(const AttentionCase& c, std::mt19937& rng, int threads = 2) {
  AttentionTensors x(c, rng);
  CpuExec exec(threads);
  x.run_forward(*exec);
  const bool wide = rng() % 3 > 0;
  const Sums got = run_parts(x, rng, wide, threads);
  AttentionOracle want = attention_oracle(x, true, {.merges = 6, .narrow = !wide && c.dtype != DType::f32});
  expect_within(got.out, want.out, want.out_bound, "out of " + c.name());
  expect_within(got.lse, want.lse, want.lse_bound, "lse of " + c.name());
  const auto sums = [&](const Tensor& actual, std::vector<double>& expected, const std::vector<double>& bound,
                        const char* what) {
    if (actual.view().data == nullptr) return;
    for (double& e : expected) e = e == AttentionTensors::untouched() ? kBefore : e;
    expect_within(actual, expected, bound, what + c.name());
  };
  sums(got.dq, want.dq, want.dq_bound, "dq of ");
  sums(got.dk, want.dk, want.dk_bound, "dk of ");
  sums(got.dv, want.dv, want.dv_bound, "dv of ");
}

// Documents, windows, both, neither; ragged lengths and cuts; every type, sums of fp32 and of the type; GQA.
TEST(AttentionPartsTest, AnyCutInAnyOrderMatchesFloat64) {
  std::mt19937 rng(21);
  for (AttentionCase c : random_attention_cases(rng, 30, 200, true)) {
    if (c.dropout > 0.0f) c.kv_len = c.q_len;  // the loop numbers elements by the queries that there are
    check_parts(c, rng, 1 + static_cast<int>(rng() % 4));
  }
}

TEST(AttentionPartsTest, LongSequencesMatchFloat64) {
  std::mt19937 rng(22);
  check_parts({.q_len = sized(400, 130), .kv_len = sized(400, 130), .head_dim = 64, .scale = 0.125f, .dropout = 0.1f},
              rng);
  check_parts({.dtype = DType::bf16,
               .q_len = 321,
               .kv_len = 321,
               .heads_per_group = 2,
               .head_dim = 64,
               .scale = 0.125f,
               .document = 150},
              rng);
}

// Threads, windows, documents, dropout; queries that are a part, too.
TEST(AttentionPartsTest, KeysAtOnceGiveTheBitsOfAsManyCalls) {
  std::mt19937 rng(24);
  size_t cuts = 0;
  const std::vector<AttentionCase> cases = random_attention_cases(rng, 24, 500, true);
  for (AttentionCase c : cases) {
    if (c.dropout > 0.0f) c.kv_len = c.q_len;
    AttentionTensors x(c, rng);
    CpuExec exec(1 + static_cast<int>(rng() % 4));
    x.run_forward(*exec);
    const AttentionShape s = x.shape;
    if (s.q_len == 0 || s.kv_len == 0) continue;
    const int64_t b = s.batch - 1, q = static_cast<int64_t>(rng() % static_cast<uint64_t>(s.q_len)), nq = s.q_len - q;
    const int64_t step = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(s.kv_len));
    const int64_t width = s.heads() * s.head_dim, row = (b * s.q_len + q) * width;
    const Tensor known = lse_rows(x, b, q, nq);
    const bool one_tensor = x.k.view().data == nullptr, wide = rng() % 2 == 0;
    const auto run = [&](bool at_once) {
      Sums sums{zeros_like(x.out, wide), Tensor(DType::f32, {s.heads(), nq}), unwritten_like(x.dq, wide),
                unwritten_like(x.dk, wide), unwritten_like(x.dv, wide)};
      for (int64_t k = 0; k < (at_once ? 1 : s.kv_len); k += step) {
        const int64_t nk = at_once ? s.kv_len : std::min(step, s.kv_len - k);
        auto forward = part_of(x.forward_op(), x, b, q, nq, k, nk);
        forward.out = sums.out.view().element_range(row, nq * width), forward.lse = sums.lse;
        forward.merge = k > 0, forward.keys_at_once = at_once ? step : 0;
        exec->ops.attention_forward(*exec, forward);
        auto backward = part_of(x.backward_op(), x, b, q, nq, k, nk);
        backward.out = x.out.view().element_range(row, nq * width), backward.lse = known;
        backward.dout = x.dout.view().element_range(row, nq * width), backward.dq = sums.dq;
        backward.dk = one_tensor ? sums.dq : sums.dk, backward.dv = one_tensor ? sums.dq : sums.dv;
        backward.add_dq = k > 0, backward.keys_at_once = forward.keys_at_once;
        exec->ops.attention_backward(*exec, backward);
      }
      return sums;
    };
    const Sums one = run(true), many = run(false);
    cuts += step < s.kv_len ? 1 : 0;
    EXPECT_TRUE(one.out.same_bits(many.out) && one.lse.same_bits(many.lse)) << c.name() << ", " << step << " at once";
    EXPECT_TRUE(one.dq.same_bits(many.dq)) << c.name() << ", " << step << " at once";
    EXPECT_TRUE(one_tensor || (one.dk.same_bits(many.dk) && one.dv.same_bits(many.dv))) << c.name();
  }
  EXPECT_GE(2 * cuts, cases.size());
}

// A part that its queries do not see is not looked at: its keys may be anything, and nothing changes.
TEST(AttentionPartsTest, HiddenPartsAreSkipped) {
  std::mt19937 rng(23);
  for (DType t : compute_types()) {
    for (const bool by_window : {false, true}) {
      AttentionTensors x(
          {.dtype = t, .q_len = 300, .kv_len = 300, .head_dim = 24, .window = by_window ? 100 : kNoWindow}, rng);
      if (!by_window)
        for (int64_t i = 0; i < 300; ++i) x.first_keys.push_back(i < 150 ? 0 : 150);
      CpuExec exec;
      x.run_forward(*exec);
      for (int64_t i = 0; i < 120; ++i)
        for (int64_t e = 24; e < 72; ++e) x.q.set(i * 72 + e, std::nan(""));  // k and v of what is hidden
      Tensor out = x.out, lse = lse_rows(x, 0, 230, 70), dq = zeros_like(x.q, true), dk = dq;
      const Tensor kept_out = out, kept_lse = lse;
      auto forward = part_of(x.forward_op(), x, 0, 230, 70, 0, 120);
      forward.out = out.view().element_range(230 * 24, 70 * 24), forward.lse = lse, forward.merge = true;
      exec->ops.attention_forward(*exec, forward);
      EXPECT_TRUE(out.same_bits(kept_out) && lse.same_bits(kept_lse)) << name_of(t);
      auto backward = part_of(x.backward_op(), x, 0, 230, 70, 0, 120);
      backward.out = x.out.view().element_range(230 * 24, 70 * 24), backward.lse = kept_lse;
      backward.dout = x.dout.view().element_range(230 * 24, 70 * 24);
      backward.dq = dq, backward.dk = backward.dv = dk, backward.add_dq = backward.add_dkv = true;
      exec->ops.attention_backward(*exec, backward);
      EXPECT_TRUE(dq.same_bits(zeros_like(x.q, true)) && dk.same_bits(dq)) << name_of(t);

      // Keys behind all queries are a part that nobody sees, too: what it gives alone is nothing.
      auto alone = part_of(x.forward_op(), x, 0, 100, 70, 170, 130);
      alone.out = out.view().element_range(0, 70 * 24), alone.lse = lse;
      exec->ops.attention_forward(*exec, alone);
      for (int64_t i = 0; i < 70 * 24; ++i) ASSERT_EQ(out.at(i), 0.0) << name_of(t);
      for (int64_t i = 0; i < 70; ++i) ASSERT_EQ(lse.at(i), -INFINITY) << name_of(t);
    }
  }
}

TEST(AttentionPartsTest, BitsDoNotDependOnThreads) {
  for (DType t : compute_types()) {
    const auto run = [&](int threads) {
      std::mt19937 rng(24);
      AttentionTensors x({.dtype = t, .q_len = 400, .kv_len = 400, .groups = 2, .head_dim = 40, .dropout = 0.2f}, rng);
      CpuExec exec(1);
      x.run_forward(*exec);
      return run_parts(x, rng, true, threads);
    };
    const Sums one = run(1), many = run(7);
    EXPECT_TRUE(one.out.same_bits(many.out) && one.lse.same_bits(many.lse) && one.dq.same_bits(many.dq)) << name_of(t);
  }
}

TEST(AttentionPartsTest, WrongArguments) {
  std::mt19937 rng(25);
  CpuExec exec(2);
  AttentionTensors x({.q_len = 8, .kv_len = 8}, rng);
  x.run_forward(*exec);
  const auto forward = [&](auto change) {
    AttentionForward wrong = x.forward_op();
    change(wrong);
    EXPECT_THROW(exec->ops.attention_forward(*exec, wrong), Error);
  };
  forward([](AttentionForward& f) { f.merge = true; });
  forward([](AttentionForward& f) { f.shape.length = 7; });
  forward([](AttentionForward& f) { f.shape.length = 12, f.shape.first_query = 5; });
  forward([](AttentionForward& f) { f.shape.length = 12, f.shape.first_key = 5; });
  forward([](AttentionForward& f) { f.shape.length = 8, f.merge = true, f.lse = View(); });
  forward([](AttentionForward& f) { f.shape.length = 8, f.keys_at_once = 2, f.lse = View(); });
  forward([](AttentionForward& f) { f.keys_at_once = 2; });
  for (bool AttentionBackward::*adds : {&AttentionBackward::add_dq, &AttentionBackward::add_dkv}) {
    AttentionBackward wrong = x.backward_op();
    wrong.*adds = true;
    EXPECT_THROW(exec->ops.attention_backward(*exec, wrong), Error);
  }
}

}  // namespace
}  // namespace thinwire::test::attention_parts_test
