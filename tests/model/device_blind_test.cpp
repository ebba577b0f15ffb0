// Model, optimizer and trainer never read device memory: a whole training step runs on a device whose memory is
// unreadable except inside ops and copies.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>

#include "engine/base/ops/op_list.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/synthetic_batches.h"

namespace thinwire::testing::device_blind_test {
namespace {

// Every allocation of the device; locked means that any touch is a segmentation fault.
class Vault {
 public:
  void add(void* memory, size_t bytes) { regions_[memory] = bytes; }
  void remove(void* memory) { regions_.erase(memory); }
  void open() { protect(PROT_READ | PROT_WRITE); }
  void close() { protect(PROT_NONE); }
  size_t regions() const { return regions_.size(); }
  bool holds(const void* p) const {
    const auto next = regions_.upper_bound(const_cast<void*>(p));
    return next != regions_.begin() &&
           static_cast<const char*>(p) < static_cast<char*>(std::prev(next)->first) + std::prev(next)->second;
  }

 private:
  void protect(int access) {
    for (const auto& [memory, bytes] : regions_) ASSERT_EQ(mprotect(memory, (bytes + 4095) / 4096 * 4096, access), 0);
  }
  std::map<void*, size_t> regions_;
};

// The table's functions have no room for a pointer of ours, so the test's one vault is reached through this.
Vault* vault = nullptr;

struct Opened {
  Opened() { vault->open(); }
  ~Opened() { vault->close(); }
};

class FakeDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string description() const override { return "fake"; }
  void* allocate(size_t bytes) override {
    void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    vault->add(memory, bytes);
    return memory;
  }
  void release(void* memory, size_t bytes) override {
    vault->remove(memory);
    munmap(memory, bytes);
  }
  std::unique_ptr<Stream> make_stream() override { return cpu_->make_stream(); }
  Ticket copy_to_device(void* device, const void* host, size_t bytes, Stream&) override {
    Opened opened;
    EXPECT_TRUE(vault->holds(device) && !vault->holds(host));
    memcpy(device, host, bytes);
    return Ticket::finished();
  }
  Ticket copy_to_host(void* host, const void* device, size_t bytes, Stream&) override {
    Opened opened;
    EXPECT_TRUE(vault->holds(device) && !vault->holds(host));
    memcpy(host, device, bytes);
    return Ticket::finished();
  }
  void fill_zero(void* device, size_t bytes, Stream&) override {
    Opened opened;
    memset(device, 0, bytes);
  }

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

template <auto Entry, typename Op>
void opened(Exec& exec, const Op& op) {
  Opened open;
  (cpu_ops().*Entry)(exec, op);
}

OpTable opening_table() {
  OpTable t = cpu_ops();
#define TW_WRAP(name, Op) t.name = opened<&OpTable::name>;
  TW_FOR_EACH_OP(TW_WRAP)
#undef TW_WRAP
  return t;
}

RunConfig config_of(bool parallel, DType dtype, Recompute recompute) {
  RunConfig run;
  ModelConfig& m = run.model;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 48, m.vocab = 61,
  m.padded_vocab = 64;
  m.seq_length = 17, m.max_positions = 17, m.dtype = dtype, m.recompute = recompute, m.hidden_dropout = 0.1f,
  m.attention_dropout = 0.1f;
  m.parallel_residual = parallel;
  if (parallel) m.positions = PositionKind::kRotary, m.activation = ActivationKind::kSwiglu;
  run.data.micro_batch = 2, run.data.global_batch = 4, run.data.seq_length = m.seq_length;
  run.accumulation = 2, run.threads_per_rank = 2;
  run.optim.lr = 1e-3, run.optim.decay = LrDecay::kConstant;
  return run;
}

struct Trained {
  std::vector<double> numbers;  // loss and norm of each step
  std::vector<float> weights;   // the masters after the last
};

Trained train(const RunConfig& run, Device& device, const OpTable& ops) {
  Replica replica(run, &device, &ops, true);
  replica.set_fresh_weights();
  BareTraining training(replica);
  Trained result;
  int64_t next = 0;
  for (int i = 0; i < 3; ++i) {
    const auto batch = [&] {
      return synthetic_batch(next++, run.data.micro_batch, run.data.seq_length, run.model.vocab);
    };
    const StepOutcome outcome = training.take_step(2, batch);
    EXPECT_FALSE(outcome.skipped) << outcome.non_finite;
    result.numbers.push_back(outcome.loss), result.numbers.push_back(outcome.grad_norm);
  }
  for (const OwnedPiece& piece : replica.store().owned()) {
    std::vector<float> values(static_cast<size_t>(piece.master.count()));
    replica.read(piece.master, values.data());
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

TEST(DeviceBlind, AStepRunsOnUnreadableMemoryWithTheSameBits) {
  Vault regions;
  vault = &regions;
  const OpTable table = opening_table();
  for (bool parallel : {false, true}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        const RunConfig run = config_of(parallel, dtype, recompute);
        const std::unique_ptr<Device> cpu = make_cpu_device();
        FakeDevice fake;
        const Trained blind = train(run, fake, table), seeing = train(run, *cpu, cpu_ops());
        EXPECT_EQ(blind.numbers, seeing.numbers);
        EXPECT_FALSE(blind.weights.empty());
        EXPECT_TRUE(blind.weights == seeing.weights) << "the last update differs, which no loss has seen";
        EXPECT_EQ(regions.regions(), 0u);  // arenas gave everything back
      }
    }
  }
}

}  // namespace
}  // namespace thinwire::testing::device_blind_test
