// Shapes and keep levels of a block's activations, and the views of a slot.
#include "model/activations.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr View BlockActivations::*kBlockViews[] = {
    &BlockActivations::x_in,   &BlockActivations::norm1_out,     &BlockActivations::mean1, &BlockActivations::rstd1,
    &BlockActivations::qkv,    &BlockActivations::attention_out, &BlockActivations::lse,   &BlockActivations::share_out,
    &BlockActivations::x_mid,  &BlockActivations::norm2_out,     &BlockActivations::mean2, &BlockActivations::rstd2,
    &BlockActivations::mlp_in, &BlockActivations::mlp_act};

constexpr View BlockActivations::*kWeightInputs[] = {&BlockActivations::norm1_out, &BlockActivations::attention_out,
                                                     &BlockActivations::norm2_out, &BlockActivations::mlp_act};

View take(const ActivationSpec& spec, Arena& arena) {
  return arena.take(MemoryCategory::kActivations, spec.dtype, {spec.rows, spec.cols});
}

}  // namespace

std::vector<TokenChunk> list_chunks(const ModelShard& shard, const BatchShape& shape) {
  std::vector<TokenChunk> chunks;
  const int64_t most = shard.whole.sequence_chunk;
  if (most <= 0) return chunks;
  SequenceCut cut = shard.cut;
  if (cut.whole()) cut.length = shape.length;
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (const SequenceCut::Run& run : {cut.front(), cut.back()}) {
      if (run.count == 0) continue;
      // About equal, and whole strips of attention's queries.
      const int64_t pieces = (run.count + most - 1) / most;
      const int64_t step = std::min(most, ((run.count + pieces - 1) / pieces + 63) / 64 * 64);
      for (int64_t at = 0; at < run.count; at += step)
        chunks.push_back({sample, run.first + at, std::min(step, run.count - at), sample * shape.length + run.row + at,
                          static_cast<int64_t>(chunks.size())});
    }
  }
  return chunks;
}

int64_t work_rows(const ModelShard& shard, const BatchShape& shape) {
  int64_t rows = 0;
  for (const TokenChunk& chunk : list_chunks(shard, shape)) rows = std::max(rows, chunk.count);
  return rows > 0 ? rows : shape.tokens();
}

View rows_of(View v, const TokenChunk& chunk, int64_t tokens) {
  return v ? v.row_range(v.rows() == tokens ? chunk.row : 0, chunk.count) : v;
}

BlockActivations part_of(const BlockActivations& a, const TokenChunk& chunk, int64_t tokens) {
  BlockActivations part;
  for (View BlockActivations::*view : kBlockViews) part.*view = rows_of(a.*view, chunk, tokens);
  return part;
}

std::vector<ActivationSpec> list_block_activations(const ModelShard& shard, const BatchShape& s) {
  const ModelConfig c = shard.local();
  const int64_t n = s.tokens(), part = shard.part_rows(n);
  const bool centred = c.norm == NormKind::kLayerNorm;
  const DType t = c.dtype;
  std::vector<ActivationSpec> list = {
      {&BlockActivations::x_in, t, part, c.hidden, Recompute::kFull},
      {&BlockActivations::norm1_out, t, part, c.hidden, Recompute::kNone},
      {&BlockActivations::rstd1, DType::f32, part, 1, Recompute::kSelective},
      {&BlockActivations::qkv, t, n, c.qkv_width(), Recompute::kSelective},
      {&BlockActivations::attention_out, t, n, c.attention_width(), Recompute::kSelective},
      {&BlockActivations::lse, DType::f32, s.batch * c.heads, s.length, Recompute::kSelective},
      {&BlockActivations::norm2_out, t, part, c.hidden, Recompute::kNone},
      {&BlockActivations::rstd2, DType::f32, part, 1, Recompute::kSelective},
      {&BlockActivations::mlp_in, t, n, c.ffn_in_width(), Recompute::kSelective},
      {&BlockActivations::mlp_act, t, n, c.ffn, Recompute::kNone},
  };
  if (centred) {
    list.push_back({&BlockActivations::mean1, DType::f32, part, 1, Recompute::kSelective});
    list.push_back({&BlockActivations::mean2, DType::f32, part, 1, Recompute::kSelective});
  }
  if (shard.exchanges_heads())
    list.push_back({&BlockActivations::share_out, t, n, c.attention_width(), Recompute::kSelective});
  if (!c.parallel_residual) list.push_back({&BlockActivations::x_mid, t, part, c.hidden, Recompute::kSelective});
  return list;
}

std::vector<BlockActivations> take_block_activations(const ModelShard& shard, const BatchShape& shape, int64_t blocks,
                                                     Recompute level, Arena& arena) {
  std::vector<BlockActivations> slots(static_cast<size_t>(blocks));
  for (const ActivationSpec& spec : list_block_activations(shard, shape)) {
    const bool kept = level <= spec.kept_up_to;
    View shared;
    for (BlockActivations& slot : slots) {
      if (kept || !shared) shared = take(spec, arena);
      slot.*spec.view = shared;
    }
  }
  return slots;
}

BlockActivations take_weight_inputs(const ModelShard& shard, const BatchShape& shape, Recompute level, Arena& arena) {
  BlockActivations own;
  for (const ActivationSpec& spec : list_block_activations(shard, shape)) {
    if (level <= spec.kept_up_to) continue;
    for (View BlockActivations::*field : kWeightInputs) {
      if (field == spec.view) own.*field = take(spec, arena);
    }
  }
  return own;
}

BlockActivations with_weight_inputs(BlockActivations a, const BlockActivations& own) {
  for (View BlockActivations::*field : kWeightInputs) {
    if (own.*field) a.*field = own.*field;
  }
  return a;
}

}  // namespace thinwire
