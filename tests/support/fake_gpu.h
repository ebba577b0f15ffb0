// A device as strict as a GPU, without one: memory that the host cannot touch, and streams on which nothing happens
// until somebody waits. What reads too early, writes too late or gives a buffer back too soon fails here.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"
#include "tests/emulation/deferred_stream.h"

namespace thinwire::test {

class FakeGpu;

// Work that was queued and has not happened yet. One thread at a time.
class FakeStream final : public DeferredStream {
 public:
  explicit FakeStream(FakeGpu& gpu);
  ~FakeStream() override;
  void synchronize() override;
  Device* device() override;
  FakeGpu& gpu() { return gpu_; }

  void add(std::function<void()> work) override;
  void run_until(size_t number);
  void begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void drop_recording() noexcept override { recorded_.reset(); }
  bool records() const { return recorded_.has_value(); }
  size_t queued() const { return queued_; }
  size_t done() const { return done_; }

 private:
  FakeGpu& gpu_;
  std::deque<std::function<void()>> work_;
  std::optional<std::vector<std::function<void()>>> recorded_;
  size_t queued_ = 0, done_ = 0;
};

// Every byte of its memory is unreadable, except while work of a stream runs. Host memory that was given back is
// overwritten. What a GPU refuses on a stream that records is a CHECK failure.
class FakeGpu final : public Device {
 public:
  ~FakeGpu() override;
  DeviceKind kind() const override { return DeviceKind::kCpu; }  // of its ops
  std::string description() const override { return "a fake GPU"; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<FakeStream>(*this); }
  Ticket copy_to_device(void* device, const void* host, size_t bytes, Stream& stream) override;
  Ticket copy_to_host(void* host, const void* device, size_t bytes, Stream& stream) override;
  Ticket copy(void* to, const void* from, size_t bytes, Stream& stream) override;
  void fill_zero(void* device, size_t bytes, Stream& stream) override;
  Ticket mark(Stream& stream) override;
  void copy_at_rest(void* to, const void* from, size_t bytes) override;
  void* allocate_host(size_t bytes) override;
  void release_host(void* memory, size_t bytes) override;
  void release_host_behind(void* memory, size_t bytes, Stream& stream) override;
  size_t memory_total() const override { return size_t{1} << 40; }
  size_t memory_peak() const override { return peak_; }

  bool holds(const void* memory) const;
  // Between these the memory can be touched.
  void open();
  void close();

 private:
  friend class FakeStream;
  bool owns_host(const void* memory) const;
  void expect_no_recording(const char* what) const;
  std::map<char*, size_t> regions_, host_;
  std::set<FakeStream*> streams_;
  size_t held_ = 0, peak_ = 0;
  int opened_ = 0;
};

// The CPU table for Execs on a FakeStream: an op runs what is queued before it, then itself, or is recorded.
const OpTable& fake_gpu_ops();

}  // namespace thinwire::test
