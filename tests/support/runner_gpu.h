// A device whose streams really run beside each other, without a GPU: each has a thread of its own that takes its time.
//
// Work says which memory it reads and writes. Before it is queued, its place in time is known from events and waits of
// the host alone (vector clocks): two pieces of work that touch the same memory, one of them writing, and that nothing
// orders, are found at once and by name, however the threads ran.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"

namespace thinwire::test {

// What was found to be wrong, by a short name and with the details; the first finding is the one that counts.
class Findings {
 public:
  void add(const std::string& name, const std::string& details);
  std::string name() const;
  std::string text() const;
  bool any() const { return any_.load(); }
  // Called once, with the first.
  std::function<void()> on_first;

 private:
  mutable std::mutex mutex_;
  std::string name_, text_;
  std::atomic<bool> any_{false};
};

struct Access {
  const void* memory = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

// Mistakes with events that a program may make: the one of that number (of its kind, on this device) is made.
struct EventMistakes {
  int dropped_wait = -1;             // a stream does not wait for another one's event
  int early_record = -1;             // an event is recorded before the last piece of work instead of behind it
  bool of_waits_in_compute = false;  // dropped_wait counts waits of the first stream; else those of the others
};

class RunnerStream;

class RunnerGpu final : public Device {
 public:
  // slow_us: pieces of work wait up to so long before they start.
  RunnerGpu(Findings& findings, uint64_t seed, int slow_us);
  ~RunnerGpu() override;
  DeviceKind kind() const override { return DeviceKind::kCpu; }  // of its ops
  std::string description() const override { return "a fake GPU with streams that run"; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
  std::unique_ptr<Stream> make_stream() override;
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

  // Queues work that touches this memory.
  void add(Stream& stream, const std::string& what, const std::vector<Access>& accesses, std::function<void()> work);

  // From now on, counted from here.
  void make(const EventMistakes& mistakes) { mistakes_ = mistakes, waits_ = records_ = 0; }

  // Since the start: bytes copied to and from the host, and blocks of its memory that staging takes for them.
  int64_t host_bytes() const { return host_bytes_; }
  int64_t host_blocks() const { return host_blocks_; }
  // How often the host stood still for what is queued.
  int64_t host_waits() const { return host_waits_; }
  // Waits of streams for one another that count for dropped_wait, since make().
  int counted_waits() const { return waits_; }

 private:
  friend class RunnerStream;
  class Passed;
  using Clock = std::vector<uint64_t>;  // by stream: pieces of work that lie before
  struct Queue {
    int number = 0;
    uint64_t seed = 0;
    int slow_us = 0;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    uint64_t queued = 0, done = 0;
    bool ends = false;
    void run();
    void wait_for(uint64_t count);
  };
  struct Touched {
    Access access;
    int stream;
    uint64_t number;
    std::string what;
  };
  void join(Clock& clock, const Clock& other);
  void wait_for_all();
  void look_for_races(const std::string& what, const Access& access, int stream);
  bool owns_host(const void* memory);

  Findings& findings_;
  std::mt19937_64 random_;
  int slow_us_;
  EventMistakes mistakes_;
  int waits_ = 0, records_ = 0;
  std::mutex mutex_;  // what follows
  std::vector<std::shared_ptr<Queue>> queues_;
  std::vector<Clock> clocks_;  // by stream
  Clock host_;
  std::vector<Touched> touched_;
  std::map<const char*, size_t> host_memory_;
  std::atomic<int64_t> host_bytes_{0}, host_blocks_{0}, host_waits_{0};
};

class RunnerStream final : public Stream {
 public:
  ~RunnerStream() override;
  Device* device() override { return &gpu_; }
  void synchronize() override;
  RunnerGpu& gpu() { return gpu_; }

 private:
  friend class RunnerGpu;
  RunnerStream(RunnerGpu& gpu, std::shared_ptr<RunnerGpu::Queue> queue);
  RunnerGpu& gpu_;
  std::shared_ptr<RunnerGpu::Queue> queue_;
  std::thread thread_;
};

// The CPU table for Execs on a RunnerStream: an op waits for what is queued before it and runs on the caller's thread.
const OpTable& runner_gpu_ops();
// An op runs on the stream's thread, some time later.
const OpTable& queued_runner_ops();

}  // namespace thinwire::test
