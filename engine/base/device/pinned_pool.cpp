// Takes page-locked blocks from the system; those that a stream still uses are free once an event has passed.
#include "engine/base/device/pinned_pool.h"

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {

PinnedPool::~PinnedPool() {
  // (Whoever ends the pool has waited for the device.)
  for (const Pending& p : pending_) events_->give_back(p.passed);
  for (void* memory : blocks_.all()) (void)cudaFreeHost(memory);
}

void PinnedPool::reap() {
  std::erase_if(pending_, [&](const Pending& p) {
    if (cudaEventQuery(p.passed) != cudaSuccess) return false;  // an error stays, and so does the block
    events_->give_back(p.passed);
    blocks_.give_back(p.memory);
    return true;
  });
}

void PinnedPool::release(uint64_t age) {
  for (void* memory : blocks_.remove_unused(age)) (void)cudaFreeHost(memory);
}

void* PinnedPool::take(size_t bytes) {
  constexpr uint64_t kLongAgo = 10000;  // requests since a block was last used
  const std::lock_guard lock(mutex_);
  if (void* memory = blocks_.take(bytes)) return memory;
  reap();
  if (void* memory = blocks_.take(bytes)) return memory;
  TW_CUDA(cudaSetDevice(ordinal_));
  release(kLongAgo);
  const size_t size = BlockCache::rounded(bytes);
  void* memory = nullptr;
  cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // not sticky: the next call shall not report it again
    release(0);
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

void PinnedPool::give_back_behind(void* memory, cudaStream_t stream) {
  const cudaEvent_t passed = events_->record(stream);
  const std::lock_guard lock(mutex_);
  pending_.push_back({memory, passed});
}

bool PinnedPool::owns(const void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  return blocks_.owns(memory, bytes);
}

}  // namespace thinwire
