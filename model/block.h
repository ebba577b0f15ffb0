// One transformer block of the three families: serial (GPT-2, Llama) or parallel (GPT-NeoX) residual.
//
//   serial:    x_mid = x + attention(norm1(x));  out = x_mid + mlp(norm2(x_mid))
//   parallel:  out = x + attention(norm1(x)) + mlp(norm2(x))
//
// The block leaves its last addition to whoever reads the stream next (see ResidualStream).
#pragma once

#include "model/attention.h"
#include "model/mlp.h"
#include "model/norm.h"
#include "parallel/sites/ports.h"

namespace thinwire {

// Memory that blocks share: nothing in it survives the call that filled it, except what a WeightWork leases.
struct BlockScratch {
  View branch;                // [N,h] the branch that leaves the block
  View branch2;               // [N,h] second branch of a parallel block under dropout
  View d_act;                 // [N,f]
  View d_mlp_in;              // [N,f or 2f]; the same memory as d_act for GELU
  View d_attention;           // [N,heads*d]
  View d_qkv;                 // [N,qkv]
  View d_norm;                // [N,h]
  View d_branch1, d_branch2;  // [N,h] gradients behind dropout; empty without dropout
};
BlockScratch take_block_scratch(const ModelConfig& config, const BatchShape& shape, bool training, Arena& arena);

// The weight half of a block's backward: leases x (activations) and dy until backward_weight has run.
struct WeightWork {
  AttentionWork attention;
  MlpWork mlp;
};

class Block {
 public:
  Block(const ModelConfig& config, const ParamStore& store, int layer, const RotaryTables* rotary, Ports* ports);

  // Reads the stream, fills `a`, and returns the stream behind the block; its branch lives in scratch.branch.
  ResidualStream forward(Exec& exec, const LayerContext& context, const ResidualStream& in, const BlockActivations& a,
                         BlockScratch& scratch) const;

  // Brings back what the recompute level did not keep. Nothing to do for Recompute::kNone.
  void recompute(Exec& exec, const LayerContext& context, const BlockActivations& a, BlockScratch& scratch) const;

  // dx_out: gradient at the block's output stream; dx_mid: [N,h] scratch that the work may lease; dx_in receives the
  // gradient at a.x_in. The three must be distinct.
  WeightWork backward_input(Exec& exec, const LayerContext& context, const BlockActivations& a, BlockScratch& scratch,
                            View dx_out, View dx_mid, View dx_in) const;
  void backward_weight(Exec& exec, const BlockActivations& a, const WeightWork& work) const;

 private:
  // The gradient that reaches a branch: through dropout, or dx itself where there is none.
  View through_dropout(Exec& exec, const Dropout& dropout, View dx, View buffer) const;
  Dropout branch_dropout(const LayerContext& context, int place) const;

  const ModelConfig* config_;
  int layer_;
  Norm norm1_, norm2_;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace thinwire
