// What a layer is told about the micro-batch at hand, and how dropout is keyed.
#pragma once

#include "engine/base/ops/ops.h"
#include "model/activations.h"

namespace thinwire {

struct LayerContext {
  BatchShape shape;
  bool training = false;  // dropout acts only in training
  uint64_t seed = 0;
  const int64_t* sample_ids = nullptr;  // device memory [batch]: consumed-sample numbers, which key dropout
  // Per token, [batch * length] i32 (ops.h); empty: whole sequences. Where heads are exchanged, first_keys are those of
  // all tokens. Positions count from 0 where documents begin.
  View first_keys, positions;
  SequenceCut cut;        // shape.length is what this rank has of a sequence
  int64_t first_row = 0;  // which token this rank's rows outside of sharded parts begin with
  TokenChunk chunk;       // the rows at hand, of all those of `shape`; count 0: all (see context_of)
  // Decoding with a cache: tokens of this call start at first_position, and kv_rows holds the qkv rows of all positions
  // so far (this call's included). Otherwise empty, and attention looks at the rows of this call alone.
  int64_t first_position = 0;
  View kv_rows;
};

// What layers are told about one chunk of the micro-batch: dropout, positions and masks stay those of the whole.
inline LayerContext context_of(const LayerContext& c, const TokenChunk& chunk) {
  LayerContext part = c;
  part.chunk = chunk, part.first_row = chunk.row, part.first_position = chunk.first;
  for (View* v : {&part.first_keys, &part.positions})
    if (*v) *v = v->element_range(chunk.row, chunk.count);
  return part;
}

// Dropout for one place of one layer, off outside training.
inline Dropout make_dropout(const LayerContext& c, float p, RandomPurpose purpose, uint32_t layer) {
  Dropout d;
  if (!c.training || p == 0.0f) return d;
  d.p = p, d.key = seed_key(c.seed), d.purpose = purpose, d.layer = layer, d.sample_ids = c.sample_ids,
  d.batch = c.shape.batch;
  return d;
}

// The same for rows of the hidden state, of which the tensor at hand holds some from `first_row` on.
inline Dropout make_row_dropout(const LayerContext& c, float p, RandomPurpose purpose, uint32_t layer,
                                int64_t first_row) {
  Dropout d = make_dropout(c, p, purpose, layer);
  d.rows = c.shape.tokens(), d.first_row = first_row, d.cut = c.cut;
  return d;
}

}  // namespace thinwire
