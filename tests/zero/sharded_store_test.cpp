// Every layout starts from the bits of one rank, owns every element once, and shows it to checkpoints once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "model/param_store.h"
#include "model/params.h"
#include "model/unit_steps.h"

namespace thinwire::sharded_store_test {
namespace {

// Ragged on purpose: three layers, a vocabulary and feed-forward width that no power of two divides.
ModelConfig ragged_model(int family, DType dtype) {
  ModelConfig m;
  m.layers = 5, m.hidden = 48, m.heads = 4, m.kv_heads = 4, m.head_dim = 12, m.ffn = 109, m.vocab = 301,
  m.padded_vocab = 303, m.seq_length = 16, m.max_positions = 37, m.init_std = 0.3f, m.dtype = dtype;
  if (family == 1) m.positions = PositionKind::kRotary, m.parallel_residual = true, m.tied_head = false;
  if (family == 2) {
    m.positions = PositionKind::kRotary, m.norm = NormKind::kRmsNorm, m.activation = ActivationKind::kSwiglu;
    m.kv_heads = 4, m.heads = 8, m.head_dim = 6, m.tied_head = false;
    m.bias_attention = m.bias_mlp = m.bias_norm = false;
  }
  return m;
}

struct Layout {
  int pipeline = 1, data = 1, tensor = 1;
  Placement placement;
  bool split_backward = false, sequence_parallel = false;
};

Layout random_layout(std::mt19937& random) {
  const auto pick = [&](std::vector<int> of) { return of[random() % of.size()]; };
  Layout l;
  l.pipeline = pick({1, 1, 2, 3}), l.data = pick({1, 2, 3, 4, 6}), l.tensor = pick({1, 1, 2, 4});
  const auto divisor = [&](int n, int multiple_of) {
    std::vector<int> found;
    for (int d = multiple_of; d <= n; d += multiple_of) {
      if (n % d == 0) found.push_back(d);
    }
    return pick(found);
  };
  Placement& p = l.placement;
  p.replicas = l.data;
  p.optimizer = divisor(l.data, 1), p.gradients = divisor(p.optimizer, 1), p.weights = divisor(p.gradients, 1);
  p.secondary = p.weights > 1 && random() % 2 != 0 ? 1 : 0;
  p.hold = static_cast<Hold>(random() % 3);
  p.embedding = random() % 2 != 0 ? EmbeddingSyncKind::kFused : EmbeddingSyncKind::kTwoStep;
  l.split_backward = random() % 3 == 0;
  l.sequence_parallel = random() % 2 != 0;
  return l;
}

std::string describe(const Layout& l) {
  const Placement& p = l.placement;
  return "pp " + std::to_string(l.pipeline) + " dp " + std::to_string(l.data) + " tp " + std::to_string(l.tensor) +
         " placement " + std::to_string(p.weights) + "|" + std::to_string(p.gradients) + "|" +
         std::to_string(p.optimizer) + " hold " + std::to_string(static_cast<int>(p.hold)) +
         (p.embedding == EmbeddingSyncKind::kFused ? " fused" : " two-step");
}

ModelShard shard_of(const ModelConfig& model, const Layout& l, int pipeline, int tensor) {
  ModelShard s;
  s.whole = model;
  s.tensor_rank = tensor, s.tensor_size = l.tensor, s.sequence_parallel = l.sequence_parallel && l.tensor > 1;
  const int64_t first = model.layers * pipeline / l.pipeline, end = model.layers * (pipeline + 1) / l.pipeline;
  if (end - first > 1) {
    s.chunks = {{first, 1}, {first + 1, end - first - 1}};  // two chunks of different length
  } else {
    s.chunks = {{first, end - first}};
  }
  s.first = pipeline == 0, s.last = pipeline == l.pipeline - 1;
  return s;
}

// The elements of all tensors, and how often each was shown.
class Collector final : public StateVisitor {
 public:
  struct Tensor {
    std::vector<float> values;
    std::vector<int> shown;
  };
  void tensor(const GlobalSlice& s) override {
    Tensor& t = tensors[s.name];
    t.values.resize(static_cast<size_t>(s.rows * s.cols));
    t.shown.resize(t.values.size());
    ASSERT_LE(s.first + s.local.count(), s.part_rows * s.part_cols) << s.name;
    for (int64_t i = 0; i < s.local.count(); ++i) {
      const int64_t e = s.first + i;
      const size_t at = static_cast<size_t>((s.row + e / s.part_cols) * s.cols + s.col + e % s.part_cols);
      const float value = s.local.as<float>()[i];
      const bool agrees = t.shown[at] == 0 || std::memcmp(&t.values[at], &value, sizeof value) == 0;
      EXPECT_TRUE(agrees) << s.name << " " << at;
      t.values[at] = value;
      ++t.shown[at];
    }
  }
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  void text(const std::string&, std::string&) override {}
  std::map<std::string, Tensor> tensors;
};

struct Bench {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  Exec exec = make_exec(cpu_ops(), *device, *stream, 1);
};

template <typename F>
void for_each_rank(const Layout& l, const ModelConfig& model, Bench& bench, F&& with) {
  for (int pipeline = 0; pipeline < l.pipeline; ++pipeline) {
    for (int data = 0; data < l.data; ++data) {
      for (int tensor = 0; tensor < l.tensor; ++tensor) {
        Arena arena(bench.device.get());
        const ModelShard shard = shard_of(model, l, pipeline, tensor);
        ParamStore store(shard, {l.placement, data, pipeline == 0 ? 0 : 1, l.split_backward}, arena, true);
        with(store, shard);
      }
    }
  }
}

// The piece that holds the first element that this rank owns of the unit.
size_t piece_with(const ParamStore& store, int unit) {
  const auto& units = store.layout().units;
  const int64_t at =
      units[static_cast<size_t>(unit)].first + store.units()[static_cast<size_t>(unit)].shard.optimizer.first;
  for (size_t i = 0; i < store.owned().size(); ++i) {
    const OwnedPiece& piece = store.owned()[i];
    const int64_t first = units[static_cast<size_t>(piece.unit)].first + piece.range.first;
    if (at >= first && at < first + piece.range.count) return i;
  }
  ADD_FAILURE() << "nobody updates unit " << unit;
  return 0;
}

TEST(ShardedStore, StartsFromTheBitsOfOneRank) {
  std::mt19937 random(7);
  Bench bench;
  for (int round = 0; round < 60; ++round) {
    const Layout l = random_layout(random);
    const ModelConfig model = ragged_model(round % 3, round % 2 != 0 ? DType::bf16 : DType::f32);
    SCOPED_TRACE(describe(l) + " family " + std::to_string(round % 3));
    Collector whole, all, written;
    {
      Arena arena(bench.device.get());
      ParamStore store(model, arena, true);
      ASSERT_EQ(store.owned().size(), 1u);
      store.initialize(bench.exec, 42);
      store.visit(whole, "", {}, true);
    }
    for_each_rank(l, model, bench, [&](ParamStore& store, const ModelShard&) {
      store.initialize(bench.exec, 42);
      store.visit(all, "", {}, false);
      store.visit(written, "", {}, true);
    });
    ASSERT_EQ(whole.tensors.size(), list_parameters(model).size());
    ASSERT_EQ(all.tensors.size(), whole.tensors.size());
    ASSERT_EQ(written.tensors.size(), whole.tensors.size());
    for (const auto& [name, tensor] : whole.tensors) {
      const std::vector<float>& mine = written.tensors.at(name).values;
      ASSERT_EQ(std::memcmp(mine.data(), tensor.values.data(), mine.size() * sizeof(float)), 0) << name;
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        ASSERT_EQ(tensor.shown[i], 1) << name << " " << i;
        ASSERT_EQ(written.tensors.at(name).shown[i], 1) << name << " " << i;
        ASSERT_GE(all.tensors.at(name).shown[i], 1) << name << " " << i;
      }
    }
  }
}

// Every element's gradient is a number of its own: norms over the counted runs are those of one rank.
TEST(ShardedStore, CountsEveryElementOnce) {
  std::mt19937 random(8);
  Bench bench;
  for (int round = 0; round < 30; ++round) {
    const Layout l = random_layout(random);
    const ModelConfig model = ragged_model(round % 3, DType::f32);
    SCOPED_TRACE(describe(l));
    double sum = 0.0;
    for_each_rank(l, model, bench, [&](ParamStore& store, const ModelShard&) {
      for (const OwnedPiece& piece : store.owned()) {
        const int64_t first = store.layout().units[static_cast<size_t>(piece.unit)].first + piece.range.first;
        ASSERT_EQ(piece.gradient.count(), piece.range.count);
        ASSERT_EQ(piece.master.count(), piece.range.count);
        for (size_t i = 0; i < store.params().size(); ++i) {
          const Segment& s = store.layout().by_param[i];
          for (int64_t e = 0; e < s.count; ++e) {
            const int64_t at = s.offset + e - first;
            if (at >= 0 && at < piece.range.count) piece.gradient.as<float>()[at] = 1.0f;
          }
        }
      }
      for (const View& run : store.counted_gradients()) {
        for (int64_t i = 0; i < run.count(); ++i) sum += run.as<float>()[i];
      }
    });
    EXPECT_EQ(sum, static_cast<double>(count_parameters(list_parameters(model), true)));
  }
}

TEST(ShardedStore, TakesWhatItOwnsOfGivenValues) {
  std::mt19937 random(9);
  Bench bench;
  for (int round = 0; round < 20; ++round) {
    const Layout l = random_layout(random);
    const ModelConfig model = ragged_model(round % 3, DType::bf16);
    SCOPED_TRACE(describe(l));
    Collector all;
    for_each_rank(l, model, bench, [&](ParamStore& store, const ModelShard&) {
      for (const ParamSpec& p : list_parameters(model)) {
        std::vector<float> values(static_cast<size_t>(p.count()));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
        Collector mine;
        const bool took = store.set(*bench.device, *bench.stream, p.name, values);
        store.visit(mine, "", {}, false);
        EXPECT_EQ(took, mine.tensors.count(p.name) != 0) << p.name;
      }
      store.refresh_working(bench.exec);
      for (const OwnedPiece& piece : store.owned()) {
        for (int64_t i = 0; i < piece.range.count; ++i)
          ASSERT_EQ(piece.working.as<Bf16>()[i].bits, to_bf16(piece.master.as<float>()[i]).bits);
      }
      store.visit(all, "", {}, true);
    });
    for (const auto& [name, tensor] : all.tensors) {
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        ASSERT_EQ(tensor.shown[i], 1);
        ASSERT_EQ(tensor.values[i], static_cast<float>(i) + 0.5f) << name;
      }
    }
  }
}

// Published units in any order: nothing that is published changes behind its parameter all-gather, and nothing twice.
TEST(ShardedStore, UpdatesEveryPieceOnceAndBeforeItLeaves) {
  std::mt19937 random(11);
  Bench bench;
  int merged = 0;
  for (int round = 0; round < 60; ++round) {
    const Layout l = random_layout(random);
    SCOPED_TRACE(describe(l));
    for_each_rank(l, ragged_model(round % 3, DType::f32), bench, [&](ParamStore& store, const ModelShard&) {
      std::vector<int> published, times(store.owned().size());
      for (size_t u = 0; u < store.units().size(); ++u) {
        if (store.units()[u].shard.sync.members.size() > 1) published.push_back(static_cast<int>(u));
      }
      UnitSteps updates(store);
      for (int update = 1; update <= 2; ++update) {
        const auto count = [&](size_t piece) { ++times.at(piece); };
        updates.local(count);
        EXPECT_EQ(updates.has_local(), std::count(times.begin(), times.end(), update) > 0);
        updates.begin();
        std::shuffle(published.begin(), published.end(), random);
        for (int unit : published) {
          updates.unit(unit, count);
          if (store.units()[static_cast<size_t>(unit)].shard.optimizer.count > 0) {
            const size_t piece = piece_with(store, unit);
            EXPECT_EQ(times[piece], update);
            merged += store.owned()[piece].range.count > store.units()[static_cast<size_t>(unit)].shard.optimizer.count;
          }
        }
        EXPECT_TRUE(updates.complete());
        EXPECT_EQ(std::count(times.begin(), times.end(), update), std::ssize(times));
      }
    });
  }
  EXPECT_GT(merged, 0);  // units that are updated with a neighbour are among them
}

// Of more ranks than the largest unit has quanta the first owns nothing, and still gathers what the others have coded.
TEST(ShardedStore, ARankWithoutAPieceKnowsOfCodedGathers) {
  Bench bench;
  const ModelConfig model = ragged_model(0, DType::f32);
  StorePlacement where;
  where.placement = {1, 1, 16, 16, 0, Hold::kUnit, EmbeddingSyncKind::kFused};
  for (const bool coded : {false, true}) {
    where.coded_param_sync = coded;
    for (const int rank : {0, 15}) {
      where.data_rank = rank;
      Arena arena(bench.device.get());
      const ParamStore store(ModelShard::all_of(model), where, arena, true);
      EXPECT_EQ(store.owned().empty(), rank == 0);
      EXPECT_EQ(store.coded_sync(), coded) << rank;
    }
  }
}

// Bytes of the levels, by hand: what is sharded shrinks with its width, what rotates takes two blocks.
TEST(ShardedStore, TakesTheMemoryThatThePlacementSays) {
  ModelConfig model = ragged_model(0, DType::bf16);
  Layout l;
  l.data = 4;
  const auto plan = [&](int weights, int gradients, int optimizer, Hold hold) {
    l.placement = {weights, gradients, optimizer, 4, 0, hold, EmbeddingSyncKind::kFused};
    const auto device = make_rehearsal_device();
    Arena arena(device.get());
    ModelShard shard = ModelShard::all_of(model);
    const ParamStore store(shard, {l.placement, 1, 0, false}, arena, true);
    int64_t block = store.units()[1].count + store.units()[2].count, rest = 0, owned = 0, gradient = 0, weight = 0;
    for (const UnitMemory& unit : store.units()) {
      owned += unit.shard.optimizer.count, gradient += unit.shard.gradients.count, weight += unit.shard.weights.count;
      rest += unit.count;
    }
    rest -= model.layers * block;
    const int64_t places = hold == Hold::kUnit ? 2 : model.layers;
    const size_t full_weights = weights > 1 ? static_cast<size_t>(places * block + rest) * 2 : 0;
    const size_t full_gradients = gradients > 1 ? static_cast<size_t>(2 * block + rest) * 4 : 0;
    EXPECT_EQ(arena.plan()[MemoryCategory::kWeights], static_cast<size_t>(weight) * 2 + full_weights);
    EXPECT_EQ(arena.plan()[MemoryCategory::kMasterWeights], static_cast<size_t>(owned) * 4);
    EXPECT_EQ(arena.plan()[MemoryCategory::kGradients], static_cast<size_t>(gradient) * 4 + full_gradients);
    EXPECT_EQ(store.version() == -1, weights > 1 && hold != Hold::kStep);
  };
  plan(1, 1, 1, Hold::kUnit);
  plan(1, 1, 4, Hold::kUnit);
  plan(1, 4, 4, Hold::kUnit);
  plan(4, 4, 4, Hold::kUnit);
  plan(2, 4, 4, Hold::kMicroBatch);
  plan(4, 4, 4, Hold::kStep);
}

}  // namespace
}  // namespace thinwire::sharded_store_test
