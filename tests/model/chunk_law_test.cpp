// The chunk law: a model that takes its sequences in chunks gives the numbers of one that takes them whole, for any
// chunk length, and its working memory grows with the sequence by what block.h says, and nothing else.
#include <gtest/gtest.h>

#include "engine/base/device/spill_file.h"
#include "engine/base/device/spill_host.h"
#include "tests/model/model_test_support.h"
#include "tests/support/runner_gpu.h"

namespace thinwire::testing::chunk_law_test {
namespace {

struct Draw {
  uint32_t seed, at = 0;
  int64_t operator()(int64_t first, int64_t last) {
    return first + philox({11, 12}, {at++, seed, 0, 0})[0] % static_cast<uint32_t>(last - first + 1);
  }
};

// A model and one micro-batch, with documents of random lengths where it is asked for.
struct ChunkBed : Bed {
  ChunkBed(const ModelConfig& m, int64_t batch, uint32_t document_seed,
           std::unique_ptr<Device> place = make_cpu_device(), const OpTable& ops = cpu_ops())
      : Bed(m, 2, batch, std::move(place), ops), micro_(micro(true)) {
    if (document_seed == 0) return;
    Draw draw{document_seed};
    micro_.first_keys = arena.take(MemoryCategory::kData, DType::i32, {shape.tokens()});
    micro_.positions = arena.take(MemoryCategory::kData, DType::i32, {shape.tokens()});
    for (int64_t row = 0, begin = 0; row < shape.tokens(); ++row) {
      const int64_t t = row % shape.length;
      if (t == 0 || draw(0, 19) == 0) begin = t;
      micro_.first_keys.as<int32_t>()[row] = static_cast<int32_t>(begin);
      micro_.positions.as<int32_t>()[row] = static_cast<int32_t>(t - begin);
    }
  }
  double train() {
    stage.forward(exec, micro_, 0);
    stage.backward(exec, 0);
    return take_loss();
  }
  double evaluate_all() {
    MicroBatch m = micro_;
    m.loss.dlogits_scale = {};
    stage.evaluate(exec, m);
    return take_loss();
  }

 private:
  MicroBatch micro_;
};

// Gradients are sums of `terms` products in fp32, of which chunks change the order, behind 3 * (7 layers + 3) sums in a
// row that are rounded to the compute type; keys and values get theirs in as many additions as there are chunks.
double tolerance(const ModelConfig& m, int64_t terms, int64_t chunks) {
  const double sums = 3.0 * (7.0 * static_cast<double>(m.layers) + 3.0);
  if (m.dtype == DType::f32) return 6.0 * 0x1p-24 * std::sqrt(static_cast<double>(terms) * sums);
  return 6.0 * 0x1p-9 * std::sqrt(sums + static_cast<double>(chunks));
}

// Planned bytes of one micro-batch of one sequence.
int64_t bytes_of(const ModelConfig& m, int64_t length, MemoryCategory category) {
  const std::unique_ptr<Device> device = make_rehearsal_device();
  Arena arena(device.get());
  const ModelShard shard = ModelShard::all_of(m);
  StageScratch scratch = take_stage_scratch(shard, {1, length}, true, arena);
  ParamStore store(shard, {}, arena, true);
  Ports ports;
  NoUnitEvents events;
  RotaryTables rotary;
  Stage stage(shard, 0, store, {1, length}, 1, ports, &rotary, scratch, events, 7, arena);
  scratch.store->begin(arena, nullptr);
  return static_cast<int64_t>(arena.plan()[category]);
}

// Where ranks share sequences, too: in 16 bits what one chunk adds to a large sum would be lost.
TEST(ChunkScratch, SumsOverChunksAreWide) {
  ModelConfig m = small_model(2);
  m.dtype = DType::bf16, m.seq_length = m.max_positions = 256, m.sequence_chunk = 64;
  ModelShard shard = ModelShard::all_of(m);
  shard.cut = {256, 0, 2};
  const std::unique_ptr<Device> device = make_rehearsal_device();
  Arena arena(device.get());
  const BatchShape shape{1, shard.cut.count()};
  TokenStore store(shard, shape);
  const SequenceScratch s = take_sequence_scratch(shard, shape, true, &store, arena);
  EXPECT_EQ(s.d_keys.whole.dtype, DType::f32);
  ASSERT_TRUE(s.dq_sum);
  EXPECT_EQ(s.dq_sum.dtype, DType::f32);
}

class ChunkLaw : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Families, ChunkLaw, ::testing::Values(0, 1, 2));

TEST_P(ChunkLaw, ChunksEqualTheWhole) {
  int chunked = 0;
  for (uint32_t number = 0; number < 24; ++number) {
    Draw draw{100 * static_cast<uint32_t>(GetParam()) + number};
    ModelConfig m = small_model(GetParam());
    m.seq_length = draw(1, 200), m.max_positions = 200, m.layers = draw(1, 3);
    m.recompute = static_cast<Recompute>(number % 3);
    m.dtype = number % 4 == 3 ? DType::bf16 : DType::f32;
    m.hidden_dropout = m.attention_dropout = draw(0, 1) == 1 ? 0.2f : 0.0f;
    if (draw(0, 3) == 0) m.window = draw(0, 80);
    m.head_chunk_bytes = draw(1, 100) * 4 * m.padded_vocab;
    const int64_t batch = draw(1, 3);
    const auto documents = static_cast<uint32_t>(draw(0, 2) == 0 ? 1000 + number : 0);
    ChunkBed whole(m, batch, documents);
    m.sequence_chunk = draw(1, m.seq_length + 5);
    ChunkBed parts(m, batch, documents);
    const auto chunks = static_cast<int64_t>(list_chunks(parts.shard, parts.shape).size());
    chunked += chunks > batch ? 1 : 0;
    SCOPED_TRACE("case " + std::to_string(number) + ": " + std::to_string(batch) + " x " +
                 std::to_string(m.seq_length) + " tokens, chunks of " + std::to_string(m.sequence_chunk));
    const double allowed = tolerance(m, whole.shape.tokens(), chunks);
    const double loss = whole.evaluate_all();
    EXPECT_NEAR(parts.evaluate_all(), loss, allowed * std::abs(loss));
    // Two micro-batches: gradients accumulate.
    for (int micro = 0; micro < 2; ++micro) {
      const double expected = whole.train();
      EXPECT_NEAR(parts.train(), expected, allowed * std::abs(expected));
    }
    const std::vector<float> a = whole.gradients(), b = parts.gradients();
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
      error += std::pow(static_cast<double>(a[i]) - b[i], 2);
      norm += std::pow(static_cast<double>(a[i]), 2);
    }
    EXPECT_LE(std::sqrt(error / norm), allowed);
  }
  EXPECT_GE(chunked, 15);
}

// One chunk that holds everything changes no bit; and recomputation changes none either, whatever the chunks.
TEST_P(ChunkLaw, SameBitsWhereNothingIsReordered) {
  ModelConfig m = small_model(GetParam());
  m.seq_length = 90, m.max_positions = 90, m.hidden_dropout = m.attention_dropout = 0.1f;
  Bed whole(m, 2, 1);
  const double loss = whole.train_once();
  m.sequence_chunk = 100;
  Bed one(m, 2, 1);
  EXPECT_EQ(one.train_once(), loss);
  EXPECT_EQ(one.gradients(), whole.gradients());
  m.sequence_chunk = 32;
  Bed kept(m, 2, 2);
  const double chunked = kept.train_once();
  for (Recompute level : {Recompute::kSelective, Recompute::kFull}) {
    m.recompute = level;
    Bed again(m, 2, 2);
    EXPECT_EQ(again.train_once(), chunked);
    EXPECT_EQ(again.gradients(), kept.gradients());
  }
}

// What waits outside comes back as it was, from a file or from a device's host, where ops and copies run on threads of
// their own: no bit changes, whatever the level, chunks and dtype.
TEST_P(ChunkLaw, OffloadChangesNoBit) {
  int64_t read_back = 0;
  test::Findings findings;
  for (uint32_t number = 0; number < 9; ++number) {
    Draw draw{5000 + 100 * static_cast<uint32_t>(GetParam()) + number};
    ModelConfig m = small_model(GetParam());
    m.seq_length = draw(100, 400), m.max_positions = 400, m.layers = draw(1, 3);
    m.recompute = static_cast<Recompute>(number % 3);
    m.dtype = number % 2 == 1 ? DType::bf16 : DType::f32;
    m.hidden_dropout = m.attention_dropout = draw(0, 1) == 1 ? 0.1f : 0.0f;
    if (draw(0, 2) == 0) m.window = draw(0, 80);
    m.sequence_chunk = draw(10, 64);
    const int64_t batch = draw(1, 2);
    const auto documents = static_cast<uint32_t>(draw(0, 2) == 0 ? 1000 + number : 0);
    ChunkBed memory(m, batch, documents);
    m.offload = Offload::kDisk;
    ChunkBed disk(m, batch, documents);
    disk.scratch.store->begin(disk.arena, [](uint64_t room, int requests) {
      return std::make_unique<SpillFile>(::testing::TempDir(), room, requests);
    });
    m.offload = Offload::kHost;
    auto gpu = std::make_unique<test::RunnerGpu>(findings, number + 1, 40);
    const test::RunnerGpu& waited = *gpu;
    ChunkBed host(m, batch, documents, std::move(gpu), test::queued_runner_ops());
    host.scratch.store->begin(host.arena, [&](uint64_t room, int requests) {
      return std::make_unique<SpillHost>(*host.device, *host.stream, room, requests, size_t{1} << 16);
    });
    for (int micro = 0; micro < 2; ++micro) {
      const double loss = memory.train();
      EXPECT_EQ(disk.train(), loss);
      const int64_t waits = waited.host_waits();
      EXPECT_EQ(host.train(), loss);
      EXPECT_EQ(waited.host_waits(), waits + 1) << "for the loss alone";
    }
    const double loss = memory.evaluate_all();
    EXPECT_EQ(disk.evaluate_all(), loss);
    EXPECT_EQ(host.evaluate_all(), loss);
    EXPECT_EQ(disk.gradients(), memory.gradients()) << "case " << number;
    EXPECT_EQ(host.gradients(), memory.gradients()) << "case " << number;
    EXPECT_EQ(host.scratch.store->written(), disk.scratch.store->written());
    EXPECT_EQ(host.scratch.store->read_back(), disk.scratch.store->read_back());
    read_back += disk.scratch.store->read_back();
  }
  EXPECT_GT(read_back, 1 << 20);
  EXPECT_EQ(findings.text(), "");
}

// On disk nothing of all tokens is left in memory but the head's statistics, and that is what the plan says.
TEST_P(ChunkLaw, OffloadedMemoryDoesNotGrow) {
  ModelConfig m = small_model(GetParam());
  m.sequence_chunk = 256, m.head_chunk_bytes = 1 << 16, m.offload = Offload::kDisk;
  for (Recompute level : {Recompute::kNone, Recompute::kFull}) {
    m.recompute = level;
    const int64_t each = m.norm == NormKind::kLayerNorm ? 8 : 4;
    EXPECT_EQ(bytes_of(m, 65536, MemoryCategory::kWorkspace), bytes_of(m, 8192, MemoryCategory::kWorkspace));
    EXPECT_EQ(bytes_of(m, 65536, MemoryCategory::kActivations) - bytes_of(m, 8192, MemoryCategory::kActivations),
              each * (65536 - 8192));
  }
}

TEST_P(ChunkLaw, MemoryGrowsByKeysValuesAndTheStream) {
  ModelConfig m = small_model(GetParam());
  m.recompute = Recompute::kFull;
  m.sequence_chunk = 256, m.head_chunk_bytes = 1 << 16;
  const auto bytes = [&](int64_t length, MemoryCategory category) { return bytes_of(m, length, category); };
  const int64_t element = 4, kv = 2 * m.kv_heads * m.head_dim;
  // Keys, values and their gradients; the stream's gradient.
  const int64_t work = 2 * kv * element + m.hidden * element;
  const int64_t kept = (m.layers + 2) * m.hidden * element + (m.norm == NormKind::kLayerNorm ? 8 : 4);
  for (int64_t length : {1024, 4096, 65536}) {
    EXPECT_EQ(bytes(2 * length, MemoryCategory::kWorkspace) - bytes(length, MemoryCategory::kWorkspace), length * work);
    EXPECT_EQ(bytes(2 * length, MemoryCategory::kActivations) - bytes(length, MemoryCategory::kActivations),
              length * kept);
  }
  // Where q, k and v are kept: their gradients; the stream's.
  for (Recompute level : {Recompute::kNone, Recompute::kSelective}) {
    m.recompute = level;
    EXPECT_EQ(bytes(131072, MemoryCategory::kWorkspace) - bytes(65536, MemoryCategory::kWorkspace),
              65536 * (m.qkv_width() + m.hidden) * element);
  }
}

}  // namespace
}  // namespace thinwire::testing::chunk_law_test
