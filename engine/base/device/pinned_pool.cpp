// Allocates page-locked blocks; one that a stream may still use is free once its event has completed.
#include "engine/base/device/pinned_pool.h"

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {

PinnedPool::~PinnedPool() {
  // The pool's owner has synchronized the device: all events have completed.
  for (const Pending& p : pending_) events_->give_back(p.event);
  for (void* memory : blocks_.all()) (void)cudaFreeHost(memory);
}

void PinnedPool::free_completed() {
  std::erase_if(pending_, [&](const Pending& p) {
    if (const cudaError_t state = cudaEventQuery(p.event); state != cudaSuccess) {
      // Cleared, so that the next launch does not return it. After an error, too, the block stays in use.
      if (state == cudaErrorNotReady) (void)cudaGetLastError();
      return false;
    }
    events_->give_back(p.event);
    blocks_.give_back(p.memory);
    return true;
  });
}

void PinnedPool::release_unused(uint64_t age) {
  for (void* memory : blocks_.remove_unused(age)) (void)cudaFreeHost(memory);
}

void* PinnedPool::take(size_t bytes) {
  constexpr uint64_t kLongUnused = 10000;  // requests since a block was last taken
  const std::lock_guard lock(mutex_);
  if (void* memory = blocks_.take(bytes)) return memory;
  free_completed();
  if (void* memory = blocks_.take(bytes)) return memory;
  TW_CUDA(cudaSetDevice(ordinal_));
  release_unused(kLongUnused);
  const size_t size = BlockCache::rounded(bytes);
  void* memory = nullptr;
  cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // clears the error, or a later call would report it
    release_unused(0);
    error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
  }
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_bad_config("not enough page-locked host memory: " + mebibytes(size) +
                     " more are needed; start fewer ranks on this machine or give it more memory");
  }
  if (error != cudaSuccess) cuda_failed(error, "cudaHostAlloc", __FILE__, __LINE__);
  blocks_.add(memory, bytes);
  return memory;
}

void PinnedPool::give_back(void* memory) {
  const std::lock_guard lock(mutex_);
  blocks_.give_back(memory);
}

void PinnedPool::give_back_after(void* memory, cudaStream_t stream) {
  const cudaEvent_t event = events_->record(stream);
  const std::lock_guard lock(mutex_);
  pending_.push_back({memory, event});
}

bool PinnedPool::owns(const void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  return blocks_.owns(memory, bytes);
}

}  // namespace thinwire
