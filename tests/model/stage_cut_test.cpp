// A model cut into chunks, on one rank or on several, gives the bits of the model in one piece; so does a backward in
// two halves; and a stage tells about its units what its list says.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "tests/model/model_test_support.h"

namespace thinwire::testing::stage_cut_test {
namespace {

// Writes down what it hears, and checks that nobody reads or adds outside of a bracket.
class Listener final : public UnitEvents {
 public:
  void acquire(int unit, bool backward) override {
    uses.push_back({unit, backward});
    EXPECT_TRUE(held_.insert(unit).second) << "unit " << unit << " is acquired twice";
  }
  void release(int unit, bool) override { EXPECT_EQ(held_.erase(unit), 1u) << "unit " << unit; }
  void gradients_begin(int unit) override { begun_.insert(unit); }
  void gradients_complete(int unit) override {
    complete.push_back(unit);
    EXPECT_EQ(begun_.erase(unit), 1u) << "unit " << unit << " is complete before it began";
  }
  void expect_quiet() const { EXPECT_TRUE(held_.empty() && begun_.empty()); }

  std::vector<UnitUse> uses;
  std::vector<int> complete;

 private:
  std::set<int> held_, begun_;
};

std::vector<std::pair<int, bool>> pairs(const std::vector<UnitUse>& uses) {
  std::vector<std::pair<int, bool>> out;
  for (const UnitUse& u : uses) out.emplace_back(u.unit, u.backward);
  return out;
}

ModelConfig model_of(int family, float dropout, Recompute level, DType dtype) {
  ModelConfig m = small_model(family);
  m.layers = 5, m.hidden_dropout = dropout, m.attention_dropout = dropout, m.recompute = level, m.dtype = dtype;
  return m;
}

std::vector<LayerRange> cut_layers(int64_t layers, int parts) {
  std::vector<LayerRange> ranges;
  for (int i = 0; i < parts; ++i) ranges.push_back({layers * i / parts, layers * (i + 1) / parts - layers * i / parts});
  return ranges;
}

void copy(View from, View to) {
  ASSERT_EQ(from.bytes(), to.bytes());
  std::memcpy(to.data, from.data, from.bytes());
}

// Micro-batch `first` through stages in the order of the model, and back.
void forward_through(const std::vector<std::pair<RankBed*, Stage*>>& chain, int slot, int64_t first) {
  for (size_t i = 0; i < chain.size(); ++i) {
    auto [bed, stage] = chain[i];
    bed->fill(first, 1.0f / static_cast<float>(bed->shape.tokens()));
    if (i > 0) copy(chain[i - 1].second->output(slot), stage->input(slot));
    stage->forward(bed->exec, bed->micro(true), slot);
  }
}

void backward_through(const std::vector<std::pair<RankBed*, Stage*>>& chain, int slot,
                      const std::function<void(RankBed&, Stage&)>& run) {
  for (size_t i = chain.size(); i-- > 0;) {
    auto [bed, stage] = chain[i];
    if (i + 1 < chain.size()) copy(chain[i + 1].second->input_gradient(slot), stage->output_gradient(slot));
    run(*bed, *stage);
  }
}

const auto combined = [](RankBed& bed, Stage& stage) { stage.backward(bed.exec, 0); };

class StageCut : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(All, StageCut, ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Values(1, 2, 3)));

struct Variant {
  float dropout;
  Recompute level;
  DType dtype;
};
const std::vector<Variant> kVariants = {
    {0.0f, Recompute::kNone, DType::f32},      {0.2f, Recompute::kNone, DType::bf16},
    {0.0f, Recompute::kSelective, DType::f32}, {0.2f, Recompute::kSelective, DType::f16},
    {0.0f, Recompute::kFull, DType::bf16},     {0.2f, Recompute::kFull, DType::f32}};

TEST_P(StageCut, ChunksOfOneRankEqualOnePiece) {
  const auto [family, parts] = GetParam();
  for (const Variant& v : kVariants) {
    const ModelConfig m = model_of(family, v.dropout, v.level, v.dtype);
    Bed whole(m, 2);
    const double loss = whole.train_once();
    for (bool halves : {false, true}) {
      SCOPED_TRACE(::testing::Message() << name_of(v.dtype) << " dropout " << v.dropout << " recompute "
                                        << static_cast<int>(v.level) << " halves " << halves);
      ModelShard shard = ModelShard::all_of(m);
      shard.chunks = cut_layers(m.layers, parts);
      Listener events;
      RankBed bed(shard, Ports(), events, 2);
      std::vector<std::pair<RankBed*, Stage*>> chain;
      for (const auto& stage : bed.stages) chain.emplace_back(&bed, stage.get());
      forward_through(chain, 0, 0);
      EXPECT_EQ(loss, bed.take_loss());
      std::vector<StageWeightWork> works;
      for (size_t i = 0; i < chain.size(); ++i) works.push_back(take_weight_work(shard, bed.shape, bed.arena));
      if (!halves) {
        backward_through(chain, 0, combined);
      } else {
        size_t next = 0;
        backward_through(chain, 0, [&](RankBed& b, Stage& s) { s.backward_input(b.exec, 0, works[next++]); });
        EXPECT_TRUE(events.complete.empty());
        for (StageWeightWork& work : works)
          chain[static_cast<size_t>(work.chunk)].second->backward_weight(bed.exec, work);
      }
      EXPECT_EQ(whole.gradients(), bed.gradients());
      events.expect_quiet();
      // Every unit is announced once: head, halves of blocks from the last to the first; embedding and positions as
      // soon as their gradients are there, before the matrices of the first block, or before the halves of the chunk.
      std::vector<int> order = {head_unit(m)};
      for (int64_t layer = m.layers; layer-- > 0;) {
        if (layer == (halves ? shard.chunks[0].count - 1 : 0)) {
          order.push_back(kEmbeddingUnit);
          if (m.positions == PositionKind::kLearned) order.push_back(position_unit(m));
        }
        order.push_back(mlp_unit(layer)), order.push_back(attention_unit(layer));
      }
      EXPECT_EQ(order, events.complete);
      std::vector<UnitUse> uses;
      for (const auto& stage : bed.stages) stage->list_uses(NodeKind::kForward, uses);
      for (size_t i = bed.stages.size(); i-- > 0;)
        bed.stages[i]->list_uses(halves ? NodeKind::kBackwardInput : NodeKind::kBackward, uses);
      for (const auto& stage : bed.stages) stage->list_uses(NodeKind::kBackwardWeight, uses);
      EXPECT_EQ(pairs(uses), pairs(events.uses));
    }
  }
}

// Stages of their own: each has its parameters and nothing else; the tied embedding is on the first and on the last,
// and their gradients add up.
TEST_P(StageCut, StagesEqualOnePiece) {
  const auto [family, parts] = GetParam();
  for (const Variant& v : kVariants) {
    const ModelConfig m = model_of(family, v.dropout, v.level, v.dtype);
    SCOPED_TRACE(::testing::Message() << name_of(v.dtype) << " dropout " << v.dropout << " recompute "
                                      << static_cast<int>(v.level));
    Bed whole(m, 1);
    const double loss = whole.train_once(), evaluated = whole.evaluate();
    std::vector<std::unique_ptr<Listener>> events;
    std::vector<std::unique_ptr<RankBed>> beds;
    std::vector<std::pair<RankBed*, Stage*>> chain;
    for (int i = 0; i < parts; ++i) {
      ModelShard shard = ModelShard::all_of(m);
      shard.chunks = {cut_layers(m.layers, parts)[static_cast<size_t>(i)]};
      shard.first = i == 0, shard.last = i + 1 == parts;
      StorePlacement where;
      where.placement.embedding = EmbeddingSyncKind::kTwoStep;
      where.stage = shard.last && !shard.first ? 1 : 0;
      events.push_back(std::make_unique<Listener>());
      beds.push_back(std::make_unique<RankBed>(shard, Ports(), *events.back(), 1, 3, 1, where));
      chain.emplace_back(beds.back().get(), beds.back()->stages[0].get());
      EXPECT_EQ(chain.back().second->first(), shard.first);
      EXPECT_EQ(chain.back().second->last(), shard.last);
    }
    forward_through(chain, 0, 0);
    EXPECT_EQ(loss, beds.back()->take_loss());
    backward_through(chain, 0, combined);
    std::map<std::string, std::vector<float>> sums;
    for (const auto& bed : beds) {
      for (const ParamSpec& p : bed->store.params()) {
        const View g = bed->store.gradient(p.name);
        std::vector<float>& sum = sums[p.name];
        if (sum.empty()) sum.resize(static_cast<size_t>(g.count()));
        for (int64_t i = 0; i < g.count(); ++i) sum[static_cast<size_t>(i)] += g.as<float>()[i];
      }
    }
    ASSERT_EQ(sums.size(), whole.store.params().size());
    for (const ParamSpec& p : whole.store.params()) {
      const View want = whole.store.gradient(p.name);
      const std::vector<float>& got = sums.at(p.name);
      if (p.unit == kEmbeddingUnit && m.tied_head && parts > 1) {
        // The head's sum first and tokens on top, or two sums: at most one rounding per token more, of numbers that are
        // no larger than the largest sum.
        for (int64_t i = 0; i < want.count(); ++i) {
          const double bound = 60.0 * 0x1p-24 * (std::abs(static_cast<double>(want.as<float>()[i])) + 1.0);
          ASSERT_NEAR(want.as<float>()[i], got[static_cast<size_t>(i)], bound) << p.name << " " << i;
        }
      } else {
        EXPECT_EQ(std::vector<float>(want.as<float>(), want.as<float>() + want.count()), got) << p.name;
      }
    }
    if (m.tied_head && parts > 1) {
      EXPECT_EQ(events.back()->complete[1], kEmbeddingUnit) << "right behind the head";
    }
    for (const auto& e : events) e->expect_quiet();
    for (size_t i = 0; i < chain.size(); ++i) {
      if (i > 0) copy(chain[i - 1].second->output(0), chain[i].second->input(0));
      chain[i].second->evaluate(beds[i]->exec, beds[i]->micro(false));
    }
    EXPECT_EQ(evaluated, beds.back()->take_loss());
  }
}

// Micro-batches in flight keep to their slots: all forward first, then all backward, gives the sums of one at a time.
TEST_P(StageCut, SlotsDoNotMeet) {
  const auto [family, parts] = GetParam();
  const ModelConfig m = model_of(family, 0.2f, Recompute::kSelective, DType::f32);
  ModelShard shard = ModelShard::all_of(m);
  shard.chunks = cut_layers(m.layers, parts);
  NoUnitEvents nothing;
  const int slots = 3;
  RankBed gpipe(shard, Ports(), nothing, 2, 3, slots), one(shard, Ports(), nothing, 2);
  // Every slot needs tokens of its own until its backward.
  std::vector<View> tokens;
  std::vector<std::pair<RankBed*, Stage*>> many, single;
  for (const auto& stage : gpipe.stages) many.emplace_back(&gpipe, stage.get());
  for (const auto& stage : one.stages) single.emplace_back(&one, stage.get());
  double loss = 0.0;
  for (int slot = 0; slot < slots; ++slot) {
    const int64_t n = gpipe.shape.tokens();
    gpipe.tokens = gpipe.arena.take(MemoryCategory::kData, DType::i32, {n});
    gpipe.targets = gpipe.arena.take(MemoryCategory::kData, DType::i32, {n});
    gpipe.ids = gpipe.arena.take(MemoryCategory::kData, DType::i64, {gpipe.shape.batch});
    forward_through(many, slot, 10 * slot);
    forward_through(single, 0, 10 * slot);
    loss += one.take_loss();
    backward_through(single, 0, combined);
  }
  EXPECT_NEAR(loss, gpipe.take_loss(), 1e-12 * loss);
  for (int slot = 0; slot < slots; ++slot)
    backward_through(many, slot, [&](RankBed& b, Stage& s) { s.backward(b.exec, slot); });
  // The head's gradients are added in the forward, so with a tied embedding sums come in another order there.
  const std::vector<float> a = one.gradients(), b = gpipe.gradients();
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  if (m.tied_head) {
    EXPECT_LE(std::sqrt(error / norm), 0x1p-24 * std::sqrt(3.0 * 57.0));  // u per addition, as a random walk
  } else {
    EXPECT_EQ(a, b);
  }
  EXPECT_ANY_THROW(gpipe.stages[0]->backward(gpipe.exec, 0));  // nothing left
}

}  // namespace
}  // namespace thinwire::testing::stage_cut_test
