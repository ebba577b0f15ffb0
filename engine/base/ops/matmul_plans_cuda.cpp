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

uint16_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256;
  return static_cast<uint16_t>(address & (~address + 1));
}

MatmulPlans::~MatmulPlans() {
  for (auto& [key, plan] : plans_) end(plan);
}

void MatmulPlans::end(Plan& plan) {
  if (plan.a != nullptr) (void)cublasLtMatrixLayoutDestroy(plan.a);
  if (plan.b != nullptr) (void)cublasLtMatrixLayoutDestroy(plan.b);
  if (plan.d != nullptr) (void)cublasLtMatrixLayoutDestroy(plan.d);
  if (plan.product != nullptr) (void)cublasLtMatmulDescDestroy(plan.product);
  plan = {};
}

cublasStatus_t MatmulPlans::queue(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                  bool accumulate, const MatmulPointers& at, const Place& place) {
  set_pointers(plan.product, at);
  const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  // (With beta 0 what d holds is not read, NaN included.)
  return cublasLtMatmul(handle, plan.product, &alpha, at.a, plan.a, at.b, plan.b, &beta, at.d, plan.d, at.d, plan.d,
                        &algorithm, place.workspace, place.bytes, place.stream);
}

// Milliseconds of one run, the least of a few; infinite where it fails.
float MatmulPlans::measured(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                            const MatmulPointers& at, const Place& place) {
  constexpr int kWarm = 2, kRuns = 6;
  cudaEvent_t begin = nullptr, end = nullptr;
  TW_CUDA(cudaEventCreate(&begin));
  TW_CUDA(cudaEventCreate(&end));
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kWarm + kRuns; ++i) {
    TW_CUDA(cudaEventRecord(begin, place.stream));
    if (queue(handle, plan, algorithm, false, at, place) != CUBLAS_STATUS_SUCCESS) break;
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

MatmulPlans::Plan MatmulPlans::make(cublasLtHandle_t handle, const MatmulKey& key, const MatmulPointers& at,
                                    const Place& place, bool measure) {
  Plan plan;
  // fp32 sums and, for fp32 inputs, fp32 products: the FAST variants, which would round inputs, are never named.
  TW_CUBLAS(cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto op = [](bool trans) { return trans ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, op(key.trans_a));
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, op(key.trans_b));
  set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key.epilogue));
  if (at.vector != nullptr) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(key.output));
  if (at.aux != nullptr) {
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.rows);
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(key.output));
  }
  if (key.fp8_a != Fp8Kind::kNone) {
    // Partial sums with 14 bits are good enough forward, not for gradients.
    const bool forward = key.fp8_a == Fp8Kind::kE4m3 && key.fp8_b == Fp8Kind::kE4m3;
    set(plan.product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(forward ? 1 : 0));
  }
  set_pointers(plan.product, at);  // the heuristic reads their alignment

  const auto layout = [](cublasLtMatrixLayout_t* to, cudaDataType_t type, bool trans, int64_t rows, int64_t cols) {
    const int64_t r = trans ? cols : rows, c = trans ? rows : cols;
    TW_CUBLAS(cublasLtMatrixLayoutCreate(to, type, static_cast<uint64_t>(r), static_cast<uint64_t>(c), r));
  };
  layout(&plan.a, operand_type(key.input, key.fp8_a), key.trans_a, key.rows, key.depth);
  layout(&plan.b, operand_type(key.input, key.fp8_b), key.trans_b, key.depth, key.cols);
  layout(&plan.d, cuda_type(key.output), false, key.rows, key.cols);

  cublasLtMatmulPreference_t preference = nullptr;
  TW_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{place.bytes});
  // Without these the library takes 256 for granted and reads past what there is.
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{key.align_a});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{key.align_b});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{key.align_d});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{key.align_d});
  std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, plan.product, plan.a, plan.b, plan.d, plan.d, preference,
                                     static_cast<int>(results.size()), results.data(), &count);
  (void)cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    cublas_failed(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& r = results[static_cast<size_t>(i)];
    if (r.state == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= place.bytes) candidates.push_back(r.algo);
  }
  if (candidates.empty()) return plan;
  plan.found = true;
  plan.algorithm = candidates.front();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (measure) TW_CUDA(cudaStreamIsCapturing(place.stream, &capture));
  if (!measure || candidates.size() == 1 || capture != cudaStreamCaptureStatusNone) return plan;
  // Results go elsewhere; where there is no memory for that, nothing is measured.
  const size_t result_bytes = static_cast<size_t>(key.rows * key.cols) * size_of(key.output),
               vector_bytes =
                   key.epilogue == MatmulEpilogue::kRowSums ? static_cast<size_t>(key.cols) * size_of(key.output) : 0;
  MatmulPointers aside = at;
  void* memory = nullptr;
  if (cudaMalloc(&memory, result_bytes + 256 + vector_bytes) != cudaSuccess) {
    (void)cudaGetLastError();  // not sticky: the next call shall not report it again
    return plan;
  }
  aside.d = memory;
  if (vector_bytes > 0) aside.vector = static_cast<char*>(memory) + (result_bytes + 255) / 256 * 256;
  float best = std::numeric_limits<float>::infinity();
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    const float ms = measured(handle, plan, candidate, aside, place);
    if (ms < best) best = ms, plan.algorithm = candidate;
  }
  TW_CUDA(cudaFree(memory));
  return plan;
}

bool MatmulPlans::run(cublasLtHandle_t handle, const MatmulKey& key, const MatmulPointers& at, void* workspace,
                      size_t workspace_bytes, cudaStream_t stream, bool measure) {
  const Place place{workspace, workspace_bytes, stream};
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make(handle, key, at, place, measure)).first;
  const Plan& plan = found->second;
  if (!plan.found) return false;
  TW_CUBLAS(queue(handle, plan, plan.algorithm, key.accumulate, at, place));
  return true;
}

}  // namespace thinwire
