// Self-attention over the heads of one rank: its share of the qkv projection, rotary positions, causal attention, its
// share of the output projection. Between tensor ranks, results and input gradients are partial sums, which the block
// sums.
#pragma once

#include "model/layer_context.h"
#include "model/linear.h"
#include "model/rotary_tables.h"

namespace thinwire {

// Gradients that the weight half of the backward still needs.
struct AttentionWork {
  View dy;     // [N,h] gradient at the output projection's result
  View d_qkv;  // [N,qkv]
};

class Attention {
 public:
  Attention(const ModelShard& shard, const ParamStore& store, int layer, const RotaryTables* rotary);

  // y: [N,h]; a.qkv, a.attention_out and a.lse are filled. x: [N,h] (the norm's output, all rows).
  void forward(Exec& exec, const LayerContext& context, View x, const BlockActivations& a, View y) const;
  // All but the output projection: what a recomputing backward needs.
  void forward_inner(Exec& exec, const LayerContext& context, View x, const BlockActivations& a) const;
  // dx: [N,h] at the norm's output. scratch: [N, heads*d]. work.d_qkv is filled, work.dy must be set.
  void backward_input(Exec& exec, const LayerContext& context, const BlockActivations& a, const AttentionWork& work,
                      View scratch, View dx) const;
  void backward_weight(Exec& exec, View x, const BlockActivations& a, const AttentionWork& work) const;

 private:
  AttentionShape shape_of(const LayerContext& context) const;
  template <typename Op>
  Op operands(const LayerContext& context, const BlockActivations& a, View keys) const;
  void rotate(Exec& exec, const LayerContext& context, View rows, bool inverse) const;

  Dropout dropout(const LayerContext& context) const;

  ModelConfig config_;  // with this rank's heads
  int64_t first_head_;
  int layer_;
  const RotaryTables* rotary_;
  Linear qkv_, out_;
  HeadLayout q_at_, k_at_, v_at_;  // without the batch stride
  float scale_;
};

}  // namespace thinwire
