// Self-attention over the heads of one rank: its share of the qkv projection, rotary positions, causal attention, its
// share of the output projection. Between tensor ranks, results and input gradients are partial sums, which the block
// sums.
#pragma once

#include "model/layer_context.h"
#include "model/linear.h"
#include "model/rotary_tables.h"
#include "model/token_store.h"
#include "parallel/sites/sequence.h"

namespace thinwire {

// Gradients that the weight half of the backward still needs.
struct AttentionWork {
  View dy;     // [N,h] gradient at the output projection's result
  View d_qkv;  // [N,qkv]
};

// Memory for the keys and values of whole sequences, where ranks share them or layers take chunks; empty otherwise. w =
// 2 * KV heads * d: of a token all keys and values, those of a head side by side. M: tokens of the whole sequences of a
// micro-batch.
struct SequenceScratch {
  View part;      // [N,w] of this rank's tokens, and their gradients; room for any rank's where they go around
  View gathered;  // [M,w] in rank order
  View kv;        // [M,w] sample by sample, in the order of tokens
  View d_kv;      // [M,w] their gradients; of a 16-bit model in chunks, fp32
  // Where heads are exchanged: what is sent or received, by rank and in rank order, [N,qkv] each; of all tokens and
  // this rank's share of the heads, gradients of results and of q, k and v.
  View by_rank, by_token, d_out, d_qkv;
  // Where keys and values go around: those of another rank, gradients of theirs on their way, and what comes. In fp32:
  // gradients of theirs and of mine, and (where the model is 16-bit) sums of results [N,heads*d] and of gradients of
  // queries [N,qkv].
  View other, leaving, coming, d_theirs, d_mine, sum, d_sum;
  // In chunks: where keys and values wait ([M,w]; kv and d_kv where ranks share them), and for one chunk of R rows what
  // is added up over the keys' chunks in fp32, [R,heads*d] and [R,qkv], and [R,w] of the compute dtype. A rank that has
  // all tokens gathers nothing, and d_keys are fp32; where the recompute level keeps q, k and v in memory, `keys` is
  // empty (they lie there), and d_keys [M,qkv] get the gradients of all three.
  TokenStore* store = nullptr;
  TokenRows keys, d_keys;
  View out_sum, dq_sum, d_part;
};
SequenceScratch take_sequence_scratch(const ModelShard& shard, const BatchShape& shape, bool training,
                                      TokenStore* store, Arena& arena);

class Attention {
 public:
  Attention(const ModelShard& shard, const ParamStore& store, int layer, const RotaryTables* rotary,
            SequenceExchange& sequence);

  // y: [N,h]; a.qkv, a.attention_out and a.lse are filled. x: [N,h] (the norm's output, all rows).
  void forward(Exec& exec, const LayerContext& context, View x, const BlockActivations& a, const SequenceScratch& s,
               View y) const;
  // All but the output projection: what a recomputing backward needs.
  void forward_inner(Exec& exec, const LayerContext& context, View x, const BlockActivations& a,
                     const SequenceScratch& s) const;
  // dx: [N,h] at the norm's output. scratch: [N, heads*d]. work.d_qkv is filled, work.dy must be set.
  void backward_input(Exec& exec, const LayerContext& context, const BlockActivations& a, const AttentionWork& work,
                      View scratch, const SequenceScratch& s, View dx) const;
  void backward_weight(Exec& exec, View x, const BlockActivations& a, const AttentionWork& work) const;

  // The same in chunks (block.h): `context` and all views are those of one, `s` is everybody's. Forward: project (fills
  // a.qkv) and put_keys, behind them for all chunks share_keys, and attend (fills a.attention_out and a.lse), which
  // looks at the keys of earlier tokens alone, and output.
  void project(Exec& exec, const LayerContext& context, View x, const BlockActivations& a) const;
  void put_keys(Exec& exec, const LayerContext& context, const BlockActivations& a, const SequenceScratch& s) const;
  void share_keys(Exec& exec, const LayerContext& context, const SequenceScratch& s, bool again) const;
  void attend(Exec& exec, const LayerContext& context, const BlockActivations& a, const SequenceScratch& s) const;
  void output(Exec& exec, const BlockActivations& a, View y) const;
  // Backward, with all keys put and shared again: begin_gradients; backward_attend for every chunk of a sample, the
  // last tokens first, which adds the output projection's gradients and fills the queries' part of work.d_qkv;
  // share_gradients behind all of them (where a rank has all tokens there is nothing to share, and a chunk's keys have
  // their gradient when its queries have theirs); and backward_project.
  void begin_gradients(Exec& exec, const LayerContext& context, const SequenceScratch& s) const;
  void backward_attend(Exec& exec, const LayerContext& context, const BlockActivations& a, const AttentionWork& work,
                       View scratch, const SequenceScratch& s) const;
  void share_gradients(Exec& exec, const LayerContext& context, const SequenceScratch& s) const;
  void backward_project(Exec& exec, const LayerContext& context, View x, const AttentionWork& work,
                        const SequenceScratch& s, View dx) const;

 private:
  AttentionShape shape_of(const LayerContext& context) const;
  template <typename Op>
  Op operands(const LayerContext& context, const BlockActivations& a, View keys) const;
  void rotate(Exec& exec, const LayerContext& context, View rows, bool inverse) const;
  void copy_keys(Exec& exec, const LayerContext& context, View rows, View part, bool into_part) const;
  void copy_order(Exec& exec, const LayerContext& context, View gathered, View tokens, bool by_token) const;
  void to_heads(Exec& exec, const LayerContext& context, View local, View tokens, const SequenceScratch& s,
                bool backward) const;
  void to_tokens(Exec& exec, const LayerContext& context, View tokens, View local, const SequenceScratch& s,
                 bool backward) const;
  template <typename Op>
  Op operands_of_keys(const LayerContext& context, const BlockActivations& a, const TokenChunk& keys, View kv) const;
  // Whether keys and values lie among queries, as the projection makes them, and not alone.
  bool lies_in_qkv(View keys) const { return keys && keys.cols() == config_.qkv_width(); }
  bool sees(int64_t first_query, const TokenChunk& keys) const;
  template <typename Body>
  void for_keys(const LayerContext& context, const SequenceScratch& s, const Body& body) const;
  template <typename Op>
  Op operands_of_share(const LayerContext& context, const BlockActivations& a) const;
  template <typename Op>
  Op operands_of_run(const LayerContext& context, const BlockActivations& a, View kv, int64_t sample,
                     const SequenceCut::Run& run, const SequenceCut::Run& keys) const;
  template <typename Body>
  void go_around(Exec& exec, const LayerContext& context, View qkv, const SequenceScratch& s, bool again,
                 const Body& body) const;
  template <typename Op, typename Body>
  void for_parts(const LayerContext& context, const BlockActivations& a, View kv, int owner, const Body& body) const;
  void ring_forward(Exec& exec, const LayerContext& context, const BlockActivations& a, const SequenceScratch& s) const;
  void ring_backward(Exec& exec, const LayerContext& context, const BlockActivations& a, View dout,
                     const SequenceScratch& s, View d_qkv) const;

  Dropout dropout(const LayerContext& context) const;

  ModelConfig config_;  // with this rank's heads
  int64_t first_head_;
  int layer_;
  const RotaryTables* rotary_;
  SequenceExchange* sequence_;
  Linear qkv_, out_;
  HeadLayout q_at_, k_at_, v_at_;  // without the batch stride
  float scale_;
  SequenceWay way_;
};

}  // namespace thinwire
