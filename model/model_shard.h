// What one rank has of the model: its share of every width, and the layers of its chunks.
#pragma once

#include <vector>

#include "engine/base/core/param_spec.h"
#include "engine/base/core/sequence_cut.h"
#include "model/model_config.h"
#include "parallel/schedule/partition.h"

namespace thinwire {

struct ModelShard {
  ModelConfig whole;  // the model's own numbers
  int tensor_rank = 0, tensor_size = 1;
  bool sequence_parallel = false;
  bool equal_distances = false;  // of heads in memory: what attention libraries of GPUs want
  SequenceCut cut;               // whole: a length is not needed
  SequenceWay sequence_way = SequenceWay::kGather;
  std::vector<LayerRange> chunks;  // this rank's layers, chunk by chunk
  bool first = true;               // chunk 0 begins the model: it has the embedding
  bool last = true;                // the last chunk ends it: it has the head

  static ModelShard all_of(const ModelConfig& config);

  // The widths of this rank: heads, KV heads, feed-forward width, padded vocabulary divided; everything else as in
  // `whole`. KV heads must be divisible by tensor_size (CHECK; the config refuses first); feed-forward and vocabulary
  // are sharded as evenly as possible.
  ModelConfig local() const;
  LayerRange heads() const;  // query heads of this rank
  LayerRange vocab() const;  // rows of the padded vocabulary
  LayerRange ffn() const;
  // Attention sees all tokens of a share of the heads.
  bool exchanges_heads() const { return !cut.whole() && sequence_way == SequenceWay::kHeads; }
  // Rows of the qkv product hold all queries first, then keys and values group by group. Otherwise every group has its
  // queries, key and value together, as files have: with one query per group heads are as far apart then, and a rank's
  // share of the groups is one run of columns, which the exchange of heads needs.
  bool queries_apart() const { return equal_distances && whole.heads_per_group() > 1 && !exchanges_heads(); }
  bool tied_across_stages() const { return whole.tied_head && first != last; }

  // Rows of N that this rank holds outside of sharded parts: [first_row, first_row + part_rows), as TpActivation shards
  // them. All of them without sequence parallelism.
  bool splits_rows() const { return sequence_parallel && tensor_size > 1; }
  int64_t first_row(int64_t rows) const;
  int64_t part_rows(int64_t rows) const;
};

// list_parameters(shard.whole) without what other stages have, with `local`, `largest_local` and `tp_partial` filled. A
// tied embedding is on the first and on the last stage. Unit numbers and ids are those of the whole model.
ParamList list_local_parameters(const ModelShard& shard);

}  // namespace thinwire
