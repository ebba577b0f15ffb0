// CUDA streams, and what becomes of CUDA errors.
#include "engine/base/device/cuda_stream.h"

#include <cstdlib>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {
namespace {

bool waits_for_every_kernel() {
  static const bool waits = is_wished("THINWIRE_CUDA_SYNC");
  return waits;
}

// Of a GPU that is in use: it fell off the bus (Xid 79), or was taken away. When it is opened the first two mean that
// it is somebody else's, or not there, and are said by those who open it.
bool is_gpu_gone(cudaError_t error) {
  return error == cudaErrorDevicesUnavailable || error == cudaErrorNoDevice || error == cudaErrorUnknown;
}

class CudaGraph final : public Recording {
 public:
  // Owns and ends `graph`, out of which it makes what can be queued.
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    size_t nodes = 0;
    cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&ready_, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (error != cudaSuccess) cuda_failed(error, "cudaGraphInstantiate", __FILE__, __LINE__);
    size_ = static_cast<int64_t>(nodes);
  }
  // (One that still runs is freed behind that.)
  ~CudaGraph() override { (void)cudaGraphExecDestroy(ready_); }

  void queue() override { TW_CUDA(cudaGraphLaunch(ready_, stream_)); }
  int64_t size() const override { return size_; }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t ready_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace

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

std::string CudaStream::cannot_record() const {
  return waits_for_every_kernel() ? "THINWIRE_CUDA_SYNC waits for every kernel" : "";
}

void CudaStream::begin_recording() {
  TW_CUDA(cudaSetDevice(ordinal_));
  TW_CUDA(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal));
}

std::unique_ptr<Recording> CudaStream::end_recording() {
  cudaGraph_t graph = nullptr;
  TW_CUDA(cudaStreamEndCapture(handle_, &graph));
  return std::make_unique<CudaGraph>(graph, handle_);
}

void CudaStream::drop_recording() noexcept {
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(handle_, &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();  // the caller reports what came first
}

bool is_wished(const char* variable) {
  const char* wish = std::getenv(variable);
  return wish != nullptr && std::string(wish) != "0";
}

cudaStream_t cuda_stream_of(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  TW_CHECK(cuda != nullptr, "a CUDA operation was given the stream of another device");
  return cuda->handle();
}

bool is_gpu_fault(cudaError_t error) {
  return error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable || error == cudaErrorContained;
}

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  const std::string what = std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
  const std::string where = std::string(" in ") + call + " at " + file + ":" + std::to_string(line);
  if (error == cudaErrorMemoryAllocation) {
    throw_bad_config("not enough GPU memory: " + what + where +
                     "; lower train_micro_batch_size_per_gpu or raise recompute_granularity");
  }
  if (is_gpu_fault(error) || is_gpu_gone(error)) {
    throw Error(ExitCode::kHungPeer,
                std::string(kGpuFault) + ": " + what + where +
                    "; start again, and leave this node out where it comes again (nvidia-smi -q; dmesg: Xid)");
  }
  throw Error(ExitCode::kInternal,
              "CUDA: " + what + where +
                  "; an error may come from an earlier kernel: THINWIRE_CUDA_SYNC=1 names the one that made it");
}

void throw_gpu_fault(const char* call, const char* file, int line) {
  // After such an error every call returns it. This one asks about the default stream, which nobody uses.
  const cudaError_t error = cudaStreamQuery(nullptr);
  if (is_gpu_fault(error) || is_gpu_gone(error)) cuda_failed(error, call, file, line);
}

void cuda_launched(const char* what, cudaStream_t stream, const char* file, int line) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && waits_for_every_kernel()) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) cuda_failed(error, (std::string("kernel ") + what).c_str(), file, line);
}

}  // namespace thinwire
