// Dropout of a part of a tensor: any sharded by rows or by heads gives the bits of the same elements of the uncut call.
#include "engine/base/ops/op_list.h"
#include "tests/ops/attention_oracle.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::partial_dropout_test {
namespace {

const int64_t kIds[4] = {3, (int64_t{0x1234} << 32) + 77, 99, int64_t{1} << 47};

// Random places to cut `count` into at most 5 parts, some of them empty.
std::vector<int64_t> random_cuts(std::mt19937& rng, int64_t count) {
  std::vector<int64_t> cuts = {0, count};
  for (unsigned i = rng() % 5; i > 0; --i)
    cuts.push_back(static_cast<int64_t>(rng() % static_cast<unsigned>(count + 1)));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

bool same_rows(const Tensor& part, const Tensor& whole, int64_t first) {
  if (part.view().bytes() == 0) return true;
  return std::memcmp(part.view().data, whole.view().row_range(first, part.view().rows()).data, part.view().bytes()) ==
         0;
}

TEST(PartialDropout, RowsAreNumberedInTheWhole) {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    const DType type = compute_types()[rng() % 3];
    const int64_t batch = 1 + rng() % 4, rows = batch * (1 + rng() % 23), cols = 1 + rng() % 70;
    SCOPED_TRACE(testing::Message() << name_of(type) << " [" << rows << "," << cols << "] of " << batch << " samples");
    const Dropout whole = {0.3f, seed_key(5), RandomPurpose::kHiddenDropout, 4, kIds, batch};
    const Tensor x = random_tensor(rng, type, {rows, cols}), branch = random_tensor(rng, type, {rows, cols});
    const Tensor weight = random_tensor(rng, type, {cols});
    Tensor dropped(type, {rows, cols}), added(type, {rows, cols}), sum(type, {rows, cols}), y(type, {rows, cols}),
        rstd(DType::f32, {rows});
    CpuExec exec;
    const auto norm = [&](View x_rows, View branch_rows, View sum_rows, View y_rows, View rstd_rows, Dropout dropout) {
      norm_forward_op(*exec, {.kind = NormKind::kRmsNorm,
                              .x = x_rows,
                              .branch = branch_rows,
                              .sum = sum_rows,
                              .dropout = dropout,
                              .weight = weight,
                              .y = y_rows,
                              .rstd = rstd_rows});
    };
    dropout_apply_op(*exec, {x, dropped, whole});
    residual_add_op(*exec, {x, branch, added, whole});
    norm(x, branch, sum, y, rstd, whole);
    const std::vector<int64_t> cuts = random_cuts(rng, rows);
    for (size_t i = 1; i < cuts.size(); ++i) {
      const int64_t first = cuts[i - 1], n = cuts[i] - first;
      if (n == 0) continue;
      Dropout part = whole;
      part.rows = rows, part.first_row = first;
      const View x_part = x.view().row_range(first, n), branch_part = branch.view().row_range(first, n);
      Tensor a(type, {n, cols}), b(type, {n, cols}), s(type, {n, cols}), t(type, {n, cols}), r(DType::f32, {n});
      dropout_apply_op(*exec, {x_part, a, part});
      residual_add_op(*exec, {x_part, branch_part, b, part});
      norm(x_part, branch_part, s, t, r, part);
      EXPECT_TRUE(same_rows(a, dropped, first)) << "dropout_apply, rows " << first << "+" << n;
      EXPECT_TRUE(same_rows(b, added, first)) << "residual_add, rows " << first << "+" << n;
      EXPECT_TRUE(same_rows(s, sum, first) && same_rows(t, y, first)) << "norm_forward, rows " << first << "+" << n;
    }
  }
}

TEST(PartialDropout, HeadsAreNumberedInTheWhole) {
  std::mt19937 rng(2);
  for (int round = 0; round < 24; ++round) {
    AttentionCase c;
    c.dtype = compute_types()[rng() % 3];
    c.batch = 1 + rng() % 3, c.q_len = 1 + rng() % 90, c.kv_len = c.q_len, c.groups = 2 + rng() % 4;
    c.heads_per_group = 1 + rng() % 3, c.head_dim = 4 * (1 + rng() % 5), c.dropout = 0.3f;
    AttentionTensors x(c, rng);
    CpuExec exec;
    x.run_forward(*exec);
    x.run_backward(*exec);
    const int64_t d = c.head_dim, width = c.heads() * d, tokens = c.batch * c.q_len;
    const std::vector<int64_t> cuts = random_cuts(rng, c.groups);
    for (size_t i = 1; i < cuts.size(); ++i) {
      const int64_t first = cuts[i - 1], groups = cuts[i] - first, heads = groups * c.heads_per_group;
      if (groups == 0) continue;
      SCOPED_TRACE(testing::Message() << name_of(c.dtype) << " groups " << first << "+" << groups << " of "
                                      << c.groups);
      const int64_t head = first * c.heads_per_group;
      Tensor out(c.dtype, {tokens, heads * d}), lse(DType::f32, {c.batch, heads, c.q_len}),
          dout(c.dtype, {tokens, heads * d}), dq = x.dq;
      for (int64_t n = 0; n < tokens; ++n) {
        for (int64_t e = 0; e < heads * d; ++e) dout.set(n * heads * d + e, x.dout.at(n * width + head * d + e));
      }
      const auto narrow = [&](auto op) {
        op.shape.groups = groups;
        op.q_at.offset += first * op.q_at.group;
        op.k_at.offset += first * op.k_at.group;
        op.v_at.offset += first * op.v_at.group;
        op.dropout.first_head = head;
        op.out = out, op.lse = lse;
        return op;
      };
      attention_forward_op(*exec, narrow(x.forward_op()));
      AttentionBackward back = narrow(x.backward_op());
      back.dout = dout;
      for (int64_t n = 0; n < dq.count(); ++n) dq.set(n, AttentionTensors::untouched());
      back.dq = back.dk = back.dv = dq;
      attention_backward_op(*exec, back);
      for (int64_t n = 0; n < tokens; ++n) {
        for (int64_t e = 0; e < heads * d; ++e)
          ASSERT_EQ(out.at(n * heads * d + e), x.out.at(n * width + head * d + e)) << "token " << n << " element " << e;
      }
      const int64_t group = x.q_at.group, row = x.q_at.token;
      for (int64_t n = 0; n < tokens; ++n) {
        for (int64_t e = first * group; e < (first + groups) * group; ++e)
          ASSERT_EQ(dq.at(n * row + e), x.dq.at(n * row + e)) << "gradient of token " << n << " element " << e;
      }
    }
  }
}

TEST(PartialDropout, PartsOutsideTheWholeAreRefused) {
  const Tensor x = constant_tensor(DType::f32, {4, 8}, 1.0);
  Tensor y(DType::f32, {4, 8});
  CpuExec exec;
  Dropout dropout = {0.3f, seed_key(5), RandomPurpose::kHiddenDropout, 4, kIds, 2};
  dropout.rows = 6, dropout.first_row = 3;
  EXPECT_ANY_THROW(dropout_apply_op(*exec, {x, y, dropout}));
  dropout.first_row = 2;
  EXPECT_NO_THROW(dropout_apply_op(*exec, {x, y, dropout}));
  dropout.batch = 5;
  EXPECT_ANY_THROW(dropout_apply_op(*exec, {x, y, dropout}));  // 48 elements are not five samples
}

}  // namespace
}  // namespace thinwire::test::partial_dropout_test
