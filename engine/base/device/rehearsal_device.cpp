// A device without memory, for rehearsals: addresses that nobody may look behind, and copies that move nothing.
#include <cstdint>
#include <cstring>
#include <utility>

#include "engine/base/device/device.h"

namespace thinwire {
namespace {

class RehearsalDevice final : public Device {
 public:
  explicit RehearsalDevice(DevicePasses passes) : passes_(std::move(passes)) {}
  DeviceKind kind() const override { return DeviceKind::kNone; }
  std::string description() const override { return "no device"; }
  void* allocate(size_t bytes) override {  // as aligned as on a GPU
    return reinterpret_cast<void*>(std::exchange(next_, next_ + (bytes + 511) / 512 * 512));
  }
  void release(void*, size_t) override {}
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  Ticket copy_to_device(void*, const void*, size_t, Stream&) override { return Ticket::finished(); }
  Ticket copy_to_host(void* host, const void*, size_t bytes, Stream&) override {
    std::memset(host, 0, bytes);
    return Ticket::finished();
  }
  Ticket copy(void*, const void*, size_t bytes, Stream&) override {
    if (passes_) passes_(bytes, bytes);
    return Ticket::finished();
  }
  void fill_zero(void*, size_t bytes, Stream&) override {
    if (passes_) passes_(0, bytes);
  }
  void copy_at_rest(void*, const void*, size_t) override {}

 private:
  DevicePasses passes_;
  uintptr_t next_ = 4096;
};

}  // namespace

std::unique_ptr<Device> make_rehearsal_device(DevicePasses passes) {
  return std::make_unique<RehearsalDevice>(std::move(passes));
}

}  // namespace thinwire
