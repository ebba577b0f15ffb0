// What packing and absorbing share: a Coder's parts, and pieces that are split into tiles that stay in cache.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <span>

#include "compression/coder.h"
#include "compression/residual.h"
#include "compression/tile_kernel.h"
#include "engine/base/core/check.h"
#include "engine/base/core/philox.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

inline constexpr int64_t kTile = 4096;  // elements, rounded down to the granule
// Codecs with larger granules code a whole message at once, with scratch on the heap.
inline constexpr int64_t kLargestTile = 32768;
// The error of one tile (or whole message) in so many is measured, where the codec does not know it anyway.
inline constexpr int64_t kSampleEvery = 64;

inline char* at_element(const View& v, int64_t i) {
  return static_cast<char*>(v.data) + static_cast<size_t>(i) * size_of(v.dtype);
}

class Stopwatch {
 public:
  explicit Stopwatch(int64_t& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    total_ += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  int64_t& total_;
  std::chrono::steady_clock::time_point start_;
};

// Exceptions must not leave a parallel loop. Keeps the one of the lowest place, so that the message does not depend on
// threads.
class FirstError {
 public:
  template <typename Body>
  void guard(int64_t place, const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_ || place < place_) error_ = std::current_exception(), place_ = place;
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  int64_t place_ = 0;
};

// Cuts [0, n) into at most kRuns runs of whole units, by n and unit alone, and calls body(run, first, last).
inline constexpr int64_t kRuns = 64;
template <typename Body>
void for_runs(int threads, int64_t n, int64_t unit, const Body& body) {
  if (n <= std::max(unit, kTile)) {
    body(0, 0, n);
    return;
  }
  const int64_t units = (n + unit - 1) / unit;
  const int64_t block = (units + kRuns - 1) / kRuns * unit;
  parallel_blocks(threads, n, block, [&](int64_t first, int64_t last) { body(first / block, first, last); });
}

inline void add_squares(CompressionStats& sums, const TileSums& tile) {
  sums.error_square += tile.error;
  sums.signal_square += tile.signal;
  sums.residual_square += tile.residual;
}

struct Coder::Parts {
  std::shared_ptr<const Codec> codec;
  CodecSpec spec;
  ResidualSpec residual;
  Traits inner, outer;
  bool tiled = false;  // else a piece is coded whole
  int64_t tile = 0;
  const TileKernels& kernels = TW_PICK_KERNELS(tile_kernels);

  std::string name() const;
  bool in_fp32() const { return stored_in(residual) == ResidualDtype::kFp32; }
  bool in_8_bits() const { return keeps(residual, ResidualDtype::kInt8); }
  bool differences() const { return residual.kind == ResidualKind::kValueDifference; }
  bool keeps_decoded(const Msg& msg) const { return differences() || (keeps_residual(residual.kind) && msg.train); }
  // The type that the codec is handed elements of `dtype` in.
  DType handed(DType dtype) const {
    const bool plain = inner.native && !spec.hadamard && residual.kind == ResidualKind::kNone;
    return plain ? dtype : DType::f32;
  }
  // Floats of scratch that pack() needs for a piece of n elements that is not tiled.
  int64_t scratch(int64_t n) const {
    if (tiled) return 0;
    if (residual.kind == ResidualKind::kNone) return 0;
    return (keeps_residual(residual.kind) && !in_fp32() ? 3 : 2) * n;
  }
  bool sampled(const Msg& msg, int64_t place) const {
    return !inner.lossless && (place + msg.step + msg.slot + msg.sequence) % kSampleEvery == 0;
  }

  // What the host and a device ask of calls. check_absorb returns whether the sum is added to what `out` holds.
  void check_pack(const Msg& msg, const View& in, const View& reference, const View& own) const;
  bool check_absorb(std::span<const Share> shares, const View& out, bool accumulate) const;
  // The share's elements as they are, where they need no decoding: raw, or identity's payload.
  View raw_of(const Share& share, const View& out) const;

  // ---- packing (coder_pack.cpp) ------------------------------------------------------------------------------------
  struct Piece {
    const Msg& msg;
    View in, reference, own;
    std::span<std::byte> out;
    CoderState* state;
    CoderState::Open open;  // of the whole piece; unused unless `remember`
    bool remember;          // residuals are read and written
    PhiloxKey chances;      // what they are rounded by where they are not kept in fp32
  };
  // Elements [at, at + n) of a piece, and the scratch [n] that they go through.
  struct Tile {
    int64_t at, n;
    float* x;     // the input with its residual: what should arrive
    float* work;  // in front of the codec x transformed, behind it what x decodes to
    float* old;   // the residual so far in fp32, where it is not kept so
    bool sample;  // its error is measured where nothing else asks for it
    int threads;  // more than one: the tile is a whole piece
  };
  size_t pack_direct(const Piece& piece, CompressionStats& sums) const;
  size_t pack_tiled(const Piece& piece, CompressionStats& sums) const;
  size_t pack_whole(const Piece& piece, CompressionStats& sums) const;
  // The steps of a tile; those with `a` and `count` are for elements [a, a + count) of it.
  Encoded pack_tile(const Piece& piece, const Tile& t, CompressionStats& sums) const;
  void load(const Piece& piece, const Tile& t, int64_t a, int64_t count) const;
  const float* residual_before(const Piece& piece, const Tile& t, int64_t a, int64_t count) const;
  Msg message_of(const Piece& piece, const Tile& t) const;
  std::span<std::byte> room_of(const Piece& piece, const Tile& t) const;
  Encoded encode(const Piece& piece, const Tile& t, bool decoded) const;
  void keep_own(const Piece& piece, const Tile& t, int64_t a, int64_t count) const;
  void keep_residual(const Piece& piece, const Tile& t, int64_t a, int64_t count, TileSums& sums) const;
  void store_residual(const Piece& piece, int64_t first, const float* residual, int64_t count) const;
  void give_up(const Piece& piece, const Tile& t, size_t bytes) const;

  // ---- absorbing (coder_absorb.cpp) --------------------------------------------------------------------------------
  void decode(const Msg& msg, const Share& share, int64_t at, int64_t n, int64_t total, int threads, View out,
              bool accumulate) const;
  static bool overwrites_share(std::span<const Share> shares, const View& out);
  bool sums_in_place(std::span<const Share> shares, const View& out, bool accumulate) const;
  void absorb_tile(const Msg& msg, std::span<const Share> shares, int64_t at, int64_t n, int threads, float* work,
                   View out, bool accumulate) const;
};

}  // namespace thinwire
