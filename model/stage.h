// The layers that this pipeline rank owns, run for one micro-batch at a time: forward, backward, evaluation.
#pragma once

#include <functional>
#include <vector>

#include "model/block.h"
#include "model/head.h"

namespace thinwire {

struct MicroBatch {
  View tokens;                          // [N] i32, device
  const int64_t* sample_ids = nullptr;  // [batch], device
  LossTargets loss;
};

class Stage {
 public:
  // Takes activations for `slots` micro-batches in flight (0: no training) and all scratch from the arena. `device` and
  // `stream` may be null for a measuring arena. config, store and ports must outlive the stage.
  Stage(const ModelConfig& config, ParamStore& store, const BatchShape& shape, int slots, Ports& ports, uint64_t seed,
        Arena& arena, Device* device, Stream* stream);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Training forward of one micro-batch into `slot`; adds its loss to loss.loss_sum.
  void forward(Exec& exec, const MicroBatch& micro, int slot);

  // Input and weight gradients of the micro-batch in `slot`. on_unit(u) is called when unit u's gradients of this
  // micro-batch are complete, in the order head, last block, ..., first block, embedding.
  void backward(Exec& exec, int slot, const std::function<void(int)>& on_unit);

  // Loss only, no dropout, nothing kept.
  void evaluate(Exec& exec, const MicroBatch& micro);

  // Logits of all tokens of a micro-batch, without dropout: receive(first_row, logits [n, padded vocab] on the device)
  // per chunk.
  void all_logits(Exec& exec, const MicroBatch& micro, const std::function<void(int64_t, View)>& receive);

 private:
  struct Slot {
    MicroBatch micro;
    std::vector<BlockActivations> blocks;
    HeadActivations head;
    bool live = false;
  };

  LayerContext context(const MicroBatch& micro, bool training) const;
  ResidualStream run_blocks(Exec& exec, const LayerContext& c, const MicroBatch& micro, Slot& slot);

  const ModelConfig& config_;
  BatchShape shape_;
  uint64_t seed_;
  RotaryTables rotary_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  Head head_;
  std::vector<Slot> slots_;
  BlockScratch scratch_;
  View dx_[3];  // gradients of the residual stream: at the block's output, between its halves, at its input
};

}  // namespace thinwire
