// A build without MPI has nothing to compare with.
#include "engine/base/core/error.h"
#include "parallel/wire/raw_mpi_bench.h"

namespace thinwire::raw_mpi {
namespace {

[[noreturn]] void none() {
  throw_usage("bench comm: this build has no MPI");
}

}  // namespace

bool present() {
  return false;
}
void send(const void*, size_t, int, bool) {
  none();
}
void receive(void*, size_t, int, bool) {
  none();
}
void send_window(const void*, size_t, int, int) {
  none();
}
void receive_window(void*, size_t, int, int) {
  none();
}
void all_reduce(float*, int64_t) {
  none();
}
void all_reduce_beside(float*, int64_t, const std::function<void()>&) {
  none();
}
void reduce_scatter(const float*, float*, std::span<const int>) {
  none();
}
void all_gather(const float*, float*, std::span<const int>, bool) {
  none();
}
void all_to_all(const float*, float*, std::span<const int>, bool) {
  none();
}
void broadcast(void*, size_t, int, bool) {
  none();
}
void barrier() {
  none();
}
}  // namespace thinwire::raw_mpi
