// What the kernels of low rank share: the parts of a message in device memory, and orthonormal factors.
#pragma once

#include "compression/codecs/orthonormalize.h"
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

}  // namespace thinwire
