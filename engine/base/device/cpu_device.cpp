// The CPU as a device: zeroed, page-aligned host memory, and a stream that is the calling thread.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "engine/base/device/device.h"

namespace thinwire {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string description() const override {
    return "cpu, " + std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " cores, " + cpu_model();
  }

  void* allocate(size_t bytes) override {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();  // whoever knows the plan says it
    // Large pages cut TLB misses of the big streaming kernels; a refusal is harmless.
    if (bytes >= (size_t{4} << 20)) ::madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }
  void release(void* memory, size_t bytes) override { ::munmap(memory, bytes); }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  Ticket copy_to_device(void* device, const void* host, size_t bytes, Stream&) override {
    std::memcpy(device, host, bytes);
    return Ticket::finished();
  }
  Ticket copy_to_host(void* host, const void* device, size_t bytes, Stream&) override {
    std::memcpy(host, device, bytes);
    return Ticket::finished();
  }
  void fill_zero(void* device, size_t bytes, Stream&) override { std::memset(device, 0, bytes); }
};

}  // namespace

void Device::copy_at_rest(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void* Device::allocate_host(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Device::release_host(void* memory, size_t) {
  std::free(memory);
}

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace thinwire
