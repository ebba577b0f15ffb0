// Embedding layer over the op table.
#include "model/embedding.h"

namespace thinwire {

Embedding::Embedding(const ModelConfig& config, const ParamStore& store, TpActivation* tp)
    : config_(&config),
      tp_(tp),
      word_(store.weight("embedding.word.weight")),
      position_(store.weight("embedding.position.weight")),
      word_gradient_(store.gradient("embedding.word.weight")),
      position_gradient_(store.gradient("embedding.position.weight")) {}

Dropout Embedding::dropout(const LayerContext& c) const {
  return make_dropout(c, config_->hidden_dropout, RandomPurpose::kEmbeddingDropout, 0);
}

void Embedding::forward(Exec& exec, const LayerContext& c, View tokens, View x) const {
  exec.ops.embedding_forward(exec, {.tokens = tokens,
                                    .table = word_,
                                    .positions = position_,
                                    .x = x,
                                    .length = c.shape.length,
                                    .first_position = c.first_position});
  tp_->sum_forward(x, exec.stream).wait(exec.stream);
  const Dropout d = dropout(c);
  if (d.p > 0.0f) exec.ops.dropout_apply(exec, {x, x, d});
}

void Embedding::backward(Exec& exec, const LayerContext& c, View tokens, View dx) const {
  const Dropout d = dropout(c);
  if (d.p > 0.0f) exec.ops.dropout_apply(exec, {dx, dx, d});
  exec.ops.embedding_backward(exec, {.tokens = tokens,
                                     .dx = dx,
                                     .dtable = word_gradient_,
                                     .dpositions = position_gradient_,
                                     .length = c.shape.length});
}

}  // namespace thinwire
