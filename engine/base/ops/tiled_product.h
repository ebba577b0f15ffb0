// Dense products of row-major matrices through oneDNN, cut into one tile per thread; primitives are kept for the next call.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/base/core/dtype.h"

namespace thinwire {

// c[m,n] = op(a) op(b) (+ bias[n]) (+ c). a: [m,k] with row stride lda, or [k,m] when trans_a; b: [k,n], or [n,k] when trans_b.
// input: fp32 or bf16 (a, b, bias); output: fp32, or bf16 with bf16 inputs. m, n, k > 0. bias may be null.
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

// Every tile is a single-threaded product over all of k, because oneDNN's own threading divides k among threads in some shapes
// (transposed a, k >= 2048, few tiles; on AVX2 any large k), which changes the bits with the number of threads. Tiles are as fast
// as its own threading and 8-14 % faster where a is transposed (measured on 2 cores). One user thread at a time.
class TiledProducts {
 public:
  TiledProducts();
  ~TiledProducts();
  TiledProducts(const TiledProducts&) = delete;
  TiledProducts& operator=(const TiledProducts&) = delete;

  // Same bits for any `threads`. Makes primitives at the first call with these sizes, flags and threads, nothing later.
  void run(const TiledProduct& product, int threads);

  // Primitives made so far: a test sees that a steady state makes none.
  int64_t primitives_made() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
