// A device: memory and streams. Two implementations, CPU and CUDA; model code never asks which one it has.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"

namespace thinwire {

enum class DeviceKind { kCpu, kCuda };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string description() const = 0;  // for the log, e.g. "cpu, 2 cores, AMD EPYC"

  // Zeroed memory, aligned to 64 bytes at least. Throws Error(kBadConfig) naming the size when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Copies between host and device memory, ordered on `stream`. The host side may be reused once the ticket is done.
  virtual Ticket copy_to_device(void* device, const void* host, size_t bytes, Stream& stream) = 0;
  virtual Ticket copy_to_host(void* host, const void* device, size_t bytes, Stream& stream) = 0;
  // Between two places of device memory that do not overlap.
  virtual Ticket copy(void* to, const void* from, size_t bytes, Stream& stream) {
    return copy_to_device(to, from, bytes, stream);
  }
  virtual void fill_zero(void* device, size_t bytes, Stream& stream) = 0;
};

std::unique_ptr<Device> make_cpu_device();

// The CUDA device of this rank, or an Error(kBadConfig) that says why there is none (not built in, no driver, no GPU).
std::unique_ptr<Device> make_cuda_device(int ordinal);

}  // namespace thinwire
