// Attention layer over the op table; q, k and v stay interleaved by KV group in one buffer.
#include "model/attention.h"

#include <cmath>

namespace thinwire {
namespace {

HeadLayout with_batch(HeadLayout at, int64_t rows) {
  at.batch = rows * at.token;
  return at;
}

}  // namespace

Attention::Attention(const ModelShard& shard, const ParamStore& store, int layer, const RotaryTables* rotary)
    : config_(shard.local()),
      first_head_(shard.heads().first),
      layer_(layer),
      rotary_(rotary),
      qkv_(store, "layers." + std::to_string(layer) + ".attention.qkv"),
      out_(store, "layers." + std::to_string(layer) + ".attention.out", shard.tensor_rank == 0),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))) {
  const int64_t d = config_.head_dim, r = config_.heads_per_group(), group = (r + 2) * d;
  q_at_ = {0, 0, config_.qkv_width(), group, d};
  k_at_ = {r * d, 0, config_.qkv_width(), group, 0};
  v_at_ = {(r + 1) * d, 0, config_.qkv_width(), group, 0};
}

Dropout Attention::dropout(const LayerContext& c) const {
  Dropout d =
      make_dropout(c, config_.attention_dropout, RandomPurpose::kAttentionDropout, static_cast<uint32_t>(layer_));
  d.first_head = first_head_;
  return d;
}

AttentionShape Attention::shape_of(const LayerContext& c) const {
  const int64_t keys = c.kv_rows ? c.kv_rows.rows() / c.shape.batch : c.shape.length;
  return {c.shape.batch, c.shape.length, keys, config_.kv_heads, config_.heads_per_group(), config_.head_dim};
}

// Queries and the key of a group lie side by side, so one call rotates them all.
void Attention::rotate(Exec& exec, const LayerContext& c, View rows, bool inverse) const {
  if (config_.rotary_dim() == 0) return;
  exec.ops.rotary(exec, {.data = rows,
                         .layout = with_batch(q_at_, c.shape.length),
                         .batch = c.shape.batch,
                         .length = c.shape.length,
                         .groups = config_.kv_heads,
                         .heads_per_group = config_.heads_per_group() + 1,
                         .rot_dim = config_.rotary_dim(),
                         .first_position = c.first_position,
                         .cos = rotary_->cos,
                         .sin = rotary_->sin,
                         .positions = c.positions,
                         .inverse = inverse});
}

// What forward and backward share.
template <typename Op>
Op Attention::operands(const LayerContext& c, const BlockActivations& a, View keys) const {
  Op op;
  op.shape = shape_of(c), op.scale = scale_;
  op.q = a.qkv, op.k = op.v = keys;
  op.q_at = with_batch(q_at_, op.shape.q_len);
  op.k_at = with_batch(k_at_, op.shape.kv_len), op.v_at = with_batch(v_at_, op.shape.kv_len);
  op.first_keys = c.first_keys, op.window = config_.window;
  op.out = a.attention_out, op.lse = a.lse, op.dropout = dropout(c);
  return op;
}

void Attention::forward(Exec& exec, const LayerContext& c, View x, const BlockActivations& a, View y) const {
  forward_inner(exec, c, x, a);
  out_.forward(exec, a.attention_out, y);
}

void Attention::forward_inner(Exec& exec, const LayerContext& c, View x, const BlockActivations& a) const {
  qkv_.forward(exec, x, a.qkv);
  rotate(exec, c, a.qkv, false);
  exec.ops.attention_forward(exec, operands<AttentionForward>(c, a, c.kv_rows ? c.kv_rows : a.qkv));
}

void Attention::backward_input(Exec& exec, const LayerContext& c, const BlockActivations& a, const AttentionWork& work,
                               View scratch, View dx) const {
  out_.backward_input(exec, work.dy, scratch);
  AttentionBackward op = operands<AttentionBackward>(c, a, a.qkv);
  op.dout = scratch, op.dq = op.dk = op.dv = work.d_qkv;
  exec.ops.attention_backward(exec, op);
  rotate(exec, c, work.d_qkv, true);
  qkv_.backward_input(exec, work.d_qkv, dx);
}

void Attention::backward_weight(Exec& exec, View x, const BlockActivations& a, const AttentionWork& work) const {
  out_.backward_weight(exec, a.attention_out, work.dy);
  qkv_.backward_weight(exec, x, work.d_qkv);
}

}  // namespace thinwire
