// THE list of activations: what each recompute level keeps. It sizes memory before step 1 and is where a slot's views
// come from.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/device/arena.h"
#include "model/model_shard.h"

namespace thinwire {

// Shape of one micro-batch as the layers see it.
struct BatchShape {
  int64_t batch = 0;   // sequences
  int64_t length = 0;  // tokens of each
  int64_t tokens() const { return batch * length; }
};

// Tokens [first, first + count) of the whole sequence `sample`, which are rows [row, row + count) of the micro-batch.
struct TokenChunk {
  int64_t sample = 0, first = 0, count = 0, row = 0;
  int64_t index = 0;  // its place in the list
};

// What layers take at once where ModelConfig::sequence_chunk says so, in the order of rows: within a sample's run that
// is the order of its tokens. Empty: all at once.
std::vector<TokenChunk> list_chunks(const ModelShard& shard, const BatchShape& shape);
// Rows of memory that is used chunk by chunk: those of the largest, or all.
int64_t work_rows(const ModelShard& shard, const BatchShape& shape);
// The chunk's rows of a view of all `tokens` rows, or the first rows of one that holds a chunk at a time.
View rows_of(View v, const TokenChunk& chunk, int64_t tokens);

// What a block's backward reads. Every view may be shared between blocks where the level recomputes it. Widths and
// heads are this rank's; P are the rows that it holds outside of sharded parts (N without sequence parallelism).
struct BlockActivations {
  View x_in;                     // [P,h] residual stream at the block's input
  View norm1_out, mean1, rstd1;  // [P,h], [P], [P]
  View qkv;                      // [N,qkv] after rotary; where heads are exchanged, all tokens of a share of them
  View attention_out, lse;       // [N,heads*d], [B,heads,T]
  View share_out;                // attention_out of the tokens and heads of qkv, where heads are exchanged
  View x_mid;                    // [P,h] residual stream between the halves (serial blocks only)
  View norm2_out, mean2, rstd2;
  View mlp_in, mlp_act;  // [N,f or 2f] before, [N,f] after the activation function
};

struct ActivationSpec {
  View BlockActivations::*view;
  DType dtype;
  int64_t rows, cols;
  Recompute kept_up_to;  // kept per block at this recompute level and below; above it, one shared copy is recomputed
};

// The list for one block.
std::vector<ActivationSpec> list_block_activations(const ModelShard& shard, const BatchShape& shape);

// Takes the activations of `blocks` blocks for one micro-batch from the arena, for recompute level `level`.
std::vector<BlockActivations> take_block_activations(const ModelShard& shard, const BatchShape& shape, int64_t blocks,
                                                     Recompute level, Arena& arena);

// In chunks all views are [rows, cols], those of lse of each chunk [heads, count].
BlockActivations part_of(const BlockActivations& a, const TokenChunk& chunk, int64_t tokens);

// The inputs of a block's matrices, which the weight half of a backward needs: those that `level` recomputes get memory
// of their own, the other views stay empty.
BlockActivations take_weight_inputs(const ModelShard& shard, const BatchShape& shape, Recompute level, Arena& arena);
// `a` with the views that `own` has.
BlockActivations with_weight_inputs(BlockActivations a, const BlockActivations& own);

}  // namespace thinwire
