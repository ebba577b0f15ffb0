// The program's operator new, which counts. In a file of its own: inlined, GCC takes it for a mismatch of new and free.
#include "tests/comm/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> news{0};
thread_local bool another_library = false;

void count() {
  if (!another_library) news.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// Every allocation of the process is counted. (Sanitizers bring their own, which these replace.)
void* operator new(size_t bytes) {
  count();
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  count();
  const auto a = static_cast<size_t>(alignment);
  void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace thinwire {

int64_t allocations_of_the_process() {
  return news.load();
}

void count_allocations_of_this_thread(bool on) {
  another_library = !on;
}

}  // namespace thinwire
