// What layers hold of all tokens while they take them chunk by chunk (ModelConfig::sequence_chunk): in memory, or out
// in another place with a few chunks of it in memory (ModelConfig::offload).
//
// A chunk is opened, used and closed; while it is open its memory stays. One that was written goes out when it is
// closed, and what will be wanted next can be fetched ahead: both behind the computation. Chunks stay in memory until
// theirs is the one that was used longest ago, so that what is read soon after it was written is not read at all. Which
// these are follows from the order of the calls alone: bytes moved are the same in every run, and in a rehearsal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/device/spill_place.h"
#include "model/activations.h"

namespace thinwire {

enum class Access { kRead, kWrite, kModify };  // kWrite: what was there is not needed

// [tokens, cols] of a micro-batch: whole in memory, or a tensor of the store.
struct TokenRows {
  View whole;
  int tensor = -1;
};

// Hears of every transfer whose times the host knows, and how long it stood still for one. Names are static text.
class SpillSink {
 public:
  using Clock = SpillPlace::Clock;
  virtual ~SpillSink() = default;
  virtual void spilled(const char* verb, int64_t bytes, Clock::time_point from, Clock::time_point to) = 0;
  virtual void waited_for_spill(const char* verb, int64_t bytes, Clock::time_point from, Clock::time_point to) = 0;
};

class TokenStore {
 public:
  // What a tensor is for: so many chunks of each kind are in memory.
  enum class Kind { kStream, kKept, kKeys, kKeyGradients };

  TokenStore(const ModelShard& shard, const BatchShape& shape);
  ~TokenStore();
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;

  bool spills() const { return offload_ != Offload::kNone; }
  // This rank's tokens, and all tokens whose keys it sees, in the order of rows; the same unless ranks share sequences.
  const std::vector<TokenChunk>& chunks() const { return chunks_; }
  const std::vector<TokenChunk>& keys() const { return keys_; }
  int64_t tokens() const { return tokens_; }

  // A tensor of this rank's tokens. `category`: of what is in memory.
  TokenRows add(Kind kind, DType dtype, int64_t cols, Arena& arena, MemoryCategory category);
  // Makes the place where chunks wait: room in bytes, and how many transfers are under way at most.
  using MakePlace = std::function<std::unique_ptr<SpillPlace>(uint64_t room, int requests)>;
  // Behind the last add, where it spills: takes the memory, and the place; nullptr: nothing is moved, only counted.
  // Throws what `make` throws.
  void begin(Arena& arena, const MakePlace& make);
  std::string description() const { return place_ ? place_->description() : std::string(); }
  int64_t room() const { return room_; }
  // Moved since begin().
  int64_t written() const { return written_; }
  int64_t read_back() const { return read_back_; }
  void set_sink(SpillSink* sink) { sink_ = sink; }

  // An open chunk.
  class Held {
   public:
    Held() = default;
    Held(Held&& other) noexcept { *this = std::move(other); }
    Held& operator=(Held&& other) noexcept {
      std::swap(view, other.view), std::swap(store_, other.store_), std::swap(buffer_, other.buffer_);
      std::swap(dirty_, other.dirty_);
      return *this;
    }
    ~Held() { close(); }
    void close();
    View view;

   private:
    friend class TokenStore;
    TokenStore* store_ = nullptr;
    int buffer_ = -1;
    bool dirty_ = false;
  };
  // [chunk.count, cols].
  Held open(const TokenRows& rows, const TokenChunk& chunk, Access access);
  void prefetch(const TokenRows& rows, const TokenChunk& chunk);

 private:
  struct Tensor {
    Kind kind;
    DType dtype;
    int64_t cols = 0, bytes = 0;  // of a chunk outside
    uint64_t place = 0;
  };
  struct Buffer {
    Kind kind;
    void* memory = nullptr;
    int tensor = -1;
    int64_t chunk = -1;
    int held = 0;
    bool moving = false, writing = false;
    uint64_t used = 0;
    SpillSink::Clock::time_point started;
  };
  int find(int tensor, int64_t chunk) const;
  int load(int tensor, int64_t chunk, bool content);
  void start(Buffer& buffer, bool write);
  void settle(Buffer& buffer, SpillPlace::Next next = SpillPlace::Next::kCompute);
  int number_of(const Buffer& buffer) const { return static_cast<int>(&buffer - buffers_.data()); }

  Offload offload_;
  int64_t tokens_, rows_;
  std::vector<TokenChunk> chunks_, keys_;
  std::vector<Tensor> tensors_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<SpillPlace> place_;
  int64_t room_ = 0, written_ = 0, read_back_ = 0;
  uint64_t clock_ = 0;
  SpillSink* sink_ = nullptr;
};

// A block's activations in chunks: x_in, what else the level keeps, and views of what it makes again.
struct ChunkedBlock {
  struct Field {
    View BlockActivations::*field;
    DType dtype;
    int64_t cols, offset;  // bytes from the beginning of a chunk's `kept`
  };
  TokenRows x_in;
  BlockActivations memory;    // of all rows, or of a chunk's
  TokenRows kept;             // bytes; only where they spill
  std::vector<Field> fields;  // of `kept`
};
std::vector<ChunkedBlock> take_chunked_blocks(const ModelShard& shard, const BatchShape& shape, int64_t blocks,
                                              Recompute level, bool first_in_memory, TokenStore& store, Arena& arena);

// A chunk of them, open.
struct HeldBlock {
  TokenStore::Held x_in, kept;
  BlockActivations a;
};
HeldBlock open_block(TokenStore& store, const ChunkedBlock& block, const TokenChunk& chunk, Access kept);
void prefetch_block(TokenStore& store, const ChunkedBlock& block, const TokenChunk& chunk);

}  // namespace thinwire
