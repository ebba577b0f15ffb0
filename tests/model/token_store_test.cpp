// Chunks of a device that wait in host memory, on streams that run beside each other and take their time: what is read
// is what was written, everything that touches the same memory is ordered by events, and the host never waits. Each of
// these waits is then left out, and that is found.
#include "model/token_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <random>

#include "engine/base/core/error.h"
#include "engine/base/device/spill_host.h"
#include "tests/model/model_test_support.h"
#include "tests/support/runner_gpu.h"

namespace thinwire::testing::token_store_test {
namespace {

constexpr int64_t kTokens = 70, kRows = 16;  // the last chunk is shorter
constexpr size_t kPiece = 5 * SpillPlace::kBlock;

ModelShard shard_of_chunks() {
  ModelConfig m = small_model(0);
  m.seq_length = kTokens, m.sequence_chunk = kRows, m.offload = Offload::kHost;
  return ModelShard::all_of(m);
}

// Tensors of every kind, whose chunks are smaller and larger than a page.
struct Tensors {
  explicit Tensors(Arena& arena) : store(shard_of_chunks(), {2, kTokens}) {
    using Kind = TokenStore::Kind;
    for (const auto& [kind, cols] : {std::pair(Kind::kStream, 40),
                                     {Kind::kStream, 130},
                                     {Kind::kKept, 200},
                                     {Kind::kKept, 64},
                                     {Kind::kKeys, 70},
                                     {Kind::kKeyGradients, 70}})
      rows.push_back(store.add(kind, DType::f32, cols, arena, MemoryCategory::kActivations));
  }
  TokenStore store;
  std::vector<TokenRows> rows;
};

// Random calls as layers make them: up to two tensors open, of each kind no more than there is memory for. use(view,
// access, value, before): queues what is done with an open chunk; the value goes in, or `before` is expected.
template <typename Use>
void walk(Tensors& t, uint64_t seed, int calls, const Use& use) {
  std::mt19937_64 random(seed);
  const std::vector<TokenChunk>& chunks = t.store.chunks();
  std::map<std::pair<size_t, size_t>, uint32_t> written;
  uint32_t value = 0;
  // Mostly on through a tensor, as layers go; back to what is in memory still; now and then somewhere else.
  std::pair<size_t, size_t> next[2];
  for (int call = 0; call < calls; ++call) {
    std::vector<std::pair<TokenStore::Held, std::function<void(View)>>> open;
    const size_t count = 1 + random() % 2;
    for (size_t i = 0; i < count; ++i) {
      auto& [tensor, chunk] = next[i];
      if (random() % 6 == 0) tensor = random() % t.rows.size(), chunk = random() % chunks.size();
      if (i == 1 && next[0].first == tensor) tensor = (tensor + 1) % t.rows.size();
      const auto found = written.find({tensor, chunk});
      const bool known = found != written.end();
      const Access access = !known ? Access::kWrite : static_cast<Access>(random() % 3);
      const uint32_t before = known ? found->second : 0;
      if (access != Access::kRead) written[{tensor, chunk}] = ++value;
      open.emplace_back(t.store.open(t.rows[tensor], chunks[chunk], access),
                        [&use, access, now = value, before](View v) { use(v, access, now, before); });
      chunk = (chunk + (random() % 3 == 0 ? chunks.size() - 1 - random() % 2 : 1)) % chunks.size();
      if (random() % 3 > 0 && written.contains({tensor, chunk})) t.store.prefetch(t.rows[tensor], chunks[chunk]);
    }
    for (const auto& [held, then] : open) then(held.view);
  }
}

struct Walked {
  std::string found, details;
  int wrong = 0, waits = 0;
  int64_t host_waits = 0, written = 0, read_back = 0;
};

Walked walk_on_device(uint64_t seed, int calls, const test::EventMistakes& mistakes = {}, int slow_us = 50) {
  test::Findings findings;
  Walked result;
  std::atomic<int> wrong{0};
  {
    test::RunnerGpu gpu(findings, seed, slow_us);
    const std::unique_ptr<Stream> compute = gpu.make_stream();
    Arena arena(&gpu);
    Tensors t(arena);
    t.store.begin(arena, [&](uint64_t room, int requests) {
      EXPECT_EQ(static_cast<int64_t>(room), t.store.room());
      return std::make_unique<SpillHost>(gpu, *compute, room, requests, kPiece);
    });
    EXPECT_EQ(static_cast<int64_t>(arena.plan().host), t.store.room());
    gpu.make(mistakes);
    const int64_t host_waits = gpu.host_waits();
    walk(t, seed, calls, [&](View v, Access access, uint32_t value, uint32_t before) {
      gpu.add(*compute, "compute", {{v.data, v.bytes(), access != Access::kRead}}, [=, &wrong] {
        auto* words = static_cast<uint32_t*>(v.data);
        if (access != Access::kWrite)
          wrong += std::all_of(words, words + v.count(), [&](uint32_t w) { return w == before; }) ? 0 : 1;
        if (access != Access::kRead) std::fill(words, words + v.count(), value);
      });
    });
    result.host_waits = gpu.host_waits() - host_waits;
    result.waits = gpu.counted_waits();
    result.written = t.store.written(), result.read_back = t.store.read_back();
    gpu.make({});
    compute->synchronize();
  }
  result.wrong = wrong, result.found = findings.name(), result.details = findings.text();
  return result;
}

TEST(TokenStoreOnDevice, WhatIsReadIsWhatWasWrittenAndTheHostNeverWaits) {
  int64_t moved = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Walked w = walk_on_device(seed, 300);
    EXPECT_EQ(w.wrong, 0) << "seed " << seed;
    EXPECT_EQ(w.details, "") << "seed " << seed;
    EXPECT_EQ(w.host_waits, 0) << "seed " << seed;
    // A rehearsal counts the same.
    const std::unique_ptr<Device> none = make_rehearsal_device();
    Arena arena(none.get());
    Tensors t(arena);
    t.store.begin(arena, nullptr);
    walk(t, seed, 300, [](View, Access, uint32_t, uint32_t) {});
    EXPECT_EQ(w.written, t.store.written());
    EXPECT_EQ(w.read_back, t.store.read_back());
    EXPECT_EQ(static_cast<int64_t>(arena.plan().host), t.store.room());
    moved += w.read_back;
  }
  EXPECT_GT(moved, 1 << 20);
}

// One wait of a stream for another is left out at a time. What is not found then is ordered by other waits all the
// same: the device knows the order, not only what came of it.
TEST(TokenStoreOnDevice, EveryKindOfWaitIsMissed) {
  struct Kind {
    const char *words, *name;
  };
  const Kind kinds[] = {{"host on stream 1 reads what compute", "written out before it is there"},
                        {"compute on stream 0 reads what copy to the device", "used before it has come"},
                        {"compute on stream 0 writes what copy to the device", "used before it has come"},
                        {"host on stream 1 reads what copy to the device", "used before it has come"},
                        {"compute on stream 0 writes what copy to the host", "used again before it has left"},
                        {"device on stream 2 writes what copy to the host", "fetched into before it has left"},
                        {"device on stream 2 writes what compute", "fetched into while in use"},
                        {"host on stream 1 writes what copy to the device", "written over before it was read"}};
  const auto kind_of = [&](const std::string& details) -> std::string {
    for (const Kind& kind : kinds)
      if (details.find(kind.words) != std::string::npos) return kind.name;
    return details;
  };
  std::map<std::string, int> found;
  for (const bool of_compute : {false, true}) {
    for (int n = 0, all = 1; n < all; ++n) {
      const Walked w = walk_on_device(3, 120, {.dropped_wait = n, .of_waits_in_compute = of_compute}, 0);
      all = w.waits;
      if (!w.found.empty()) ++found[kind_of(w.details)];
    }
  }
  std::string text;
  for (const auto& [kind, count] : found) text += kind + ": " + std::to_string(count) + "; ";
  RecordProperty("found", text);
  for (const Kind& kind : kinds) EXPECT_GE(found[kind.name], 1) << kind.name << " of " << text;
}

// A host without the room says what is needed, what there was and what to do.
class SmallHost final : public Device {
 public:
  explicit SmallHost(size_t bytes) : left_(bytes) {}
  DeviceKind kind() const override { return cpu_->kind(); }
  std::string description() const override { return "little memory"; }
  void* allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* memory, size_t bytes) override { cpu_->release(memory, bytes); }
  std::unique_ptr<Stream> make_stream() override { return cpu_->make_stream(); }
  Ticket copy_to_device(void* to, const void* from, size_t bytes, Stream& stream) override {
    return cpu_->copy_to_device(to, from, bytes, stream);
  }
  Ticket copy_to_host(void* to, const void* from, size_t bytes, Stream& stream) override {
    return cpu_->copy_to_host(to, from, bytes, stream);
  }
  void fill_zero(void* memory, size_t bytes, Stream& stream) override { cpu_->fill_zero(memory, bytes, stream); }
  void* allocate_host(size_t bytes) override {
    if (bytes > left_) throw_bad_config("no more");
    left_ -= bytes;
    return Device::allocate_host(bytes);
  }
  void release_host(void* memory, size_t bytes) override {
    left_ += bytes;
    Device::release_host(memory, bytes);
  }
  size_t left() const { return left_; }

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  size_t left_;
};

TEST(SpillHost, NoRoomIsOneMessage) {
  SmallHost device(size_t{5} << 20);
  const std::unique_ptr<Stream> compute = device.make_stream();
  try {
    SpillHost place(device, *compute, uint64_t{9} << 20, 3, size_t{2} << 20);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    for (const char* part : {"activation_offload host", "needs 9 MiB", "gave 4 MiB", "recompute_granularity"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
  EXPECT_EQ(device.left(), size_t{5} << 20);
  const SpillHost place(device, *compute, uint64_t{5} << 20, 3, size_t{2} << 20);
  EXPECT_EQ(device.left(), 0u);
}

}  // namespace
}  // namespace thinwire::testing::token_store_test
