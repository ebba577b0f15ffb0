// Which cuBLASLt algorithm computes which product: asked for once per shape, dtype, epilogue and alignment, and kept.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/ops/ops.h"

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

inline constexpr int kFp8Words = 8, kFp8Factor = 4;  // the factor stands on 16 bytes

// Queues: to[c, r] (transposed) or to[r, c] = fp8(x[r, c] * scale) with scale = largest of the format / largest |x|,
// and words[kFp8Factor] = 1 / scale as fp32, which products multiply by. words: kFp8Words of scratch, on 16 bytes. x:
// bf16 or fp16; rows and columns are multiples of 16. What is not finite in x makes all of the product NaN (invariant
// 8): a scale of 0 or NaN, never a clamped number. All zeros have scale 1. Bits do not depend on timing: a maximum has
// no order.
void queue_fp8(const View& x, bool transposed, Fp8Kind kind, std::byte* to, uint32_t* words, cudaStream_t stream);

// The contract of matmul_cuda without the fused GELU forms by a plain tiled kernel of ours: the fallback, and an oracle
// for tests. Sums run over k in ascending order with one accumulator.
void matmul_simple_cuda(Exec& exec, const Matmul& op);

[[noreturn]] inline void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
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
