// Making and ending the CUDA state: library handles, workspaces, scratch that grows.
#include "engine/base/ops/cuda_state.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/matmul_plans_cuda.h"

namespace thinwire {

CudaScratch::~CudaScratch() {
  if (data_ != nullptr) device_.release(data_, capacity_);
}

std::byte* CudaScratch::take(size_t bytes, cudaStream_t stream) {
  if (bytes <= capacity_) return data_;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TW_CUDA(cudaStreamIsCapturing(stream, &capture));
  TW_CHECK(capture == cudaStreamCaptureStatusNone, "an op wants ", bytes,
           " bytes of scratch while a graph is captured, ", capacity_,
           " are there: run every shape once before capturing");
  TW_CUDA(cudaStreamSynchronize(stream));  // queued kernels may still use the old buffer
  // Half as much again, so that a slowly growing demand does not allocate at every call; of large buffers, which the
  // plan prices at what ops ask for, only a little more.
  const size_t more = std::min(capacity_ / 2, size_t{64} << 20);
  const size_t wanted = (std::max(bytes, capacity_ + more) + 511) / 512 * 512;
  if (data_ != nullptr) device_.release(data_, capacity_);
  data_ = nullptr, capacity_ = 0;
  ++moves_;
  data_ = static_cast<std::byte*>(device_.allocate(wanted));
  capacity_ = wanted;
  return data_;
}

CudaState::CudaState(Device& device)
    : device_(device),
      ordinal_(device.ordinal()),
      scratch_(device),
      product_scratch_(device),
      attention_scratch_(device),
      fp8_weights_(device) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    TW_CUDA(cudaDeviceGetAttribute(&value, which, ordinal_));
    return value;
  };
  TW_CUDA(cudaSetDevice(ordinal_));
  capability_ = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  shared_per_block_ = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const char* fuse = std::getenv("THINWIRE_CUDA_FUSE");
  fuses_ = fuse == nullptr || std::string(fuse) != "0";
  // What the vendor recommends: larger workspaces open algorithms on Hopper and later.
  cublas_workspace_bytes_ = capability_ >= 90 ? size_t{32} << 20 : size_t{4} << 20;
  cublas_workspace_ = static_cast<std::byte*>(device.allocate(cublas_workspace_bytes_));
  fault_word_ = static_cast<unsigned*>(device.allocate(sizeof(unsigned)));
  if (const cublasStatus_t status = cublasLtCreate(&cublas_); status != CUBLAS_STATUS_SUCCESS) {
    throw_gpu_fault("cublasLtCreate", __FILE__, __LINE__);
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
      cuda_failed(cudaErrorMemoryAllocation, "cublasLtCreate", __FILE__, __LINE__);
    throw Error(ExitCode::kBadConfig, std::string("cuBLASLt cannot start: ") + cublasLtGetStatusString(status) +
                                          "; check that the CUDA libraries fit the driver");
  }
  matmul_plans_ = std::make_unique<MatmulPlans>();
  fused_attention_ = make_fused_attention(*this);
}

CudaState::~CudaState() {
  (void)cudaSetDevice(ordinal_);
  (void)cudaDeviceSynchronize();  // what is queued uses the workspaces
  fused_attention_.reset();
  if (cublas_ != nullptr) (void)cublasLtDestroy(cublas_);
  device_.release(fault_word_, sizeof(unsigned));
  device_.release(cublas_workspace_, cublas_workspace_bytes_);
}

MatmulPlace CudaState::product_place(cudaStream_t stream) {
  return {cublas_, cublas_workspace_, cublas_workspace_bytes_, stream};
}

void CudaState::check_faults(Stream& stream) {
  unsigned faults = 0;
  device_.copy_to_host(&faults, fault_word_, sizeof faults, stream).wait_on_host();
  TW_CHECK((faults & kFaultToken) == 0, "a token lies outside the embedding table");
  TW_CHECK((faults & kFaultTarget) == 0, "a target lies outside the valid columns");
}

CudaState& state_of(Exec& exec) {
  auto* state = dynamic_cast<CudaState*>(exec.state.get());
  TW_CHECK(state != nullptr, "this Exec was not made by make_exec(cuda_ops(), ...)");
  return *state;
}

}  // namespace thinwire
