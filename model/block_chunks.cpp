// A block taken chunk by chunk; what is whole meanwhile stands in block.h.
#include "engine/base/core/model_units.h"
#include "model/block.h"

namespace thinwire {

struct Block::Piece {
  LayerContext c;
  HeldBlock held;
  BlockScratch s;
  const BlockActivations& a() const { return held.a; }
};

Block::Piece Block::open_piece(const LayerContext& c, TokenStore& store, const TokenChunk& chunk, const ChunkedBlock& a,
                               const BlockScratch& s, Access kept) const {
  Piece p{context_of(c, chunk), open_block(store, a, chunk, kept), s};
  for (View BlockScratch::*field :
       {&BlockScratch::branch, &BlockScratch::partial, &BlockScratch::branch2, &BlockScratch::d_act,
        &BlockScratch::d_mlp_in, &BlockScratch::d_attention, &BlockScratch::d_qkv, &BlockScratch::d_norm,
        &BlockScratch::d_branch1, &BlockScratch::d_branch2})
    p.s.*field = rows_of(s.*field, chunk, c.shape.tokens());
  TokenRows& keys = p.s.sequence.keys;
  if (!keys.whole && keys.tensor < 0) keys.whole = a.memory.qkv;
  return p;
}

// Forward, and again where a backward finds qkv gone.
void Block::keys_of_chunk(Exec& exec, const Piece& p) const {
  norm1_.forward(exec, p.a().x_in, p.a().norm1_out, p.a().mean1, p.a().rstd1);
  attention_.project(exec, p.c, p.a().norm1_out, p.a());
  attention_.put_keys(exec, p.c, p.a(), p.s.sequence);
}

void Block::forward_chunks(Exec& exec, const LayerContext& c, TokenStore& store, const ChunkedBlock& a,
                           const BlockScratch& s, const TokenRows& out) const {
  const int attention = attention_unit(layer_), mlp = mlp_unit(layer_);
  const std::vector<TokenChunk>& chunks = store.chunks();
  // Where keys of all ranks are needed first, q, k and v are made twice unless the level keeps them.
  const bool twice = !c.cut.whole(), kept = twice && (a.kept.tensor >= 0 || a.memory.qkv.rows() == c.shape.tokens());
  events_->acquire(attention, false), events_->acquire(mlp, false);
  for (size_t i = 0; twice && i < chunks.size(); ++i) {
    const Piece p = open_piece(c, store, chunks[i], a, s, Access::kWrite);
    if (i + 1 < chunks.size()) store.prefetch(a.x_in, chunks[i + 1]);
    keys_of_chunk(exec, p);
  }
  attention_.share_keys(exec, c, s.sequence, false);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Piece p = open_piece(c, store, chunks[i], a, s, kept ? Access::kModify : Access::kWrite);
    if (i + 1 < chunks.size()) store.prefetch(a.x_in, chunks[i + 1]);
    if (kept && i + 1 < chunks.size()) store.prefetch(a.kept, chunks[i + 1]);
    if (!kept) keys_of_chunk(exec, p);
    attention_.attend(exec, p.c, p.a(), p.s.sequence);
    attention_.output(exec, p.a(), p.s.partial);
    const ResidualStream end = add_mlp(exec, p.c, p.a().x_in, p.a(), p.s);
    const TokenStore::Held y = store.open(out, chunks[i], Access::kWrite);
    exec.ops.residual_add(exec, {end.x, end.branch, y.view, end.dropout});
  }
  events_->release(attention, false), events_->release(mlp, false);
}

// dx: gradient at the stream behind the block, and then between its halves (of a parallel block: what of the gradient
// at its input does not come through norm1). Leaves d_qkv but for keys and values.
void Block::backward_branches(Exec& exec, const Piece& p, View dx) const {
  const BlockActivations& a = p.a();
  WeightWork work;
  if (parallel_)
    work = to_both_branches(exec, p.c, dx, p.s);
  else
    work.mlp = {to_branch(exec, p.c, 1, dx, p.s.d_branch2, p.s), p.s.d_mlp_in};
  mlp_.backward_input(exec, a, work.mlp, p.s.d_act, p.s.d_norm);
  // The norms' backward of a parallel block acts on partial sums, of which backward_norm1 takes the sum.
  Ticket sum = parallel_ ? Ticket::finished() : tp_->enter_backward(p.s.d_norm, p.s.d_norm, exec.stream);
  mlp_.backward_weight(exec, a.norm2_out, a, work.mlp);
  sum.wait(exec.stream);
  if (parallel_) {
    attention_.backward_attend(exec, p.c, a, work.attention, p.s.d_attention, p.s.sequence);
    norm2_.backward(exec, p.s.d_norm, a.x_in, a.mean2, a.rstd2, adds_stream_ ? dx : View{}, dx);
    return;
  }
  norm2_.backward(exec, p.s.d_norm, a.x_mid, a.mean2, a.rstd2, dx, dx);
  work.attention = {to_branch(exec, p.c, 0, dx, p.s.d_branch1, p.s), p.s.d_qkv};
  attention_.backward_attend(exec, p.c, a, work.attention, p.s.d_attention, p.s.sequence);
}

void Block::backward_norm1(Exec& exec, const Piece& p, View dx, View dx_in) const {
  const BlockActivations& a = p.a();
  attention_.backward_project(exec, p.c, a.norm1_out, {{}, p.s.d_qkv}, p.s.sequence, p.s.d_norm);
  if (!parallel_) tp_->enter_backward(p.s.d_norm, p.s.d_norm, exec.stream).wait(exec.stream);
  norm1_.backward(exec, p.s.d_norm, a.x_in, a.mean1, a.rstd1, dx, dx_in);
  if (parallel_) tp_->enter_backward(dx_in, dx_in, exec.stream).wait(exec.stream);
}

void Block::backward_chunks(Exec& exec, const LayerContext& c, TokenStore& store, const ChunkedBlock& a,
                            const BlockScratch& s, const TokenRows& dx, View dx_in) const {
  const bool whole = c.cut.whole();
  const std::vector<TokenChunk>& chunks = store.chunks();
  const int units[] = {mlp_unit(layer_), attention_unit(layer_)};
  for (int unit : units) events_->acquire(unit, true);
  for (int unit : units) events_->gradients_begin(unit);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Piece p = open_piece(c, store, chunks[i], a, s, Access::kRead);
    if (i + 1 < chunks.size()) prefetch_block(store, a, chunks[i + 1]);
    if (level_ == Recompute::kFull)
      keys_of_chunk(exec, p);
    else
      attention_.put_keys(exec, p.c, p.a(), p.s.sequence);
  }
  attention_.share_keys(exec, c, s.sequence, true);
  attention_.begin_gradients(exec, c, s.sequence);

  const auto norm1_again = [&](const Piece& p) {
    if (level_ == Recompute::kNone) return;
    norm1_.forward(exec, p.a().x_in, p.a().norm1_out, p.a().mean1, p.a().rstd1);
  };
  const auto finish = [&](const Piece& p, View d) {
    backward_norm1(exec, p, d, dx_in ? dx_in.row_range(p.c.chunk.row, p.c.chunk.count) : d);
  };
  for (size_t i = chunks.size(); i-- > 0;) {
    const Piece p = open_piece(c, store, chunks[i], a, s, Access::kRead);
    const TokenStore::Held d = store.open(dx, chunks[i], Access::kModify);
    if (i > 0) prefetch_block(store, a, chunks[i - 1]), store.prefetch(dx, chunks[i - 1]);
    norm1_again(p);
    if (level_ == Recompute::kFull) {
      attention_.project(exec, p.c, p.a().norm1_out, p.a());
      attention_.attend(exec, p.c, p.a(), p.s.sequence);
      if (!parallel_) attention_.output(exec, p.a(), p.s.partial);
    }
    if (level_ != Recompute::kNone) feed_again(exec, p.c, p.a(), p.s);
    backward_branches(exec, p, d.view);
    if (whole) finish(p, d.view);
  }
  attention_.share_gradients(exec, c, s.sequence);
  for (size_t i = 0; !whole && i < chunks.size(); ++i) {
    const Piece p = open_piece(c, store, chunks[i], a, s, Access::kRead);
    const TokenStore::Held d = store.open(dx, chunks[i], Access::kModify);
    if (i + 1 < chunks.size()) prefetch_block(store, a, chunks[i + 1]), store.prefetch(dx, chunks[i + 1]);
    norm1_again(p);
    finish(p, d.view);
  }
  for (int unit : units) events_->release(unit, true);
  for (int unit : units) events_->gradients_complete(unit);
}

}  // namespace thinwire
