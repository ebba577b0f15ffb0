// Device memory of one CUDA device: an allocation per large piece, shared slabs for small ones.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace thinwire {

// Each piece starts on a multiple of 512 bytes. Pieces below 1 MiB share 16 MiB slabs (the driver hands out memory in
// steps of 2 MiB, and a model has hundreds of small tensors); a slab is freed with its last piece. With
// THINWIRE_CUDA_GUARD=1 in the environment every piece is an allocation of its own, so that a memory checker sees when
// one tensor is written past its end. Memory is not zeroed. Safe to call from any thread.
class CudaMemory {
 public:
  explicit CudaMemory(int ordinal);
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // Throws Error(kBadConfig) with the size asked for, what is free and what this process already holds.
  void* take(size_t bytes);
  void give_back(void* memory, size_t bytes);
  size_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  struct Slab {
    size_t used = 0;
    int pieces = 0;
  };
  void* allocate(size_t bytes);
  void free_now(void* memory, size_t bytes);

  int ordinal_;
  bool guarded_;
  mutable std::mutex mutex_;
  std::map<char*, Slab> slabs_;
  char* open_ = nullptr;  // the slab that small pieces are cut from
  size_t held_ = 0, peak_ = 0;
};

}  // namespace thinwire
