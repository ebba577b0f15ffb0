// Which cuBLASLt algorithm makes which product: looked up or asked for once per key, and kept.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/device/cuda_check.h"
#include "engine/base/ops/fp8_weights.h"
#include "engine/base/ops/ops.h"
#include "engine/base/ops/product_table.h"

namespace thinwire {

struct MatmulPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* vector = nullptr;  // bias [rows] of the output's dtype, or the row sums of b [cols] of the output's dtype
  void* aux = nullptr;     // input of GELU, [rows, cols] of the output's dtype
  const void *scale_a = nullptr, *scale_b = nullptr;  // fp8: fp32 factors, on the device, that undo the scaling
};

// Where products run: cuBLASLt's handle, its workspace, and the stream.
struct MatmulPlace {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  size_t bytes = 0;
  cudaStream_t stream = nullptr;
};

// A product as cuBLASLt describes it.
class MatmulPlan {
 public:
  MatmulPlan(const MatmulKey& key, const MatmulPointers& at);
  ~MatmulPlan();
  MatmulPlan(const MatmulPlan&) = delete;
  MatmulPlan& operator=(const MatmulPlan&) = delete;

  // The library's suggestions, best first, none where it has no kernel. ordered: only those whose partial sums, if
  // any, are put together in a pass of their own.
  std::vector<cublasLtMatmulAlgo_t> suggestions(const MatmulPlace& place, bool ordered) const;
  bool takes(const cublasLtMatmulAlgo_t& algorithm, const MatmulPlace& place) const;
  cublasStatus_t queue(const cublasLtMatmulAlgo_t& algorithm, const MatmulPointers& at, const MatmulPlace& place) const;
  // Milliseconds of one run, the least of a few; infinite where it fails.
  float measured(const cublasLtMatmulAlgo_t& algorithm, const MatmulPointers& at, const MatmulPlace& place) const;

 private:
  MatmulKey key_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

class MatmulPlans {
 public:
  // Queues the product; false with nothing queued where the library has no algorithm for it. The first call of a shape
  // chooses: what the table says, else the library's first suggestion, or, where not `deterministic`, the fastest of
  // its suggestions on the operands at hand. Which one that is depends on the day, and the bits with it.
  bool run(const MatmulKey& key, const MatmulPointers& at, const MatmulPlace& place, bool deterministic);
  void use(const ProductTable& table) { table_ = &table; }  // before the first product

 private:
  struct Chosen {
    Chosen(const MatmulKey& key, const MatmulPointers& at) : plan(key, at) {}
    MatmulPlan plan;
    std::optional<cublasLtMatmulAlgo_t> algorithm;
  };
  const ProductTable* table_ = nullptr;
  std::map<MatmulKey, Chosen> plans_;
};

// How cuBLASLt's algorithms are stored.
inline cublasLtMatmulAlgo_t library_form(const ProductAlgorithm& stored) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof algorithm == sizeof stored.words);
  std::memcpy(&algorithm, stored.words.data(), sizeof algorithm);
  return algorithm;
}

inline ProductAlgorithm stored_form(const cublasLtMatmulAlgo_t& algorithm) {
  ProductAlgorithm stored;
  std::memcpy(stored.words.data(), &algorithm, sizeof algorithm);
  return stored;
}

// Queues: turned[c, r] and lying[r, c] of `to`, those that are there, = fp8(x[r, c] * scale) with scale = largest of
// the format / largest |x|, and words[kFp8Factor] = 1 / scale as fp32, which products multiply by. words: kFp8Words of
// memory, on 16 bytes. x: bf16 or fp16; rows and columns are multiples of 16. What is not finite in x makes all of the
// product NaN (invariant 8): a scale of 0 or NaN, never a clamped number. All zeros have scale 1. Bits do not depend on
// timing: a maximum has no order.
void queue_fp8(const View& x, Fp8Kind kind, const Fp8Copy& to, cudaStream_t stream);

// The contract of matmul_cuda without the fused GELU forms by a plain tiled kernel of ours: the fallback, and an oracle
// for tests. Sums run over k in ascending order with one accumulator.
void matmul_simple_cuda(Exec& exec, const Matmul& op);

// The library says "execution failed" of whatever went wrong on the GPU before.
[[noreturn]] inline void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  throw_gpu_fault(call, file, line);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) cuda_failed(cudaErrorMemoryAllocation, call, file, line);
  throw Error(ExitCode::kInternal, std::string("cuBLASLt: ") + cublasLtGetStatusName(status) + " in " + call + " at " +
                                       file + ":" + std::to_string(line));
}

}  // namespace thinwire

// Every failure of cuBLASLt names the call, its file and line.
#define TW_CUBLAS(call)                                                                           \
  do {                                                                                            \
    if (const cublasStatus_t tw_status = (call); tw_status != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      ::thinwire::cublas_failed(tw_status, #call, __FILE__, __LINE__);                            \
  } while (0)
