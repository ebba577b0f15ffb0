// The CUDA side of a Stream, for files that launch kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/base/device/recording.h"

namespace thinwire {

// A non-blocking cudaStream (never the legacy default stream, which would order everything with everything). Recordings
// are CUDA graphs, captured in the mode that leaves the driver to other threads.
class CudaStream final : public RecordingStream {
 public:
  // `device`: whose memory the stream works on; it outlives the stream.
  CudaStream(int ordinal, Device* device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void synchronize() override;
  Device* device() override { return device_; }
  cudaStream_t handle() const { return handle_; }

  std::string cannot_record() const override;
  void begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void drop_recording() noexcept override;

 private:
  cudaStream_t handle_ = nullptr;
  int ordinal_;
  Device* device_;
};

// CHECKs that `stream` was made by a CUDA device.
cudaStream_t cuda_stream_of(Stream& stream);

}  // namespace thinwire
