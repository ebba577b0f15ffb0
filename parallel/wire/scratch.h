// A pool of memory blocks for coroutine frames, operations and the work space of algorithms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {

// Free lists by power-of-two size; the system gets memory back only when the pool ends. Thread-safe: frames are made by
// the thread that issues and freed by the one that polls. Blocks start on a cache line (64 bytes).
class BlockPool {
 public:
  // Made by create(), ended by retire(): a block that is still out (a finished ticket that nobody looked at) keeps the
  // pool alive until it comes back.
  static BlockPool* create() { return new BlockPool; }
  void retire();

  void* allocate(size_t bytes);
  void release(void* block, size_t bytes) noexcept;  // bytes: as allocated
  int64_t blocks_out() const;                        // allocated and not released

 private:
  struct Free {
    Free* next;
  };
  static constexpr int kSmallestBits = 6, kClasses = 40;
  BlockPool() = default;
  ~BlockPool();
  static int class_of(size_t bytes);

  mutable std::mutex mutex_;
  std::array<Free*, kClasses> free_{};
  int64_t out_ = 0;
  bool retired_ = false;
};

// Lets std::allocate_shared allocate from a pool.
template <typename T>
struct PoolAllocator {
  using value_type = T;
  explicit PoolAllocator(BlockPool& pool) : pool_(&pool) {}
  template <typename U>
  PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool_) {}
  T* allocate(size_t n) { return static_cast<T*>(pool_->allocate(n * sizeof(T))); }
  void deallocate(T* p, size_t n) noexcept { pool_->release(p, n * sizeof(T)); }
  bool operator==(const PoolAllocator&) const = default;
  BlockPool* pool_;
};

// `count` uninitialised elements of work space (trivial types), released by the destructor.
template <typename T>
class Scratch {
 public:
  Scratch() = default;
  Scratch(BlockPool& pool, int64_t count)
      : pool_(count > 0 ? &pool : nullptr),
        data_(count > 0 ? static_cast<T*>(pool.allocate(static_cast<size_t>(count) * sizeof(T))) : nullptr),
        count_(count) {}
  Scratch(BlockPool& pool, std::span<const T> values) : Scratch(pool, static_cast<int64_t>(values.size())) {
    for (size_t i = 0; i < values.size(); ++i) data_[i] = values[i];
  }
  Scratch(Scratch&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(pool_, other.pool_), std::swap(data_, other.data_), std::swap(count_, other.count_);
    return *this;
  }
  ~Scratch() {
    if (pool_ != nullptr) pool_->release(data_, static_cast<size_t>(count_) * sizeof(T));
  }
  T* data() const { return data_; }
  int64_t count() const { return count_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  BlockPool* pool_ = nullptr;
  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace thinwire
