// How CUDA calls are checked: every failure names the call, its file and line, and CUDA's own name for it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace thinwire {

// Throws Error: kBadConfig where memory ran out, kHungPeer (start again) where the GPU or NVLink reports an
// uncorrectable error or the GPU, which was there, is gone, else kInternal (a fault of ours; a context that a kernel
// broke stays broken, so nobody tries again).
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);

// Whether it is an uncorrectable error of GPU or NVLink. (Contained: one that the GPU kept away from other processes.)
bool is_gpu_fault(cudaError_t error);

// For libraries that keep CUDA's error to themselves: throws as cuda_failed() where there was such an error, or the GPU
// is gone, else does nothing. Does not wait.
void throw_gpu_fault(const char* call, const char* file, int line);

// Behind the launch of kernel `what`: throws what the launch reported. With THINWIRE_CUDA_SYNC=1 in the environment it
// also waits for the kernel, so that an error names the kernel that made it and not a later call.
void cuda_launched(const char* what, cudaStream_t stream, const char* file, int line);

// Whether the environment has the variable, and not as 0.
bool is_wished(const char* variable);

// Whether this GPU runs kernels of this build. Runs an empty kernel on the current device; what CUDA says against it,
// or an empty text.
std::string probe_kernels();
// The architectures of the build, as CMake was given them.
std::string built_architectures();

}  // namespace thinwire

#define TW_CUDA(call)                                                              \
  do {                                                                             \
    if (const cudaError_t tw_error = (call); tw_error != cudaSuccess) [[unlikely]] \
      ::thinwire::cuda_failed(tw_error, #call, __FILE__, __LINE__);                \
  } while (0)

// TW_CUDA_LAUNCHED("norm_forward", stream) behind kernel<<<...>>>(...).
#define TW_CUDA_LAUNCHED(what, stream) ::thinwire::cuda_launched(what, stream, __FILE__, __LINE__)
