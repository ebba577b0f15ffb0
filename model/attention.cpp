// Attention layer over the op table; q, k and v stay in one buffer (qkv_layout of attention_calls.h).
#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/core/model_units.h"
#include "engine/base/ops/attention_calls.h"

namespace thinwire {
namespace {

HeadLayout with_batch(HeadLayout at, int64_t rows) {
  at.batch = rows * at.token;
  return at;
}

// Of gathered keys, sample by sample: all up to the last query of a run.
SequenceCut::Run before(const LayerContext& c, int64_t sample, const SequenceCut::Run& run) {
  return {0, run.first + run.count, sample * c.cut.length};
}

// Rows of all tokens, [M, w], in memory that has as many elements.
View as_rows(View memory, int64_t w) {
  return View(memory.data, memory.dtype, {memory.count() / w, w});
}

}  // namespace

SequenceScratch take_sequence_scratch(const ModelShard& shard, const BatchShape& shape, bool training,
                                      TokenStore* store, Arena& arena) {
  SequenceScratch s;
  if (shard.cut.whole() && store == nullptr) return s;
  const ModelConfig c = shard.local();
  const bool narrow = c.dtype != DType::f32;
  const int64_t w = 2 * c.kv_heads * c.head_dim, n = shape.tokens(), all = shape.batch * shard.cut.length,
                rows = work_rows(shard, shape);
  const auto category = MemoryCategory::kWorkspace;
  const auto take = [&](DType dtype, int64_t count, int64_t width) {
    return arena.take(category, dtype, {count, width});
  };
  s.store = store;
  if (store != nullptr && narrow) s.out_sum = take(DType::f32, rows, c.attention_width());
  if (shard.cut.whole()) {
    if (training && c.recompute < Recompute::kFull && !store->spills()) {  // q, k and v are kept
      s.d_keys.whole = take(DType::f32, n, c.qkv_width());
      return s;
    }
    s.keys = store->add(TokenStore::Kind::kKeys, c.dtype, w, arena, category);
    if (training) s.d_keys = store->add(TokenStore::Kind::kKeyGradients, DType::f32, w, arena, category);
    if (training && narrow) s.dq_sum = take(DType::f32, rows, c.qkv_width()), s.d_part = take(c.dtype, rows, w);
    return s;
  }
  if (shard.sequence_way == SequenceWay::kRing) {
    const int64_t most = shape.batch * shard.cut.most();
    s.part = take(c.dtype, most, w), s.other = take(c.dtype, most, w);
    if (narrow && training) s.d_sum = take(DType::f32, n, c.qkv_width());
    // Results have been cast when gradients of queries begin: they share memory.
    if (narrow)
      s.sum = training ? as_rows(s.d_sum.element_range(0, n * c.attention_width()), c.attention_width())
                       : take(DType::f32, n, c.attention_width());
    if (!training) return s;
    s.leaving = take(c.dtype, most, w), s.coming = take(c.dtype, n, w);
    s.d_theirs = take(DType::f32, most, w), s.d_mine = take(DType::f32, n, w);
    return s;
  }
  if (shard.sequence_way == SequenceWay::kHeads) {
    s.by_rank = take(c.dtype, n, c.qkv_width()), s.by_token = take(c.dtype, n, c.qkv_width());
    if (training) s.d_out = take(c.dtype, n, c.attention_width()), s.d_qkv = take(c.dtype, n, c.qkv_width());
    return s;
  }
  s.part = take(c.dtype, n, w), s.gathered = take(c.dtype, all, w), s.kv = take(c.dtype, all, w);
  // In chunks there are as many additions as chunks: in 16 bits large sums would stop growing.
  const bool wide = store != nullptr && narrow;
  if (training) s.d_kv = take(wide ? DType::f32 : c.dtype, all, w);
  if (training && wide) s.dq_sum = take(DType::f32, rows, c.qkv_width());
  s.keys.whole = s.kv, s.d_keys.whole = s.d_kv;
  return s;
}

Attention::Attention(const ModelShard& shard, const ParamStore& store, int layer, const RotaryTables* rotary,
                     SequenceExchange& sequence)
    : config_(shard.local()),
      first_head_(shard.heads().first),
      layer_(layer),
      rotary_(rotary),
      sequence_(&sequence),
      qkv_(store, "layers." + std::to_string(layer) + ".attention.qkv"),
      out_(store, "layers." + std::to_string(layer) + ".attention.out", &shard),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))),
      way_(shard.sequence_way) {
  const QkvLayout at = qkv_layout(config_.kv_heads, config_.heads_per_group(), config_.head_dim, shard.queries_apart());
  q_at_ = at.q, k_at_ = at.k, v_at_ = at.v;
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

// Where queries and the key of a group lie side by side, one call rotates them all.
void Attention::rotate(Exec& exec, const LayerContext& c, View rows, bool inverse) const {
  if (config_.rotary_dim() == 0) return;
  const BatchShape shape = c.chunk.count > 0 ? BatchShape{1, c.chunk.count} : c.shape;
  const int64_t heads = config_.heads_per_group();
  const bool together = q_at_.group != heads * config_.head_dim;
  Rotary op{.data = rows,
            .layout = with_batch(q_at_, shape.length),
            .batch = shape.batch,
            .length = shape.length,
            .groups = config_.kv_heads,
            .heads_per_group = heads + (together ? 1 : 0),
            .rot_dim = config_.rotary_dim(),
            .first_position = c.first_position,
            .cos = rotary_->cos,
            .sin = rotary_->sin,
            .positions = c.positions,
            .inverse = inverse};
  exec.ops.rotary(exec, op);
  if (together) return;
  op.layout = with_batch(k_at_, shape.length), op.heads_per_group = 1;
  exec.ops.rotary(exec, op);
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

// The keys and values of a group lie side by side in `rows` [N,qkv], between queries; in `part` [N,w] alone.
void Attention::copy_keys(Exec& exec, const LayerContext& c, View rows, View part, bool into_part) const {
  const int64_t width = 2 * config_.head_dim, tokens = c.chunk.count > 0 ? c.chunk.count : c.shape.tokens();
  CopyRuns op{.from = rows,
              .to = part,
              .counts = {tokens, config_.kv_heads},
              .width = width,
              .from_first = k_at_.offset,
              .from_strides = {k_at_.token, k_at_.group},
              .to_strides = {part.cols(), width}};
  if (!into_part) {
    std::swap(op.from, op.to), std::swap(op.from_first, op.to_first);
    std::swap(op.from_strides, op.to_strides);
  }
  exec.ops.copy_runs(exec, op);
}

// From rank order to the order of tokens, or back: the two runs of every rank.
void Attention::copy_order(Exec& exec, const LayerContext& c, View gathered, View tokens, bool by_token) const {
  const int64_t w = gathered.cols();
  int64_t first = 0;  // row of `gathered` where a rank's begin
  for (int r = 0; r < c.cut.size; ++r) {
    const SequenceCut cut = c.cut.of(r);
    for (const SequenceCut::Run& run : {cut.front(), cut.back()}) {
      CopyRuns op{.from = gathered,
                  .to = tokens,
                  .counts = {c.shape.batch, 1},
                  .width = run.count * w,
                  .from_first = (first + run.row) * w,
                  .from_strides = {cut.count() * w, 0},
                  .to_first = run.first * w,
                  .to_strides = {cut.length * w, 0}};
      if (!by_token) {
        std::swap(op.from, op.to), std::swap(op.from_first, op.to_first);
        std::swap(op.from_strides, op.to_strides);
      }
      exec.ops.copy_runs(exec, op);
    }
    first += c.shape.batch * cut.count();
  }
}

void Attention::share_keys(Exec& exec, const LayerContext& c, const SequenceScratch& s, bool again) const {
  if (c.cut.whole()) return;
  const int unit = attention_unit(layer_);
  Ticket ticket = again ? sequence_->gather_again(s.part, s.gathered, c.cut, unit, exec.stream)
                        : sequence_->gather(s.part, s.gathered, c.cut, unit, exec.stream);
  ticket.wait(exec.stream);
  copy_order(exec, c, s.gathered, s.kv, true);
}

void Attention::share_gradients(Exec& exec, const LayerContext& c, const SequenceScratch& s) const {
  if (c.cut.whole()) return;
  View sums = s.d_kv;
  if (sums.dtype != s.kv.dtype) {  // the keys have had their last turn: what is sent takes their memory
    exec.ops.cast(exec, {s.d_kv, s.kv});
    sums = s.kv;
  }
  copy_order(exec, c, s.gathered, sums, false);
  sequence_->sum(s.gathered, s.part, c.cut, attention_unit(layer_), exec.stream).wait(exec.stream);
}

// The queries of one run of one sample against some keys, which begin at row keys.row of `kv` [*,w].
template <typename Op>
Op Attention::operands_of_run(const LayerContext& c, const BlockActivations& a, View kv, int64_t sample,
                              const SequenceCut::Run& run, const SequenceCut::Run& keys) const {
  const int64_t row = sample * c.shape.length + run.row;
  LayerContext part = c;
  part.chunk = {sample, run.first, run.count, row};
  Op op = operands_of_keys<Op>(part, a, {sample, keys.first, keys.count, keys.row}, kv);
  op.q_at.offset += row * q_at_.token;
  op.k_at.offset += keys.row * kv.cols(), op.v_at.offset += keys.row * kv.cols();
  if (op.first_keys) op.first_keys = op.first_keys.element_range(row, run.count);
  const int64_t heads = op.shape.heads(), columns = a.attention_out.cols();
  op.out = op.out.element_range(row * columns, run.count * columns);
  // Of a sample [heads, queries] of the front run, then of the back run.
  if (op.lse) op.lse = op.lse.element_range(row * heads, run.count * heads);
  return op;
}

// body(keys and values of a rank, that rank): mine first, each while the next ones travel.
template <typename Body>
void Attention::go_around(Exec& exec, const LayerContext& c, View qkv, const SequenceScratch& s, bool again,
                          const Body& body) const {
  const auto rows = [&](int step, int owner) {
    return (step % 2 == 0 ? s.part : s.other).row_range(0, c.shape.batch * c.cut.of(owner).count());
  };
  const View mine = rows(0, c.cut.rank);
  copy_keys(exec, c, qkv, mine, true);
  sequence_->start_ring(mine, c.cut, attention_unit(layer_), again, exec.stream);
  for (int step = 0; step < c.cut.size; ++step) {
    const int owner = (c.cut.rank - step + c.cut.size) % c.cut.size, next = (owner - 1 + c.cut.size) % c.cut.size;
    const View held = rows(step, owner);
    Ticket coming = Ticket::finished();
    if (step + 1 < c.cut.size) coming = sequence_->hop(held, rows(step + 1, next), exec.stream);
    body(held, owner);
    coming.wait(exec.stream);
  }
}

// body(operands, is it the first part of these queries, their rows): of every sample my runs of queries against the
// runs of keys of `owner`, as far as causality lets them see any.
template <typename Op, typename Body>
void Attention::for_parts(const LayerContext& c, const BlockActivations& a, View kv, int owner,
                          const Body& body) const {
  const SequenceCut theirs = c.cut.of(owner);
  for (int64_t sample = 0; sample < c.shape.batch; ++sample) {
    for (const SequenceCut::Run& run : {c.cut.front(), c.cut.back()}) {
      for (SequenceCut::Run keys : {theirs.front(), theirs.back()}) {
        if (keys.first >= run.first + run.count) continue;
        const bool first = owner == c.cut.rank && keys.row == 0;
        keys.row += sample * theirs.count();
        body(operands_of_run<Op>(c, a, kv, sample, run, keys), first, sample * c.shape.length + run.row, run.count);
      }
    }
  }
}

void Attention::ring_forward(Exec& exec, const LayerContext& c, const BlockActivations& a,
                             const SequenceScratch& s) const {
  const View sum = s.sum ? s.sum : a.attention_out;
  go_around(exec, c, a.qkv, s, false, [&](View kv, int owner) {
    for_parts<AttentionForward>(c, a, kv, owner, [&](AttentionForward op, bool first, int64_t row, int64_t count) {
      op.out = sum.row_range(row, count), op.merge = !first;
      exec.ops.attention_forward(exec, op);
    });
  });
  if (s.sum) exec.ops.cast(exec, {s.sum, a.attention_out});
}

// Gradients of keys and values are added up by their owner in fp32: its own, then those of the ranks ahead in turn.
void Attention::ring_backward(Exec& exec, const LayerContext& c, const BlockActivations& a, View dout,
                              const SequenceScratch& s, View d_qkv) const {
  const View d_sum = s.d_sum ? s.d_sum : d_qkv;
  exec.ops.fill_constant(exec, {s.d_mine, 0.0f});
  Ticket handed = Ticket::finished();
  // What was handed back to this rank; d_theirs has been read.
  const auto add_coming = [&] {
    const View wide = s.d_theirs.row_range(0, s.coming.rows());
    exec.ops.cast(exec, {s.coming, wide});
    exec.ops.axpy(exec, {1.0f, wide, s.d_mine});
  };
  go_around(exec, c, a.qkv, s, true, [&](View kv, int owner) {
    const int distance = (c.cut.rank - owner + c.cut.size) % c.cut.size;
    const View d_kv = distance == 0 ? s.d_mine : s.d_theirs.row_range(0, kv.rows());
    if (distance > 0) exec.ops.fill_constant(exec, {d_kv, 0.0f});
    for_parts<AttentionBackward>(c, a, kv, owner, [&](AttentionBackward op, bool first, int64_t row, int64_t count) {
      op.dout = dout.row_range(row, count), op.dq = d_sum, op.dk = op.dv = d_kv, op.add_dq = !first, op.add_dkv = true;
      exec.ops.attention_backward(exec, op);
    });
    if (distance == 0) return;
    handed.wait(exec.stream);
    const View leaving = s.leaving.row_range(0, kv.rows());
    exec.ops.cast(exec, {d_kv, leaving});
    if (distance > 1) add_coming();
    handed = sequence_->hand_back(leaving, s.coming, distance, c.cut, attention_unit(layer_), exec.stream);
  });
  handed.wait(exec.stream);
  add_coming();
  const View mine = s.part.row_range(0, c.shape.tokens());
  exec.ops.cast(exec, {s.d_mine, mine});
  if (s.d_sum) exec.ops.cast(exec, {s.d_sum, d_qkv});
  copy_keys(exec, c, d_qkv, mine, false);
}

// local: [N, ranks * w], the columns of rank r's heads from r * w on. tokens: [M, w] of this rank's heads, may be the
// memory of `local`.
void Attention::to_heads(Exec& exec, const LayerContext& c, View local, View tokens, const SequenceScratch& s,
                         bool backward) const {
  const int64_t rows = local.rows(), w = local.cols() / c.cut.size;
  const View by_rank = s.by_rank.element_range(0, local.count());
  const View ordered = as_rows(s.by_token.element_range(0, local.count()), w);
  exec.ops.copy_runs(exec, {.from = local,
                            .to = by_rank,
                            .counts = {c.cut.size, rows},
                            .width = w,
                            .from_strides = {w, local.cols()},
                            .to_strides = {rows * w, w}});
  sequence_->exchange(by_rank, ordered, true, c.cut, attention_unit(layer_), backward, exec.stream).wait(exec.stream);
  copy_order(exec, c, ordered, as_rows(tokens, w), true);
}

void Attention::to_tokens(Exec& exec, const LayerContext& c, View tokens, View local, const SequenceScratch& s,
                          bool backward) const {
  const int64_t rows = local.rows(), w = local.cols() / c.cut.size;
  const View by_rank = s.by_rank.element_range(0, local.count());
  const View ordered = as_rows(s.by_token.element_range(0, local.count()), w);
  copy_order(exec, c, ordered, as_rows(tokens, w), false);
  sequence_->exchange(by_rank, ordered, false, c.cut, attention_unit(layer_), backward, exec.stream).wait(exec.stream);
  exec.ops.copy_runs(exec, {.from = by_rank,
                            .to = local,
                            .counts = {c.cut.size, rows},
                            .width = w,
                            .from_strides = {rows * w, w},
                            .to_strides = {w, local.cols()}});
}

// All tokens, this rank's share of the heads; q, k and v lie in a.qkv, as to_heads left them.
template <typename Op>
Op Attention::operands_of_share(const LayerContext& c, const BlockActivations& a) const {
  const int64_t row = config_.qkv_width() / c.cut.size, length = c.cut.length;
  Op op = operands<Op>(c, a, a.qkv);
  op.shape.q_len = op.shape.kv_len = length, op.shape.groups /= c.cut.size;
  for (HeadLayout* at : {&op.q_at, &op.k_at, &op.v_at}) at->token = row, at->batch = length * row;
  op.dropout.first_head += c.cut.rank * op.shape.heads();
  return op;
}

void Attention::forward(Exec& exec, const LayerContext& c, View x, const BlockActivations& a, const SequenceScratch& s,
                        View y) const {
  forward_inner(exec, c, x, a, s);
  out_.forward(exec, a.attention_out, y);
}

void Attention::forward_inner(Exec& exec, const LayerContext& c, View x, const BlockActivations& a,
                              const SequenceScratch& s) const {
  project(exec, c, x, a);
  if (c.cut.whole())
    return exec.ops.attention_forward(exec, operands<AttentionForward>(c, a, c.kv_rows ? c.kv_rows : a.qkv));
  if (way_ == SequenceWay::kRing) return ring_forward(exec, c, a, s);
  if (way_ == SequenceWay::kHeads) {
    to_heads(exec, c, a.qkv, a.qkv, s, false);  // nobody needs the own tokens' any more
    auto op = operands_of_share<AttentionForward>(c, a);
    op.out = a.share_out;
    exec.ops.attention_forward(exec, op);
    return to_tokens(exec, c, a.share_out, a.attention_out, s, false);
  }
  copy_keys(exec, c, a.qkv, s.part, true);
  share_keys(exec, c, s, false);
  for (int64_t sample = 0; sample < c.shape.batch; ++sample) {
    for (const SequenceCut::Run& run : {c.cut.front(), c.cut.back()})
      exec.ops.attention_forward(exec,
                                 operands_of_run<AttentionForward>(c, a, s.kv, sample, run, before(c, sample, run)));
  }
}

void Attention::backward_input(Exec& exec, const LayerContext& c, const BlockActivations& a, const AttentionWork& work,
                               View scratch, const SequenceScratch& s, View dx) const {
  out_.backward_input(exec, work.dy, scratch);
  if (c.cut.whole()) {
    AttentionBackward op = operands<AttentionBackward>(c, a, a.qkv);
    op.dout = scratch, op.dq = op.dk = op.dv = work.d_qkv;
    exec.ops.attention_backward(exec, op);
  } else if (way_ == SequenceWay::kRing) {
    ring_backward(exec, c, a, scratch, s, work.d_qkv);
  } else if (way_ == SequenceWay::kHeads) {
    auto op = operands_of_share<AttentionBackward>(c, a);
    to_heads(exec, c, scratch, s.d_out, s, true);
    op.out = a.share_out, op.dout = s.d_out, op.dq = op.dk = op.dv = s.d_qkv;
    exec.ops.attention_backward(exec, op);
    to_tokens(exec, c, s.d_qkv, work.d_qkv, s, true);
  } else {
    copy_keys(exec, c, a.qkv, s.part, true);
    share_keys(exec, c, s, true);
    exec.ops.fill_constant(exec, {s.d_kv, 0.0f});
    for (int64_t sample = 0; sample < c.shape.batch; ++sample) {
      for (const SequenceCut::Run& run : {c.cut.front(), c.cut.back()}) {
        auto op = operands_of_run<AttentionBackward>(c, a, s.kv, sample, run, before(c, sample, run));
        const int64_t row = sample * c.shape.length + run.row, columns = scratch.cols();
        op.dout = scratch.element_range(row * columns, run.count * columns);
        op.dq = work.d_qkv, op.dk = op.dv = s.d_kv, op.add_dkv = true;
        exec.ops.attention_backward(exec, op);
      }
    }
    share_gradients(exec, c, s);
    copy_keys(exec, c, work.d_qkv, s.part, false);
  }
  rotate(exec, c, work.d_qkv, true);
  qkv_.backward_input(exec, work.d_qkv, dx);
}

void Attention::backward_weight(Exec& exec, View x, const BlockActivations& a, const AttentionWork& work) const {
  out_.backward_weight(exec, a.attention_out, work.dy);
  qkv_.backward_weight(exec, x, work.d_qkv);
}

void Attention::project(Exec& exec, const LayerContext& c, View x, const BlockActivations& a) const {
  qkv_.forward(exec, x, a.qkv);
  rotate(exec, c, a.qkv, false);
}

void Attention::put_keys(Exec& exec, const LayerContext& c, const BlockActivations& a, const SequenceScratch& s) const {
  if (!c.cut.whole()) return copy_keys(exec, c, a.qkv, s.part.row_range(c.chunk.row, c.chunk.count), true);
  if (lies_in_qkv(s.keys.whole)) return;
  const TokenStore::Held part = s.store->open(s.keys, c.chunk, Access::kWrite);
  copy_keys(exec, c, a.qkv, part.view, true);
}

// The chunk's queries against some keys, which `kv` begins with.
template <typename Op>
Op Attention::operands_of_keys(const LayerContext& c, const BlockActivations& a, const TokenChunk& keys,
                               View kv) const {
  Op op = operands<Op>(c, a, kv);
  const int64_t d = config_.head_dim, behind = c.chunk.first + c.chunk.count - keys.first;
  op.shape.batch = 1, op.shape.q_len = c.chunk.count, op.shape.kv_len = std::min(keys.count, behind);
  op.shape.length = c.cut.length, op.shape.first_query = c.chunk.first, op.shape.first_key = keys.first;
  if (!lies_in_qkv(kv)) {
    op.k_at = {0, 0, kv.cols(), 2 * d, 0}, op.v_at = op.k_at;
    op.v_at.offset = d;
  }
  if (op.dropout.p > 0.0f) op.dropout.sample_ids += c.chunk.sample, op.dropout.batch = 1;
  return op;
}

// Whether some query from `first_query` on may see one of the keys; documents may hide them all the same.
bool Attention::sees(int64_t first_query, const TokenChunk& keys) const {
  return config_.window < 0 || keys.first + keys.count > first_query - config_.window;
}

// body(chunk of keys, the next such chunk or nullptr) for those of the chunk's sample that its queries see. Where they
// lie in memory and see each other whole it gets all of them as one, and the op does the same chunk by chunk.
template <typename Body>
void Attention::for_keys(const LayerContext& c, const SequenceScratch& s, const Body& body) const {
  const TokenChunk* last = nullptr;
  for (const TokenChunk& k : s.store->keys()) {
    if (k.sample != c.chunk.sample || k.first >= c.chunk.first + c.chunk.count || !sees(c.chunk.first, k)) continue;
    if (s.keys.whole && config_.window < 0) {
      TokenChunk all = k;
      all.count = c.chunk.first + c.chunk.count;
      return body(all, nullptr);
    }
    if (last != nullptr) body(*last, &k);
    last = &k;
  }
  TW_CHECK(last != nullptr, "queries from ", c.chunk.first, " on see no keys");
  body(*last, nullptr);
}

void Attention::attend(Exec& exec, const LayerContext& c, const BlockActivations& a, const SequenceScratch& s) const {
  const View out = s.out_sum ? s.out_sum.row_range(0, c.chunk.count) : a.attention_out;
  bool merge = false;
  for_keys(c, s, [&](const TokenChunk& keys, const TokenChunk* next) {
    const TokenStore::Held kv = s.store->open(s.keys, keys, Access::kRead);
    if (next != nullptr) s.store->prefetch(s.keys, *next);
    auto op = operands_of_keys<AttentionForward>(c, a, keys, kv.view);
    op.out = out, op.merge = std::exchange(merge, true), op.keys_at_once = s.store->keys()[0].count;
    exec.ops.attention_forward(exec, op);
  });
  if (s.out_sum) exec.ops.cast(exec, {out, a.attention_out});
}

void Attention::output(Exec& exec, const BlockActivations& a, View y) const {
  out_.forward(exec, a.attention_out, y);
}

void Attention::begin_gradients(Exec& exec, const LayerContext& c, const SequenceScratch& s) const {
  if (!c.cut.whole()) exec.ops.fill_constant(exec, {s.d_kv, 0.0f});
}

void Attention::backward_attend(Exec& exec, const LayerContext& c, const BlockActivations& a, const AttentionWork& work,
                                View scratch, const SequenceScratch& s) const {
  out_.backward_input(exec, work.dy, scratch);
  out_.backward_weight(exec, a.attention_out, work.dy);
  const View dq = lies_in_qkv(s.d_keys.whole) ? rows_of(s.d_keys.whole, c.chunk, c.shape.tokens())
                  : s.dq_sum                  ? s.dq_sum.row_range(0, c.chunk.count)
                                              : work.d_qkv;
  bool add_dq = false;
  const int64_t end = c.chunk.first + c.chunk.count;
  for_keys(c, s, [&](const TokenChunk& keys, const TokenChunk* next) {
    // Chunks come from the end: these are the first queries that see the keys where those behind them do not.
    const auto first = [&](const TokenChunk& k) { return c.cut.whole() && (end == c.cut.length || !sees(end, k)); };
    const TokenStore::Held kv = s.store->open(s.keys, keys, Access::kRead);
    const TokenStore::Held d_kv = s.store->open(s.d_keys, keys, first(keys) ? Access::kWrite : Access::kModify);
    if (next != nullptr) s.store->prefetch(s.keys, *next);
    if (next != nullptr && !first(*next)) s.store->prefetch(s.d_keys, *next);
    auto op = operands_of_keys<AttentionBackward>(c, a, keys, kv.view);
    op.dout = scratch, op.dq = dq, op.dk = op.dv = d_kv.view;
    op.add_dq = std::exchange(add_dq, true), op.add_dkv = !first(keys), op.keys_at_once = s.store->keys()[0].count;
    exec.ops.attention_backward(exec, op);
  });
  if (s.dq_sum) exec.ops.cast(exec, {dq, work.d_qkv});
}

void Attention::backward_project(Exec& exec, const LayerContext& c, View x, const AttentionWork& work,
                                 const SequenceScratch& s, View dx) const {
  if (lies_in_qkv(s.d_keys.whole)) {
    const View sum = rows_of(s.d_keys.whole, c.chunk, c.shape.tokens());
    if (sum.data != work.d_qkv.data) exec.ops.cast(exec, {sum, work.d_qkv});
  } else if (c.cut.whole()) {
    const TokenStore::Held sum = s.store->open(s.d_keys, c.chunk, Access::kRead);
    const View part = s.d_part ? s.d_part.row_range(0, c.chunk.count) : sum.view;
    if (s.d_part) exec.ops.cast(exec, {sum.view, part});
    copy_keys(exec, c, work.d_qkv, part, false);
  } else {
    copy_keys(exec, c, work.d_qkv, s.part.row_range(c.chunk.row, c.chunk.count), false);
  }
  rotate(exec, c, work.d_qkv, true);
  qkv_.backward_input(exec, work.d_qkv, dx);
  qkv_.backward_weight(exec, x, work.d_qkv);
}

}  // namespace thinwire
