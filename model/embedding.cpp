// Embedding layer over the op table.
#include "model/embedding.h"

#include "engine/base/core/model_units.h"

namespace thinwire {
namespace {

int64_t length_of(const LayerContext& c) {
  return c.chunk.count > 0 ? c.chunk.count : c.shape.length;
}

}  // namespace

Embedding::Embedding(const ModelShard& shard, const ParamStore& store, TpActivation& tp)
    : dropout_(shard.whole.hidden_dropout),
      splits_rows_(shard.splits_rows()),
      adds_positions_(shard.tensor_rank == 0),
      first_token_(shard.vocab().first),
      vocabulary_(shard.whole.padded_vocab),
      tp_(&tp),
      word_(store.weight("embedding.word.weight")),
      position_(store.weight("embedding.position.weight")),
      word_gradient_(store.gradient("embedding.word.weight")),
      position_gradient_(store.gradient("embedding.position.weight")) {
  TW_CHECK(word_);
}

Dropout Embedding::dropout(const LayerContext& c) const {
  return make_row_dropout(c, dropout_, RandomPurpose::kEmbeddingDropout, 0, c.first_row);
}

void Embedding::forward(Exec& exec, const LayerContext& c, View tokens, View x, View whole) const {
  const View found = splits_rows_ ? whole : x;
  exec.ops.embedding_forward(exec, {.tokens = tokens,
                                    .table = word_,
                                    .positions = adds_positions_ ? position_ : View{},
                                    .x = found,
                                    .length = length_of(c),
                                    .first_position = c.first_position,
                                    .first_token = first_token_,
                                    .vocabulary = vocabulary_,
                                    .at = c.positions});
  tp_->leave_forward(found, x, exec.stream).wait(exec.stream);
  const Dropout d = dropout(c);
  if (d.p > 0.0f) exec.ops.dropout_apply(exec, {x, x, d});
}

void Embedding::backward(Exec& exec, const LayerContext& c, View tokens, View dx, View whole) const {
  tp_->enter_unit(kEmbeddingUnit);
  const Dropout d = dropout(c);
  if (d.p > 0.0f) exec.ops.dropout_apply(exec, {dx, dx, d});
  const View rows = splits_rows_ ? whole : dx;
  // Without positions of their own, tokens of a chunk have those of its place.
  const bool by_place = position_gradient_ && !c.positions && c.chunk.count > 0;
  const View position_gradient =
      by_place ? position_gradient_.row_range(c.chunk.first, c.chunk.count) : position_gradient_;
  tp_->leave_backward(dx, rows, exec.stream).wait(exec.stream);
  exec.ops.embedding_backward(exec, {.tokens = tokens,
                                     .dx = rows,
                                     .dtable = word_gradient_,
                                     .dpositions = position_gradient,
                                     .length = length_of(c),
                                     .first_token = first_token_,
                                     .vocabulary = vocabulary_,
                                     .at = c.positions});
}

}  // namespace thinwire
