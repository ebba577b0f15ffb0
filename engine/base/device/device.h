// A device: memory and streams. Two implementations, CPU and CUDA; model code never asks which one it has.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"

namespace thinwire {

enum class DeviceKind { kCpu, kCuda, kNone };  // kNone: of a rehearsal

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string description() const = 0;  // for the log, e.g. "cpu, 2 cores, AMD EPYC"

  // Zeroed memory, aligned to 64 bytes at least. Where there is not enough: std::bad_alloc of the host's,
  // Error(kBadConfig) naming the size of a device's own.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Copies between host and device memory, ordered on `stream`. The host side may be reused once the ticket is done; a
  // source that is not of allocate_host may be reused at once.
  virtual Ticket copy_to_device(void* device, const void* host, size_t bytes, Stream& stream) = 0;
  virtual Ticket copy_to_host(void* host, const void* device, size_t bytes, Stream& stream) = 0;
  // Between two places of device memory that do not overlap.
  virtual Ticket copy(void* to, const void* from, size_t bytes, Stream& stream) {
    return copy_to_device(to, from, bytes, stream);
  }
  virtual void fill_zero(void* device, size_t bytes, Stream& stream) = 0;
  // A ticket for all that is queued on `stream` so far: another stream waits for it, or the host.
  virtual Ticket mark(Stream&) { return Ticket::finished(); }
  // Between any two places, host or device; waits for all that is queued before, and until it is done. For set-up and
  // checkpoints.
  virtual void copy_at_rest(void* to, const void* from, size_t bytes);

  // Host memory that copies to and from the device are fast and truly asynchronous with (page-locked where that makes a
  // difference); aligned to 64 bytes, not zeroed. Blocks are kept for the next one who asks: only the first use of a
  // size may stall the device.
  virtual void* allocate_host(size_t bytes);
  virtual void release_host(void* memory, size_t bytes);
  // The same, once all that is queued on `stream` so far is done.
  virtual void release_host_behind(void* memory, size_t bytes, Stream&) { release_host(memory, bytes); }

  // Which device of its kind this is on this machine.
  virtual int ordinal() const { return 0; }
  // Bytes of memory of its own, and how many of them this process has had at most; 0: it lives in the host's memory.
  virtual size_t memory_total() const { return 0; }
  virtual size_t memory_peak() const { return 0; }
  // Whose memory that is: the same for processes that share it, another text on any other device. Empty: nobody's.
  virtual std::string memory_owner() const { return {}; }
};

// Host memory of a device, owned.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device& device, size_t bytes) : device_(&device), data_(device.allocate_host(bytes)), bytes_(bytes) {}
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(device_, other.device_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HostBuffer() {
    if (data_ != nullptr) device_->release_host(data_, bytes_);
  }
  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Goes back once all that is queued on `stream` so far is done: copies out of it may be on their way.
  void leave_behind(Stream& stream) {
    if (data_ != nullptr) device_->release_host_behind(std::exchange(data_, nullptr), bytes_, stream);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

std::unique_ptr<Device> make_cpu_device();

// Called with the bytes of its own memory that a device would read and write, to fill it or to copy within it.
using DevicePasses = std::function<void(size_t read, size_t written)>;

// A device of endless memory that does not exist, for rehearsals (--dry-run): what is set up on it is counted as ever,
// copies move nothing, and the host reads zeros. passes: may be nullptr.
std::unique_ptr<Device> make_rehearsal_device(DevicePasses passes = nullptr);

// The CUDA device of this rank, or an Error(kBadConfig) that says why there is none (not built in, no driver, no GPU).
// `ordinal` counts the ranks of this machine: where there are fewer GPUs, several ranks share one.
std::unique_ptr<Device> make_cuda_device(int ordinal);
bool cuda_is_built();

}  // namespace thinwire
