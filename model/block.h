// One transformer block of the three families: serial (GPT-2, Llama) or parallel (GPT-NeoX) residual.
//
//   serial:    x_mid = x + attention(norm1(x));  out = x_mid + mlp(norm2(x_mid))
//   parallel:  out = x + attention(norm1(x)) + mlp(norm2(x))
//
// The block leaves its last addition to whoever reads the stream next (see ResidualStream).
//
// In chunks (ModelConfig::sequence_chunk) a block takes some tokens of a sequence at a time from its input to its
// output. Of all tokens there are what the recompute level keeps, the stream and its gradient [N,h], and one layer's
// keys and values and their gradients, [N,w] with w = 2 * KV heads * d: token rows, in memory or outside
// (token_store.h). Where the level keeps q, k and v in memory keys are not copied, and gradients are of all three,
// [N,qkv]. All else - norms, q, k and v, attention's result, the feed-forward part, and their gradients - is of
// one chunk. A chunk's queries take the keys of the chunks up to theirs one after the other, results merged by their
// lse. Backward goes through a sequence from its end: when the queries of a chunk have had their turn all that see its
// keys have, so that q, k and v of the chunk have their gradients at once, and the stream's gradient is replaced in
// place. Full recomputation first makes keys and values of all chunks again, then of each chunk the rest: the qkv
// product runs once more than without chunks. (FPDT goes by keys outside and queries inside instead, and keeps q and dq
// of all tokens.) Context-parallel ranks share all keys before the queries' turn, and their gradients before the qkv
// product's: these and d_qkv [N,qkv] are whole there. Weights are acquired once, gradients announced behind the last
// chunk.
//
// Between tensor ranks attention and mlp are sharded, everything else is whole on every rank: one sum per branch and
// direction, and one per direction for both branches of a parallel block together - forward of their added results,
// backward of what their norms make of the input gradients, so that norm weights get partial gradients there. With
// sequence parallelism a rank holds P of the N rows of everything that is not sharded: norm outputs are gathered (again
// in the backward pass), results are summed and scattered.
#pragma once

#include <functional>
#include <vector>

#include "model/attention.h"
#include "model/mlp.h"
#include "model/norm.h"
#include "parallel/sites/ports.h"
#include "parallel/zero/unit_events.h"

namespace thinwire {

// Memory that blocks share: nothing in it survives the call that filled it. Without sequence parallelism `partial` is
// `branch`, and d_norm_part is d_norm.
struct BlockScratch {
  View branch;                // [P,h] the branch that leaves the block
  View partial;               // [N,h] this rank's part of the sum that it is
  View branch2;               // [N,h] second partial result of a parallel block under dropout
  View whole;                 // [N,h] gathered rows; only with sequence parallelism
  View d_act;                 // [N,f]
  View d_mlp_in;              // [N,f or 2f]; the same memory as d_act for GELU
  View d_attention;           // [N,heads*d]
  View d_qkv;                 // [N,qkv]
  View d_norm, d_norm_part;   // [N,h], [P,h]
  View d_branch1, d_branch2;  // [N,h] gradients at the results of attention and mlp; empty where the stream's serves
  View d_branch_part;         // [P,h] behind dropout, before they are gathered
  SequenceScratch sequence;
};
BlockScratch take_block_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena,
                                TokenStore* store = nullptr);

// The weight half of a block's backward: leases x (activations) and dy until backward_weight has run.
struct WeightWork {
  AttentionWork attention;
  MlpWork mlp;
};

// What must survive between the halves, per block, and finds no place in what the first half has read for the last time
// (the slot's x_in, x_mid, qkv, mlp_in): under full recomputation these are shared, with sequence parallelism they hold
// fewer rows, and a parallel block has no x_mid. Without any of these every view is empty. dx_out and dx_mid are there
// where the stream's gradients are themselves the dy of a branch.
struct BlockWorkBuffers {
  View dx_out, dx_mid;        // [N,h]
  View d_branch1, d_branch2;  // as in BlockScratch
  View d_qkv, d_mlp_in;
  BlockActivations inputs;  // see take_weight_inputs
};
BlockWorkBuffers take_block_work(const ModelShard& shard, const BatchShape& shape, Arena& arena);

class Block {
 public:
  // Tells `events` of its two units, attention and mlp: when their weights are read and their gradients added to.
  Block(const ModelShard& shard, const ParamStore& store, int layer, const RotaryTables* rotary, Ports& ports,
        UnitEvents& events);

  // Appends the units that it acquires, in that order.
  void list_uses(bool backward, std::vector<UnitUse>& uses) const;

  // Reads the stream, fills `a`, and returns the stream behind the block; its branch lives in scratch.branch.
  ResidualStream forward(Exec& exec, const LayerContext& context, const ResidualStream& in, const BlockActivations& a,
                         const BlockScratch& scratch) const;

  // dx_out: [P,h] gradient at the block's output stream; dx_mid: [P,h] scratch; dx_in receives the gradient at a.x_in.
  // The three are distinct. Input and weight gradients; sums between ranks run under the weight gradients. What the
  // recompute level did not keep is made again first.
  // then: called once, when dx_in is complete. Where nothing has to travel between tensor ranks meanwhile, the weight
  // gradients come behind it: so that what it sends has them to hide behind.
  void backward(Exec& exec, const LayerContext& context, const BlockActivations& a, const BlockScratch& scratch,
                View dx_out, View dx_mid, View dx_in, const std::function<void()>& then = nullptr) const;
  // The same in two halves: norm weights get their gradients in the first, matrices and biases in the second. The work
  // leases `a`, whose x_in, x_mid, qkv and mlp_in may be overwritten, and `own`. Where `own` has dx_out and dx_mid,
  // they must be what is given for them.
  WeightWork backward_input(Exec& exec, const LayerContext& context, const BlockActivations& a,
                            const BlockScratch& scratch, const BlockWorkBuffers& own, View dx_out, View dx_mid,
                            View dx_in) const;
  void backward_weight(Exec& exec, const BlockActivations& a, const WeightWork& work,
                       const BlockScratch& scratch) const;

  // In chunks, those of the store. out: [N,h] the stream behind the block, its branch added.
  void forward_chunks(Exec& exec, const LayerContext& context, TokenStore& store, const ChunkedBlock& a,
                      const BlockScratch& scratch, const TokenRows& out) const;
  // dx: [N,h] gradient at the block's output, overwritten; dx_in: as above, or empty: dx.
  void backward_chunks(Exec& exec, const LayerContext& context, TokenStore& store, const ChunkedBlock& a,
                       const BlockScratch& scratch, const TokenRows& dx, View dx_in) const;

 private:
  struct Piece;  // of one chunk: its context, and its rows of everything
  Piece open_piece(const LayerContext& context, TokenStore& store, const TokenChunk& chunk, const ChunkedBlock& a,
                   const BlockScratch& s, Access kept) const;
  void keys_of_chunk(Exec& exec, const Piece& p) const;
  void backward_branches(Exec& exec, const Piece& p, View dx) const;
  void backward_norm1(Exec& exec, const Piece& p, View dx, View dx_in) const;
  View attend(Exec& exec, const LayerContext& context, const ResidualStream& in, const BlockActivations& a,
              const BlockScratch& s) const;
  ResidualStream add_mlp(Exec& exec, const LayerContext& context, View x, const BlockActivations& a,
                         const BlockScratch& s) const;
  // Brings back what the recompute level did not keep. Nothing to do for Recompute::kNone.
  void recompute(Exec& exec, const LayerContext& context, const BlockActivations& a, const BlockScratch& s) const;
  void feed_again(Exec& exec, const LayerContext& context, const BlockActivations& a, const BlockScratch& s) const;
  void weight_gradients(Exec& exec, const BlockActivations& a, const WeightWork& work, const BlockScratch& s,
                        bool announce) const;
  WeightWork run_backward(Exec& exec, const LayerContext& context, const BlockActivations& a, const BlockScratch& s,
                          View dx_out, View dx_mid, View dx_in, bool weights, const std::function<void()>& then) const;
  // Rows [P,h] for a sharded layer, which wants all of them.
  View enter(Exec& exec, View part, const BlockScratch& s) const;
  void leave(Exec& exec, const BlockScratch& s) const;
  // From the stream's gradient to the gradients at the branches' results, all rows.
  View to_branch(Exec& exec, const LayerContext& context, int place, View dx, View buffer, const BlockScratch& s) const;
  WeightWork to_both_branches(Exec& exec, const LayerContext& context, View dx, const BlockScratch& s) const;
  View through_dropout(Exec& exec, const Dropout& dropout, View dx, View buffer) const;
  // Dropout of a branch: on this rank's rows, or on all (of a chunk).
  Dropout row_dropout(const LayerContext& context, int place) const;
  Dropout whole_dropout(const LayerContext& context, int place) const;

  bool parallel_;     // residual
  bool splits_rows_;  // sequence parallel
  bool adds_stream_;  // of the ranks that sum, the one that adds what is whole on all
  float dropout_;
  Recompute level_;
  int layer_;
  TpActivation* tp_;
  UnitEvents* events_;
  Norm norm1_, norm2_;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace thinwire
