// Which chunks are in memory, and what moves when.
#include "model/token_store.h"

#include <algorithm>

namespace thinwire {
namespace {

// Chunks in memory at once. Of the stream two are open (a block's input and output, or an input and the gradient),
// while each of them is followed by one that goes out and one that comes in; of the others one is.
int buffers_of(TokenStore::Kind kind) {
  return kind == TokenStore::Kind::kStream ? 5 : 3;
}

int64_t whole_blocks(int64_t bytes) {
  constexpr auto block = static_cast<int64_t>(SpillPlace::kBlock);
  return (bytes + block - 1) / block * block;
}

}  // namespace

TokenStore::TokenStore(const ModelShard& shard, const BatchShape& shape)
    : offload_(shard.whole.offload), tokens_(shape.tokens()), rows_(work_rows(shard, shape)) {
  chunks_ = list_chunks(shard, shape);
  ModelShard uncut = shard;
  uncut.cut = {};
  keys_ = list_chunks(uncut, {shape.batch, shard.cut.whole() ? shape.length : shard.cut.length});
}

TokenStore::~TokenStore() = default;

TokenRows TokenStore::add(Kind kind, DType dtype, int64_t cols, Arena& arena, MemoryCategory category) {
  if (!spills()) return {arena.take(category, dtype, {tokens_, cols})};
  Tensor t{kind, dtype, cols};
  t.bytes = whole_blocks(rows_ * cols * static_cast<int64_t>(size_of(dtype)));
  t.place = static_cast<uint64_t>(room_);
  room_ += t.bytes * static_cast<int64_t>(chunks_.size());
  tensors_.push_back(t);
  return {{}, static_cast<int>(tensors_.size()) - 1};
}

void TokenStore::begin(Arena& arena, const MakePlace& make) {
  if (!spills()) return;
  TW_CHECK(buffers_.empty(), "the store has begun");
  for (Kind kind : {Kind::kStream, Kind::kKept, Kind::kKeys, Kind::kKeyGradients}) {
    int64_t bytes = 0, chunks = 0;
    for (const Tensor& t : tensors_) {
      if (t.kind != kind) continue;
      bytes = std::max(bytes, t.bytes);
      chunks += static_cast<int64_t>(chunks_.size());
    }
    for (int64_t i = 0; bytes > 0 && i < std::min<int64_t>(chunks, buffers_of(kind)); ++i)
      buffers_.push_back({kind, arena.take(MemoryCategory::kActivations, DType::u8, {bytes}).data});
  }
  if (offload_ == Offload::kHost) arena.count_host(room_);
  if (make) place_ = make(static_cast<uint64_t>(room_), static_cast<int>(buffers_.size()));
}

int TokenStore::find(int tensor, int64_t chunk) const {
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].tensor == tensor && buffers_[i].chunk == chunk) return static_cast<int>(i);
  return -1;
}

void TokenStore::start(Buffer& b, bool write) {
  const Tensor& t = tensors_[static_cast<size_t>(b.tensor)];
  (write ? written_ : read_back_) += t.bytes;
  if (!place_) return;
  if (sink_ != nullptr) b.started = SpillSink::Clock::now();
  b.moving = true, b.writing = write;
  place_->start(number_of(b), write, b.memory, static_cast<size_t>(t.bytes),
                t.place + static_cast<uint64_t>(b.chunk * t.bytes));
}

void TokenStore::settle(Buffer& b, SpillPlace::Next next) {
  if (!b.moving) return;
  b.moving = false;
  const auto from = sink_ != nullptr ? SpillSink::Clock::now() : SpillSink::Clock::time_point{};
  const auto done = place_->wait(number_of(b), next);
  if (!done || sink_ == nullptr || b.started == SpillSink::Clock::time_point{}) return;
  const int64_t bytes = tensors_[static_cast<size_t>(b.tensor)].bytes;
  sink_->spilled(b.writing ? "write" : "read", bytes, b.started, *done);
  if (*done > from) sink_->waited_for_spill(b.writing ? "write" : "read", bytes, from, *done);
}

// The buffer of a chunk that is not in memory: that of the one used longest ago.
int TokenStore::load(int tensor, int64_t chunk, bool content) {
  const Kind kind = tensors_[static_cast<size_t>(tensor)].kind;
  Buffer* oldest = nullptr;
  for (Buffer& b : buffers_)
    if (b.kind == kind && b.held == 0 && (oldest == nullptr || b.used < oldest->used)) oldest = &b;
  TW_CHECK(oldest != nullptr, "more chunks are open than there is memory for");
  settle(*oldest, content ? SpillPlace::Next::kTransfer : SpillPlace::Next::kCompute);
  oldest->tensor = tensor, oldest->chunk = chunk, oldest->used = ++clock_;
  if (content) start(*oldest, false);
  return number_of(*oldest);
}

TokenStore::Held TokenStore::open(const TokenRows& rows, const TokenChunk& chunk, Access access) {
  Held held;
  if (rows.tensor < 0) {
    if (rows.whole) held.view = rows.whole.row_range(chunk.row, chunk.count);
    return held;
  }
  int number = find(rows.tensor, chunk.index);
  if (number < 0) number = load(rows.tensor, chunk.index, access != Access::kWrite);
  Buffer& b = buffers_[static_cast<size_t>(number)];
  if (!b.writing || access != Access::kRead) settle(b);
  const Tensor& t = tensors_[static_cast<size_t>(rows.tensor)];
  held.view = View(b.memory, t.dtype, {chunk.count, t.cols});
  held.store_ = this, held.buffer_ = number, held.dirty_ = access != Access::kRead;
  ++b.held, b.used = ++clock_;
  return held;
}

void TokenStore::prefetch(const TokenRows& rows, const TokenChunk& chunk) {
  if (rows.tensor < 0) return;
  const int number = find(rows.tensor, chunk.index);
  if (number < 0)
    load(rows.tensor, chunk.index, true);
  else
    buffers_[static_cast<size_t>(number)].used = ++clock_;
}

void TokenStore::Held::close() {
  if (store_ == nullptr) return;
  Buffer& b = store_->buffers_[static_cast<size_t>(buffer_)];
  --b.held;
  if (store_->place_) store_->place_->used(buffer_);
  if (dirty_) store_->start(b, true);
  store_ = nullptr;
}

std::vector<ChunkedBlock> take_chunked_blocks(const ModelShard& shard, const BatchShape& shape, int64_t blocks,
                                              Recompute level, bool first_in_memory, TokenStore& store, Arena& arena) {
  std::vector<ChunkedBlock> list(static_cast<size_t>(blocks));
  const int64_t tokens = shape.tokens(), rows = work_rows(shard, shape);
  int64_t kept_bytes = 0;
  for (const ActivationSpec& spec : list_block_activations(shard, shape)) {
    const int64_t cols = spec.rows * spec.cols / tokens;
    if (spec.view == &BlockActivations::x_in) {
      for (ChunkedBlock& block : list) {
        if (&block == &list.front() && first_in_memory)
          block.x_in.whole = arena.take(MemoryCategory::kActivations, spec.dtype, {tokens, cols});
        else
          block.x_in = store.add(TokenStore::Kind::kStream, spec.dtype, cols, arena, MemoryCategory::kActivations);
      }
    } else if (level > spec.kept_up_to) {
      const View shared = arena.take(MemoryCategory::kActivations, spec.dtype, {rows, cols});
      for (ChunkedBlock& block : list) block.memory.*spec.view = shared;
    } else if (!store.spills()) {
      for (ChunkedBlock& block : list)
        block.memory.*spec.view = arena.take(MemoryCategory::kActivations, spec.dtype, {tokens, cols});
    } else {
      for (ChunkedBlock& block : list) block.fields.push_back({spec.view, spec.dtype, cols, kept_bytes});
      kept_bytes += (rows * cols * static_cast<int64_t>(size_of(spec.dtype)) + 63) / 64 * 64;
    }
  }
  // The store counts rows; a chunk's bytes are laid out as fields.
  const int64_t per_row = (kept_bytes + rows - 1) / rows;
  for (ChunkedBlock& block : list)
    if (per_row > 0)
      block.kept = store.add(TokenStore::Kind::kKept, DType::u8, per_row, arena, MemoryCategory::kActivations);
  return list;
}

HeldBlock open_block(TokenStore& store, const ChunkedBlock& block, const TokenChunk& chunk, Access kept) {
  HeldBlock held;
  held.a = part_of(block.memory, chunk, store.tokens());
  held.x_in = store.open(block.x_in, chunk, Access::kRead);
  held.a.x_in = held.x_in.view;
  if (block.kept.tensor < 0) return held;
  held.kept = store.open(block.kept, chunk, kept);
  for (const ChunkedBlock::Field& f : block.fields)
    held.a.*f.field = View(static_cast<char*>(held.kept.view.data) + f.offset, f.dtype, {chunk.count, f.cols});
  return held;
}

void prefetch_block(TokenStore& store, const ChunkedBlock& block, const TokenChunk& chunk) {
  store.prefetch(block.x_in, chunk);
  store.prefetch(block.kept, chunk);
}

}  // namespace thinwire
