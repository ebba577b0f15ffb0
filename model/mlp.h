// The feed-forward part of one rank: its share of fc1, GELU or SwiGLU, its share of fc2. Between tensor ranks, results
// and input gradients are partial sums, which the block sums.
#pragma once

#include "model/layer_context.h"
#include "model/linear.h"

namespace thinwire {

struct MlpWork {
  View dy;    // [N,h] gradient at fc2's result
  View d_in;  // [N, f or 2f] gradient at fc1's result
};

class Mlp {
 public:
  Mlp(const ModelShard& shard, const ParamStore& store, int layer);

  // y = mlp(x), or y += mlp(x). Fills a.mlp_in and a.mlp_act. x: [N,h], all rows.
  void forward(Exec& exec, View x, const BlockActivations& a, View y, bool accumulate) const;
  // fc1 and the activation function only: what a recomputing backward needs.
  void forward_inner(Exec& exec, View x, const BlockActivations& a) const;
  void activate(Exec& exec, const BlockActivations& a) const;
  // dx: [N,h]. d_act: [N,f] scratch; may be the same memory as work.d_in when the activation is GELU.
  void backward_input(Exec& exec, const BlockActivations& a, const MlpWork& work, View d_act, View dx) const;
  void backward_weight(Exec& exec, View x, const BlockActivations& a, const MlpWork& work) const;

 private:
  ActivationKind activation_;
  Linear fc1_, fc2_;
};

}  // namespace thinwire
