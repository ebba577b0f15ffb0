// The program's operator new, which counts. In a file of its own: inlined, GCC takes it for a mismatch of new and free.
#include "tests/comm/allocation_count.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> news{0}, live{0};
thread_local bool another_library = false;

void* counted(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  if (!another_library) news.fetch_add(1, std::memory_order_relaxed);
  live.fetch_add(static_cast<int64_t>(::malloc_usable_size(p)), std::memory_order_relaxed);
  return p;
}

void release(void* p) {
  live.fetch_sub(static_cast<int64_t>(::malloc_usable_size(p)), std::memory_order_relaxed);
  std::free(p);
}

}  // namespace

// Every allocation of the process is counted. (Sanitizers bring their own, which these replace.)
void* operator new(size_t bytes) {
  return counted(std::malloc(bytes == 0 ? 1 : bytes));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(a, (bytes + a - 1) / a * a));
}
void operator delete(void* p) noexcept {
  release(p);
}
void operator delete(void* p, size_t) noexcept {
  release(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  release(p);
}
void operator delete(void* p, size_t, std::align_val_t) noexcept {
  release(p);
}

namespace thinwire {

int64_t allocations_of_the_process() {
  return news.load();
}

int64_t live_bytes_of_the_process() {
  return live.load();
}

void count_allocations_of_this_thread(bool on) {
  another_library = !on;
}

}  // namespace thinwire
