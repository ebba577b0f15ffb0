// CUDA streams, and what becomes of CUDA errors.
#include "engine/base/device/cuda_stream.h"

#include <cstdlib>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {

CudaStream::CudaStream(int ordinal, Device* device) : ordinal_(ordinal), device_(device) {
  TW_CUDA(cudaSetDevice(ordinal));
  TW_CUDA(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() {
  (void)cudaStreamSynchronize(handle_);  // nothing that is queued may outlive what owns its buffers
  (void)cudaStreamDestroy(handle_);
}

void CudaStream::synchronize() {
  TW_CUDA(cudaStreamSynchronize(handle_));
}

cudaStream_t cuda_stream_of(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  TW_CHECK(cuda != nullptr, "a CUDA operation was given the stream of another device");
  return cuda->handle();
}

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  const std::string what = std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
  const std::string where = std::string(" in ") + call + " at " + file + ":" + std::to_string(line);
  if (error == cudaErrorMemoryAllocation) {
    throw_bad_config("not enough GPU memory: " + what + where +
                     "; lower train_micro_batch_size_per_gpu or raise checkpoint_activations");
  }
  throw Error(ExitCode::kInternal,
              "CUDA: " + what + where +
                  "; an error may come from an earlier kernel: THINWIRE_CUDA_SYNC=1 names the one that made it");
}

void cuda_launched(const char* what, cudaStream_t stream, const char* file, int line) {
  static const bool synchronous = std::getenv("THINWIRE_CUDA_SYNC") != nullptr;
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && synchronous) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) cuda_failed(error, (std::string("kernel ") + what).c_str(), file, line);
}

}  // namespace thinwire
