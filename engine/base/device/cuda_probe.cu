// An empty kernel is launched to learn whether the program holds code for this GPU.
#include <cuda_runtime.h>

#include "engine/base/device/cuda_check.h"

namespace thinwire {

// CMake 3.25 drops the language standard for this compiler in silence; the build passes it by hand.
static_assert(__cplusplus >= 202002L, "CUDA sources are compiled as C++20");

namespace {
__global__ void nothing() {}
}  // namespace

std::string probe_kernels() {
  nothing<<<1, 1>>>();
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return {};
  const bool has_no_code = error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
                           error == cudaErrorInvalidPtx;
  if (!has_no_code) TW_CUDA(error);  // throws: it comes from earlier work of this process, or from the machine
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

std::string built_architectures() {
  return THINWIRE_CUDA_BUILT_FOR;
}

}  // namespace thinwire
