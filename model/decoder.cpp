// Cached decoding over the same blocks as training.
#include "model/decoder.h"

namespace thinwire {
namespace {

View first_rows(View v, int64_t n) {
  return v ? v.row_range(0, n) : v;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, ParamStore& store, int64_t capacity, int64_t chunk, Ports& ports,
                 Arena& arena, Device* device, Stream* stream)
    : capacity_(capacity),
      chunk_(chunk),
      rotary_(make_rotary_tables(config, capacity, arena, device, stream)),
      embedding_(ModelShard::all_of(config), store, ports.tp),
      head_(ModelShard::all_of(config), store, ports.tp) {
  ModelShard shard = ModelShard::all_of(config);
  shard.whole.sequence_chunk = 0;  // `chunk` is all that a call brings
  const BatchShape shape{1, chunk};
  activations_ = take_block_activations(shard, shape, 1, Recompute::kFull, arena)[0];
  // Statistics are for a backward.
  activations_.mean1 = activations_.rstd1 = activations_.mean2 = activations_.rstd2 = activations_.lse = View{};
  other_x_ = arena.take(MemoryCategory::kActivations, config.dtype, {chunk, config.hidden});
  scratch_ = take_block_scratch(shard, shape, false, arena);
  head_activations_ = take_head_activations(shard, shape, false, arena);
  head_scratch_ = take_head_scratch(shard, shape, false, arena);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.emplace_back(shard, store, static_cast<int>(layer), &rotary_, ports, events_);
    cache_.push_back(arena.take(MemoryCategory::kActivations, config.dtype, {capacity, config.qkv_width()}));
  }
}

View Decoder::feed(Exec& exec, View tokens) {
  const int64_t n = tokens.count();
  TW_CHECK(n >= 1 && n <= chunk_ && position_ + n <= capacity_, "position ", position_, " + ", n, " of ", capacity_);
  LayerContext c;
  c.shape = {1, n};
  c.first_position = position_;

  BlockActivations a = part_of(activations_, {.count = n}, chunk_);
  BlockScratch scratch = scratch_;
  scratch.branch = scratch.partial = first_rows(scratch.branch, n);
  HeadActivations head = head_activations_;
  head.x = first_rows(head.x, n), head.mean = head.rstd = View{};

  embedding_.forward(exec, c, tokens, a.x_in, {});
  ResidualStream stream{a.x_in, {}, {}};
  View next_x = first_rows(other_x_, n);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    a.qkv = cache_[i].row_range(position_, n);
    c.kv_rows = cache_[i].row_range(0, position_ + n);
    if (i > 0) std::swap(a.x_in, next_x);  // a parallel block's stream still lives in the previous x_in
    stream = blocks_[i].forward(exec, c, stream, a, scratch);
  }
  head_.normalise(exec, stream, head, head_scratch_, n - 1, 1);
  const View logits = head_scratch_.logits.row_range(0, 1);
  head_.logits(exec, head_scratch_, 0, 1, logits);
  position_ += n;
  return View(logits.data, logits.dtype, {logits.cols()});
}

}  // namespace thinwire
