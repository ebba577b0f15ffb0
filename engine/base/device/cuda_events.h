// Events as tickets: what is queued on a CUDA stream up to now, as an Operation that others can wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/device/stream.h"

namespace thinwire {

// Events without timing, made once and used again. An event belongs to one Ticket at a time and comes back when that is
// gone. (A wait that is already queued keeps the record it was queued with, so recording the event again is safe.)
class CudaEventPool {
 public:
  explicit CudaEventPool(int ordinal) : ordinal_(ordinal) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;
  // An event that passes when all that is queued on `stream` so far is done.
  cudaEvent_t record(cudaStream_t stream);
  void give_back(cudaEvent_t event);
  int ordinal() const { return ordinal_; }

 private:
  cudaEvent_t take();

  int ordinal_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// A ticket for everything queued on `stream` so far: recorded at once, done when the device has got there.
Ticket record_ticket(std::shared_ptr<CudaEventPool> pool, cudaStream_t stream);

}  // namespace thinwire
