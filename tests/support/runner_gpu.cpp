// Streams with threads, and the order that events give to what is queued on them.
#include "tests/support/runner_gpu.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "engine/base/core/check.h"
#include "engine/base/ops/op_list.h"

namespace thinwire::test {
namespace {

constexpr int kGarbage = 0xA7;

RunnerStream& running(Stream& stream) {
  auto* found = dynamic_cast<RunnerStream*>(&stream);
  TW_CHECK(found != nullptr, "work of the device on a stream of the host");
  return *found;
}

bool overlap(const Access& a, const Access& b) {
  const char *first = static_cast<const char*>(a.memory), *second = static_cast<const char*>(b.memory);
  return first < second + b.bytes && second < first + a.bytes;
}

template <auto Entry, typename Op>
void at_once(Exec& exec, const Op& op) {
  exec.stream.synchronize();
  (cpu_ops().*Entry)(exec, op);
}
template <auto Entry, typename Op>
void later(Exec& exec, const Op& op) {
  running(exec.stream).gpu().add(exec.stream, "op", {}, [&exec, op] { (cpu_ops().*Entry)(exec, op); });
}

}  // namespace

void Findings::add(const std::string& name, const std::string& details) {
  {
    const std::lock_guard lock(mutex_);
    if (any_) return;
    name_ = name, text_ = name + ": " + details;
    any_ = true;
  }
  if (on_first) on_first();
}
std::string Findings::name() const {
  const std::lock_guard lock(mutex_);
  return name_;
}
std::string Findings::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

void RunnerGpu::Queue::run() {
  std::mt19937_64 random(seed);
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return ends || !work.empty(); });
    if (work.empty()) return;
    const std::function<void()> next = std::move(work.front());
    work.pop_front();
    lock.unlock();
    if (slow_us > 0 && random() % 3 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint64_t>(slow_us)));
    next();
    lock.lock();
    ++done;
    changed.notify_all();
  }
}

void RunnerGpu::Queue::wait_for(uint64_t count) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done >= count; });
}

// An event: so many pieces of work of a stream, and what lies before them.
class RunnerGpu::Passed final : public Operation {
 public:
  Passed(RunnerGpu& gpu, std::shared_ptr<Queue> queue, uint64_t count, Clock clock)
      : gpu_(gpu), queue_(std::move(queue)), count_(count), clock_(std::move(clock)) {}
  State state() const override {
    const std::lock_guard lock(queue_->mutex);
    return queue_->done >= count_ ? State::kDone : State::kRecorded;
  }
  void wait_on(Stream& stream) override {
    auto* other = dynamic_cast<RunnerStream*>(&stream);
    if (other == nullptr) return wait_on_host();
    if (other->queue_ == queue_) return;
    const bool counts = (other->queue_->number == 0) == gpu_.mistakes_.of_waits_in_compute;
    if (counts && gpu_.waits_++ == gpu_.mistakes_.dropped_wait) return;
    {
      const std::lock_guard lock(gpu_.mutex_);
      gpu_.join(gpu_.clocks_[static_cast<size_t>(other->queue_->number)], clock_);
    }
    gpu_.add(stream, "wait", {}, [queue = queue_, count = count_] { queue->wait_for(count); });
  }
  void wait_on_host() override {
    ++gpu_.host_waits_;
    queue_->wait_for(count_);
    const std::lock_guard lock(gpu_.mutex_);
    gpu_.join(gpu_.host_, clock_);
  }

 private:
  RunnerGpu& gpu_;
  std::shared_ptr<Queue> queue_;
  uint64_t count_;
  Clock clock_;
};

RunnerStream::RunnerStream(RunnerGpu& gpu, std::shared_ptr<RunnerGpu::Queue> queue)
    : gpu_(gpu), queue_(std::move(queue)), thread_([q = queue_] { q->run(); }) {}

RunnerStream::~RunnerStream() {
  synchronize();
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->ends = true;
  }
  queue_->changed.notify_all();
  thread_.join();
}

void RunnerStream::synchronize() {
  ++gpu_.host_waits_;
  uint64_t count = 0;
  {
    const std::lock_guard lock(queue_->mutex);
    count = queue_->queued;
  }
  queue_->wait_for(count);
  const std::lock_guard lock(gpu_.mutex_);
  gpu_.join(gpu_.host_, gpu_.clocks_[static_cast<size_t>(queue_->number)]);
}

RunnerGpu::RunnerGpu(Findings& findings, uint64_t seed, int slow_us)
    : findings_(findings), random_(seed), slow_us_(slow_us) {}

RunnerGpu::~RunnerGpu() = default;

void RunnerGpu::join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t s = 0; s < other.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

std::unique_ptr<Stream> RunnerGpu::make_stream() {
  const std::lock_guard lock(mutex_);
  auto queue = std::make_shared<Queue>();
  queue->number = static_cast<int>(queues_.size());
  queue->seed = random_(), queue->slow_us = slow_us_;
  queues_.push_back(queue);
  clocks_.push_back(Clock(queues_.size()));
  return std::unique_ptr<Stream>(new RunnerStream(*this, std::move(queue)));
}

void RunnerGpu::look_for_races(const std::string& what, const Access& access, int stream) {
  const Clock& clock = clocks_[static_cast<size_t>(stream)];
  for (const Touched& before : touched_) {
    const auto s = static_cast<size_t>(before.stream);
    if (!overlap(before.access, access) || (!before.access.writes && !access.writes)) continue;
    if (before.stream == stream || (s < clock.size() && clock[s] >= before.number)) continue;
    const bool reuse = access.writes && !before.access.writes, device = access.memory == this;
    findings_.add(device  ? "two at once"
                  : reuse ? "early reuse"
                          : "missing wait",
                  what + " on stream " + std::to_string(stream) + (access.writes ? " writes" : " reads") + " what " +
                      before.what + " on stream " + std::to_string(before.stream) +
                      (before.access.writes ? " writes" : " reads") + ", and no event orders them");
  }
}

void RunnerGpu::add(Stream& stream, const std::string& what, const std::vector<Access>& accesses,
                    std::function<void()> work) {
  Queue& queue = *running(stream).queue_;
  {
    const std::lock_guard lock(mutex_);
    Clock& clock = clocks_[static_cast<size_t>(queue.number)];
    join(clock, host_);
    clock.resize(queues_.size());
    const uint64_t number = ++clock[static_cast<size_t>(queue.number)];
    for (const Access& access : accesses)
      if (access.bytes > 0) look_for_races(what, access, queue.number);
    // What lies before everything to come need not be known any more.
    std::erase_if(touched_, [&](const Touched& t) {
      return std::ranges::all_of(clocks_, [&](const Clock& c) {
        const auto s = static_cast<size_t>(t.stream);
        return s < c.size() && c[s] >= t.number;
      });
    });
    for (const Access& access : accesses)
      if (access.bytes > 0) touched_.push_back({access, queue.number, number, what});
  }
  {
    const std::lock_guard lock(queue.mutex);
    queue.work.push_back(std::move(work));
    ++queue.queued;
  }
  queue.changed.notify_all();
}

void RunnerGpu::wait_for_all() {
  std::vector<std::shared_ptr<Queue>> all;
  {
    const std::lock_guard lock(mutex_);
    all = queues_;
  }
  for (const auto& queue : all) {
    uint64_t count = 0;
    {
      const std::lock_guard lock(queue->mutex);
      count = queue->ends ? 0 : queue->queued;
    }
    queue->wait_for(count);
  }
  const std::lock_guard lock(mutex_);
  for (const Clock& clock : clocks_) join(host_, clock);
}

void* RunnerGpu::allocate(size_t bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  std::memset(memory, 0, bytes);
  return memory;
}

void RunnerGpu::release(void* memory, size_t) {
  wait_for_all();  // as a GPU does
  std::free(memory);
}

bool RunnerGpu::owns_host(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto next = host_memory_.upper_bound(static_cast<const char*>(memory));
  if (next == host_memory_.begin()) return false;
  const auto& [first, bytes] = *std::prev(next);
  return static_cast<const char*>(memory) < first + bytes;
}

Ticket RunnerGpu::copy_to_device(void* device, const void* host, size_t bytes, Stream& stream) {
  host_bytes_ += static_cast<int64_t>(bytes);
  if (owns_host(host)) {
    add(stream, "copy to the device", {{device, bytes, true}, {host, bytes, false}},
        [=] { std::memcpy(device, host, bytes); });
    return mark(stream);
  }
  std::string now(static_cast<const char*>(host), bytes);
  add(stream, "copy to the device", {{device, bytes, true}},
      [device, now = std::move(now)] { std::memcpy(device, now.data(), now.size()); });
  return mark(stream);
}

Ticket RunnerGpu::copy_to_host(void* host, const void* device, size_t bytes, Stream& stream) {
  host_bytes_ += static_cast<int64_t>(bytes);
  std::vector<Access> accesses = {{device, bytes, false}};
  if (owns_host(host)) accesses.push_back({host, bytes, true});
  add(stream, "copy to the host", accesses, [=] { std::memcpy(host, device, bytes); });
  return mark(stream);
}

Ticket RunnerGpu::copy(void* to, const void* from, size_t bytes, Stream& stream) {
  add(stream, "copy", {{to, bytes, true}, {from, bytes, false}}, [=] { std::memcpy(to, from, bytes); });
  return mark(stream);
}

void RunnerGpu::fill_zero(void* device, size_t bytes, Stream& stream) {
  add(stream, "zeros", {{device, bytes, true}}, [=] { std::memset(device, 0, bytes); });
}

Ticket RunnerGpu::mark(Stream& stream) {
  const std::shared_ptr<Queue>& queue = running(stream).queue_;
  const auto s = static_cast<size_t>(queue->number);
  const std::lock_guard lock(mutex_);
  Clock clock = clocks_[s];
  join(clock, host_);
  clock.resize(queues_.size());
  uint64_t count = 0;
  {
    const std::lock_guard inner(queue->mutex);
    count = queue->queued;
  }
  if (queue->number > 0 && count > 0 && records_++ == mistakes_.early_record) --count, --clock[s];
  return Ticket(std::make_shared<Passed>(*this, queue, count, std::move(clock)));
}

void RunnerGpu::copy_at_rest(void* to, const void* from, size_t bytes) {
  wait_for_all();
  std::memmove(to, from, bytes);
}

void* RunnerGpu::allocate_host(size_t bytes) {
  ++host_blocks_;
  void* memory = Device::allocate_host(bytes);
  if (memory == nullptr) return memory;
  std::memset(memory, kGarbage, bytes);
  const std::lock_guard lock(mutex_);
  host_memory_[static_cast<char*>(memory)] = bytes;
  return memory;
}

void RunnerGpu::release_host(void* memory, size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    host_memory_.erase(static_cast<char*>(memory));
  }
  Device::release_host(memory, bytes);
}

void RunnerGpu::release_host_behind(void* memory, size_t bytes, Stream& stream) {
  add(stream, "release", {}, [=, this] { release_host(memory, bytes); });
}

const OpTable& runner_gpu_ops() {
  static const OpTable table = [] {
    OpTable t = cpu_ops();
    t.backend = "runner";
#define TW_WRAP(name, Op) t.name = at_once<&OpTable::name>;
    TW_FOR_EACH_OP(TW_WRAP)
#undef TW_WRAP
    return t;
  }();
  return table;
}

const OpTable& queued_runner_ops() {
  static const OpTable table = [] {
    OpTable t = cpu_ops();
    t.backend = "queued";
#define TW_WRAP(name, Op) t.name = later<&OpTable::name>;
    TW_FOR_EACH_OP(TW_WRAP)
#undef TW_WRAP
    return t;
  }();
  return table;
}

}  // namespace thinwire::test
