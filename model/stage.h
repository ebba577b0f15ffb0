// One chunk of layers of a pipeline rank (a virtual stage): forward, backward and evaluation of one micro-batch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/params.h"
#include "parallel/schedule/plan.h"
#include "parallel/zero/unit_events.h"

namespace thinwire {

struct MicroBatch {
  View tokens;                          // [N] i32, device
  const int64_t* sample_ids = nullptr;  // [batch], device
  LossTargets loss;
  View first_keys, positions;  // [N] i32, or empty (layer_context.h)
};

// Memory that the chunks of a rank share.
struct StageScratch {
  BlockScratch block;
  HeadScratch head;  // on the last stage
  View dx[3];        // gradients of the residual stream: at the block's output, between its halves, at its input
  // Where a sequence is taken in chunks of tokens (else empty): the store of what is kept of all tokens, and on the
  // last stage the residual stream's gradient in it. If it spills, call store->begin() once all Stages are made.
  std::shared_ptr<TokenStore> store;
  TokenRows chunked_dx;
};
StageScratch take_stage_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena);

// What backward_input leaves for backward_weight in plans that split them: an entry per block of the largest chunk.
struct StageWeightWork {
  std::vector<BlockWorkBuffers> buffers;
  std::vector<WeightWork> blocks;
  int chunk_slot = -1;  // the slot of chunk `chunk` whose activations are still needed; -1: not in use
  int chunk = 0;
};
StageWeightWork take_weight_work(const ModelShard& shard, const BatchShape& shape, Arena& arena);

class Stage {
 public:
  // Chunk `chunk` of the shard. Takes activations for `slots` micro-batches in flight (0: no training) from the arena.
  // All references must outlive the stage. Weights are read between acquire and release, gradients are added
  // between gradients_begin and gradients_complete.
  Stage(const ModelShard& shard, int chunk, ParamStore& store, const BatchShape& shape, int slots, Ports& ports,
        const RotaryTables* rotary, StageScratch& scratch, UnitEvents& events, uint64_t seed, Arena& arena);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  bool first() const { return embedding_.has_value(); }  // input comes from tokens, not from input()
  bool last() const { return head_.has_value(); }        // forward adds the loss instead of filling output()

  // Boundaries of a slot, [rows of this rank, h] in the compute dtype: the received activation, the result until it has
  // been sent, and the gradients that go the other way. Empty at the ends of the model.
  View input(int slot) const { return first() ? View{} : at(slot).input; }
  View output(int slot) const { return at(slot).output; }
  View output_gradient(int slot) const { return at(slot).output_gradient; }  // received
  View input_gradient(int slot) const { return at(slot).input_gradient; }    // to be sent

  // Training forward of one micro-batch into `slot`. On the last chunk it also adds the loss to loss.loss_sum, and the
  // head matrix's gradient to its buffer (the backward announces that).
  void forward(Exec& exec, const MicroBatch& micro, int slot);
  // Input and weight gradients; events announce each unit in the order head, last block (mlp, attention), ...,
  // embedding, positions, first block (with several tensor ranks, or in chunks of tokens: first block, embedding,
  // positions). On the last of several stages a tied embedding gets no gradient but the head's, and is announced after
  // it.
  void backward(Exec& exec, int slot);
  // The same in two parts, for callers that replay a recording in place of queue_*: forward = occupy + queue_forward,
  // backward = queue_backward + vacate. occupy and vacate only keep book. As long as a slot's micro-batch lies in the
  // same memory and events do nothing, queue_* queue the same work every time.
  void occupy(const MicroBatch& micro, int slot);
  void queue_forward(Exec& exec, int slot);
  void queue_backward(Exec& exec, int slot);
  void vacate(int slot);
  // Backward in two halves. The slot stays in use until backward_weight, which adds the gradients of blocks' matrices
  // and biases and announces all units: head, embedding, positions, last block, ..., first block. The gradients of
  // norms, embedding and positions are added by backward_input.
  void backward_input(Exec& exec, int slot, StageWeightWork& work);
  void backward_weight(Exec& exec, StageWeightWork& work);

  // Appends the units that a node of this kind acquires, in that order.
  void list_uses(NodeKind kind, std::vector<UnitUse>& uses) const;

  // No dropout, nothing kept: from input(0) or tokens to output(0), or the loss.
  void evaluate(Exec& exec, const MicroBatch& micro);
  // On the last chunk, instead of the loss: receive(first_row, logits [n, padded vocab of this rank]) per piece.
  void all_logits(Exec& exec, const MicroBatch& micro, const std::function<void(int64_t, View)>& receive);

 private:
  struct Slot {
    std::vector<BlockActivations> blocks;
    std::vector<ChunkedBlock> chunked_blocks;  // in place of `blocks`, in chunks of tokens
    TokenRows head_x, head_dy;                 // the head's activations x and dy, likewise
    HeadActivations head;
    View input, output, output_gradient, input_gradient;
    MicroBatch micro;
    bool live = false;
  };

  const Slot& at(int slot) const { return slots_.at(static_cast<size_t>(slot)); }
  Slot& live_slot(int slot);
  LayerContext context(const MicroBatch& micro, bool training) const;
  bool has_positions() const { return shard_.whole.positions == PositionKind::kLearned; }
  // -1: none, since a tied head whose norm has no parameters has none of its own. No unit of that number exists then.
  int own_head_unit() const { return shard_.whole.gain_norm || !shard_.whole.tied_head ? head_unit(shard_.whole) : -1; }
  bool shares_embedding() const { return last() && shard_.whole.tied_head; }
  bool in_chunks() const { return scratch_->store != nullptr; }
  void run_forward(Exec& exec, const MicroBatch& micro, Slot& slot, bool training);
  template <typename Use>
  void with_head(const LossTargets& loss, const Use& use);
  void run_chunks(Exec& exec, const LayerContext& context, const MicroBatch& micro, Slot& slot);
  void backward_chunks(Exec& exec, const LayerContext& context, Slot& slot);
  void head_of_chunks(Exec& exec, Slot& slot, const LossTargets& loss);
  ResidualStream run_blocks(Exec& exec, const LayerContext& context, const MicroBatch& micro, Slot& slot);
  void finish(Exec& exec, const ResidualStream& stream, const MicroBatch& micro, Slot& slot);
  View begin_backward(Exec& exec, Slot& slot, View buffer);
  void end_backward(Exec& exec, const LayerContext& context, Slot& slot, View dx);
  void announce_head();
  void announce_embedding();

  ModelShard shard_;
  int chunk_;
  LayerRange layers_;
  BatchShape shape_;
  uint64_t seed_;
  StageScratch* scratch_;
  UnitEvents* events_;
  std::optional<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::optional<Head> head_;
  std::vector<Slot> slots_;
};

}  // namespace thinwire
