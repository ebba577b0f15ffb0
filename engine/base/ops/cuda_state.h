// What the CUDA backend keeps between calls of one Exec: library handles, scratch memory, cached plans of products and
// of attention.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "engine/base/device/cuda_check.h"
#include "engine/base/device/cuda_stream.h"
#include "engine/base/ops/fp8_weights.h"
#include "engine/base/ops/ops.h"
#include "engine/base/ops/product_key.h"

namespace thinwire {

class MatmulPlans;     // matmul_plans_cuda.h
struct MatmulPlace;    // matmul_plans_cuda.h
class FusedAttention;  // attention_fused.h

// Device memory that grows and is given back when the state goes. Growing waits for the stream first, and is refused
// while a graph is captured: run a shape once before capturing it.
class CudaScratch {
 public:
  explicit CudaScratch(Device& device) : device_(device) {}
  ~CudaScratch();
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;
  // At least `bytes` bytes, aligned to 512; content not defined.
  std::byte* take(size_t bytes, cudaStream_t stream);
  uint64_t moves() const { return moves_; }  // how often the memory was replaced

 private:
  Device& device_;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t moves_ = 0;
};

class CudaState : public OpState {
 public:
  explicit CudaState(Device& device);
  ~CudaState() override;

  Device& device() { return device_; }
  int ordinal() const { return ordinal_; }
  int capability() const { return capability_; }                 // 80, 90, 100 ...
  size_t shared_per_block() const { return shared_per_block_; }  // with opt-in, bytes

  // Scratch for the op that is being queued: one buffer, asked for once per op and cut up by it. The next op may get
  // the same memory: that is safe because one Exec queues on one stream.
  std::byte* scratch(size_t bytes, cudaStream_t stream) { return scratch_.take(bytes, stream); }

  // A word of device memory where kernels report what the host cannot check: token ids and targets out of range set
  // bits of CudaFault by atomicOr and read a harmless value instead. The trainer calls check_faults() once a step,
  // where it waits anyway.
  unsigned* fault_word() { return fault_word_; }
  void check_faults(Stream& stream) override;
  uint64_t memory_moves() const override {
    return scratch_.moves() + product_scratch_.moves() + attention_scratch_.moves();
  }

  // Whether products of 16-bit inputs are fused with GELU and with row sums. THINWIRE_CUDA_FUSE=0 in the environment
  // turns that off; the bits differ.
  ProductRules product_rules() const { return {capability_, fuses_}; }
  // For matmul_cuda alone, which does not touch scratch(): an op may call products while it holds scratch.
  MatmulPlace product_place(cudaStream_t stream);
  CudaScratch& product_scratch() { return product_scratch_; }
  Fp8Weights& fp8_weights() { return fp8_weights_; }
  MatmulPlans& matmul_plans() { return *matmul_plans_; }
  // nullptr where cuDNN is not built in, or cannot be loaded here.
  FusedAttention* fused_attention() { return fused_attention_.get(); }
  CudaScratch& attention_scratch() { return attention_scratch_; }

 private:
  Device& device_;
  int ordinal_ = 0, capability_ = 0;
  size_t shared_per_block_ = 0;
  bool fuses_ = true;
  CudaScratch scratch_, product_scratch_, attention_scratch_;
  Fp8Weights fp8_weights_;
  unsigned* fault_word_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  std::byte* cublas_workspace_ = nullptr;
  size_t cublas_workspace_bytes_ = 0;
  std::unique_ptr<MatmulPlans> matmul_plans_;
  std::unique_ptr<FusedAttention> fused_attention_;
};

// Bits of CudaState::fault_word().
enum CudaFault : unsigned { kFaultToken = 1, kFaultTarget = 2 };

// The state of an Exec that was made by make_exec(cuda_ops(), ...); CHECKs that it is one.
CudaState& state_of(Exec& exec);

inline cudaStream_t stream_of(Exec& exec) {
  return cuda_stream_of(exec.stream);
}

}  // namespace thinwire
