// The backend of tests that run CUDA kernels on a GPU: every op is run on copies of its tensors in device memory, which
// come back to the host behind it. Without a GPU all tests are skipped, with the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/ops/op_list.h"
#include "tests/support/op_views.h"

namespace thinwire {

const OpTable& tested_ops();

namespace {

// Why there is no device, or nothing.
std::string fault_of_device() {
  try {
    make_cuda_device(0);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (const std::string fault = fault_of_device(); !fault.empty()) GTEST_SKIP() << "no GPU: " << fault;
  }
};
[[maybe_unused]] const testing::Environment* const needs_device =
    testing::AddGlobalTestEnvironment(new NeedsDevice);  // googletest deletes it

// The CUDA table with our own attention kernels: these tests are theirs, and their bounds do not allow a library's
// roundings. What training picks has attention_fused_cuda_test.
OpTable table_under_test() {
  OpTable table = cuda_ops();
  table.attention_forward = checked<attention_forward_cuda>;
  table.attention_backward = checked<attention_backward_cuda>;
  return table;
}

struct MirroredState : OpState {
  MirroredState() : table(table_under_test()), device(make_cuda_device(0)), stream(device->make_stream()) {
    exec = std::make_unique<Exec>(make_exec(table, *device, *stream, 1));
  }
  OpTable table;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Exec> exec;
};

// A run of host bytes and its copy on the device, with a pattern on both sides that no kernel may touch.
class Mirror {
 public:
  Mirror(MirroredState& state, char* begin, char* end) : state_(state), begin_(begin), end_(end) {
    // The copy lies on the device as the original on the host, modulo 512: what was unaligned stays so.
    shift_ = kGuard + reinterpret_cast<uintptr_t>(begin) % 512;
    bytes_ = shift_ + static_cast<size_t>(end - begin) + kGuard;
    memory_ = static_cast<char*>(state.device->allocate(bytes_));
    std::vector<char> image(bytes_, kPattern);
    std::memcpy(image.data() + shift_, begin, static_cast<size_t>(end - begin));
    state.device->copy_to_device(memory_, image.data(), bytes_, *state.stream).wait_on_host();
  }
  ~Mirror() { state_.device->release(memory_, bytes_); }
  Mirror(const Mirror&) = delete;

  bool holds(const void* p) const { return p >= begin_ && p < end_; }
  char* on_device(const void* p) const { return memory_ + shift_ + (static_cast<const char*>(p) - begin_); }
  void fetch() {
    std::vector<char> image(bytes_);
    state_.device->copy_to_host(image.data(), memory_, bytes_, *state_.stream).wait_on_host();
    // What an op only reads may be constant here.
    if (std::memcmp(begin_, image.data() + shift_, static_cast<size_t>(end_ - begin_)) != 0)
      std::memcpy(begin_, image.data() + shift_, static_cast<size_t>(end_ - begin_));
    const size_t behind = shift_ + static_cast<size_t>(end_ - begin_);
    for (size_t i = 0; i < bytes_; ++i) {
      if ((i < shift_ || i >= behind) && image[i] != kPattern) {
        ADD_FAILURE() << "a kernel wrote outside a tensor of " << end_ - begin_ << " bytes, at "
                      << static_cast<int64_t>(i) - static_cast<int64_t>(shift_);
        return;
      }
    }
  }

 private:
  static constexpr size_t kGuard = 1024;
  static constexpr char kPattern = 0x5a;
  MirroredState& state_;
  char *begin_, *end_;
  char* memory_ = nullptr;
  size_t shift_ = 0, bytes_ = 0;
};

using Mirrors = std::vector<std::unique_ptr<Mirror>>;

// One mirror per run of memory that the op sees: views that overlap share one, so aliases stay aliases.
template <typename Op>
Mirrors mirrors_of(MirroredState& state, Op& op) {
  struct Range {
    char *begin, *end;
  };
  std::vector<Range> ranges;
  test::visit_memory(op, [&](void*& data, size_t bytes) {
    if (data != nullptr && bytes > 0) ranges.push_back({static_cast<char*>(data), static_cast<char*>(data) + bytes});
  });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  Mirrors mirrors;
  for (size_t i = 0; i < ranges.size();) {
    Range whole = ranges[i++];
    for (; i < ranges.size() && ranges[i].begin < whole.end; ++i) whole.end = std::max(whole.end, ranges[i].end);
    mirrors.push_back(std::make_unique<Mirror>(state, whole.begin, whole.end));
  }
  return mirrors;
}

template <auto kEntry, typename Op>
void mirrored(Exec& exec, const Op& op) {
  auto& state = dynamic_cast<MirroredState&>(*exec.state);
  Op on_device = op;
  Mirrors mirrors = mirrors_of(state, on_device);
  test::visit_memory(on_device, [&](void*& data, size_t bytes) {
    if (data == nullptr || bytes == 0) return;
    for (const auto& mirror : mirrors) {
      if (mirror->holds(data)) {
        data = mirror->on_device(data);
        return;
      }
    }
  });
  (state.table.*kEntry)(*state.exec, on_device);
  state.stream->synchronize();
  for (const auto& mirror : mirrors) mirror->fetch();
  try {
    state.exec->state->check_faults(*state.stream);
  } catch (const Error&) {
    state.exec->state = state.table.make_state(*state.device);  // the next op starts without the fault
    throw;
  }
}

std::string name_of_mirror() {
  return cuda_ops().isa();
}
std::unique_ptr<OpState> make_mirrored_state(Device&) {
  return std::make_unique<MirroredState>();
}

}  // namespace

const OpTable& tested_ops() {
  static const OpTable table = [] {
    OpTable t;
    t.backend = "cuda mirrored";
    t.isa = name_of_mirror;
    t.make_state = make_mirrored_state;
#define TW_MIRROR(name, Op) t.name = mirrored<&OpTable::name>;
    TW_FOR_EACH_OP(TW_MIRROR)
#undef TW_MIRROR
    return t;
  }();
  return table;
}

}  // namespace thinwire
