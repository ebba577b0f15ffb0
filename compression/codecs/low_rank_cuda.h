// What the kernels of low rank share: the parts of a message in device memory, products, and orthonormal factors.
#pragma once

#include <vector>

#include "compression/codecs/low_rank.h"
#include "compression/device_state.h"
#include "engine/base/ops/cuda_kernel.h"

namespace thinwire {

// A matrix of a message, or elements between matrices that travel as they are (rank 0). Parts are in order, and no
// element is in none.
struct LowRankPlace {
  int64_t first = 0;                         // element of the message
  int64_t rows = 0, cols = 0;                // rank 0: one row
  int64_t p = 0, q = 0;                      // as LowRankMatrix; of rank 0, p: as RawPart::at
  int64_t rows_before = 0, cols_before = 0;  // sums over the matrices in front of it: of rows, of columns,
  int64_t squares = 0, vectors = 0;          // of rank^2, of rank
  int rank = 0;
  int matrix = 0;  // its number among the matrices
};

// Both factors are stored as on the host.
struct LowRankPlaces {
  const LowRankPlace* list = nullptr;
  int count = 0;
};

// A factor's element that meets many of the other's, as splat() of simd.h hands it on: -0 has become 0.
TW_DEVICE float splat_of(float v) {
  return 0.0f + v;
}

// The parts of a message on the host, and what launches and scratch are sized by.
struct LowRankParts {
  explicit LowRankParts(const LowRankLayout& layout);
  std::vector<LowRankPlace> list;
  LowRankPlace sums, most;  // over all matrices: rows, columns, rank^2 and rank; the largest rows, cols and rank
  int64_t most_raw = 0;     // elements of the largest part of rank 0
};

// A layout with its parts on a device, for the states of slots.
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

// Scratch of orthonormalising, of all matrices of a message. tall: for Householder reflections.
struct OrthonormalSpace {
  double* squares = nullptr;      // [2 rank^2] each: Gram matrix, small factor
  double* vectors = nullptr;      // [2 rank] each
  double* tall = nullptr;         // [(rank + 1) length] each
  unsigned* dependent = nullptr;  // [rank] each
  unsigned* states = nullptr;     // [1] each place
};

// In place: the p (is_p) or q of each matrix becomes what orthonormalize() makes of it, bit for bit. The device decides
// how many passes a matrix needs. most: the largest rows, cols and rank of all matrices. passes:
// kOrthonormalPasses; 0: Householder reflections at once.
void queue_orthonormalize(CudaQueue& queue, const LowRankPlaces& places, bool is_p, float* data,
                          const OrthonormalSpace& space, const LowRankPlace& most, int passes);

// What a message does to its matrices, queued as LowRankState does it on the host, bit for bit. Takes the scratch of
// the queue.
class LowRankWork {
 public:
  enum class Scratch : uint8_t { kProducts, kMessage };  // kMessage: with x, basis and tiles
  LowRankWork(CudaQueue& queue, const char* what, const LowRankOnDevice& message, Scratch scratch);
  // to = orthonormal(warm, or random numbers). warm == nullptr or *messages == 0: there was no message before.
  // messages: in device memory, or nullptr.
  void begin(const Msg& msg, Factor which, const float* warm, const int64_t* messages, float* to);
  void orthonormalize(Factor which, float* factor);
  // to = x q or x^T p, with the other factor. Raises `bad`.
  void multiply(const float* x, Factor result, const float* other, float* to);
  // The elements of no matrix, which raise `bad`, too.
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
