// Page-locked host memory: blocks that are given back are used again, some only when the device has passed a point.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/device/cuda_events.h"

namespace thinwire {

// Free lists by power-of-two size, 4 KiB at least. Locking pages takes milliseconds and stalls the device: after the
// first step nothing new is taken. Safe to call from any thread.
class PinnedPool {
 public:
  PinnedPool(int ordinal, std::shared_ptr<CudaEventPool> events) : ordinal_(ordinal), events_(std::move(events)) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Throws Error(kBadConfig) naming the size where the system grants no more.
  void* take(size_t bytes);
  void give_back(void* memory, size_t bytes);
  void give_back_behind(void* memory, size_t bytes, cudaStream_t stream);
  // Whether [memory, memory + bytes) lies in a block of this pool.
  bool owns(const void* memory, size_t bytes);

 private:
  struct Pending {
    void* memory;
    size_t bytes;
    cudaEvent_t passed;
  };
  static size_t rounded(size_t bytes);
  void reap();  // under the lock

  int ordinal_;
  std::shared_ptr<CudaEventPool> events_;
  std::mutex mutex_;
  std::map<const char*, size_t> blocks_;  // all that were taken from the system
  std::map<size_t, std::vector<void*>> free_;
  std::vector<Pending> pending_;
};

}  // namespace thinwire
