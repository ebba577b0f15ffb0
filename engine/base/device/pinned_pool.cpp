// Free lists of page-locked blocks.
#include "engine/base/device/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "engine/base/core/error.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {

PinnedPool::~PinnedPool() {
  // (Whoever ends the pool has waited for the device.)
  for (const Pending& p : pending_) events_->give_back(p.passed);
  for (const auto& [memory, bytes] : blocks_) (void)cudaFreeHost(const_cast<char*>(memory));
}

size_t PinnedPool::rounded(size_t bytes) {
  return std::bit_ceil(std::max<size_t>(bytes, 4096));
}

void PinnedPool::reap() {
  std::erase_if(pending_, [&](const Pending& p) {
    if (cudaEventQuery(p.passed) != cudaSuccess) return false;  // an error stays, and so does the block
    events_->give_back(p.passed);
    free_[p.bytes].push_back(p.memory);
    return true;
  });
}

void* PinnedPool::take(size_t bytes) {
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  if (free_[size].empty()) reap();
  std::vector<void*>& blocks = free_[size];
  if (!blocks.empty()) {
    void* memory = blocks.back();
    blocks.pop_back();
    return memory;
  }
  TW_CUDA(cudaSetDevice(ordinal_));
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // not sticky: the next call shall not report it again
    throw_bad_config("not enough page-locked host memory: " + std::to_string((size + 1048575) >> 20) +
                     " MiB more are needed; start fewer ranks on this machine or give it more memory");
  }
  if (error != cudaSuccess) cuda_failed(error, "cudaHostAlloc", __FILE__, __LINE__);
  blocks_.emplace(static_cast<const char*>(memory), size);
  return memory;
}

void PinnedPool::give_back(void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_[rounded(bytes)].push_back(memory);
}

void PinnedPool::give_back_behind(void* memory, size_t bytes, cudaStream_t stream) {
  const cudaEvent_t passed = events_->take();
  TW_CUDA(cudaEventRecord(passed, stream));
  const std::lock_guard lock(mutex_);
  pending_.push_back({memory, rounded(bytes), passed});
}

bool PinnedPool::owns(const void* memory, size_t bytes) {
  const char* at = static_cast<const char*>(memory);
  const std::lock_guard lock(mutex_);
  const auto behind = blocks_.upper_bound(at);
  if (behind == blocks_.begin()) return false;
  const auto block = std::prev(behind);
  return at + bytes <= block->first + block->second;
}

}  // namespace thinwire
