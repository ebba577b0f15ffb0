// The block's story, forward and backward.
#include "model/block.h"

namespace thinwire {

BlockScratch take_block_scratch(const ModelConfig& c, const BatchShape& shape, bool training, Arena& arena) {
  const int64_t n = shape.tokens();
  const auto take = [&](int64_t cols) { return arena.take(MemoryCategory::kWorkspace, c.dtype, {n, cols}); };
  BlockScratch s;
  s.branch = take(c.hidden);
  const bool dropout = training && c.hidden_dropout > 0.0f;
  if (dropout && c.parallel_residual) s.branch2 = take(c.hidden);
  if (!training) return s;
  s.d_act = take(c.ffn);
  s.d_mlp_in = c.activation == ActivationKind::kSwiglu ? take(2 * c.ffn) : s.d_act;
  s.d_attention = take(c.attention_width());
  s.d_qkv = take(c.qkv_width());
  s.d_norm = take(c.hidden);
  if (dropout) s.d_branch1 = take(c.hidden), s.d_branch2 = take(c.hidden);
  return s;
}

Block::Block(const ModelConfig& config, const ParamStore& store, int layer, const RotaryTables* rotary, Ports* ports)
    : config_(&config),
      layer_(layer),
      norm1_(config, store, "layers." + std::to_string(layer) + ".norm1"),
      norm2_(config, store, "layers." + std::to_string(layer) + ".norm2"),
      attention_(config, store, layer, rotary, &ports->tp),
      mlp_(config, store, layer, &ports->tp) {}

Dropout Block::branch_dropout(const LayerContext& context, int place) const {
  return make_dropout(context, config_->hidden_dropout, RandomPurpose::kHiddenDropout,
                      static_cast<uint32_t>(layer_ * 2 + place));
}

ResidualStream Block::forward(Exec& exec, const LayerContext& c, const ResidualStream& in, const BlockActivations& a,
                              BlockScratch& s) const {
  // norm1 reads in.branch, which the previous block left in s.branch, before attention overwrites it.
  norm1_.forward(exec, in, a.x_in, a.norm1_out, a.mean1, a.rstd1);
  const View x = in.branch ? a.x_in : in.x;
  attention_.forward(exec, c, a.norm1_out, a, s.branch);

  if (!config_->parallel_residual) {
    norm2_.forward(exec, {x, s.branch, branch_dropout(c, 0)}, a.x_mid, a.norm2_out, a.mean2, a.rstd2);
    mlp_.forward(exec, a.norm2_out, a, s.branch, false);
    return {a.x_mid, s.branch, branch_dropout(c, 1)};
  }

  norm2_.forward(exec, x, a.norm2_out, a.mean2, a.rstd2);
  if (!s.branch2) {
    mlp_.forward(exec, a.norm2_out, a, s.branch, true);
    return {x, s.branch, {}};
  }
  // Each branch has a mask of its own, so they cannot be summed before their dropouts.
  mlp_.forward(exec, a.norm2_out, a, s.branch2, false);
  exec.ops.dropout_apply(exec, {s.branch, s.branch, branch_dropout(c, 0)});
  exec.ops.dropout_apply(exec, {s.branch2, s.branch2, branch_dropout(c, 1)});
  exec.ops.axpy(exec, {1.0f, s.branch2, s.branch});
  return {x, s.branch, {}};
}

void Block::recompute(Exec& exec, const LayerContext& c, const BlockActivations& a, BlockScratch& s) const {
  if (config_->recompute == Recompute::kNone) return;
  norm1_.forward(exec, a.x_in, a.norm1_out, a.mean1, a.rstd1);
  if (config_->recompute == Recompute::kSelective) {
    norm2_.forward(exec, config_->parallel_residual ? a.x_in : a.x_mid, a.norm2_out, a.mean2, a.rstd2);
    mlp_.activate(exec, a);
    return;
  }
  attention_.forward(exec, c, a.norm1_out, a, s.branch);
  if (config_->parallel_residual) {
    norm2_.forward(exec, a.x_in, a.norm2_out, a.mean2, a.rstd2);
  } else {
    norm2_.forward(exec, {a.x_in, s.branch, branch_dropout(c, 0)}, a.x_mid, a.norm2_out, a.mean2, a.rstd2);
  }
  mlp_.forward_inner(exec, a.norm2_out, a);
}

View Block::through_dropout(Exec& exec, const Dropout& dropout, View dx, View buffer) const {
  if (dropout.p == 0.0f) return dx;
  exec.ops.dropout_apply(exec, {dx, buffer, dropout});
  return buffer;
}

WeightWork Block::backward_input(Exec& exec, const LayerContext& c, const BlockActivations& a, BlockScratch& s,
                                 View dx_out, View dx_mid, View dx_in) const {
  WeightWork work;
  work.mlp = {through_dropout(exec, branch_dropout(c, 1), dx_out, s.d_branch2), s.d_mlp_in};
  mlp_.backward_input(exec, a, work.mlp, s.d_act, s.d_norm);
  const View norm2_input = config_->parallel_residual ? a.x_in : a.x_mid;
  norm2_.backward(exec, s.d_norm, norm2_input, a.mean2, a.rstd2, dx_out, dx_mid);

  const View at_attention = config_->parallel_residual ? dx_out : dx_mid;
  work.attention = {through_dropout(exec, branch_dropout(c, 0), at_attention, s.d_branch1), s.d_qkv};
  attention_.backward_input(exec, c, a, work.attention, s.d_attention, s.d_norm);
  norm1_.backward(exec, s.d_norm, a.x_in, a.mean1, a.rstd1, dx_mid, dx_in);
  return work;
}

void Block::backward_weight(Exec& exec, const BlockActivations& a, const WeightWork& work) const {
  mlp_.backward_weight(exec, a.norm2_out, a, work.mlp);
  attention_.backward_weight(exec, a.norm1_out, a, work.attention);
}

}  // namespace thinwire
