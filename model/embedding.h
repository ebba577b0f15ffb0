// Word and position embeddings, with the dropout behind them.
#pragma once

#include "model/layer_context.h"
#include "model/param_store.h"
#include "parallel/sites/tp_activation.h"

namespace thinwire {

class Embedding {
 public:
  Embedding(const ModelConfig& config, const ParamStore& store, TpActivation* tp);

  // x: [N,h]. tokens: [N] i32 device memory.
  void forward(Exec& exec, const LayerContext& context, View tokens, View x) const;
  // dx: [N,h], overwritten by the gradient behind dropout; accumulates the tables' gradients.
  void backward(Exec& exec, const LayerContext& context, View tokens, View dx) const;

  View word() const { return word_; }
  View word_gradient() const { return word_gradient_; }

 private:
  Dropout dropout(const LayerContext& context) const;

  const ModelConfig* config_;
  TpActivation* tp_;
  View word_, position_, word_gradient_, position_gradient_;
};

}  // namespace thinwire
