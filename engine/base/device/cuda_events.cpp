// The event pool, and the operation behind a ticket of a CUDA stream.
#include "engine/base/device/cuda_events.h"

#include <utility>

#include "engine/base/device/cuda_check.h"
#include "engine/base/device/cuda_stream.h"

namespace thinwire {
namespace {

class EventOperation final : public Operation {
 public:
  EventOperation(std::shared_ptr<CudaEventPool> pool, cudaStream_t stream)
      : pool_(std::move(pool)), event_(pool_->record(stream)) {}
  ~EventOperation() override { pool_->give_back(event_); }

  State state() const override {
    // Also asked by a thread that has named no device: that would make a context on the first one.
    (void)cudaSetDevice(pool_->ordinal());
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaSuccess) return State::kDone;
    if (error != cudaErrorNotReady) return State::kError;
    (void)cudaGetLastError();  // not an error, and the next launch must not return it
    return State::kRecorded;
  }
  void wait_on(Stream& stream) override {
    if (auto* cuda = dynamic_cast<CudaStream*>(&stream))
      TW_CUDA(cudaStreamWaitEvent(cuda->handle(), event_, 0));
    else
      wait_on_host();  // the calling thread is the queue
  }
  void wait_on_host() override { TW_CUDA(cudaEventSynchronize(event_)); }

 private:
  std::shared_ptr<CudaEventPool> pool_;
  cudaEvent_t event_;
};

}  // namespace

CudaEventPool::~CudaEventPool() {
  for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

cudaEvent_t CudaEventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  TW_CUDA(cudaSetDevice(ordinal_));
  cudaEvent_t event = nullptr;
  // Blocking sync: a rank that waits leaves its core to the others, which may be more than there are cores.
  TW_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return event;
}

cudaEvent_t CudaEventPool::record(cudaStream_t stream) {
  const cudaEvent_t event = take();
  if (const cudaError_t error = cudaEventRecord(event, stream); error != cudaSuccess) {
    give_back(event);
    cuda_failed(error, "cudaEventRecord", __FILE__, __LINE__);
  }
  return event;
}

void CudaEventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

Ticket record_ticket(std::shared_ptr<CudaEventPool> pool, cudaStream_t stream) {
  return Ticket(std::make_shared<EventOperation>(std::move(pool), stream));
}

}  // namespace thinwire
