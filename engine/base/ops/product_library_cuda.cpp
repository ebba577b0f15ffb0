// cuBLASLt as a library to choose from: suggestions, timed on random operands of their own.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

// Operands and results of one product, on memory that goes with it.
class TrialOperands {
 public:
  TrialOperands(Exec& exec, CudaScratch& memory, const MatmulKey& key) {
    const bool fp8 = key.fp8_a != Fp8Kind::kNone;
    const int64_t in = fp8 ? 1 : static_cast<int64_t>(size_of(key.input)),
                  out = static_cast<int64_t>(size_of(key.output));
    const int64_t result = key.rows * key.cols * out;
    const int64_t sizes[] = {key.rows * key.depth * in,
                             key.depth * key.cols * in,
                             result,
                             key.align_vector > 0 ? std::max(key.rows, key.cols) * out : 0,
                             key.align_aux > 0 ? result : 0,
                             fp8 ? int64_t{sizeof(float)} : 0};
    int64_t total = 0;
    for (int64_t size : sizes) total += padded(size);
    std::byte* next = memory.take(static_cast<size_t>(total), stream_of(exec));
    void* parts[6] = {};
    for (size_t i = 0; i < 6; ++i) {
      if (sizes[i] == 0) continue;
      parts[i] = std::exchange(next, next + padded(sizes[i]));
      // Zeros would be faster than what a run multiplies. (Bytes of 16-bit numbers do for fp8.)
      const DType dtype = key.input == DType::f32 ? DType::f32 : DType::bf16;
      const auto numbers = sizes[i] / static_cast<int64_t>(size_of(dtype));
      fill_normal_cuda(exec, {.x = View(parts[i], dtype, {numbers}), .std = 1.0f, .seed = i});
    }
    if (fp8) fill_constant_cuda(exec, {View(parts[5], DType::f32, {1}), 1.0f});
    at = {parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[5]};
  }
  MatmulPointers at;

 private:
  static int64_t padded(int64_t bytes) { return (bytes + 511) / 512 * 512; }
};

class CublasProducts final : public ProductLibrary {
 public:
  explicit CublasProducts(Exec& exec) : exec_(exec), state_(state_of(exec)), memory_(state_.device()) {}

  std::string place() const override {
    cudaDeviceProp properties{};
    TW_CUDA(cudaGetDeviceProperties(&properties, state_.ordinal()));
    return std::string(properties.name) + " (sm_" + std::to_string(state_.capability()) + ", " +
           std::to_string(properties.multiProcessorCount) + " multiprocessors), cuBLASLt " +
           std::to_string(cublasLtGetVersion());
  }
  ProductRules rules() const override { return state_.product_rules(); }
  bool takes(const MatmulKey& key, const ProductAlgorithm& algorithm) override {
    return MatmulPlan(key, pretended(key)).takes(library_form(algorithm), place_of_products());
  }
  std::vector<ProductAlgorithm> suggestions(const MatmulKey& key) override {
    std::vector<ProductAlgorithm> list;
    for (const cublasLtMatmulAlgo_t& algorithm : MatmulPlan(key, pretended(key)).suggestions(place_of_products(), true))
      list.push_back(stored_form(algorithm));
    return list;
  }
  double measured(const MatmulKey& key, const ProductAlgorithm& algorithm) override {
    const TrialOperands operands(exec_, memory_, key);
    return MatmulPlan(key, operands.at).measured(library_form(algorithm), operands.at, place_of_products());
  }

 private:
  MatmulPlace place_of_products() { return state_.product_place(stream_of(exec_)); }

  // Pointers that nobody follows, as aligned as the key says: the heuristic looks at those of vectors.
  static MatmulPointers pretended(const MatmulKey& key) {
    const auto at = [](uint16_t alignment) { return reinterpret_cast<void*>(uintptr_t{alignment}); };
    const bool fp8 = key.fp8_a != Fp8Kind::kNone;
    void* const scale = at(fp8 ? kScratchAlignment : uint16_t{0});
    return {at(key.align_a), at(key.align_b), at(key.align_d), at(key.align_vector), at(key.align_aux), scale, scale};
  }

  Exec& exec_;
  CudaState& state_;
  CudaScratch memory_;
};

}  // namespace

std::unique_ptr<ProductLibrary> make_product_library(Exec& exec) {
  return dynamic_cast<CudaState*>(exec.state.get()) != nullptr ? std::make_unique<CublasProducts>(exec) : nullptr;
}

void use_products(Exec& exec, const ProductTable& table) {
  if (auto* state = dynamic_cast<CudaState*>(exec.state.get()); state != nullptr) state->matmul_plans().use(table);
}

}  // namespace thinwire
