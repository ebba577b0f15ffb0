// Dense products of row-major matrices through oneDNN whose bits do not depend on the number of threads; oneDNN's
// primitives are kept for later calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/core/dtype.h"

namespace thinwire {

// Memory that only grows: what an op needs while it runs. Aligned to 64 bytes at least, not initialised; growing loses
// the content.
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;
  ~ScratchBuffer();
  // At least `bytes` bytes, valid until the next take; throws Error(kBadConfig) naming the size when there is not
  // enough memory.
  std::span<std::byte> take(size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

// c[m,n] = op(a) op(b) (+ bias[n]) (+ c, where accumulate). a: [m,k], or [k,m] when trans_a; b: [k,n], or [n,k] when
// trans_b. lda, ldb, ldc: distances of rows, in elements. a, b and bias are of type `input`, fp32 or bf16; c of type
// `output`, fp32, or bf16 with bf16 inputs. m, n, k > 0. bias may be null. c overlaps none of the others.
struct TiledProduct {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool trans_a = false, trans_b = false, accumulate = false;
  DType input = DType::f32, output = DType::f32;
};

// oneDNN alone gives other bits for other numbers of threads: with a transposed a (its blocked kernels, K >= 2048), AMX
// (bf16, K > 1024) or its classic gemm (AVX2, any layout) it divides K among threads when there are few blocks of c.
// Two ways out:
// - a not transposed on AVX-512, but for AMX and K > 1024: its blocked kernels ("brg") never divide K there, and run
//   with its own threads;
// - else c is cut into tiles by the shape alone, and each tile is a single-threaded product over all of K. Measured on
//   2 busy cores (AVX-512-bf16), weight gradients run so at 0.92-1.2 times the speed of oneDNN's own threads in fp32
//   and at 1.0-1.2 times in bf16.
// Inside its classic gemm oneDNN takes packing memory from malloc at every call; all else is kept from the first call
// on. Not thread-safe: an Exec has its own.
class TiledProducts {
 public:
  TiledProducts();
  ~TiledProducts();
  TiledProducts(const TiledProducts&) = delete;
  TiledProducts& operator=(const TiledProducts&) = delete;

  // Whether inputs may be bf16: where the machine has the instructions and ONEDNN_MAX_CPU_ISA leaves oneDNN AVX-512.
  bool takes_bf16() const;

  // Makes primitives at the first call with these sizes, flags and threads, nothing later.
  void run(const TiledProduct& product, int threads);

  // Primitives made so far: a test sees that a steady state makes none.
  int64_t primitives_made() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
