// Selections by stage, layer and tensor class, as ranges of the flat layout.
#include "parallel/rules/message_rules.h"

#include <algorithm>

#include "engine/base/core/model_units.h"

namespace thinwire {
namespace {

bool selects_class(const SelectSpec& select, TensorClass tensor_class) {
  const std::vector<TensorClass>& classes = select.tensor_classes;
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

std::vector<Range> coded_ranges(const SelectSpec& select, const Unit& unit, const ParamList& params, bool leave_whole) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < unit.segments.size(); ++i) {
    const Segment& segment = unit.segments[i];
    const ParamSpec& p = params[static_cast<size_t>(segment.param)];
    if (!selects_class(select, p.tensor_class) || (leave_whole && p.local_count() == p.count())) continue;
    const int64_t first = segment.offset - unit.first;
    const int64_t end = i + 1 < unit.segments.size() ? unit.segments[i + 1].offset - unit.first : unit.count;
    if (end == first) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == first)
      ranges.back().count += end - first;
    else
      ranges.push_back({first, end - first});
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

}  // namespace thinwire
