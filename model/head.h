// The head: final norm, the product with the vocabulary matrix, and the loss, in chunks of rows so that the logits of a
// whole micro-batch never exist at once.
#pragma once

#include "model/embedding.h"
#include "model/norm.h"

namespace thinwire {

struct HeadActivations {
  View x;              // [N,h] value of the residual stream behind the last block
  View y, mean, rstd;  // final norm
  View dy;             // [N,h] gradient at y, found in the forward pass while the logits exist
  View logits;         // [chunk, padded vocab]
  View losses;         // [N] fp32
};
HeadActivations take_head_activations(const ModelConfig& config, const BatchShape& shape, bool training, Arena& arena);

struct LossTargets {
  View targets;        // [N] i32
  View row_weight;     // [N] fp32: what each token's loss counts; the weights of an update's micro-batches sum to 1
  View dlogits_scale;  // [1] fp32, the loss scale; empty in evaluation
  View loss_sum;       // [1] fp64, += sum of row_weight * loss
};

class Head {
 public:
  Head(const ModelConfig& config, const ParamStore& store, const Embedding& embedding);

  // Loss of the stream's tokens. In training (dlogits_scale given) also a.dy and the head matrix's gradient: the logits
  // are gone afterwards, so that gradient is accumulated here and not in a backward_weight.
  void forward(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const LossTargets& loss) const;
  // Final norm alone, then logits of rows [first, first + n) of y into `logits` [n, padded vocab]: for generation and
  // checks.
  void normalise(Exec& exec, const ResidualStream& stream, const HeadActivations& a) const;
  void logits(Exec& exec, const HeadActivations& a, int64_t first, int64_t n, View logits) const;
  // dx: [N,h] gradient at the stream's value.
  void backward(Exec& exec, const HeadActivations& a, View dx) const;

 private:
  const ModelConfig* config_;
  const ParamStore* store_;
  Norm final_norm_;
  View matrix_, matrix_gradient_;  // the embedding's own when tied
};

}  // namespace thinwire
