// Page-locked host memory: blocks that are given back are used again, some only when the device has passed a point.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/device/block_cache.h"
#include "engine/base/device/cuda_events.h"

namespace thinwire {

// Locking pages takes milliseconds and stalls the device: after the first step nothing new is taken. When something is,
// blocks that nobody has asked for in a long time (those of loading and saving) go back to the system; all free ones do
// before it is said that there is no memory. Safe to call from any thread.
class PinnedPool {
 public:
  PinnedPool(int ordinal, std::shared_ptr<CudaEventPool> events) : ordinal_(ordinal), events_(std::move(events)) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Throws Error(kBadConfig) naming the size where the system grants no more.
  void* take(size_t bytes);
  void give_back(void* memory);
  void give_back_behind(void* memory, cudaStream_t stream);
  // Whether [memory, memory + bytes) lies in a block of this pool.
  bool owns(const void* memory, size_t bytes);

 private:
  struct Pending {
    void* memory;
    cudaEvent_t passed;
  };
  // Under the lock:
  void reap();
  void release(uint64_t age);

  int ordinal_;
  std::shared_ptr<CudaEventPool> events_;
  std::mutex mutex_;
  BlockCache blocks_;
  std::vector<Pending> pending_;
};

}  // namespace thinwire
