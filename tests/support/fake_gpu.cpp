// Locked memory and lazy streams.
#include "tests/support/fake_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "engine/base/core/check.h"
#include "engine/base/ops/op_list.h"

namespace thinwire::test {
namespace {

constexpr int kScribble = 0xA7;

size_t pages(size_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

FakeStream& fake(Stream& stream) {
  auto* lazy = dynamic_cast<FakeStream*>(&stream);
  TW_CHECK(lazy != nullptr, "work of the device on a stream of the host");
  return *lazy;
}

class Passed final : public Operation {
 public:
  explicit Passed(FakeStream& stream) : stream_(stream), number_(stream.queued()) {
    TW_CHECK(!stream.records(), "a ticket of a stream that records");
  }
  State state() const override { return stream_.done() >= number_ ? State::kDone : State::kRecorded; }
  void wait_on(Stream& stream) override {
    auto* lazy = dynamic_cast<FakeStream*>(&stream);
    if (lazy == nullptr)
      stream_.run_until(number_);
    else if (lazy != &stream_)
      lazy->add([this_stream = &stream_, number = number_] { this_stream->run_until(number); });
  }
  void wait_on_host() override { stream_.run_until(number_); }

 private:
  FakeStream& stream_;
  size_t number_;
};

const void* region_of(const std::map<char*, size_t>& regions, const void* memory) {
  const auto next = regions.upper_bound(static_cast<char*>(const_cast<void*>(memory)));
  if (next == regions.begin()) return nullptr;
  const auto& [first, bytes] = *std::prev(next);
  return static_cast<const char*>(memory) < first + bytes ? first : nullptr;
}

class FakeRecording final : public Recording {
 public:
  FakeRecording(FakeStream& stream, std::vector<std::function<void()>> work)
      : stream_(stream), work_(std::move(work)) {}
  void queue() override {
    for (const std::function<void()>& work : work_) stream_.add(work);
  }
  int64_t size() const override { return static_cast<int64_t>(work_.size()); }

 private:
  FakeStream& stream_;
  std::vector<std::function<void()>> work_;
};

// What the CPU keeps from one product to the next is not the same when a recording is queued again.
void forget_versions(Matmul& op) {
  op.b_version = -1;
}
template <typename Op>
void forget_versions(Op&) {}

template <auto Entry, typename Op>
void opened(Exec& exec, const Op& op) {
  FakeStream& stream = fake(exec.stream);
  if (stream.records()) {
    Op kept = op;
    forget_versions(kept);
    stream.add([&exec, kept] { (cpu_ops().*Entry)(exec, kept); });
    return;
  }
  FakeGpu& gpu = stream.gpu();
  gpu.open();  // once for what is queued and this
  stream.synchronize();
  (cpu_ops().*Entry)(exec, op);
  gpu.close();
}

}  // namespace

FakeStream::FakeStream(FakeGpu& gpu) : gpu_(gpu) {
  gpu_.streams_.insert(this);
}

FakeStream::~FakeStream() {
  synchronize();
  gpu_.streams_.erase(this);
}

void FakeStream::synchronize() {
  TW_CHECK(!records(), "somebody waits for a stream that records");
  run_until(queued_);
}

void FakeStream::add(std::function<void()> work) {
  if (recorded_) return recorded_->push_back(std::move(work));
  work_.push_back(std::move(work));
  ++queued_;
}

void FakeStream::begin_recording() {
  TW_CHECK(!records(), "a stream records one thing at a time");
  recorded_.emplace();
}

std::unique_ptr<Recording> FakeStream::end_recording() {
  TW_CHECK(records(), "nothing is recorded");
  auto recording = std::make_unique<FakeRecording>(*this, std::move(*recorded_));
  recorded_.reset();
  return recording;
}

void FakeStream::run_until(size_t number) {
  if (done_ >= number) return;
  gpu_.open();
  while (done_ < number) {
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    next();
    ++done_;
  }
  gpu_.close();
}

Device* FakeStream::device() {
  return &gpu_;
}

void FakeGpu::expect_no_recording(const char* what) const {
  for (const FakeStream* stream : streams_) TW_CHECK(!stream->records(), what, " while a stream records");
}

FakeGpu::~FakeGpu() {
  for (const auto& [memory, bytes] : regions_) ::munmap(memory, pages(bytes));
  for (const auto& [memory, bytes] : host_) std::free(memory);
}

void FakeGpu::open() {
  if (++opened_ > 1) return;
  for (const auto& [memory, bytes] : regions_)
    TW_CHECK(::mprotect(memory, pages(bytes), PROT_READ | PROT_WRITE) == 0, "mprotect");
}

void FakeGpu::close() {
  if (--opened_ > 0) return;
  for (const auto& [memory, bytes] : regions_) TW_CHECK(::mprotect(memory, pages(bytes), PROT_NONE) == 0, "mprotect");
}

void* FakeGpu::allocate(size_t bytes) {
  expect_no_recording("memory is taken");
  void* memory = ::mmap(nullptr, pages(bytes), opened_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TW_CHECK(memory != MAP_FAILED, "mmap of ", bytes);
  regions_[static_cast<char*>(memory)] = bytes;
  held_ += bytes;
  peak_ = std::max(peak_, held_);
  return memory;
}

void FakeGpu::release(void* memory, size_t bytes) {
  expect_no_recording("memory is given back");
  for (FakeStream* stream : streams_) stream->synchronize();  // as a GPU does
  TW_CHECK(regions_.erase(static_cast<char*>(memory)) == 1, "memory that was not taken here");
  held_ -= bytes;
  ::munmap(memory, pages(bytes));
}

bool FakeGpu::holds(const void* memory) const {
  return region_of(regions_, memory) != nullptr;
}

bool FakeGpu::owns_host(const void* memory) const {
  return region_of(host_, memory) != nullptr;
}

Ticket FakeGpu::copy_to_device(void* device, const void* host, size_t bytes, Stream& stream) {
  TW_CHECK(bytes == 0 || (holds(device) && !holds(host)), "a copy to the device between other places");
  TW_CHECK(!fake(stream).records(), "a recording would copy from a place of the host again and again");
  if (owns_host(host)) {
    fake(stream).add([=] { std::memcpy(device, host, bytes); });
  } else {
    const std::string now(static_cast<const char*>(host), bytes);
    fake(stream).add([=] { std::memcpy(device, now.data(), bytes); });
  }
  return mark(stream);
}

Ticket FakeGpu::copy_to_host(void* host, const void* device, size_t bytes, Stream& stream) {
  TW_CHECK(bytes == 0 || (holds(device) && !holds(host)), "a copy to the host between other places");
  TW_CHECK(!fake(stream).records(), "a recording would copy to a place of the host again and again");
  fake(stream).add([=] { std::memcpy(host, device, bytes); });
  return mark(stream);
}

Ticket FakeGpu::copy(void* to, const void* from, size_t bytes, Stream& stream) {
  TW_CHECK(bytes == 0 || (holds(to) && holds(from)), "a copy on the device between other places");
  fake(stream).add([=] { std::memcpy(to, from, bytes); });
  return mark(stream);
}

void FakeGpu::fill_zero(void* device, size_t bytes, Stream& stream) {
  TW_CHECK(bytes == 0 || holds(device), "zeros for memory of the host");
  fake(stream).add([=] { std::memset(device, 0, bytes); });
}

Ticket FakeGpu::mark(Stream& stream) {
  return Ticket(std::make_shared<Passed>(fake(stream)));
}

void FakeGpu::copy_at_rest(void* to, const void* from, size_t bytes) {
  for (FakeStream* stream : streams_) stream->synchronize();
  open();
  std::memmove(to, from, bytes);
  close();
}

void* FakeGpu::allocate_host(size_t bytes) {
  char* memory = static_cast<char*>(std::malloc(std::max<size_t>(bytes, 1)));
  std::memset(memory, kScribble, bytes);
  host_[memory] = bytes;
  return memory;
}

void FakeGpu::release_host(void* memory, size_t bytes) {
  std::memset(memory, kScribble, bytes);
  host_.erase(static_cast<char*>(memory));
  std::free(memory);
}

void FakeGpu::release_host_behind(void* memory, size_t bytes, Stream& stream) {
  fake(stream).add([=, this] { release_host(memory, bytes); });
}

const OpTable& fake_gpu_ops() {
  static const OpTable table = [] {
    OpTable t = cpu_ops();
    t.backend = "fake";
#define TW_WRAP(name, Op) t.name = opened<&OpTable::name>;
    TW_FOR_EACH_OP(TW_WRAP)
#undef TW_WRAP
    return t;
  }();
  return table;
}

}  // namespace thinwire::test
