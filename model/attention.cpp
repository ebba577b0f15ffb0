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
                         .inverse = inverse});
}

void Attention::forward(Exec& exec, const LayerContext& c, View x, const BlockActivations& a, View y) const {
  forward_inner(exec, c, x, a);
  out_.forward(exec, a.attention_out, y);
}

void Attention::forward_inner(Exec& exec, const LayerContext& c, View x, const BlockActivations& a) const {
  qkv_.forward(exec, x, a.qkv);
  rotate(exec, c, a.qkv, false);
  const View keys = c.kv_rows ? c.kv_rows : a.qkv;
  const AttentionShape shape = shape_of(c);
  exec.ops.attention_forward(exec, {.shape = shape,
                                    .scale = scale_,
                                    .q = a.qkv,
                                    .k = keys,
                                    .v = keys,
                                    .q_at = with_batch(q_at_, shape.q_len),
                                    .k_at = with_batch(k_at_, shape.kv_len),
                                    .v_at = with_batch(v_at_, shape.kv_len),
                                    .out = a.attention_out,
                                    .lse = a.lse,
                                    .dropout = dropout(c)});
}

void Attention::backward_input(Exec& exec, const LayerContext& c, const BlockActivations& a, const AttentionWork& work,
                               View scratch, View dx) const {
  out_.backward_input(exec, work.dy, scratch);
  const AttentionShape shape = shape_of(c);
  const HeadLayout q_at = with_batch(q_at_, shape.q_len), k_at = with_batch(k_at_, shape.kv_len),
                   v_at = with_batch(v_at_, shape.kv_len);
  exec.ops.attention_backward(exec, {.shape = shape,
                                     .scale = scale_,
                                     .q = a.qkv,
                                     .k = a.qkv,
                                     .v = a.qkv,
                                     .q_at = q_at,
                                     .k_at = k_at,
                                     .v_at = v_at,
                                     .out = a.attention_out,
                                     .lse = a.lse,
                                     .dout = scratch,
                                     .dq = work.d_qkv,
                                     .dk = work.d_qkv,
                                     .dv = work.d_qkv,
                                     .dropout = dropout(c)});
  rotate(exec, c, work.d_qkv, true);
  qkv_.backward_input(exec, work.d_qkv, dx);
}

void Attention::backward_weight(Exec& exec, View x, const BlockActivations& a, const AttentionWork& work) const {
  out_.backward_weight(exec, a.attention_out, work.dy);
  qkv_.backward_weight(exec, x, work.d_qkv);
}

}  // namespace thinwire
