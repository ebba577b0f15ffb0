// The checks of arguments, one function per op, in front of every backend: shapes, dtypes and ranges as ops.h states
// them.
#include <algorithm>

#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

void check_shape(const View& v, int64_t rows, int64_t cols, DType dtype, const char* what) {
  TW_CHECK(v && v.dtype == dtype, what, " is ", v ? name_of(v.dtype) : "missing", ", not ", name_of(dtype));
  TW_CHECK(v.rows() == rows && v.cols() == cols, what, " is [", v.rows(), ",", v.cols(), "], not [", rows, ",", cols,
           "]");
}

void check_vector(const View& v, int64_t count, DType dtype, const char* what) {
  TW_CHECK(v && v.dtype == dtype, what, " is ", v ? name_of(v.dtype) : "missing", ", not ", name_of(dtype));
  TW_CHECK(v.count() == count, what, " has ", v.count(), " elements, not ", count);
}

// As many elements of the same type as `like`.
void check_like(const View& v, const View& like, const char* what) {
  check_vector(v, like.count(), like.dtype, what);
}

void check_optional(const View& v, int64_t count, DType dtype, const char* what) {
  if (v) check_vector(v, count, dtype, what);
}

// Every head of every token lies inside the view. Strides are not negative.
void check_heads(const View& view, DType dtype, const HeadLayout& at, const AttentionShape& s, int64_t length,
                 int64_t members, const char* what) {
  TW_CHECK(view.data != nullptr && view.dtype == dtype, what, " holds ", name_of(view.dtype), ", wanted ",
           name_of(dtype));
  TW_CHECK(at.offset >= 0 && at.batch >= 0 && at.token >= 0 && at.group >= 0 && at.head >= 0, what,
           " has a negative stride");
  const int64_t last = at.offset + (s.batch - 1) * at.batch + (length - 1) * at.token + (s.groups - 1) * at.group +
                       (members - 1) * at.head + s.head_dim;
  TW_CHECK(last <= view.count(), what, " has ", view.count(), " elements, its layout reaches ", last);
}

void check_output(const View& view, DType dtype, const AttentionShape& s, const char* what) {
  check_vector(view, s.batch * s.q_len * s.heads() * s.head_dim, dtype, what);
}

// What parts of an attention add up may be fp32.
DType sum_type(const View& view, DType dtype, const AttentionShape& s) {
  return s.part() && view.dtype == DType::f32 ? DType::f32 : dtype;
}

// What forward and backward share; false: there are no queries.
template <typename Op>
bool check_attention(const Op& op) {
  const AttentionShape& s = op.shape;
  TW_CHECK(s.batch >= 0 && s.q_len >= 0 && (s.part() || s.kv_len >= s.q_len), "attention of ", s.batch, " samples, ",
           s.q_len, " queries, ", s.kv_len, " keys: a query must not come before the first key");
  TW_CHECK(!s.part() || (s.kv_len > 0 && s.first_query >= 0 && s.first_query + s.q_len <= s.length &&
                         s.first_key >= 0 && s.first_key + s.kv_len <= s.length),
           "queries ", s.first_query, "+", s.q_len, " and keys ", s.first_key, "+", s.kv_len, " of ", s.length,
           " tokens");
  TW_CHECK(s.groups > 0 && s.heads_per_group > 0 && s.head_dim > 0, s.groups, " groups of ", s.heads_per_group,
           " heads of ", s.head_dim, " elements");
  if (s.batch == 0 || s.q_len == 0) return false;
  const DType t = op.q.dtype;
  TW_CHECK(t == DType::f32 || t == DType::bf16 || t == DType::f16, "attention of ", name_of(t));
  check_heads(op.q, t, op.q_at, s, s.q_len, s.heads_per_group, "q");
  check_heads(op.k, t, op.k_at, s, s.kv_len, 1, "k");
  check_heads(op.v, t, op.v_at, s, s.kv_len, 1, "v");
  TW_CHECK(op.dropout.p == 0.0f || op.dropout.batch == s.batch, "dropout of ", op.dropout.batch,
           " samples, attention of ", s.batch);
  TW_CHECK(op.dropout.rows == 0 && op.dropout.first_head >= 0, "attention takes whole sequences");
  check_optional(op.first_keys, s.batch * s.q_len, DType::i32, "first keys of attention");
  return true;
}

// The rows of a table lie inside the vocabulary.
void check_rows(const View& table, int64_t first_token, int64_t vocabulary) {
  const int64_t all = vocabulary > 0 ? vocabulary : table.rows();
  TW_CHECK(first_token >= 0 && first_token + table.rows() <= all, "rows ", first_token, "+", table.rows(), " of ", all);
}

// What the two halves of the vocabulary-parallel loss share; false: there are no logits.
template <typename Op>
bool check_vocab(const Op& op) {
  if (op.logits.count() == 0) return false;
  TW_CHECK(op.vocabulary > 0 && op.first_col >= 0, "columns from ", op.first_col, " of a vocabulary of ",
           op.vocabulary);
  check_vector(op.targets, op.logits.rows(), DType::i32, "targets");
  check_vector(op.row_weight, op.logits.rows(), DType::f32, "weights of rows");
  return true;
}

// What the optimizers share; false: there is nothing to step.
template <typename Op>
bool check_step(const Op& op) {
  const int64_t n = op.master.count();
  if (n == 0) return false;
  int64_t next = 0;
  for (const DecaySpan& span : op.spans) {
    TW_CHECK(span.first == next && span.count >= 0, "decay span at ", span.first, " where ", next, " was due");
    next += span.count;
  }
  TW_CHECK(next == n, "decay spans cover ", next, " of ", n, " elements");
  TW_CHECK(op.state && op.state.dtype == DType::u8 && op.state.count() == sizeof(StepState),
           "state is one StepState as bytes");
  check_vector(op.gradient, n, op.gradient.dtype, "gradient");
  TW_CHECK(op.gradient.dtype == DType::f32 || (op.gradient.dtype == DType::bf16 && op.working.dtype == DType::bf16),
           "gradients in ", name_of(op.gradient.dtype), " beside a working copy in ", name_of(op.working.dtype));
  check_optional(op.working, n, op.working.dtype, "working copy");
  return true;
}

}  // namespace

bool check_op(const Matmul& op) {
  TW_CHECK(op.a.rank == 2 && op.b.rank == 2 && op.c.rank == 2, "matmul takes matrices");
  const int64_t m = op.c.shape[0], n = op.c.shape[1], k = op.trans_a ? op.a.shape[0] : op.a.shape[1];
  TW_CHECK((op.trans_a ? op.a.shape[1] : op.a.shape[0]) == m, "a is ", op.a.shape[0], "x", op.a.shape[1], ", c has ", m,
           " rows");
  TW_CHECK((op.trans_b ? op.b.shape[0] : op.b.shape[1]) == n && (op.trans_b ? op.b.shape[1] : op.b.shape[0]) == k,
           "b is ", op.b.shape[0], "x", op.b.shape[1], ", the product ", m, "x", n, "x", k);
  const DType t = op.a.dtype;
  TW_CHECK(t == DType::f32 || t == DType::bf16 || t == DType::f16, "matmul of ", name_of(t));
  TW_CHECK(op.b.dtype == t && (op.c.dtype == t || op.c.dtype == DType::f32), "matmul of ", name_of(t), " and ",
           name_of(op.b.dtype), " into ", name_of(op.c.dtype));
  TW_CHECK(!op.bias || (op.bias.count() == n && op.bias.dtype == t), "bias has ", op.bias.count(), " ",
           name_of(op.bias.dtype));
  const int forms = (op.gelu_input ? 1 : 0) + (op.dgelu_input ? 1 : 0) + (op.a_sums ? 1 : 0);
  TW_CHECK(forms <= 1, "one fused form at a time");
  for (const View* aux : {&op.gelu_input, &op.dgelu_input}) {
    TW_CHECK(!*aux || (aux->rows() == m && aux->cols() == n && aux->dtype == op.c.dtype && op.c.dtype == t &&
                       !op.accumulate),
             "the input of GELU beside a product of ", m, "x", n);
  }
  TW_CHECK(!op.dgelu_input || !op.bias, "a gradient has no bias");
  TW_CHECK(!op.a_sums || (op.a_sums.count() == m && op.a_sums.dtype == DType::f32), "sums of ", op.a_sums.count(),
           " rows, not ", m);
  return m != 0 && n != 0;
}

bool check_op(const NormForward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  if (op.x.count() == 0) return false;
  const DType t = op.x.dtype;
  TW_CHECK(static_cast<bool>(op.branch) == static_cast<bool>(op.sum), "branch and sum of a norm come together");
  if (op.branch) {
    check_shape(op.branch, rows, cols, t, "branch of a norm");
    check_shape(op.sum, rows, cols, t, "sum of a norm");
  }
  check_optional(op.weight, cols, t, "weight of a norm");
  check_optional(op.bias, cols, t, "bias of a norm");
  check_shape(op.y, rows, cols, t, "output of a norm");
  check_optional(op.mean, rows, DType::f32, "mean of a norm");
  check_optional(op.rstd, rows, DType::f32, "rstd of a norm");
  return true;
}

bool check_op(const NormBackward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  if (op.x.count() == 0) return false;
  const DType t = op.x.dtype;
  check_shape(op.dy, rows, cols, t, "gradient of a norm's output");
  check_shape(op.dx, rows, cols, t, "gradient of a norm's input");
  check_optional(op.weight, cols, t, "weight of a norm");
  if (op.kind == NormKind::kLayerNorm) check_vector(op.mean, rows, DType::f32, "mean of a norm");
  check_vector(op.rstd, rows, DType::f32, "rstd of a norm");
  if (op.residual) check_shape(op.residual, rows, cols, t, "residual gradient of a norm");
  check_optional(op.dweight, cols, DType::f32, "weight gradient of a norm");
  check_optional(op.dbias, cols, DType::f32, "bias gradient of a norm");
  return true;
}

bool check_op(const ResidualAdd& op) {
  if (op.x.count() == 0) return false;
  check_like(op.branch, op.x, "branch of a residual addition");
  check_like(op.y, op.x, "output of a residual addition");
  return true;
}

bool check_op(const DropoutApply& op) {
  if (op.x.count() == 0) return false;
  check_like(op.y, op.x, "output of dropout");
  return true;
}

bool check_op(const Rotary& op) {
  if (op.batch * op.length == 0 || op.groups * op.heads_per_group == 0 || op.rot_dim == 0) return false;
  TW_CHECK(op.rot_dim > 0 && op.rot_dim % 2 == 0, "rotary over ", op.rot_dim, " elements");
  const AttentionShape heads{op.batch, op.length, op.length, op.groups, op.heads_per_group, op.rot_dim};
  check_heads(op.data, op.data.dtype, op.layout, heads, op.length, op.heads_per_group, "data of rotary");
  check_optional(op.positions, op.batch * op.length, DType::i32, "positions of rotary");
  const int64_t half = op.rot_dim / 2, positions = op.first_position + op.length;
  TW_CHECK(op.first_position >= 0, "first position ", op.first_position);
  for (const View* table : {&op.cos, &op.sin}) {
    TW_CHECK(*table && table->dtype == DType::f32 && table->cols() == half && table->rows() >= positions,
             "rotary table [", table->rows(), ",", table->cols(), "] for ", positions, " positions of ", half);
  }
  return true;
}

bool check_op(const AttentionForward& op) {
  if (!check_attention(op)) return false;
  check_output(op.out, sum_type(op.out, op.q.dtype, op.shape), op.shape, "out");
  check_optional(op.lse, op.shape.batch * op.shape.heads() * op.shape.q_len, DType::f32, "lse");
  TW_CHECK(!(op.merge || op.keys_at_once != 0) || (op.shape.part() && op.lse && op.keys_at_once >= 0),
           "only parts of an attention are merged, by their lse");
  return true;
}

bool check_op(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  if (!check_attention(op)) {
    TW_CHECK(s.batch == 0 || s.kv_len == 0 || op.add_dkv, "attention backward without queries");
    return false;
  }
  const DType t = op.q.dtype;
  check_vector(op.lse, s.batch * s.heads() * s.q_len, DType::f32, "lse");
  check_output(op.out, t, s, "out");
  check_output(op.dout, t, s, "dout");
  check_heads(op.dq, sum_type(op.dq, t, s), op.q_at, s, s.q_len, s.heads_per_group, "dq");
  check_heads(op.dk, sum_type(op.dk, t, s), op.k_at, s, s.kv_len, 1, "dk");
  check_heads(op.dv, sum_type(op.dv, t, s), op.v_at, s, s.kv_len, 1, "dv");
  TW_CHECK(s.part() ? op.keys_at_once >= 0 : !(op.add_dq || op.add_dkv || op.keys_at_once != 0),
           "only parts of an attention are added up");
  return true;
}

bool check_op(const GeluForward& op) {
  if (op.x.count() == 0) return false;
  check_like(op.y, op.x, "output of gelu");
  return true;
}

bool check_op(const GeluBackward& op) {
  if (op.x.count() == 0) return false;
  check_like(op.dy, op.x, "gradient of gelu's output");
  check_like(op.dx, op.x, "gradient of gelu's input");
  return true;
}

bool check_op(const SwigluForward& op) {
  if (op.x.count() == 0) return false;
  TW_CHECK(op.x.cols() % 2 == 0, "swiglu over ", op.x.cols(), " columns");
  check_shape(op.y, op.x.rows(), op.x.cols() / 2, op.x.dtype, "output of swiglu");
  return true;
}

bool check_op(const SwigluBackward& op) {
  if (op.x.count() == 0) return false;
  TW_CHECK(op.x.cols() % 2 == 0, "swiglu over ", op.x.cols(), " columns");
  check_shape(op.dy, op.x.rows(), op.x.cols() / 2, op.x.dtype, "gradient of swiglu's output");
  check_shape(op.dx, op.x.rows(), op.x.cols(), op.x.dtype, "gradient of swiglu's input");
  return true;
}

bool check_op(const EmbeddingForward& op) {
  const int64_t count = op.x.rows(), cols = op.x.cols();
  if (op.x.count() == 0) return false;
  const DType t = op.x.dtype;
  check_shape(op.table, op.table.rows(), cols, t, "embedding table");
  check_rows(op.table, op.first_token, op.vocabulary);
  check_vector(op.tokens, count, DType::i32, "tokens");
  if (op.positions) {
    const int64_t length = op.length > 0 ? op.length : count;
    check_shape(op.positions, op.positions.rows(), cols, t, "position table");
    TW_CHECK(
        op.length > 0 && op.first_position >= 0 && op.first_position + std::min(length, count) <= op.positions.rows(),
        "positions from ", op.first_position, ", ", length, " of them; the table has ", op.positions.rows());
    check_optional(op.at, count, DType::i32, "positions of tokens");
  }
  return true;
}

bool check_op(const EmbeddingBackward& op) {
  const int64_t count = op.dx.rows(), cols = op.dx.cols();
  if (op.dx.count() == 0) return false;
  if (op.dtable) {
    check_shape(op.dtable, op.dtable.rows(), cols, DType::f32, "gradient of the embedding table");
    check_rows(op.dtable, op.first_token, op.vocabulary);
    check_vector(op.tokens, count, DType::i32, "tokens");
  }
  if (op.dpositions) {
    TW_CHECK(op.length > 0, "position gradients need the length of a sample");
    const int64_t used = std::min(op.length, count);
    check_shape(op.dpositions, op.dpositions.rows(), cols, DType::f32, "gradient of the position table");
    TW_CHECK(used <= op.dpositions.rows(), used, " positions, the table has ", op.dpositions.rows());
    check_optional(op.at, count, DType::i32, "positions of tokens");
  }
  return true;
}

bool check_op(const CrossEntropy& op) {
  const int64_t rows = op.logits.rows(), cols = op.logits.cols();
  if (op.logits.count() == 0) return false;
  TW_CHECK(op.valid_cols > 0 && op.valid_cols <= cols, op.valid_cols, " valid of ", cols, " columns");
  check_vector(op.targets, rows, DType::i32, "targets");
  check_vector(op.row_weight, rows, DType::f32, "weights of rows");
  check_vector(op.loss, rows, DType::f32, "loss");
  check_optional(op.dlogits_scale, 1, DType::f32, "scale of the gradient");
  return true;
}

bool check_op(const VocabStatistics& op) {
  if (!check_vocab(op)) return false;
  check_vector(op.statistics, op.logits.rows() * 3, DType::f32, "statistics");
  return true;
}

bool check_op(const VocabLoss& op) {
  if (!check_vocab(op)) return false;
  const int64_t rows = op.logits.rows();
  check_vector(op.loss, rows, DType::f32, "loss");
  check_optional(op.dlogits_scale, 1, DType::f32, "scale of the gradient");
  TW_CHECK(op.all.dtype == DType::f32 && op.all.count() > 0 && op.all.count() % (rows * 3) == 0, op.all.count(),
           " statistics for ", rows, " rows");
  return true;
}

bool check_op(const WeightedSum& op) {
  check_vector(op.out, 1, DType::f64, "sum");
  if (op.a.count() == 0) return false;
  check_vector(op.b, op.a.count(), DType::f32, "weights of a sum");
  return true;
}

bool check_op(const SumSquares& op) {
  check_vector(op.out, 1, DType::f64, "sum of squares");
  TW_CHECK(op.x.dtype == DType::f32 || op.x.dtype == DType::bf16, "squares of ", name_of(op.x.dtype));
  return op.x.count() != 0;
}

bool check_op(const BiasGradient& op) {
  check_vector(op.dbias, op.dy.cols(), DType::f32, "bias gradient");
  return op.dy.count() != 0;
}

bool check_op(const Cast& op) {
  if (op.src.count() == 0) return false;
  check_vector(op.dst, op.src.count(), op.dst.dtype, "destination of a cast");
  return true;
}

bool check_op(const Axpy& op) {
  if (op.x.count() == 0) return false;
  check_like(op.y, op.x, "y of axpy");
  return true;
}

bool check_op(const FillNormal& op) {
  TW_CHECK(op.first >= 0, "first element ", op.first);
  storage_index(op.x.dtype);
  return op.x.count() != 0;
}

bool check_op(const CopyRuns& op) {
  TW_CHECK(op.from.dtype == op.to.dtype && op.counts[0] >= 0 && op.counts[1] >= 0 && op.width >= 0, "runs of ",
           op.counts[0], " x ", op.counts[1], " x ", op.width, " elements");
  if (op.counts[0] == 0 || op.counts[1] == 0 || op.width == 0) return false;
  const auto check = [&](View view, int64_t first, const int64_t* strides, const char* what) {
    int64_t low = first, high = first;
    for (int i = 0; i < 2; ++i) (strides[i] < 0 ? low : high) += (op.counts[i] - 1) * strides[i];
    TW_CHECK(low >= 0 && high + op.width <= view.count(), "runs from ", low, " to ", high + op.width, " in ", what,
             " of ", view.count(), " elements");
  };
  check(op.from, op.from_first, op.from_strides, "a source");
  check(op.to, op.to_first, op.to_strides, "a destination");
  return true;
}

bool check_op(const FillConstant& op) {
  storage_index(op.x.dtype);
  return op.x.count() != 0;
}

bool check_op(const AdamW& op) {
  if (!check_step(op)) return false;
  TW_CHECK(!op.takes_momentum || op.gradient.dtype == DType::f32, "a momentum in ", name_of(op.gradient.dtype));
  check_vector(op.m, op.master.count(), DType::f32, "m");
  check_vector(op.v, op.master.count(), DType::f32, "v");
  return true;
}

bool check_op(const Sgd& op) {
  if (!check_step(op)) return false;
  TW_CHECK((op.momentum == 0.0f) == !op.momentum_buffer, "a momentum buffer goes with a momentum other than 0");
  check_optional(op.momentum_buffer, op.master.count(), DType::f32, "momentum buffer");
  return true;
}

}  // namespace thinwire
