// What device coders remember between messages: the residuals of residual.h in device memory. The books about what is
// provisional are kept on the host; copies are queued on a stream, and nobody waits.
#pragma once

#include "compression/device_codec.h"
#include "compression/residual.h"

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

// StateVector in device memory, with the same meaning of open(), commit() and roll_back(). Pointers are the device's.
template <typename T>
class DeviceStateVector {
 public:
  struct Range {
    const T* read = nullptr;
    T* write = nullptr;
  };

  DeviceStateVector() = default;
  DeviceStateVector(int64_t count, OnSkip on_skip, const DevicePlace& place)
      : place_(place), count_(count), on_skip_(on_skip), committed_(*place.device, size()) {
    if (on_skip == OnSkip::kRestore) provisional_ = DeviceMemory(*place.device, size());
  }
  int64_t count() const { return count_; }

  // All of it as it is now.
  const T* read() const {
    if (on_skip_ == OnSkip::kZero || !ranges_.written()) return at(committed_, 0);
    TW_CHECK(ranges_.covers(0, count()), "a coding state is read as a whole while a part of it is being written");
    return at(provisional_, 0);
  }
  Range open(int64_t first, int64_t n) {
    TW_CHECK(first >= 0 && n >= 0 && first + n <= count(), "elements ", first, "+", n, " of a state of ", count());
    T* old = at(committed_, first);
    dirty_ = true;
    if (on_skip_ == OnSkip::kZero) return {old, old};
    const bool again = ranges_.open(first, n, copy());
    T* now = at(provisional_, first);
    return {again ? now : old, now};
  }
  void zero() {
    if (count() > 0) place_.device->fill_zero(open(0, count()).write, size(), *place_.stream);
  }
  void commit() {
    if (dirty_ && on_skip_ == OnSkip::kRestore) {
      ranges_.commit(count(), copy());
      std::swap(committed_, provisional_);
    }
    dirty_ = false;
  }
  void roll_back() {
    ranges_.roll_back(count());
    if (dirty_ && on_skip_ == OnSkip::kZero && count() > 0)
      place_.device->fill_zero(committed_.data(), size(), *place_.stream);
    dirty_ = false;
  }
  // Between steps; the caller looks at it or writes it by Device::copy_at_rest().
  T* settled() {
    TW_CHECK(!dirty_, "a coding state is read in the middle of a step");
    if (on_skip_ == OnSkip::kRestore) ranges_.overwrite(count());
    return at(committed_, 0);
  }
  int64_t bytes() const { return static_cast<int64_t>(committed_.bytes() + provisional_.bytes()); }

 private:
  size_t size() const { return static_cast<size_t>(count_) * sizeof(T); }
  static T* at(const DeviceMemory& memory, int64_t i) { return static_cast<T*>(memory.data()) + i; }
  auto copy() {
    return [this](int64_t a, int64_t b) {
      place_.device
          ->copy(at(provisional_, a), at(committed_, a), static_cast<size_t>(b - a) * sizeof(T), *place_.stream)
          .wait(*place_.stream);
    };
  }

  DevicePlace place_;
  int64_t count_ = 0;
  OnSkip on_skip_ = OnSkip::kRestore;
  DeviceMemory committed_, provisional_;
  ProvisionalRanges ranges_;
  bool dirty_ = false;
};

class DeviceCoderState final : public CompressionState {
 public:
  // codec: the codec's own state, or nullptr.
  DeviceCoderState(const ResidualSpec& residual, int64_t count, const DevicePlace& place,
                   std::unique_ptr<CompressionState> codec)
      : residual_(residual, count, place), codec_(std::move(codec)) {}
  using Open = ResidualVectors<DeviceStateVector>::Open;
  Open open(int64_t first, int64_t n, int64_t step) { return residual_.open(first, n, step); }  // as CoderState's
  CompressionState* codec() const { return codec_.get(); }
  int64_t count() const { return residual_.count(); }

  void commit() override {
    residual_.commit();
    if (codec_) codec_->commit();
  }
  void roll_back() override {
    residual_.roll_back();
    if (codec_) codec_->roll_back();
  }
  // Names as those of CoderState: a checkpoint of one is read by the other.
  void visit(StateVisitor& visitor, const std::string& prefix) override {
    residual_.visit(visitor, prefix);
    if (codec_) codec_->visit(visitor, prefix + "codec/");
  }
  int64_t bytes() const override { return residual_.bytes() + (codec_ ? codec_->bytes() : 0); }

 private:
  ResidualVectors<DeviceStateVector> residual_;
  std::unique_ptr<CompressionState> codec_;
};

}  // namespace thinwire
