// A vector whose first element begins a cache line: what kernels read and write in whole vectors, and may stream past
// the caches.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace thinwire {

inline constexpr size_t kCacheLine = 64;

template <typename T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U>&) {}  // NOLINT: allocators convert
  T* allocate(size_t n) { return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{kCacheLine})); }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{kCacheLine}); }
  bool operator==(const LineAllocator&) const { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, LineAllocator<T>>;

}  // namespace thinwire
