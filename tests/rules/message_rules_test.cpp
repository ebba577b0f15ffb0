// Selections against element by element marks, on the flat layouts of whole and tensor-cut models.
#include "parallel/rules/message_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "model/model_shard.h"
#include "model/params.h"

namespace thinwire::message_rules_test {
namespace {

ModelConfig gpt2_tiny() {
  ModelConfig m;
  m.layers = 4, m.hidden = 64, m.heads = m.kv_heads = 4, m.head_dim = 16, m.ffn = 256, m.vocab = m.padded_vocab = 256;
  m.seq_length = m.max_positions = 128;
  return m;
}

ModelConfig llama_tiny() {
  ModelConfig m = gpt2_tiny();
  m.heads = 8, m.kv_heads = 4, m.head_dim = 8, m.ffn = 170, m.positions = PositionKind::kRotary;
  m.norm = NormKind::kRmsNorm, m.activation = ActivationKind::kSwiglu, m.tied_head = false;
  m.bias_attention = m.bias_mlp = m.bias_norm = false;
  return m;
}

// Layouts as ranks have them: whole, and cut by tensor and pipeline.
std::vector<ParamList> parameter_lists() {
  std::vector<ParamList> lists;
  for (const ModelConfig& model : {gpt2_tiny(), llama_tiny()}) {
    for (int tensor : {1, 2, 4}) {
      for (int rank = 0; rank < tensor; ++rank) {
        for (int stage = -1; stage < 2; ++stage) {  // -1: all of the layers
          ModelShard shard = ModelShard::all_of(model);
          shard.tensor_rank = rank, shard.tensor_size = tensor;
          if (stage >= 0) shard.chunks = {{stage * 2, 2}}, shard.first = stage == 0, shard.last = stage == 1;
          lists.push_back(list_local_parameters(shard));
        }
      }
    }
  }
  return lists;
}

std::vector<SelectSpec> selections() {
  using C = TensorClass;
  std::vector<SelectSpec> all(1);
  std::mt19937 random(3);
  const std::vector<C> classes = {C::kEmbedding, C::kAttention, C::kMlp, C::kNorm, C::kBias, C::kHead};
  for (C c : classes) all.emplace_back().tensor_classes = {c};
  for (int i = 0; i < 12; ++i) {
    SelectSpec& select = all.emplace_back();
    for (C c : classes)
      if (random() % 2 != 0) select.tensor_classes.push_back(c);
  }
  return all;
}

// Element by element: whose it is, padding being whoever's comes before it.
std::vector<bool> marks(const SelectSpec& select, const Unit& unit, const ParamList& params) {
  std::vector<bool> marked(static_cast<size_t>(unit.count), false);
  for (int64_t e = 0; e < unit.count; ++e) {
    const Segment* owner = nullptr;
    for (const Segment& s : unit.segments)
      if (s.offset <= unit.first + e && (owner == nullptr || s.offset >= owner->offset)) owner = &s;
    if (owner == nullptr) continue;
    const TensorClass c = params[static_cast<size_t>(owner->param)].tensor_class;
    marked[static_cast<size_t>(e)] =
        select.tensor_classes.empty() || std::count(select.tensor_classes.begin(), select.tensor_classes.end(), c) > 0;
  }
  return marked;
}

TEST(MessageRules, CodedRangesAreTheSelectedElements) {
  int64_t several = 0;
  for (const ParamList& params : parameter_lists()) {
    const FlatLayout layout = make_flat_layout(params);
    for (const SelectSpec& select : selections()) {
      for (const Unit& unit : layout.units) {
        std::vector<Range> ranges;
        for (const RuleRange& run : rule_ranges(std::vector<UnitRule>{{0, select.tensor_classes}}, unit, params))
          if (run.rule == 0) ranges.push_back(run.range);
        std::vector<bool> marked(static_cast<size_t>(unit.count), false);
        int64_t end = -1;
        for (const Range& r : ranges) {
          EXPECT_GT(r.first, end) << "ranges that touch are one";
          ASSERT_TRUE(r.count > 0 && r.first + r.count <= unit.count);
          end = r.first + r.count;
          std::fill_n(marked.begin() + r.first, r.count, true);
        }
        ASSERT_EQ(marked, marks(select, unit, params));
        several += ranges.size() > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(several, 100);
}

// Element by element against the first rule whose classes hold; runs cover the unit and touching ones differ.
TEST(MessageRules, TensorsFallUnderTheFirstRuleThatSelectsThem) {
  std::mt19937 random(7);
  int64_t mixed = 0;
  for (const ParamList& params : parameter_lists()) {
    const FlatLayout layout = make_flat_layout(params);
    for (int trial = 0; trial < 8; ++trial) {
      const std::vector<SelectSpec> all = selections();
      std::vector<SiteRule> rules(1 + random() % 3);
      for (SiteRule& rule : rules) rule.select.tensor_classes = all[random() % all.size()].tensor_classes;
      for (const Unit& unit : layout.units) {
        std::vector<int> wanted(static_cast<size_t>(unit.count), -1), got(static_cast<size_t>(unit.count), -2);
        for (size_t r = rules.size(); r-- > 0;) {
          const std::vector<bool> marked = marks(rules[r].select, unit, params);
          for (size_t e = 0; e < wanted.size(); ++e)
            if (marked[e]) wanted[e] = static_cast<int>(r);
        }
        int64_t end = 0;
        int before = -2;
        for (const RuleRange& run : rule_ranges(unit_rules(rules, 0, 0, 4), unit, params)) {
          ASSERT_EQ(run.range.first, end);
          ASSERT_NE(run.rule, before);
          std::fill_n(got.begin() + end, run.range.count, run.rule);
          end += run.range.count, before = run.rule;
        }
        ASSERT_EQ(got, wanted);
        mixed += std::set<int>(wanted.begin(), wanted.end()).size() > 2 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(mixed, 20);
}

TEST(MessageRules, EverythingIsOneRange) {
  const ParamList params = list_local_parameters(ModelShard::all_of(gpt2_tiny()));
  for (const Unit& unit : make_flat_layout(params).units) {
    const std::vector<RuleRange> runs = rule_ranges(std::vector<UnitRule>{{3, {}}}, unit, params);
    ASSERT_EQ(runs.size(), unit.count > 0 ? 1u : 0u);
    if (unit.count == 0) continue;
    EXPECT_EQ(runs[0].range.first, 0);
    EXPECT_EQ(runs[0].range.count, unit.count);
    EXPECT_EQ(runs[0].rule, 3);
  }
}

TEST(MessageRules, MatricesAreWholeAndWhereTheySay) {
  std::mt19937 random(9);
  for (const ParamList& params : parameter_lists()) {
    const FlatLayout layout = make_flat_layout(params);
    for (const Unit& unit : layout.units) {
      if (unit.count == 0) continue;
      for (int draw = 0; draw < 20; ++draw) {
        Range range{0, unit.count};
        if (draw > 0) {
          range.first = static_cast<int64_t>(random() % static_cast<uint64_t>(unit.count));
          range.count = static_cast<int64_t>(random() % static_cast<uint64_t>(unit.count - range.first + 1));
        }
        const std::vector<MatrixShape> found = matrices_in(range, unit, params);
        size_t next = 0;
        for (const Segment& s : unit.segments) {
          const ParamSpec& p = params[static_cast<size_t>(s.param)];
          const int64_t first = s.offset - unit.first;
          bool inside = !p.is_vector && s.count > 0;
          for (int64_t e : {first, first + s.count - 1})
            inside = inside && e >= range.first && e < range.first + range.count;
          if (!inside) continue;
          ASSERT_LT(next, found.size()) << p.name;
          EXPECT_EQ(found[next].first, first - range.first) << p.name;
          EXPECT_EQ(found[next].rows * found[next].cols, s.count) << p.name;
          EXPECT_EQ(found[next].cols, p.local.front().cols) << p.name;
          ++next;
        }
        EXPECT_EQ(next, found.size());
      }
    }
  }
}

// Element by element: in front of tensors, between them, behind the last.
TEST(MessageRules, PaddingIsWhatNoTensorHolds) {
  std::mt19937 random(11);
  int64_t several = 0;
  for (const ParamList& params : parameter_lists()) {
    const FlatLayout layout = make_flat_layout(params);
    for (const Unit& unit : layout.units) {
      if (unit.count == 0) continue;
      std::vector<bool> empty(static_cast<size_t>(unit.count), true);
      for (const Segment& s : unit.segments) std::fill_n(empty.begin() + (s.offset - unit.first), s.count, false);
      for (int draw = 0; draw < 20; ++draw) {
        Range range{0, unit.count};
        if (draw > 0) {
          range.first = static_cast<int64_t>(random() % static_cast<uint64_t>(unit.count));
          range.count = static_cast<int64_t>(random() % static_cast<uint64_t>(unit.count - range.first + 1));
        }
        const std::vector<ElementRange> found = padding_in(range, unit);
        std::vector<bool> marked(static_cast<size_t>(range.count), false);
        int64_t end = 0;
        for (const ElementRange& r : found) {
          ASSERT_TRUE(r.first >= end && r.count > 0 && r.first + r.count <= range.count);
          end = r.first + r.count;
          std::fill_n(marked.begin() + r.first, r.count, true);
        }
        const auto from = empty.begin() + range.first;
        ASSERT_EQ(marked, std::vector<bool>(from, from + range.count));
        several += found.size() > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(several, 100);
}

TEST(MessageRules, GateAndUpAreOneMatrix) {
  ModelShard shard = ModelShard::all_of(llama_tiny());
  shard.tensor_size = 2, shard.tensor_rank = 1;
  const ParamList params = list_local_parameters(shard);
  const FlatLayout layout = make_flat_layout(params);
  bool seen = false;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].tp_axis != TpAxis::kGateUp || params[i].unit != mlp_unit(0)) continue;
    seen = true;
    ASSERT_EQ(params[i].local.size(), 2u);
    const Unit& unit = layout.units[static_cast<size_t>(mlp_unit(0))];
    const Range range{layout.by_param[i].offset - unit.first, layout.by_param[i].count};
    const std::vector<MatrixShape> found = matrices_in(range, unit, params);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rows, 170);  // 85 of gate, 85 of up
    EXPECT_EQ(found[0].cols, 64);
  }
  EXPECT_TRUE(seen);
}

TEST(MessageRules, StagesAndUnits) {
  SelectSpec select;
  EXPECT_TRUE(selects_stage(select, 3));
  EXPECT_TRUE(selects_unit(select, 0, 4) && selects_unit(select, 9, 4));
  select.stages = {0, 2};
  select.layers = {0, 3};
  EXPECT_TRUE(selects_stage(select, 2));
  EXPECT_FALSE(selects_stage(select, 1));
  // Both halves of blocks 0 and 3.
  for (int unit : {1, 2, 7, 8}) EXPECT_TRUE(selects_unit(select, unit, 4)) << unit;
  // Embedding, other blocks, head, positions.
  for (int unit : {0, 3, 4, 5, 6, 9, 10}) EXPECT_FALSE(selects_unit(select, unit, 4)) << unit;
}

}  // namespace
}  // namespace thinwire::message_rules_test
