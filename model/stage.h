// One chunk of layers of a pipeline rank, run for one micro-batch at a time: forward, backward, evaluation.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/block.h"
#include "model/head.h"
#include "model/model_shard.h"
#include "parallel/schedule/plan.h"
#include "parallel/zero/unit_events.h"

namespace thinwire {

struct MicroBatch {
  View tokens;                          // [N] i32, device
  const int64_t* sample_ids = nullptr;  // [batch], device
  LossTargets loss;
};

// Memory that the chunks of a rank share.
struct StageScratch {
  BlockScratch block;
  View dx[3];  // gradients of the residual stream: at the block's output, between its halves, at its input
};
StageScratch take_stage_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena);

// What backward_input leaves for backward_weight, when a plan splits them: one per block of the largest chunk.
struct StageWeightWork {
  std::vector<BlockWorkBuffers> buffers;
  std::vector<WeightWork> blocks;
  int chunk_slot = -1;  // the slot whose activations it leases; -1: free
};
StageWeightWork take_weight_work(const ModelShard& shard, const BatchShape& shape, Arena& arena);

class Stage {
 public:
  // Chunk `chunk` of the shard. Takes activations for `slots` micro-batches in flight (0: no training) from the arena.
  // `device` and `stream` may be null for a measuring arena. What is referred to must outlive the stage.
  Stage(const ModelShard& shard, int chunk, ParamStore& store, const BatchShape& shape, int slots, Ports& ports,
        const RotaryTables* rotary, StageScratch& scratch, UnitEvents& events, uint64_t seed, Arena& arena);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  bool first() const;  // has the embedding: input comes from tokens, not from input()
  bool last() const;   // has the head: forward adds the loss instead of filling output()

  // Boundaries of a slot, [rows of this rank, h] in the compute dtype: where a receive puts the activation, where the
  // result lies until it has been sent; and the gradients that travel the other way. Empty at the ends of the model.
  View input(int slot) const;
  View output(int slot) const;
  View output_gradient(int slot) const;  // received
  View input_gradient(int slot) const;   // to be sent

  // Training forward of one micro-batch into `slot`; on the last chunk adds its loss to loss.loss_sum.
  void forward(Exec& exec, const MicroBatch& micro, int slot);
  // Input and weight gradients; events announce each unit in the order head, last block, ..., first block, embedding,
  // positions.
  void backward(Exec& exec, int slot);
  // The same in two halves; `work` leases the slot until backward_weight.
  void backward_input(Exec& exec, int slot, StageWeightWork& work);
  void backward_weight(Exec& exec, StageWeightWork& work);

  // Appends the units that a node of this kind acquires, in that order.
  void list_uses(NodeKind kind, std::vector<UnitUse>& uses) const;

  // No dropout, nothing kept: from input(0) or tokens to output(0), or the loss.
  void evaluate(Exec& exec, const MicroBatch& micro);
  // On the last chunk, instead of the loss: receive(first_row, logits [n, padded vocab of this rank]) per piece.
  void all_logits(Exec& exec, const MicroBatch& micro, const std::function<void(int64_t, View)>& receive);

 private:
  struct Slot;
  ModelShard shard_;
  int chunk_;
  std::unique_ptr<struct StageParts> parts_;
};

}  // namespace thinwire
