// Word and position embeddings, with the dropout behind them. Tensor ranks have rows of the word table and sum what
// they find; the positions are added by one of them.
#pragma once

#include "model/layer_context.h"
#include "model/param_store.h"
#include "parallel/sites/tp_activation.h"

namespace thinwire {

class Embedding {
 public:
  Embedding(const ModelShard& shard, const ParamStore& store, TpActivation& tp);

  // In chunks all views are those of one.
  // x: [P,h]. tokens: [N] i32 device memory. whole: [N,h] scratch, only used with sequence parallelism.
  void forward(Exec& exec, const LayerContext& context, View tokens, View x, View whole) const;
  // dx: [P,h], overwritten by the gradient behind dropout; accumulates the tables' gradients.
  void backward(Exec& exec, const LayerContext& context, View tokens, View dx, View whole) const;

 private:
  Dropout dropout(const LayerContext& context) const;

  float dropout_;
  bool splits_rows_, adds_positions_;
  int64_t first_token_, vocabulary_;
  TpActivation* tp_;
  View word_, position_, word_gradient_, position_gradient_;
};

}  // namespace thinwire
