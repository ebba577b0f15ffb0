// What device coders remember between messages: the states of residual.h in device memory.
#pragma once

#include "compression/residual.h"
#include "engine/base/device/device.h"

namespace thinwire {

// Device memory, owned; zeroed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device& device, size_t bytes)
      : device_(&device), data_(bytes > 0 ? device.allocate(bytes) : nullptr), bytes_(bytes) {}
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) device_->release(data_, bytes_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Where a device state lives and what its copies are queued on. Both outlive the state.
struct DevicePlace {
  using Memory = DeviceMemory;
  Device* device = nullptr;
  Stream* stream = nullptr;
  Memory allocate(size_t bytes) const { return Memory(*device, bytes); }
  void copy(void* to, const void* from, size_t bytes) const { device->copy(to, from, bytes, *stream).wait(*stream); }
  void clear(void* at, size_t bytes) const { device->fill_zero(at, bytes, *stream); }
};

using DeviceCoderState = CoderStateOn<DevicePlace>;

}  // namespace thinwire
