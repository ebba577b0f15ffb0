// Runs embedding, blocks and head over slots of activations.
#include "model/stage.h"

#include <utility>

namespace thinwire {

Stage::Stage(const ModelConfig& config, ParamStore& store, const BatchShape& shape, int slots, Ports& ports,
             uint64_t seed, Arena& arena, Device* device, Stream* stream)
    : config_(config),
      shape_(shape),
      seed_(seed),
      rotary_(make_rotary_tables(config, std::max(config.max_positions, shape.length), arena, device, stream)),
      embedding_(config, store, &ports.tp),
      head_(config, store, embedding_) {
  const bool training = slots > 0;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    blocks_.emplace_back(config, store, static_cast<int>(layer), &rotary_, &ports);
  slots_.resize(static_cast<size_t>(std::max(slots, 1)));
  ModelConfig kept = config;
  if (!training) kept.recompute = Recompute::kFull;  // nothing is read again
  for (Slot& slot : slots_) {
    slot.blocks = take_block_activations(kept, shape, config.layers, arena);
    slot.head = take_head_activations(config, shape, training, arena);
  }
  scratch_ = take_block_scratch(config, shape, training, arena);
  if (!training) return;
  for (View& dx : dx_) dx = arena.take(MemoryCategory::kWorkspace, config.dtype, {shape.tokens(), config.hidden});
}

LayerContext Stage::context(const MicroBatch& micro, bool training) const {
  LayerContext c;
  c.shape = shape_, c.training = training, c.seed = seed_, c.sample_ids = micro.sample_ids;
  return c;
}

ResidualStream Stage::run_blocks(Exec& exec, const LayerContext& c, const MicroBatch& micro, Slot& slot) {
  embedding_.forward(exec, c, micro.tokens, slot.blocks[0].x_in);
  ResidualStream stream{slot.blocks[0].x_in, {}, {}};
  for (size_t i = 0; i < blocks_.size(); ++i) stream = blocks_[i].forward(exec, c, stream, slot.blocks[i], scratch_);
  return stream;
}

void Stage::forward(Exec& exec, const MicroBatch& micro, int slot_index) {
  Slot& slot = slots_.at(static_cast<size_t>(slot_index));
  TW_CHECK(!slot.live, "slot ", slot_index, " still waits for its backward");
  slot.micro = micro;
  slot.live = true;
  const ResidualStream stream = run_blocks(exec, context(micro, true), micro, slot);
  head_.forward(exec, stream, slot.head, micro.loss);
}

void Stage::backward(Exec& exec, int slot_index, const std::function<void(int)>& on_unit) {
  Slot& slot = slots_.at(static_cast<size_t>(slot_index));
  TW_CHECK(slot.live, "slot ", slot_index, " holds no micro-batch");
  const LayerContext c = context(slot.micro, true);
  View out = dx_[0], mid = dx_[1], in = dx_[2];
  head_.backward(exec, slot.head, out);
  on_unit(static_cast<int>(blocks_.size()) + 1);
  for (size_t i = blocks_.size(); i-- > 0;) {
    blocks_[i].recompute(exec, c, slot.blocks[i], scratch_);
    const WeightWork work = blocks_[i].backward_input(exec, c, slot.blocks[i], scratch_, out, mid, in);
    blocks_[i].backward_weight(exec, slot.blocks[i], work);
    on_unit(static_cast<int>(i) + 1);
    std::swap(out, in);
  }
  embedding_.backward(exec, c, slot.micro.tokens, out);
  on_unit(0);
  slot.live = false;
}

void Stage::evaluate(Exec& exec, const MicroBatch& micro) {
  Slot& slot = slots_[0];
  TW_CHECK(!slot.live && !micro.loss.dlogits_scale);
  head_.forward(exec, run_blocks(exec, context(micro, false), micro, slot), slot.head, micro.loss);
}

void Stage::all_logits(Exec& exec, const MicroBatch& micro, const std::function<void(int64_t, View)>& receive) {
  Slot& slot = slots_[0];
  TW_CHECK(!slot.live);
  head_.normalise(exec, run_blocks(exec, context(micro, false), micro, slot), slot.head);
  const int64_t step = slot.head.logits.rows();
  for (int64_t first = 0; first < shape_.tokens(); first += step) {
    const int64_t n = std::min(step, shape_.tokens() - first);
    const View chunk = slot.head.logits.row_range(0, n);
    head_.logits(exec, slot.head, first, n, chunk);
    receive(first, chunk);
  }
}

}  // namespace thinwire
