// A pool of page-locked host memory; a block can be given back while a stream still uses it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/device/block_cache.h"
#include "engine/base/device/cuda_events.h"

namespace thinwire {

// Locking pages takes milliseconds and stalls the device, so blocks are kept for reuse: after the first step none is
// allocated. Where one is, free blocks that were not taken for long (those of loading and saving) go back to the system
// first; all free ones do before take() fails. Thread-safe.
class PinnedPool {
 public:
  PinnedPool(int ordinal, std::shared_ptr<CudaEventPool> events) : ordinal_(ordinal), events_(std::move(events)) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Throws Error(kBadConfig) naming the size where the system grants no more.
  void* take(size_t bytes);
  void give_back(void* memory);
  // The block is free once the stream has done what is queued now.
  void give_back_after(void* memory, cudaStream_t stream);
  // Whether [memory, memory + bytes) lies in a block of this pool.
  bool owns(const void* memory, size_t bytes);

 private:
  struct Pending {
    void* memory;
    cudaEvent_t event;  // completes when the stream no longer uses the memory
  };
  // Both under the lock.
  void free_completed();
  void release_unused(uint64_t age);

  int ordinal_;
  std::shared_ptr<CudaEventPool> events_;
  std::mutex mutex_;
  BlockCache blocks_;
  std::vector<Pending> pending_;
};

}  // namespace thinwire
