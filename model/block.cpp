// The block's story, forward and backward.
#include "model/block.h"

#include "engine/base/core/model_units.h"

namespace thinwire {
namespace {

// Whether the gradient at a branch's result is the stream's own: nothing lies between them.
bool stream_serves(const ModelShard& shard) {
  return shard.whole.hidden_dropout == 0.0f && !shard.splits_rows();
}

struct Taker {
  const ModelConfig c;
  Arena& arena;
  MemoryCategory category;
  View operator()(int64_t rows, int64_t cols) const { return arena.take(category, c.dtype, {rows, cols}); }
};

}  // namespace

BlockScratch take_block_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena,
                                TokenStore* store) {
  const Taker take{shard.local(), arena, MemoryCategory::kWorkspace};
  const ModelConfig& c = take.c;
  const int64_t n = work_rows(shard, shape), part = shard.part_rows(n);
  const bool splits = shard.splits_rows(), dropout = training && c.hidden_dropout > 0.0f;
  BlockScratch s;
  s.branch = take(part, c.hidden);
  s.partial = splits ? take(n, c.hidden) : s.branch;
  if (dropout && c.parallel_residual) s.branch2 = take(n, c.hidden);
  if (splits) s.whole = take(n, c.hidden);
  s.sequence = take_sequence_scratch(shard, shape, training, store, arena);
  if (!training) return s;
  s.d_act = take(n, c.ffn);
  s.d_mlp_in = c.activation == ActivationKind::kSwiglu ? take(n, 2 * c.ffn) : s.d_act;
  s.d_attention = take(n, c.attention_width());
  const View sums = s.sequence.d_keys.whole;  // where they are those of q, k and v, fp32
  s.d_qkv = sums && sums.cols() == c.qkv_width() && c.dtype == DType::f32
                ? sums
                : take(shard.cut.whole() ? n : shape.tokens(), c.qkv_width());
  s.d_norm = take(n, c.hidden);
  s.d_norm_part = splits ? take(part, c.hidden) : s.d_norm;
  if (stream_serves(shard)) return s;
  s.d_branch2 = take(n, c.hidden);
  if (dropout || !c.parallel_residual) s.d_branch1 = take(n, c.hidden);
  if (splits && dropout && !c.parallel_residual) s.d_branch_part = take(part, c.hidden);
  return s;
}

BlockWorkBuffers take_block_work(const ModelShard& shard, const BatchShape& shape, Arena& arena) {
  const Taker take{shard.local(), arena, MemoryCategory::kActivations};
  const ModelConfig& c = take.c;
  const int64_t n = shape.tokens();
  BlockWorkBuffers w;
  const bool kept = c.recompute <= Recompute::kSelective, all_rows = !shard.splits_rows();
  // The two dy: mlp's takes the place of x_mid, or of a parallel block's x_in, attention's that of a serial block's
  // x_in.
  const bool mlp_fits = all_rows && (c.parallel_residual || kept), attention_fits = all_rows && !c.parallel_residual;
  if (stream_serves(shard)) {
    if (!mlp_fits) w.dx_out = take(n, c.hidden);
    if (!c.parallel_residual && !attention_fits) w.dx_mid = take(n, c.hidden);
  } else {
    if (!mlp_fits) w.d_branch2 = take(n, c.hidden);
    const bool two = c.hidden_dropout > 0.0f || !c.parallel_residual;
    if (two && !attention_fits) w.d_branch1 = take(n, c.hidden);
  }
  if (!kept) {
    w.d_qkv = take(n, c.qkv_width());
    w.d_mlp_in = take(n, c.ffn_in_width());
  }
  w.inputs = take_weight_inputs(shard, shape, c.recompute, arena);
  return w;
}

Block::Block(const ModelShard& shard, const ParamStore& store, int layer, const RotaryTables* rotary, Ports& ports,
             UnitEvents& events)
    : parallel_(shard.whole.parallel_residual),
      splits_rows_(shard.splits_rows()),
      adds_stream_(shard.tensor_rank == 0),
      dropout_(shard.whole.hidden_dropout),
      level_(shard.whole.recompute),
      layer_(layer),
      tp_(&ports.tp),
      events_(&events),
      norm1_(shard.whole, store, "layers." + std::to_string(layer) + ".norm1"),
      norm2_(shard.whole, store, "layers." + std::to_string(layer) + ".norm2"),
      attention_(shard, store, layer, rotary, ports.sequence),
      mlp_(shard, store, layer) {}

void Block::list_uses(bool backward, std::vector<UnitUse>& uses) const {
  const UnitUse attention{attention_unit(layer_), backward}, mlp{mlp_unit(layer_), backward};
  uses.push_back(backward ? mlp : attention);
  uses.push_back(backward ? attention : mlp);
}

Dropout Block::row_dropout(const LayerContext& c, int place) const {
  return make_row_dropout(c, dropout_, RandomPurpose::kHiddenDropout, static_cast<uint32_t>(layer_ * 2 + place),
                          c.first_row);
}

Dropout Block::whole_dropout(const LayerContext& c, int place) const {
  return make_row_dropout(c, dropout_, RandomPurpose::kHiddenDropout, static_cast<uint32_t>(layer_ * 2 + place),
                          c.chunk.row);
}

View Block::enter(Exec& exec, View part, const BlockScratch& s) const {
  const View whole = splits_rows_ ? s.whole : part;
  tp_->enter_forward(part, whole, exec.stream).wait(exec.stream);
  return whole;
}

void Block::leave(Exec& exec, const BlockScratch& s) const {
  tp_->leave_forward(s.partial, s.branch, exec.stream).wait(exec.stream);
}

ResidualStream Block::forward(Exec& exec, const LayerContext& c, const ResidualStream& in, const BlockActivations& a,
                              const BlockScratch& s) const {
  View x;
  with_weights(*events_, {attention_unit(layer_)}, false, [&] { x = attend(exec, c, in, a, s); });
  ResidualStream out;
  with_weights(*events_, {mlp_unit(layer_)}, false, [&] { out = add_mlp(exec, c, x, a, s); });
  return out;
}

// The stream at the block's input; attention's part of the branch is in s.partial.
View Block::attend(Exec& exec, const LayerContext& c, const ResidualStream& in, const BlockActivations& a,
                   const BlockScratch& s) const {
  // norm1 reads in.branch, which the previous block left in s.branch, before attention overwrites it.
  norm1_.forward(exec, in, a.x_in, a.norm1_out, a.mean1, a.rstd1);
  attention_.forward(exec, c, enter(exec, a.norm1_out, s), a, s.sequence, s.partial);
  return in.branch ? a.x_in : in.x;
}

ResidualStream Block::add_mlp(Exec& exec, const LayerContext& c, View x, const BlockActivations& a,
                              const BlockScratch& s) const {
  if (!parallel_) {
    leave(exec, s);
    norm2_.forward(exec, {x, s.branch, row_dropout(c, 0)}, a.x_mid, a.norm2_out, a.mean2, a.rstd2);
    mlp_.forward(exec, enter(exec, a.norm2_out, s), a, s.partial, false);
    leave(exec, s);
    return {a.x_mid, s.branch, row_dropout(c, 1)};
  }

  norm2_.forward(exec, x, a.norm2_out, a.mean2, a.rstd2);
  const View normed = enter(exec, a.norm2_out, s);
  if (!s.branch2) {
    mlp_.forward(exec, normed, a, s.partial, true);
  } else {
    // Each branch has a mask of its own, so they cannot be added before their dropouts; but a mask is the same on all
    // ranks, so it may act on partial sums.
    mlp_.forward(exec, normed, a, s.branch2, false);
    exec.ops.dropout_apply(exec, {s.partial, s.partial, whole_dropout(c, 0)});
    exec.ops.dropout_apply(exec, {s.branch2, s.branch2, whole_dropout(c, 1)});
    exec.ops.axpy(exec, {1.0f, s.branch2, s.partial});
  }
  leave(exec, s);
  return {x, s.branch, {}};
}

void Block::recompute(Exec& exec, const LayerContext& c, const BlockActivations& a, const BlockScratch& s) const {
  if (level_ == Recompute::kNone) return;
  norm1_.forward(exec, a.x_in, a.norm1_out, a.mean1, a.rstd1);
  if (level_ == Recompute::kFull) {
    const View normed = enter(exec, a.norm1_out, s);
    if (parallel_)
      attention_.forward_inner(exec, c, normed, a, s.sequence);
    else
      attention_.forward(exec, c, normed, a, s.sequence, s.partial);
  }
  feed_again(exec, c, a, s);
}

// Behind attention.
void Block::feed_again(Exec& exec, const LayerContext& c, const BlockActivations& a, const BlockScratch& s) const {
  const bool full = level_ == Recompute::kFull;
  if (full && !parallel_) {
    leave(exec, s);
    norm2_.forward(exec, {a.x_in, s.branch, row_dropout(c, 0)}, a.x_mid, a.norm2_out, a.mean2, a.rstd2);
  } else {
    norm2_.forward(exec, parallel_ ? a.x_in : a.x_mid, a.norm2_out, a.mean2, a.rstd2);
  }
  if (full)
    mlp_.forward_inner(exec, enter(exec, a.norm2_out, s), a);
  else
    mlp_.activate(exec, a);
}

View Block::through_dropout(Exec& exec, const Dropout& dropout, View dx, View buffer) const {
  if (dropout.p == 0.0f) return dx;
  exec.ops.dropout_apply(exec, {dx, buffer, dropout});
  return buffer;
}

View Block::to_branch(Exec& exec, const LayerContext& c, int place, View dx, View buffer, const BlockScratch& s) const {
  const View part = through_dropout(exec, row_dropout(c, place), dx, splits_rows_ ? s.d_branch_part : buffer);
  const View whole = splits_rows_ ? buffer : part;
  tp_->leave_backward(part, whole, exec.stream).wait(exec.stream);
  return whole;
}

WeightWork Block::to_both_branches(Exec& exec, const LayerContext& c, View dx, const BlockScratch& s) const {
  const View whole = splits_rows_ ? s.d_branch2 : dx;
  tp_->leave_backward(dx, whole, exec.stream).wait(exec.stream);
  WeightWork work;
  work.attention = {through_dropout(exec, whole_dropout(c, 0), whole, s.d_branch1), s.d_qkv};
  work.mlp = {through_dropout(exec, whole_dropout(c, 1), whole, s.d_branch2), s.d_mlp_in};
  return work;
}

WeightWork Block::run_backward(Exec& exec, const LayerContext& c, const BlockActivations& a, const BlockScratch& s,
                               View dx_out, View dx_mid, View dx_in, bool weights,
                               const std::function<void()>& then) const {
  Stream& stream = exec.stream;
  const int attention = attention_unit(layer_), mlp = mlp_unit(layer_);
  // Both at once: recomputing needs them, and norms in the input half get gradients too.
  for (int unit : {mlp, attention}) events_->acquire(unit, true);
  for (int unit : {mlp, attention}) events_->gradients_begin(unit);
  const auto over = [&](int unit) {
    events_->release(unit, true);
    if (weights) events_->gradients_complete(unit);
  };
  // Weight gradients of both at the end, behind `then`: with one tensor rank there is no sum that they would hide.
  const bool at_end = weights && then && tp_->size() == 1;
  const auto end_with_weights = [&](const WeightWork& work) {
    for (int unit : {mlp, attention}) events_->release(unit, true);
    then();
    weight_gradients(exec, a, work, s, true);
    return work;
  };
  recompute(exec, c, a, s);
  // The rows that weight gradients need travel while the input gradient is made.
  const auto gather = [&](View normed) {
    return weights && splits_rows_ ? tp_->gather_again(normed, s.whole, stream) : Ticket::finished();
  };
  const auto rows = [&](View normed) { return splits_rows_ ? s.whole : normed; };
  const View x2 = parallel_ ? a.x_in : a.x_mid;
  WeightWork work;
  if (parallel_) work = to_both_branches(exec, c, dx_out, s);

  if (parallel_ && !splits_rows_) {
    // One sum for both branches: the norms' backward is linear in dy, so it may act on partial sums.
    mlp_.backward_input(exec, a, work.mlp, s.d_act, s.d_norm);
    norm2_.backward(exec, s.d_norm, x2, a.mean2, a.rstd2, adds_stream_ ? dx_out : View{}, dx_mid);
    attention_.backward_input(exec, c, a, work.attention, s.d_attention, s.sequence, s.d_norm);
    norm1_.backward(exec, s.d_norm, a.x_in, a.mean1, a.rstd1, dx_mid, dx_in);
    if (at_end) return end_with_weights(work);
    Ticket sum = tp_->enter_backward(dx_in, dx_in, stream);
    if (weights) weight_gradients(exec, a, work, s, false);
    sum.wait(stream);
    over(mlp), over(attention);
    if (then) then();
    return work;
  }

  Ticket gathered = gather(a.norm2_out);
  if (!parallel_) work.mlp = {to_branch(exec, c, 1, dx_out, s.d_branch2, s), s.d_mlp_in};
  mlp_.backward_input(exec, a, work.mlp, s.d_act, s.d_norm);
  gathered.wait(stream);
  Ticket sum = tp_->enter_backward(s.d_norm, s.d_norm_part, stream);
  if (weights && !at_end) mlp_.backward_weight(exec, rows(a.norm2_out), a, work.mlp);
  sum.wait(stream);
  norm2_.backward(exec, s.d_norm_part, x2, a.mean2, a.rstd2, dx_out, dx_mid);
  if (!at_end) over(mlp);

  gathered = gather(a.norm1_out);
  if (!parallel_) work.attention = {to_branch(exec, c, 0, dx_mid, s.d_branch1, s), s.d_qkv};
  attention_.backward_input(exec, c, a, work.attention, s.d_attention, s.sequence, s.d_norm);
  gathered.wait(stream);
  sum = tp_->enter_backward(s.d_norm, s.d_norm_part, stream);
  if (weights && !at_end) attention_.backward_weight(exec, rows(a.norm1_out), a, work.attention);
  sum.wait(stream);
  norm1_.backward(exec, s.d_norm_part, a.x_in, a.mean1, a.rstd1, dx_mid, dx_in);
  if (at_end) return end_with_weights(work);
  over(attention);
  if (then) then();
  return work;
}

void Block::backward(Exec& exec, const LayerContext& c, const BlockActivations& a, const BlockScratch& s, View dx_out,
                     View dx_mid, View dx_in, const std::function<void()>& then) const {
  run_backward(exec, c, a, s, dx_out, dx_mid, dx_in, true, then);
}

WeightWork Block::backward_input(Exec& exec, const LayerContext& c, const BlockActivations& a, const BlockScratch& s,
                                 const BlockWorkBuffers& own, View dx_out, View dx_mid, View dx_in) const {
  BlockScratch scratch = s;
  if (own.d_branch1) scratch.d_branch1 = own.d_branch1;
  if (own.d_branch2) scratch.d_branch2 = own.d_branch2;
  if (own.d_qkv) scratch.d_qkv = own.d_qkv;
  if (own.d_mlp_in) scratch.d_mlp_in = own.d_mlp_in;
  WeightWork work = run_backward(exec, c, a, scratch, dx_out, dx_mid, dx_in, false, nullptr);

  // Gradients without memory of their own move to where nothing will be read again, since the next block's backward
  // overwrites the scratch. Not written there at once: until its end the backward pass reads what lies there.
  const auto settle = [&](View& gradient, bool has_own, View dead) {
    if (has_own) return;
    exec.ops.cast(exec, {gradient, dead});
    gradient = dead;
  };
  const bool one_dy = work.attention.dy.data == work.mlp.dy.data;
  settle(work.mlp.d_in, static_cast<bool>(own.d_mlp_in), a.mlp_in);
  settle(work.attention.d_qkv, static_cast<bool>(own.d_qkv), a.qkv);
  settle(work.mlp.dy, own.dx_out || own.d_branch2, parallel_ ? a.x_in : a.x_mid);
  if (one_dy)
    work.attention.dy = work.mlp.dy;
  else
    settle(work.attention.dy, own.dx_mid || own.d_branch1, a.x_in);
  return work;
}

void Block::weight_gradients(Exec& exec, const BlockActivations& a, const WeightWork& work, const BlockScratch& s,
                             bool announce) const {
  tp_->enter_unit(attention_unit(layer_));  // a weight half acquires nothing, and is coded as its layer says
  const View x2 = splits_rows_ ? s.whole : a.norm2_out, x1 = splits_rows_ ? s.partial : a.norm1_out;
  Ticket second = tp_->gather_again(a.norm2_out, x2, exec.stream);
  Ticket first = tp_->gather_again(a.norm1_out, x1, exec.stream);
  second.wait(exec.stream);
  mlp_.backward_weight(exec, x2, a, work.mlp);
  if (announce) events_->gradients_complete(mlp_unit(layer_));
  first.wait(exec.stream);
  attention_.backward_weight(exec, x1, a, work.attention);
  if (announce) events_->gradients_complete(attention_unit(layer_));
}

void Block::backward_weight(Exec& exec, const BlockActivations& a, const WeightWork& work,
                            const BlockScratch& s) const {
  for (int unit : {mlp_unit(layer_), attention_unit(layer_)}) events_->gradients_begin(unit);
  weight_gradients(exec, a, work, s, true);
}

}  // namespace thinwire
