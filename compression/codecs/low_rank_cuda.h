// What the GPU files of codec low_rank share: the parts of a message in device memory, products, orthonormal factors.
#pragma once

#include <vector>

#include "compression/codecs/low_rank.h"
#include "compression/device_state.h"
#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

// A part of a message: a coded matrix, or a run of raw elements (rank 0). The parts of a message ascend and cover it.
struct LowRankPlace {
  int64_t first = 0;                 // element of the message
  int64_t rows = 0, cols = 0;        // rank 0: one row
  int64_t p = 0, q = 0;              // as in LowRankMatrix; rank 0: p is RawPart::at
  int64_t squares = 0, vectors = 0;  // sums over the matrices in front: of rank^2, of rank
  int rank = 0;
  int matrix = 0;  // its number among the matrices
};

// The parts in device memory. Factors are laid out as on the host (low_rank.h).
struct LowRankPlaces {
  const LowRankPlace* list = nullptr;
  int count = 0;
};

// The factor element that multiplies several of the other factor: -0 becomes 0, as by splat() on the host.
TW_DEVICE float splat_of(float v) {
  return 0.0f + v;
}

// The parts on the host, and what launches and scratch are sized by.
struct LowRankParts {
  explicit LowRankParts(const LowRankLayout& layout);
  std::vector<LowRankPlace> list;
  LowRankPlace sums;     // squares, vectors: over all matrices
  LowRankPlace most;     // rows, cols, rank: the largest of any matrix
  int64_t most_raw = 0;  // elements of the largest part of rank 0
};

// A layout with its parts in device memory: what the state of a slot holds.
struct LowRankOnDevice {
  LowRankOnDevice(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices,
                  const DevicePlace& place);
  LowRankPlaces places() const {
    return {static_cast<const LowRankPlace*>(memory.data()), static_cast<int>(parts.list.size())};
  }
  LowRankLayout layout;
  LowRankParts parts;
  DeviceMemory memory;
};

// Scratch for orthonormalising all matrices of a message, side by side.
struct OrthonormalSpace {
  double* squares = nullptr;      // [2 rank^2] per matrix: Gram matrix, inverse of its factor
  double* vectors = nullptr;      // [rank] per matrix
  unsigned* dependent = nullptr;  // [rank] per matrix
  unsigned* states = nullptr;     // [1] per part
};

// In place: the p (is_p) or q of each matrix becomes what orthonormalize() makes of it, bit for bit. most: that of
// LowRankParts. The device decides how many passes a matrix needs.
void queue_orthonormalize(CudaQueue& queue, const LowRankPlaces& places, bool is_p, float* data,
                          const OrthonormalSpace& space, const LowRankPlace& most);

// Queues what LowRankState does on the host, with the same bits. Takes the scratch of the queue.
class LowRankWork {
 public:
  enum class Scratch : uint8_t { kProducts, kMessage };  // kMessage: with x, basis and tiles
  LowRankWork(CudaQueue& queue, const char* what, const LowRankOnDevice& message, Scratch scratch);
  // to = orthonormal(warm, or random numbers). warm == nullptr or *messages == 0: there was no message before.
  // messages: in device memory, or nullptr.
  void begin(const Msg& msg, Factor which, const float* warm, const int64_t* messages, float* to);
  void orthonormalize(Factor which, float* factor);
  // to = x q or x^T p, with the other factor. Raises `bad` where that is not finite.
  void multiply(const float* x, Factor result, const float* other, float* to);
  // to = the raw elements of x. Raises `bad`, too.
  void gather_raw(const float* x, float* to);

  unsigned* bad = nullptr;                                 // [1], 0 at first: something is not finite
  float *x = nullptr, *basis = nullptr, *tiles = nullptr;  // [count], [q_count], tile_squares_bytes()

 private:
  Grid blocks(int64_t elements) const;

  CudaQueue& queue_;
  const char* what_;
  const LowRankOnDevice& message_;
  float* chunks_ = nullptr;  // partial sums of x^T p
  OrthonormalSpace orthonormal_;
};

}  // namespace thinwire
