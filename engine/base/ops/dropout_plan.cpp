// Turns the probability of a Dropout into an integer threshold, so that kernels compare words instead of floats.
#include "engine/base/ops/dropout_plan.h"

#include <cmath>

#include "engine/base/ops/ops.h"

namespace thinwire {

DropoutPlan make_dropout_plan(const Dropout& dropout, int64_t rows, int64_t cols) {
  DropoutPlan plan;
  TW_CHECK(dropout.p >= 0.0f && dropout.p < 1.0f, "dropout probability ", dropout.p);
  if (dropout.p == 0.0f || rows * cols == 0) return plan;
  TW_CHECK(dropout.sample_ids != nullptr, "dropout needs the ids of the samples");
  const int64_t whole = dropout.rows > 0 ? dropout.rows : rows, elements = whole * cols;
  TW_CHECK(dropout.batch > 0 && elements % dropout.batch == 0, elements, " elements over ", dropout.batch, " samples");
  TW_CHECK(dropout.first_row >= 0 && dropout.first_row + rows <= whole, "rows ", dropout.first_row, "+", rows, " of ",
           whole);
  TW_CHECK(dropout.layer < 1u << 24, "layer ", dropout.layer);
  plan.key0 = dropout.key.k0;
  plan.key1 = dropout.key.k1;
  plan.tag = dropout.layer << 8 | static_cast<uint32_t>(dropout.purpose);
  // uniform01(w) = (w >> 8) / 2^24 is exact and so is p * 2^24, hence uniform01(w) >= p  <=>  (w >> 8) >= ceil(p *
  // 2^24).
  plan.threshold = static_cast<uint32_t>(std::ceil(std::ldexp(dropout.p, 24))) << 8;
  plan.scale = 1.0f / (1.0f - dropout.p);
  plan.sample_ids = dropout.sample_ids;
  plan.first = dropout.first_row * cols;
  plan.per_sample = elements / dropout.batch;
  if (!dropout.cut.whole()) {
    const SequenceCut::Run front = dropout.cut.front(), back = dropout.cut.back();
    TW_CHECK(plan.per_sample == dropout.cut.count() * cols, "samples of ", plan.per_sample, " elements, cut into ",
             dropout.cut.count(), " rows of ", cols);
    plan.split = front.count * cols, plan.front = front.first * cols, plan.back = (back.first - back.row) * cols;
  }
  plan.active = true;
  return plan;
}

DropoutPlan make_dropout_plan(const Dropout& dropout, const AttentionShape& s) {
  DropoutPlan plan = make_dropout_plan(dropout, s.batch, s.heads() * s.q_len * s.kv_len);
  plan.per_query = s.part() ? s.length : s.kv_len;
  plan.per_head = (s.part() ? s.length : s.q_len) * plan.per_query;
  plan.first = dropout.first_head * plan.per_head + s.first_query * plan.per_query + s.first_key;
  return plan;
}

}  // namespace thinwire
