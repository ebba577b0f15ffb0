// Head over the op table; the chunk is a matter of memory, not of results per row.
#include "model/head.h"

#include <algorithm>

namespace thinwire {
namespace {

// Logits of one chunk stay near the size of a last-level cache share; a multiple of 16 rows keeps the products
// efficient. All tensor ranks must agree on it, so it follows from the whole vocabulary.
int64_t chunk_rows(const ModelShard& shard, int64_t tokens) {
  const ModelConfig& c = shard.whole;
  const int64_t row =
      (c.padded_vocab + shard.tensor_size - 1) / shard.tensor_size * static_cast<int64_t>(size_of(c.dtype));
  int64_t fit = std::max<int64_t>(16, c.head_chunk_bytes / row);
  if (c.sequence_chunk > 0) fit = std::min(fit, std::max<int64_t>(16, c.sequence_chunk));
  const int64_t chunks = (tokens + fit - 1) / fit;
  return std::min(tokens, ((tokens + chunks - 1) / chunks + 15) / 16 * 16);
}

View places_of(const HeadScratch& s, const LossTargets& loss) {
  return loss.token_losses ? loss.token_losses : s.losses;
}

const char* matrix_name(const ModelShard& shard) {
  return shard.whole.tied_head ? "embedding.word.weight" : "head.weight";
}

}  // namespace

HeadActivations take_head_activations(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena,
                                      bool streams) {
  const ModelConfig& c = shard.whole;
  const int64_t part = shard.part_rows(shape.tokens());
  HeadActivations a;
  if (streams) a.x = arena.take(MemoryCategory::kActivations, c.dtype, {part, c.hidden});
  if (c.norm == NormKind::kLayerNorm) a.mean = arena.take(MemoryCategory::kActivations, DType::f32, {part});
  a.rstd = arena.take(MemoryCategory::kActivations, DType::f32, {part});
  if (training && streams) a.dy = arena.take(MemoryCategory::kActivations, c.dtype, {part, c.hidden});
  return a;
}

HeadActivations part_of(const HeadActivations& a, const TokenChunk& chunk, View x, View dy) {
  const auto rows = [&](View v) { return v ? v.element_range(chunk.row, chunk.count) : v; };
  return {x, rows(a.mean), rows(a.rstd), dy};
}

LossTargets part_of(const LossTargets& loss, const TokenChunk& chunk) {
  LossTargets part = loss;
  part.targets = loss.targets.element_range(chunk.row, chunk.count);
  part.row_weight = loss.row_weight.element_range(chunk.row, chunk.count);
  if (loss.token_losses) part.token_losses = loss.token_losses.element_range(chunk.row, chunk.count);
  return part;
}

HeadScratch take_head_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena) {
  const ModelConfig c = shard.local();
  const int64_t n = shape.tokens(), part = shard.part_rows(n), chunk = chunk_rows(shard, n);
  const auto take = [&](DType dtype, int64_t rows, int64_t cols) {
    return arena.take(MemoryCategory::kWorkspace, dtype, {rows, cols});
  };
  HeadScratch s;
  s.y = take(c.dtype, shard.splits_rows() ? part : chunk, c.hidden);
  s.whole = shard.splits_rows() ? take(c.dtype, n, c.hidden) : s.y;
  if (training && shard.splits_rows()) s.d_whole = take(c.dtype, n, c.hidden);
  s.logits = take(c.dtype, chunk, c.padded_vocab);
  s.losses = arena.take(MemoryCategory::kWorkspace, DType::f32, {work_rows(shard, shape)});
  if (shard.tensor_size > 1) {
    s.statistics = take(DType::f32, chunk, 3);
    s.all_statistics = arena.take(MemoryCategory::kWorkspace, DType::f32, {shard.tensor_size * chunk * 3});
  }
  return s;
}

Head::Head(const ModelShard& shard, const ParamStore& store, TpActivation& tp)
    : vocabulary_(shard.whole.vocab),
      first_col_(shard.vocab().first),
      splits_rows_(shard.splits_rows()),
      tp_(&tp),
      store_(&store),
      final_norm_(shard.whole, store, "final_norm"),
      matrix_(store.weight(matrix_name(shard))),
      matrix_gradient_(store.gradient(matrix_name(shard))),
      written_first_(store.product_gradient(matrix_name(shard))) {
  TW_CHECK(matrix_, matrix_name(shard));
}

void Head::normalise(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const HeadScratch& s,
                     int64_t first, int64_t n) const {
  const auto rows = [&](View v) { return v ? v.row_range(first, n) : v; };
  const auto statistics = [&](View v) { return v ? v.element_range(first, n) : v; };
  ResidualStream piece{rows(stream.x), rows(stream.branch), stream.dropout};
  piece.dropout.first_row += first;
  final_norm_.forward(exec, piece, rows(a.x), s.y.row_range(0, n), statistics(a.mean), statistics(a.rstd));
  if (splits_rows_) tp_->enter_forward(s.y, s.whole, exec.stream).wait(exec.stream);
}

void Head::logits(Exec& exec, const HeadScratch& s, int64_t at, int64_t n, View logits) const {
  exec.ops.matmul(
      exec,
      {.a = s.whole.row_range(at, n), .b = matrix_, .c = logits, .trans_b = true, .b_version = store_->version()});
}

// Losses of rows [first, first + logits.rows()), and in training the gradient in place of the logits.
void Head::losses(Exec& exec, const HeadScratch& s, View logits, int64_t first, const LossTargets& loss) const {
  const int64_t n = logits.rows();
  const View targets = loss.targets.element_range(first, n), row_weight = loss.row_weight.element_range(first, n),
             losses = places_of(s, loss).element_range(first, n);
  if (tp_->size() == 1) {
    exec.ops.cross_entropy(exec, {.logits = logits,
                                  .targets = targets,
                                  .row_weight = row_weight,
                                  .loss = losses,
                                  .dlogits_scale = loss.dlogits_scale,
                                  .valid_cols = vocabulary_});
    return;
  }
  const View mine = s.statistics.row_range(0, n), all = s.all_statistics.element_range(0, tp_->size() * n * 3);
  exec.ops.vocab_statistics(exec, {logits, targets, row_weight, mine, vocabulary_, first_col_});
  tp_->gather_statistics(mine, all, exec.stream).wait(exec.stream);
  exec.ops.vocab_loss(exec, {logits, targets, row_weight, all, losses, loss.dlogits_scale, vocabulary_, first_col_});
}

void Head::forward(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const HeadScratch& s,
                   const LossTargets& loss) const {
  const int64_t tokens = loss.targets.count();
  const bool training = static_cast<bool>(loss.dlogits_scale);
  const View dy = splits_rows_ ? s.d_whole : a.dy;
  Ticket sum;
  for_pieces(exec, stream, a, s, tokens, [&](int64_t first, int64_t n, int64_t at) {
    const View chunk = s.logits.row_range(0, n);
    logits(exec, s, at, n, chunk);
    losses(exec, s, chunk, first, loss);
    if (!training) return;
    exec.ops.matmul(exec, {.a = chunk, .b = matrix_, .c = dy.row_range(first, n), .b_version = store_->version()});
    // The last piece's weight gradient hides the sum of all of dy.
    if (first + n == tokens) sum = tp_->enter_backward(dy, a.dy, exec.stream);
    exec.ops.matmul(exec, {.a = chunk,
                           .b = s.whole.row_range(at, n),
                           .c = matrix_gradient_,
                           .trans_a = true,
                           .accumulate = !store_->writes_first(written_first_)});
  });
  exec.ops.weighted_sum(
      exec, {places_of(s, loss).element_range(0, tokens), loss.row_weight.element_range(0, tokens), loss.loss_sum});
  sum.wait(exec.stream);
}

void Head::backward(Exec& exec, const HeadActivations& a, View dx) const {
  final_norm_.backward(exec, a.dy, a.x, a.mean, a.rstd, {}, dx);
}

}  // namespace thinwire
