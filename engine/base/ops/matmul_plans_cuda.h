// Which cuBLASLt algorithm computes which product: asked for once per shape, dtype, epilogue and alignment, and kept.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/base/core/dtype.h"

namespace thinwire {

enum class MatmulEpilogue : uint8_t { kNone, kBias, kGelu, kGeluBias, kGeluGradient, kRowSums };

enum class Fp8Kind : uint8_t { kNone, kE4m3, kE5m2 };

// A product of column-major matrices as cuBLASLt sees it: d[rows, cols] = op(a)[rows, depth] op(b)[depth, cols] + c.
struct MatmulKey {
  int64_t rows = 0, cols = 0, depth = 0;
  bool trans_a = false, trans_b = false, accumulate = false;
  DType input = DType::f32, output = DType::f32;
  MatmulEpilogue epilogue = MatmulEpilogue::kNone;
  Fp8Kind fp8_a = Fp8Kind::kNone, fp8_b = Fp8Kind::kNone;  // instead of `input`, both or neither
  // Bytes that the pointers are multiples of, at most 256; 0 for what is not there. The library trusts these.
  uint16_t align_a = 0, align_b = 0, align_d = 0, align_vector = 0, align_aux = 0;
  auto operator<=>(const MatmulKey&) const = default;
};

struct MatmulPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* vector = nullptr;  // bias [rows] of the output's dtype, or the row sums of b [cols] of the output's dtype
  void* aux = nullptr;     // input of GELU, [rows, cols] of the output's dtype
  const void *scale_a = nullptr, *scale_b = nullptr;  // fp8: fp32 factors, on the device, that undo the scaling
};

class MatmulPlans {
 public:
  MatmulPlans() = default;
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // Queues the product; false with nothing queued where the library has no algorithm for it. The first call of a shape
  // chooses: the library's first suggestion, or, with `measure`, the fastest of its suggestions on the operands at
  // hand. Which one that is depends on the day, and the bits with it: for runs that need not repeat theirs.
  bool run(cublasLtHandle_t handle, const MatmulKey& key, const MatmulPointers& at, void* workspace,
           size_t workspace_bytes, cudaStream_t stream, bool measure);
  size_t size() const { return plans_.size(); }

 private:
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    bool found = false;
  };
  struct Place {
    void* workspace;
    size_t bytes;
    cudaStream_t stream;
  };
  static cublasStatus_t queue(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                              bool accumulate, const MatmulPointers& at, const Place& place);
  static Plan make(cublasLtHandle_t handle, const MatmulKey& key, const MatmulPointers& at, const Place& place,
                   bool measure);
  static float measured(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                        const MatmulPointers& at, const Place& place);
  static void end(Plan& plan);

  std::map<MatmulKey, Plan> plans_;
};

// The largest power of two up to 256 that `pointer` is a multiple of.
uint16_t alignment_of(const void* pointer);

}  // namespace thinwire
