// What attention on CUDA demands of its arguments, whichever kernels run: the checks of the CPU op, on the host.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire {

// Every head of every token lies inside the view. Strides are not negative.
inline void check_attention_heads(const View& view, DType dtype, const HeadLayout& at, const AttentionShape& s,
                                  int64_t length, int64_t members, const char* what) {
  TW_CHECK(view.data != nullptr && view.dtype == dtype, what, " holds ", name_of(view.dtype), ", wanted ",
           name_of(dtype));
  TW_CHECK(at.offset >= 0 && at.batch >= 0 && at.token >= 0 && at.group >= 0 && at.head >= 0, what,
           " has a negative stride");
  const int64_t last = at.offset + (s.batch - 1) * at.batch + (length - 1) * at.token + (s.groups - 1) * at.group +
                       (members - 1) * at.head + s.head_dim;
  TW_CHECK(last <= view.count(), what, " has ", view.count(), " elements, its layout reaches ", last);
}

inline void check_attention_output(const View& view, DType dtype, const AttentionShape& s, const char* what) {
  TW_CHECK(view.dtype == dtype && view.count() == s.batch * s.q_len * s.heads() * s.head_dim, what, " has ",
           view.count(), " elements of ", name_of(view.dtype));
}

inline void check_attention_lse(const View& lse, const AttentionShape& s) {
  TW_CHECK(lse.dtype == DType::f32 && lse.count() == s.batch * s.heads() * s.q_len, "lse has ", lse.count(),
           " elements of ", name_of(lse.dtype));
}

// What forward and backward share; false: there is nothing to do.
template <typename Op>
bool check_attention(const Op& op) {
  const AttentionShape& s = op.shape;
  TW_CHECK(s.batch >= 0 && s.q_len >= 0 && s.kv_len >= s.q_len, "attention of ", s.batch, " samples, ", s.q_len,
           " queries, ", s.kv_len, " keys: a query must not come before the first key");
  TW_CHECK(s.groups > 0 && s.heads_per_group > 0 && s.head_dim > 0, s.groups, " groups of ", s.heads_per_group,
           " heads of ", s.head_dim, " elements");
  if (s.batch == 0 || s.q_len == 0) return false;
  const DType t = op.q.dtype;
  TW_CHECK(t == DType::f32 || t == DType::bf16 || t == DType::f16, "attention of ", name_of(t));
  check_attention_heads(op.q, t, op.q_at, s, s.q_len, s.heads_per_group, "q");
  check_attention_heads(op.k, t, op.k_at, s, s.kv_len, 1, "k");
  check_attention_heads(op.v, t, op.v_at, s, s.kv_len, 1, "v");
  check_attention_output(op.out, t, s, "out");
  TW_CHECK(op.dropout.p == 0.0f || op.dropout.batch == s.batch, "dropout of ", op.dropout.batch,
           " samples, attention of ", s.batch);
  TW_CHECK(op.dropout.rows == 0 && op.dropout.first_head >= 0, "attention takes whole sequences");
  return true;
}

// What the backward demands besides; behind check_attention.
inline void check_attention_gradients(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  const DType t = op.q.dtype;
  check_attention_lse(op.lse, s);
  check_attention_output(op.dout, t, s, "dout");
  check_attention_heads(op.dq, t, op.q_at, s, s.q_len, s.heads_per_group, "dq");
  check_attention_heads(op.dk, t, op.k_at, s, s.kv_len, 1, "dk");
  check_attention_heads(op.dv, t, op.v_at, s, s.kv_len, 1, "dv");
}

}  // namespace thinwire
