// Finds the rules of a unit by stage and layer, and by tensor class the ranges of its flat buffer that each codes.
#include "parallel/rules/message_rules.h"

#include <algorithm>

#include "engine/base/core/model_units.h"

namespace thinwire {
namespace {

bool selects_class(const std::vector<TensorClass>& classes, TensorClass tensor_class) {
  return classes.empty() || std::find(classes.begin(), classes.end(), tensor_class) != classes.end();
}

}  // namespace

bool selects_stage(const SelectSpec& select, int stage) {
  return select.stages.empty() || std::find(select.stages.begin(), select.stages.end(), stage) != select.stages.end();
}

bool selects_unit(const SelectSpec& select, int unit, int layers) {
  if (select.layers.empty()) return true;
  const int64_t layer = layer_of_unit(unit, layers);
  return layer >= 0 && std::find(select.layers.begin(), select.layers.end(), layer) != select.layers.end();
}

std::vector<UnitRule> unit_rules(std::span<const SiteRule> rules, int stage, int unit, int layers) {
  std::vector<UnitRule> found;
  for (size_t i = 0; i < rules.size(); ++i)
    if (selects_stage(rules[i].select, stage) && selects_unit(rules[i].select, unit, layers))
      found.push_back({static_cast<int>(i), rules[i].select.tensor_classes});
  return found;
}

int first_unit_rule(std::span<const SiteRule> rules, int stage, int unit, int layers) {
  const std::vector<UnitRule> found = unit_rules(rules, stage, unit, layers);
  return found.empty() ? -1 : found.front().number;
}

std::vector<RuleRange> rule_ranges(std::span<const UnitRule> rules, const Unit& unit, const ParamList& params) {
  const auto rule_of = [&](const ParamSpec& p) {
    for (const UnitRule& rule : rules)
      if (selects_class(rule.classes, p.tensor_class) && !(rule.skip_replicated && !p.is_sharded())) return rule.number;
    return -1;
  };
  std::vector<RuleRange> ranges;
  int64_t covered = 0;
  const auto cover_up_to = [&](int64_t end, int rule) {
    if (end == covered) return;
    if (!ranges.empty() && ranges.back().rule == rule)
      ranges.back().range.count += end - covered;
    else
      ranges.push_back({{covered, end - covered}, rule});
    covered = end;
  };
  for (size_t i = 0; i < unit.segments.size(); ++i) {
    cover_up_to(unit.segments[i].offset - unit.first, -1);  // padding before the first segment
    const int64_t end = i + 1 < unit.segments.size() ? unit.segments[i + 1].offset - unit.first : unit.count;
    cover_up_to(end, rule_of(params[static_cast<size_t>(unit.segments[i].param)]));
  }
  return ranges;
}

std::vector<MatrixShape> matrices_in(const Range& range, const Unit& unit, const ParamList& params) {
  std::vector<MatrixShape> matrices;
  for (const Segment& segment : unit.segments) {
    const ParamSpec& p = params[static_cast<size_t>(segment.param)];
    const int64_t first = segment.offset - unit.first - range.first;
    if (p.is_vector || segment.count == 0 || first < 0 || first + segment.count > range.count) continue;
    matrices.push_back({first, p.local_rows(), p.local_cols()});
  }
  return matrices;
}

std::vector<ElementRange> padding_in(const Range& range, const Unit& unit) {
  std::vector<ElementRange> padding;
  const int64_t start = unit.first + range.first;
  int64_t gap = unit.first;  // begins where the last segment ended
  const auto end_gap = [&](int64_t end) {
    const int64_t first = std::max(gap - start, int64_t{0}), last = std::min(end - start, range.count);
    if (first < last) padding.push_back({first, last - first});
  };
  for (const Segment& segment : unit.segments) {
    end_gap(segment.offset);
    gap = segment.offset + segment.count;
  }
  end_gap(unit.first + unit.count);
  return padding;
}

}  // namespace thinwire
