// Descriptors, heuristics and calls of cuBLASLt.
#include "engine/base/ops/matmul_plans_cuda.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  TW_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "no product of ", name_of(dtype));
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

cudaDataType_t operand_type(DType dtype, Fp8Kind fp8) {
  if (fp8 == Fp8Kind::kNone) return cuda_type(dtype);
  return fp8 == Fp8Kind::kE4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cublasLtEpilogue_t epilogue_of(MatmulEpilogue epilogue) {
  switch (epilogue) {
    case MatmulEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case MatmulEpilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case MatmulEpilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case MatmulEpilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case MatmulEpilogue::kRowSums:
      return CUBLASLT_EPILOGUE_BGRADB;
    case MatmulEpilogue::kNone:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <typename T>
void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t which, const T& value) {
  TW_CUBLAS(cublasLtMatmulDescSetAttribute(product, which, &value, sizeof value));
}

template <typename T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which, const T& value) {
  TW_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
}

void set_pointers(cublasLtMatmulDesc_t product, const MatmulPointers& at) {
  if (at.vector != nullptr) set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.vector);
  if (at.aux != nullptr) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.aux);
  if (at.scale_a != nullptr) set(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.scale_a);
  if (at.scale_b != nullptr) set(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.scale_b);
}

}  // namespace

MatmulPlan::MatmulPlan(const MatmulKey& key, const MatmulPointers& at) : key_(key) {
  // fp32 sums and, for fp32 inputs, fp32 products: the FAST variants, which would round inputs, are never named.
  TW_CUBLAS(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto op = [](bool trans) { return trans ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(product_, CUBLASLT_MATMUL_DESC_TRANSA, op(key.trans_a));
  set(product_, CUBLASLT_MATMUL_DESC_TRANSB, op(key.trans_b));
  set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key.epilogue));
  if (at.vector != nullptr) set(product_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(key.output));
  if (at.aux != nullptr) {
    set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.rows);
    set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(key.output));
  }
  if (key.fp8_a != Fp8Kind::kNone) {
    // Partial sums with 14 bits are good enough forward, not for gradients.
    const bool forward = key.fp8_a == Fp8Kind::kE4m3 && key.fp8_b == Fp8Kind::kE4m3;
    set(product_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(forward ? 1 : 0));
  }
  set_pointers(product_, at);  // the heuristic reads their alignment

  const auto layout = [](cublasLtMatrixLayout_t* to, cudaDataType_t type, bool trans, int64_t rows, int64_t cols) {
    const int64_t r = trans ? cols : rows, c = trans ? rows : cols;
    TW_CUBLAS(cublasLtMatrixLayoutCreate(to, type, static_cast<uint64_t>(r), static_cast<uint64_t>(c), r));
  };
  layout(&a_, operand_type(key.input, key.fp8_a), key.trans_a, key.rows, key.depth);
  layout(&b_, operand_type(key.input, key.fp8_b), key.trans_b, key.depth, key.cols);
  layout(&d_, cuda_type(key.output), false, key.rows, key.cols);
}

MatmulPlan::~MatmulPlan() {
  (void)cublasLtMatrixLayoutDestroy(a_);
  (void)cublasLtMatrixLayoutDestroy(b_);
  (void)cublasLtMatrixLayoutDestroy(d_);
  (void)cublasLtMatmulDescDestroy(product_);
}

std::vector<cublasLtMatmulAlgo_t> MatmulPlan::suggestions(const MatmulPlace& place, bool ordered) const {
  cublasLtMatmulPreference_t preference = nullptr;
  TW_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{place.bytes});
  // Sums in place take turns at the output, in an order that nobody promises.
  constexpr uint32_t kOrdered = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  if (ordered) set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kOrdered);
  // Without these the library takes 256 for granted and reads past what there is.
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{key_.align_a});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{key_.align_b});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{key_.align_d});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{key_.align_d});
  std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      place.handle, product_, a_, b_, d_, d_, preference, static_cast<int>(results.size()), results.data(), &count);
  (void)cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    cublas_failed(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& r = results[static_cast<size_t>(i)];
    if (r.state == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= place.bytes) candidates.push_back(r.algo);
  }
  return candidates;
}

bool MatmulPlan::takes(const cublasLtMatmulAlgo_t& algorithm, const MatmulPlace& place) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(place.handle, product_, a_, b_, d_, d_, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= place.bytes;
}

cublasStatus_t MatmulPlan::queue(const cublasLtMatmulAlgo_t& algorithm, const MatmulPointers& at,
                                 const MatmulPlace& place) const {
  set_pointers(product_, at);
  const float alpha = 1.0f, beta = key_.accumulate ? 1.0f : 0.0f;
  // (With beta 0 what d holds is not read, NaN included.)
  return cublasLtMatmul(place.handle, product_, &alpha, at.a, a_, at.b, b_, &beta, at.d, d_, at.d, d_, &algorithm,
                        place.workspace, place.bytes, place.stream);
}

float MatmulPlan::measured(const cublasLtMatmulAlgo_t& algorithm, const MatmulPointers& at,
                           const MatmulPlace& place) const {
  constexpr int kWarm = 2, kRuns = 6;
  cudaEvent_t begin = nullptr, end = nullptr;
  TW_CUDA(cudaEventCreate(&begin));
  TW_CUDA(cudaEventCreate(&end));
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kWarm + kRuns; ++i) {
    TW_CUDA(cudaEventRecord(begin, place.stream));
    if (queue(algorithm, at, place) != CUBLAS_STATUS_SUCCESS) break;
    TW_CUDA(cudaEventRecord(end, place.stream));
    TW_CUDA(cudaEventSynchronize(end));
    float ms = 0.0f;
    TW_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= kWarm) best = std::min(best, ms);
  }
  TW_CUDA(cudaEventDestroy(begin));
  TW_CUDA(cudaEventDestroy(end));
  return best;
}

namespace {

// Of what is not the operands at hand: the result, and sums that are written beside it.
size_t result_bytes(const MatmulKey& key) {
  return (static_cast<size_t>(key.rows * key.cols) * size_of(key.output) + 255) / 256 * 256;
}
size_t vector_bytes(const MatmulKey& key) {
  return static_cast<size_t>(std::max(key.rows, key.cols)) * size_of(key.output);
}

// The fastest on the operands at hand; results go elsewhere. Where there is no memory for that nothing is measured.
cublasLtMatmulAlgo_t fastest_here(const MatmulKey& key, const MatmulPlan& plan,
                                  const std::vector<cublasLtMatmulAlgo_t>& candidates, const MatmulPointers& at,
                                  const MatmulPlace& place) {
  cublasLtMatmulAlgo_t chosen = candidates.front();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TW_CUDA(cudaStreamIsCapturing(place.stream, &capture));
  if (candidates.size() == 1 || capture != cudaStreamCaptureStatusNone) return chosen;
  MatmulPointers aside = at;
  if (cudaMalloc(&aside.d, result_bytes(key) + vector_bytes(key)) != cudaSuccess) {
    (void)cudaGetLastError();  // not sticky: the next call shall not report it again
    return chosen;
  }
  if (key.epilogue == MatmulEpilogue::kRowSums) aside.vector = static_cast<char*>(aside.d) + result_bytes(key);
  float best = std::numeric_limits<float>::infinity();
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    const float ms = plan.measured(candidate, aside, place);
    if (ms < best) best = ms, chosen = candidate;
  }
  TW_CUDA(cudaFree(aside.d));
  return chosen;
}

}  // namespace

bool MatmulPlans::run(const MatmulKey& key, const MatmulPointers& at, const MatmulPlace& place, bool deterministic) {
  const auto [found, fresh] = plans_.try_emplace(key, key, at);
  Chosen& chosen = found->second;
  if (fresh) {
    if (table_ != nullptr && table_->count(text_of(key)) > 0) {
      chosen.algorithm = library_form(table_->at(text_of(key)));
    } else if (const auto candidates = chosen.plan.suggestions(place, deterministic); !candidates.empty()) {
      chosen.algorithm = deterministic ? candidates.front() : fastest_here(key, chosen.plan, candidates, at, place);
    }
  }
  if (!chosen.algorithm) return false;
  TW_CUBLAS(chosen.plan.queue(*chosen.algorithm, at, place));
  return true;
}

}  // namespace thinwire
