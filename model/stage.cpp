// Runs embedding, blocks and head over slots of activations.
#include "model/stage.h"

#include <algorithm>

namespace thinwire {
namespace {

View take_rows(const ModelShard& shard, const BatchShape& shape, MemoryCategory category, Arena& arena) {
  return arena.take(category, shard.whole.dtype, {shard.part_rows(shape.tokens()), shard.whole.hidden});
}

}  // namespace

StageScratch take_stage_scratch(const ModelShard& shard, const BatchShape& shape, bool training, Arena& arena) {
  StageScratch s;
  if (shard.whole.sequence_chunk > 0) s.store = std::make_shared<TokenStore>(shard, shape);
  s.block = take_block_scratch(shard, shape, training, arena, s.store.get());
  if (shard.last) s.head = take_head_scratch(shard, shape, training, arena);
  if (!training) return s;
  if (s.store != nullptr) {
    if (shard.last)
      s.chunked_dx = s.store->add(TokenStore::Kind::kStream, shard.whole.dtype, shard.whole.hidden, arena,
                                  MemoryCategory::kWorkspace);
    return s;
  }
  for (View& dx : s.dx) dx = take_rows(shard, shape, MemoryCategory::kWorkspace, arena);
  return s;
}

StageWeightWork take_weight_work(const ModelShard& shard, const BatchShape& shape, Arena& arena) {
  int64_t blocks = 0;
  for (const LayerRange& chunk : shard.chunks) blocks = std::max(blocks, chunk.count);
  StageWeightWork work;
  for (int64_t i = 0; i < blocks; ++i) work.buffers.push_back(take_block_work(shard, shape, arena));
  work.blocks.resize(work.buffers.size());
  return work;
}

Stage::Stage(const ModelShard& shard, int chunk, ParamStore& store, const BatchShape& shape, int slots, Ports& ports,
             const RotaryTables* rotary, StageScratch& scratch, UnitEvents& events, uint64_t seed, Arena& arena)
    : shard_(shard),
      chunk_(chunk),
      layers_(shard.chunks.at(static_cast<size_t>(chunk))),
      shape_(shape),
      seed_(seed),
      scratch_(&scratch),
      events_(&events) {
  TW_CHECK(layers_.count > 0, "chunk ", chunk, " has no layer");
  TW_CHECK(shard.whole.sequence_chunk == 0 ||
               (!shard.splits_rows() && (shard.cut.whole() || shard.sequence_way == SequenceWay::kGather)),
           "chunks of tokens under sequence parallelism, or another way to share sequences than all_gather");
  TW_CHECK(ports.tp.size() == shard.tensor_size && ports.tp.rank() == shard.tensor_rank &&
               ports.tp.sequence_parallel() == shard.splits_rows(),
           "tensor rank ", ports.tp.rank(), " of ", ports.tp.size(), ", the shard is ", shard.tensor_rank, " of ",
           shard.tensor_size);
  if (shard.first && chunk == 0) embedding_.emplace(shard, store, ports.tp);
  for (int64_t i = 0; i < layers_.count; ++i)
    blocks_.emplace_back(shard, store, static_cast<int>(layers_.first + i), rotary, ports, events);
  if (shard.last && chunk + 1 == static_cast<int>(shard.chunks.size())) head_.emplace(shard, store, ports.tp);

  const bool training = slots > 0;
  const Recompute level = training ? shard.whole.recompute : Recompute::kFull;  // nothing is read again
  slots_.resize(static_cast<size_t>(std::max(slots, 1)));
  for (Slot& slot : slots_) {
    const auto boundary = [&] { return take_rows(shard, shape, MemoryCategory::kActivations, arena); };
    if (in_chunks()) {
      TokenStore& store = *scratch.store;
      slot.chunked_blocks = take_chunked_blocks(shard, shape, layers_.count, level, !first(), store, arena);
      slot.input = slot.chunked_blocks.front().x_in.whole;
      const auto stream = [&] {
        return store.add(TokenStore::Kind::kStream, shard.whole.dtype, shard.whole.hidden, arena,
                         MemoryCategory::kActivations);
      };
      if (last()) slot.head_x = stream();
      if (last() && training) slot.head_dy = stream();
    } else {
      slot.blocks = take_block_activations(shard, shape, layers_.count, level, arena);
      slot.input = slot.blocks.front().x_in;
    }
    if (last()) {
      slot.head = take_head_activations(shard, shape, training, arena, !in_chunks());
    } else {
      slot.output = boundary();
      if (training) slot.output_gradient = boundary();
    }
    if (!first() && training) slot.input_gradient = boundary();
  }
}

Stage::Slot& Stage::live_slot(int slot) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  TW_CHECK(s.live, "slot ", slot, " of chunk ", chunk_, " holds no micro-batch");
  return s;
}

LayerContext Stage::context(const MicroBatch& micro, bool training) const {
  LayerContext c;
  c.shape = shape_, c.training = training, c.seed = seed_, c.sample_ids = micro.sample_ids;
  c.first_keys = micro.first_keys, c.positions = micro.positions;
  c.cut = shard_.cut;
  if (c.cut.whole()) c.cut.length = shape_.length;
  c.first_row = shard_.first_row(shape_.tokens());
  return c;
}

void Stage::list_uses(NodeKind kind, std::vector<UnitUse>& uses) const {
  if (kind == NodeKind::kForward) {
    if (first()) uses.push_back({kEmbeddingUnit, false});
    if (first() && has_positions()) uses.push_back({position_unit(shard_.whole), false});
    for (const Block& block : blocks_) block.list_uses(false, uses);
    if (last() && own_head_unit() >= 0) uses.push_back({own_head_unit(), false});
    if (shares_embedding()) uses.push_back({kEmbeddingUnit, false});
  } else if (is_backward(kind)) {
    if (last() && own_head_unit() >= 0) uses.push_back({own_head_unit(), true});
    for (size_t i = blocks_.size(); i-- > 0;) blocks_[i].list_uses(true, uses);
  }
}

ResidualStream Stage::run_blocks(Exec& exec, const LayerContext& c, const MicroBatch& micro, Slot& slot) {
  const View x = slot.blocks[0].x_in;
  if (first()) {
    with_weights(*events_, {kEmbeddingUnit, has_positions() ? position_unit(shard_.whole) : -1}, false,
                 [&] { embedding_->forward(exec, c, micro.tokens, x, scratch_->block.partial); });
  }
  ResidualStream stream{x, {}, {}};
  for (size_t i = 0; i < blocks_.size(); ++i)
    stream = blocks_[i].forward(exec, c, stream, slot.blocks[i], scratch_->block);
  return stream;
}

// The loss, or the stream's value for the next stage.
void Stage::finish(Exec& exec, const ResidualStream& stream, const MicroBatch& micro, Slot& slot) {
  if (!last()) {
    exec.ops.residual_add(exec, {stream.x, stream.branch, slot.output, stream.dropout});
    return;
  }
  with_head(micro.loss, [&] { head_->forward(exec, stream, slot.head, scratch_->head, micro.loss); });
}

// In training the head's matrix gets its gradient in the forward pass; it may be the embedding's.
template <typename Use>
void Stage::with_head(const LossTargets& loss, const Use& use) {
  const int head = own_head_unit(), words = shares_embedding() ? kEmbeddingUnit : -1;
  with_weights(*events_, {head, words}, false, [&] {
    if (loss.dlogits_scale) events_->gradients_begin(shares_embedding() ? kEmbeddingUnit : head);
    use();
  });
}

void Stage::run_forward(Exec& exec, const MicroBatch& micro, Slot& slot, bool training) {
  const LayerContext c = context(micro, training);
  if (!in_chunks()) return finish(exec, run_blocks(exec, c, micro, slot), micro, slot);
  run_chunks(exec, c, micro, slot);
  head_of_chunks(exec, slot, micro.loss);
}

void Stage::forward(Exec& exec, const MicroBatch& micro, int slot) {
  occupy(micro, slot);
  queue_forward(exec, slot);
}

void Stage::occupy(const MicroBatch& micro, int slot_index) {
  Slot& slot = slots_.at(static_cast<size_t>(slot_index));
  TW_CHECK(!slot.live, "slot ", slot_index, " of chunk ", chunk_, " still waits for its backward");
  slot.micro = micro;
  slot.live = true;
}

void Stage::queue_forward(Exec& exec, int slot_index) {
  Slot& slot = live_slot(slot_index);
  run_forward(exec, slot.micro, slot, true);
}

void Stage::run_chunks(Exec& exec, const LayerContext& c, const MicroBatch& micro, Slot& slot) {
  TokenStore& store = *scratch_->store;
  if (first()) {
    with_weights(*events_, {kEmbeddingUnit, has_positions() ? position_unit(shard_.whole) : -1}, false, [&] {
      for (const TokenChunk& chunk : store.chunks()) {
        const TokenStore::Held x = store.open(slot.chunked_blocks[0].x_in, chunk, Access::kWrite);
        embedding_->forward(exec, context_of(c, chunk), micro.tokens.element_range(chunk.row, chunk.count), x.view, {});
      }
    });
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const TokenRows out = i + 1 < blocks_.size() ? slot.chunked_blocks[i + 1].x_in
                          : last()               ? slot.head_x
                                                 : TokenRows{slot.output};
    blocks_[i].forward_chunks(exec, c, store, slot.chunked_blocks[i], scratch_->block, out);
  }
}

void Stage::head_of_chunks(Exec& exec, Slot& slot, const LossTargets& loss) {
  if (!last()) return;
  TokenStore& store = *scratch_->store;
  const bool training = static_cast<bool>(loss.dlogits_scale);
  with_head(loss, [&] {
    for (size_t i = 0; i < store.chunks().size(); ++i) {
      const TokenChunk& chunk = store.chunks()[i];
      const TokenStore::Held x = store.open(slot.head_x, chunk, Access::kRead);
      if (i + 1 < store.chunks().size()) store.prefetch(slot.head_x, store.chunks()[i + 1]);
      const TokenStore::Held dy = training ? store.open(slot.head_dy, chunk, Access::kWrite) : TokenStore::Held{};
      head_->forward(exec, {x.view, {}, {}}, part_of(slot.head, chunk, x.view, dy.view), scratch_->head,
                     part_of(loss, chunk));
    }
  });
}

// From the head to the embedding; the stream's gradient is replaced in place.
void Stage::backward_chunks(Exec& exec, const LayerContext& c, Slot& slot) {
  TokenStore& store = *scratch_->store;
  const std::vector<TokenChunk>& chunks = store.chunks();
  const TokenRows dx = last() ? scratch_->chunked_dx : TokenRows{slot.output_gradient};
  if (last()) {
    const int head = own_head_unit();
    with_weights(*events_, {head}, true, [&] {
      if (head >= 0) events_->gradients_begin(head);
      for (size_t i = 0; i < chunks.size(); ++i) {
        const TokenStore::Held x = store.open(slot.head_x, chunks[i], Access::kRead);
        const TokenStore::Held dy = store.open(slot.head_dy, chunks[i], Access::kRead);
        const TokenStore::Held d = store.open(dx, chunks[i], Access::kWrite);
        if (i + 1 < chunks.size()) store.prefetch(slot.head_x, chunks[i + 1]);
        head_->backward(exec, part_of(slot.head, chunks[i], x.view, dy.view), d.view);
      }
    });
  }
  announce_head();
  for (size_t i = blocks_.size(); i-- > 0;) {
    const View dx_in = i == 0 && !first() ? slot.input_gradient : View{};
    blocks_[i].backward_chunks(exec, c, store, slot.chunked_blocks[i], scratch_->block, dx, dx_in);
  }
  if (!first()) return;
  events_->gradients_begin(kEmbeddingUnit);
  if (has_positions()) events_->gradients_begin(position_unit(shard_.whole));
  for (size_t i = 0; i < chunks.size(); ++i) {
    const TokenStore::Held d = store.open(dx, chunks[i], Access::kModify);
    if (i + 1 < chunks.size()) store.prefetch(dx, chunks[i + 1]);
    const View tokens = slot.micro.tokens.element_range(chunks[i].row, chunks[i].count);
    embedding_->backward(exec, context_of(c, chunks[i]), tokens, d.view, {});
  }
  announce_embedding();
}

// The gradient at the last block's output: received, or the head's in `buffer`.
View Stage::begin_backward(Exec& exec, Slot& slot, View buffer) {
  if (!last()) return slot.output_gradient;
  const int head = own_head_unit();
  with_weights(*events_, {head}, true, [&] {
    if (head >= 0) events_->gradients_begin(head);
    head_->backward(exec, slot.head, buffer);
  });
  return buffer;
}

void Stage::end_backward(Exec& exec, const LayerContext& c, Slot& slot, View dx) {
  if (!first()) return;
  events_->gradients_begin(kEmbeddingUnit);
  if (has_positions()) events_->gradients_begin(position_unit(shard_.whole));
  embedding_->backward(exec, c, slot.micro.tokens, dx, scratch_->block.partial);
}

void Stage::announce_head() {
  if (!last()) return;
  if (own_head_unit() >= 0) events_->gradients_complete(own_head_unit());
  if (shares_embedding() && !shard_.first) events_->gradients_complete(kEmbeddingUnit);
}

void Stage::announce_embedding() {
  if (!first()) return;
  events_->gradients_complete(kEmbeddingUnit);
  if (has_positions()) events_->gradients_complete(position_unit(shard_.whole));
}

void Stage::backward(Exec& exec, int slot) {
  queue_backward(exec, slot);
  vacate(slot);
}

void Stage::vacate(int slot) {
  live_slot(slot).live = false;
}

void Stage::queue_backward(Exec& exec, int slot_index) {
  Slot& slot = live_slot(slot_index);
  const LayerContext c = context(slot.micro, true);
  if (in_chunks()) return backward_chunks(exec, c, slot);
  const View* dx = scratch_->dx;
  View out = begin_backward(exec, slot, dx[0]);
  announce_head();
  for (size_t i = blocks_.size(); i-- > 0;) {
    const BlockActivations& a = slot.blocks[i];
    const View in = i == 0 && !first() ? slot.input_gradient : out.data == dx[0].data ? dx[2] : dx[0];
    // The embedding's gradient is the last that the residual stream gives, and often the largest: it leaves before the
    // first block's are made.
    const auto finish_input = [&] {
      end_backward(exec, c, slot, in);
      announce_embedding();
    };
    std::function<void()> then;
    if (i == 0 && first()) then = std::cref(finish_input);  // a reference: allocates nothing
    blocks_[i].backward(exec, c, a, scratch_->block, out, dx[1], in, then);
    out = in;
  }
}

void Stage::backward_input(Exec& exec, int slot_index, StageWeightWork& work) {
  Slot& slot = live_slot(slot_index);
  TW_CHECK(work.chunk_slot < 0 && work.buffers.size() >= blocks_.size(), "the weight work is in use");
  work.chunk_slot = slot_index, work.chunk = chunk_;
  const LayerContext c = context(slot.micro, true);
  const View* dx = scratch_->dx;
  // Where the gradient behind block i goes: memory of its own if it must survive.
  const auto behind = [&](size_t i, View spare) { return work.buffers[i].dx_out ? work.buffers[i].dx_out : spare; };
  View out = begin_backward(exec, slot, behind(blocks_.size() - 1, dx[0]));
  for (size_t i = blocks_.size(); i-- > 0;) {
    const BlockWorkBuffers& own = work.buffers[i];
    const BlockActivations a = with_weight_inputs(slot.blocks[i], own.inputs);
    const View spare = out.data == dx[0].data ? dx[2] : dx[0];
    const View in = i > 0 ? behind(i - 1, spare) : first() ? spare : slot.input_gradient;
    const View mid = own.dx_mid ? own.dx_mid : dx[1];
    work.blocks[i] = blocks_[i].backward_input(exec, c, a, scratch_->block, own, out, mid, in);
    out = in;
  }
  end_backward(exec, c, slot, out);
}

void Stage::backward_weight(Exec& exec, StageWeightWork& work) {
  TW_CHECK(work.chunk_slot >= 0 && work.chunk == chunk_, "weight work of chunk ", work.chunk, ", slot ",
           work.chunk_slot);
  Slot& slot = live_slot(work.chunk_slot);
  announce_head();
  announce_embedding();
  for (size_t i = blocks_.size(); i-- > 0;)
    blocks_[i].backward_weight(exec, with_weight_inputs(slot.blocks[i], work.buffers[i].inputs), work.blocks[i],
                               scratch_->block);
  slot.live = false;
  work.chunk_slot = -1;
}

void Stage::evaluate(Exec& exec, const MicroBatch& micro) {
  Slot& slot = slots_[0];
  TW_CHECK(!slot.live && !micro.loss.dlogits_scale);
  run_forward(exec, micro, slot, false);
}

void Stage::all_logits(Exec& exec, const MicroBatch& micro, const std::function<void(int64_t, View)>& receive) {
  Slot& slot = slots_[0];
  TW_CHECK(!slot.live && last());
  const LayerContext c = context(micro, false);
  const HeadScratch& scratch = scratch_->head;
  const auto pieces = [&](const ResidualStream& stream, const HeadActivations& a, int64_t begin, int64_t tokens) {
    head_->for_pieces(exec, stream, a, scratch, tokens, [&](int64_t row, int64_t n, int64_t at) {
      const View chunk = scratch.logits.row_range(0, n);
      head_->logits(exec, scratch, at, n, chunk);
      receive(begin + row, chunk);
    });
  };
  ResidualStream stream;
  if (in_chunks())
    run_chunks(exec, c, micro, slot);
  else
    stream = run_blocks(exec, c, micro, slot);
  with_head({}, [&] {
    if (!in_chunks()) return pieces(stream, slot.head, 0, shape_.tokens());
    for (const TokenChunk& chunk : scratch_->store->chunks()) {
      const TokenStore::Held x = scratch_->store->open(slot.head_x, chunk, Access::kRead);
      pieces({x.view, {}, {}}, part_of(slot.head, chunk, x.view, {}), chunk.row, chunk.count);
    }
  });
}

}  // namespace thinwire
