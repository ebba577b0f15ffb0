// Allocation of device memory, and the message when there is not enough.
#include "engine/base/device/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/base/device/cuda_check.h"

namespace thinwire {
namespace {

constexpr size_t kSlab = size_t{16} << 20, kSmall = size_t{1} << 20, kSlot = 512;

size_t rounded(size_t bytes) {
  return (bytes + kSlot - 1) / kSlot * kSlot;
}

}  // namespace

CudaMemory::CudaMemory(int ordinal) : ordinal_(ordinal), guarded_(is_wished("THINWIRE_CUDA_GUARD")) {}

CudaMemory::~CudaMemory() {
  for (const auto& [memory, slab] : slabs_) (void)cudaFree(memory);
}

void* CudaMemory::allocate(size_t bytes) {
  TW_CUDA(cudaSetDevice(ordinal_));
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // not sticky: the next call shall not report it again
    size_t free_bytes = 0, total = 0;
    (void)cudaMemGetInfo(&free_bytes, &total);
    throw_bad_config("not enough GPU memory: " + mebibytes(bytes) + " more are needed, " + mebibytes(free_bytes) +
                     " of " + mebibytes(total) + " are free on device " + std::to_string(ordinal_) +
                     " and this process holds " + mebibytes(held_) +
                     "; lower train_micro_batch_size_per_gpu, raise recompute_granularity, shard by "
                     "zero_optimization.stage, or end other programs on this GPU; --dry-run prints the plan");
  }
  if (error != cudaSuccess) cuda_failed(error, "cudaMalloc", __FILE__, __LINE__);
  held_ += bytes;
  peak_ = std::max(peak_, held_);
  return memory;
}

void* CudaMemory::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t wanted = rounded(bytes);
  if (guarded_) return allocate(bytes);
  if (wanted >= kSmall) return allocate(wanted);
  if (open_ == nullptr || slabs_[open_].used + wanted > kSlab) {
    open_ = static_cast<char*>(allocate(kSlab));
    slabs_[open_] = {};
  }
  Slab& slab = slabs_[open_];
  void* memory = open_ + slab.used;
  slab.used += wanted;
  ++slab.pieces;
  return memory;
}

void CudaMemory::give_back(void* memory, size_t bytes) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  const size_t wanted = rounded(bytes);
  if (guarded_) return free_now(memory, bytes);
  if (wanted >= kSmall) return free_now(memory, wanted);
  auto slab = slabs_.upper_bound(static_cast<char*>(memory));
  TW_CHECK(slab != slabs_.begin(), "memory that was not taken here");
  slab = std::prev(slab);
  TW_CHECK(static_cast<char*>(memory) < slab->first + kSlab, "memory that was not taken here");
  if (--slab->second.pieces > 0) return;
  if (open_ == slab->first) open_ = nullptr;
  free_now(slab->first, kSlab);
  slabs_.erase(slab);
}

// Errors are not checked: memory goes back while an earlier failure may be unwinding, and that is the one to report.
void CudaMemory::free_now(void* memory, size_t bytes) {
  (void)cudaSetDevice(ordinal_);  // the calling thread may have named none: it would wait for the first one
  (void)cudaDeviceSynchronize();  // what is queued may still use it
  (void)cudaFree(memory);
  held_ -= bytes;
}

}  // namespace thinwire
