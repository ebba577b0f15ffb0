// The head: final norm, the product with the vocabulary matrix, and the loss, in chunks of rows so that the logits of a
// whole micro-batch never exist at once. Tensor ranks have columns of the logits; they exchange three numbers per row.
#pragma once

#include <algorithm>

#include "model/layer_context.h"
#include "model/norm.h"
#include "parallel/sites/tp_activation.h"

namespace thinwire {

// Per micro-batch in flight.
struct HeadActivations {
  View x;           // [P,h] value of the residual stream behind the last block
  View mean, rstd;  // final norm
  View dy;          // [P,h] gradient at the final norm's output, found in the forward pass while the logits exist
};
// Memory that heads share; nothing in it survives a call. Without sequence parallelism `whole` is `y`, which holds a
// piece at a time, and d_whole is empty.
struct HeadScratch {
  View y;               // [chunk,h] the final norm's output, or [P,h]
  View whole;           // [N,h] its rows from all ranks
  View d_whole;         // [N,h] partial sums of dy
  View logits;          // [chunk, padded vocab of this rank]
  View losses;          // [N] fp32; in chunks of one
  View statistics;      // [chunk, 3] fp32 of this rank's columns; empty for one rank
  View all_statistics;  // [ranks * chunk * 3]
};
// streams: with x and dy; in chunks they are token rows.
HeadActivations take_head_activations(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena,
                                      bool streams = true);
// A chunk's rows; x and dy are the chunk's own.
HeadActivations part_of(const HeadActivations& a, const TokenChunk& chunk, View x, View dy);
HeadScratch take_head_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena);

struct LossTargets {
  View targets;        // [N] i32
  View row_weight;     // [N] fp32: what each token's loss counts; the weights of a step's micro-batches sum to 1
  View dlogits_scale;  // [1] fp32, the loss scale; empty in evaluation
  View loss_sum;       // [1] fp64, += sum of row_weight * loss, on every tensor rank
  View token_losses;   // [N] fp32, gets each token's loss, unweighted (0 where row_weight is); empty: nobody asks
};
LossTargets part_of(const LossTargets& loss, const TokenChunk& chunk);

class Head {
 public:
  Head(const ModelShard& shard, const ParamStore& store, TpActivation& tp);

  // Loss of the stream's tokens. In training (dlogits_scale given) also a.dy and the head matrix's gradient: the logits
  // are gone afterwards, so that gradient is accumulated here and not in a backward_weight.
  void forward(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const HeadScratch& s,
               const LossTargets& loss) const;
  // Final norm alone of rows [first, first + n) of the stream, at most a piece; under sequence parallelism of all.
  // Then logits of n of them, from row `at` of s.whole on, into `logits` [n, padded vocab of this rank]: for generation
  // and checks.
  void normalise(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const HeadScratch& s,
                 int64_t first, int64_t n) const;
  void logits(Exec& exec, const HeadScratch& s, int64_t at, int64_t n, View logits) const;
  // Calls body(first row, rows, where they lie in s.whole) for `tokens` of them, piece by piece, behind their norm.
  template <typename Body>
  void for_pieces(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const HeadScratch& s,
                  int64_t tokens, const Body& body) const {
    const int64_t step = s.logits.rows();
    if (splits_rows_) normalise(exec, stream, a, s, 0, stream.x.rows());
    for (int64_t first = 0; first < tokens; first += step) {
      const int64_t n = std::min(step, tokens - first);
      if (!splits_rows_) normalise(exec, stream, a, s, first, n);
      body(first, n, splits_rows_ ? first : 0);
    }
  }
  // dx: [P,h] gradient at the stream's value.
  void backward(Exec& exec, const HeadActivations& a, View dx) const;

 private:
  void losses(Exec& exec, const HeadScratch& s, View logits, int64_t first, const LossTargets& loss) const;

  int64_t vocabulary_, first_col_;
  bool splits_rows_;
  TpActivation* tp_;
  const ParamStore* store_;
  Norm final_norm_;
  View matrix_, matrix_gradient_;  // the embedding's own when tied
  int written_first_ = -1;
};

}  // namespace thinwire
