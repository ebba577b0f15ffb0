// Shards widths and parameters for one rank.
#include "model/model_shard.h"

#include "model/params.h"

namespace thinwire {
namespace {

LayerRange part_of(int64_t count, int rank, int size) {
  const int64_t first = count * rank / size;
  return {first, count * (rank + 1) / size - first};
}

// Rows [first, first + n) of a matrix; of a vector, which is one row, its columns.
ParamRect rows_of(const ParamSpec& p, int64_t first, int64_t n) {
  if (p.is_vector) return {0, 1, first, n};
  return {first, n, 0, p.cols};
}

std::vector<ParamRect> shard_of(const ParamSpec& p, const ModelShard& shard) {
  const int64_t length = p.is_vector ? p.cols : p.rows;
  switch (p.tp_axis) {
    case TpAxis::kNone:
      break;
    case TpAxis::kRows: {
      const LayerRange part = part_of(length, shard.tensor_rank, shard.tensor_size);
      return {rows_of(p, part.first, part.count)};
    }
    case TpAxis::kCols: {
      const LayerRange part = part_of(p.cols, shard.tensor_rank, shard.tensor_size);
      return {{0, p.rows, part.first, part.count}};
    }
    case TpAxis::kKvGroups: {
      const int64_t group = length / shard.whole.kv_heads, groups = shard.whole.kv_heads / shard.tensor_size;
      if (!shard.queries_apart()) return {rows_of(p, shard.tensor_rank * groups * group, groups * group)};
      const int64_t queries = group / (shard.whole.heads_per_group() + 2) * shard.whole.heads_per_group();
      std::vector<ParamRect> rects;
      for (int64_t g = 0; g < groups; ++g)
        rects.push_back(rows_of(p, (shard.tensor_rank * groups + g) * group, queries));
      for (int64_t g = 0; g < groups; ++g)
        rects.push_back(rows_of(p, (shard.tensor_rank * groups + g) * group + queries, group - queries));
      return rects;
    }
    case TpAxis::kGateUp: {
      const LayerRange part = shard.ffn();
      return {rows_of(p, part.first, part.count), rows_of(p, shard.whole.ffn + part.first, part.count)};
    }
    case TpAxis::kVocab: {
      const LayerRange part = shard.vocab();
      return {rows_of(p, part.first, part.count)};
    }
  }
  return {{0, p.rows, 0, p.cols}};
}

bool has_unit(const ModelShard& shard, int unit) {
  const int64_t layers = shard.whole.layers;
  if (unit == kEmbeddingUnit) return shard.first || (shard.last && shard.whole.tied_head);
  if (unit == position_unit(shard.whole)) return shard.first;
  if (unit == head_unit(shard.whole)) return shard.last;
  const int64_t layer = layer_of_unit(unit, layers);
  TW_CHECK(layer >= 0, "unit ", unit);
  for (const LayerRange& chunk : shard.chunks) {
    if (layer >= chunk.first && layer < chunk.first + chunk.count) return true;
  }
  return false;
}

// Norms see a part of the rows under sequence parallelism; those of a parallel block a part of the sum of gradients.
bool is_partial(const ModelShard& shard, const ParamSpec& p) {
  if (shard.tensor_size == 1 || p.tensor_class != TensorClass::kNorm) return false;
  return shard.sequence_parallel || (shard.whole.parallel_residual && p.unit != head_unit(shard.whole));
}

}  // namespace

ModelShard ModelShard::all_of(const ModelConfig& config) {
  ModelShard shard;
  shard.whole = config;
  shard.chunks = {{0, config.layers}};
  return shard;
}

ModelConfig ModelShard::local() const {
  TW_CHECK(tensor_rank >= 0 && tensor_rank < tensor_size, "tensor rank ", tensor_rank, " of ", tensor_size);
  TW_CHECK(whole.kv_heads % tensor_size == 0 && whole.heads % whole.kv_heads == 0, whole.kv_heads, " KV heads over ",
           tensor_size, " tensor ranks");
  TW_CHECK(whole.ffn >= tensor_size && whole.padded_vocab >= tensor_size, "a width of ", whole.ffn, " and ",
           whole.padded_vocab, " rows over ", tensor_size, " tensor ranks");
  ModelConfig c = whole;
  c.heads = whole.heads / tensor_size;
  c.kv_heads = whole.kv_heads / tensor_size;
  c.ffn = ffn().count;
  c.padded_vocab = vocab().count;
  return c;
}

LayerRange ModelShard::heads() const {
  return part_of(whole.heads, tensor_rank, tensor_size);
}
LayerRange ModelShard::vocab() const {
  return part_of(whole.padded_vocab, tensor_rank, tensor_size);
}
LayerRange ModelShard::ffn() const {
  return part_of(whole.ffn, tensor_rank, tensor_size);
}

int64_t ModelShard::first_row(int64_t rows) const {
  return splits_rows() ? part_of(rows, tensor_rank, tensor_size).first : 0;
}
int64_t ModelShard::part_rows(int64_t rows) const {
  return splits_rows() ? part_of(rows, tensor_rank, tensor_size).count : rows;
}

ParamList list_local_parameters(const ModelShard& shard) {
  shard.local();  // checks the widths
  ModelShard largest = shard;
  largest.tensor_rank = shard.tensor_size - 1;  // part_of() rounds down: the last part is never shorter than another
  ParamList list;
  for (ParamSpec p : list_parameters(shard.whole)) {
    if (!has_unit(shard, p.unit)) continue;
    if (shard.tensor_size > 1 || p.tp_axis == TpAxis::kKvGroups) {
      p.local = shard_of(p, largest);
      p.largest_local = p.local_count();
      p.local = shard_of(p, shard);
    }
    p.tp_partial = is_partial(shard, p);
    list.push_back(std::move(p));
  }
  return list;
}

}  // namespace thinwire
