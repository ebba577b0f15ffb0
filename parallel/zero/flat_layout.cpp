// Packs parameters into units: matrices on the quantum, vectors together in the unit's tail.
#include "parallel/zero/flat_layout.h"

#include <algorithm>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr int64_t kVectorAlignment = 32;  // elements: 64 bytes in a 16-bit working copy

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

enum class Part { kMatrices, kVectors, kWholeVectors };

}  // namespace

FlatLayout make_flat_layout(const ParamList& params) {
  FlatLayout layout;
  layout.by_param.resize(params.size());
  int units = 0;
  for (const ParamSpec& p : params) units = std::max(units, p.unit + 1);
  for (int u = 0; u < units; ++u) {
    Unit unit;
    unit.first = layout.total;
    int64_t at = unit.first;
    const bool any_sharded = std::any_of(
        params.begin(), params.end(), [&](const ParamSpec& p) { return p.unit == u && p.is_vector && p.is_sharded(); });
    for (const Part part : {Part::kMatrices, Part::kVectors, Part::kWholeVectors}) {
      const bool vectors = part != Part::kMatrices;
      if (vectors) at = round_up(at, kQuantum);
      for (size_t i = 0; i < params.size(); ++i) {
        if (params[i].unit != u || params[i].is_vector != vectors) continue;
        if (vectors && (any_sharded && !params[i].is_sharded()) != (part == Part::kWholeVectors)) continue;
        TW_CHECK(params[i].tied_to.empty(), "tied tensors have no storage: ", params[i].name);
        at = round_up(at, vectors ? kVectorAlignment : kQuantum);
        const Segment segment{static_cast<int>(i), at, params[i].local_count()};
        unit.segments.push_back(segment);
        layout.by_param[i] = segment;
        at += params[i].room();
      }
    }
    unit.count = round_up(at, kQuantum) - unit.first;
    layout.total = unit.first + unit.count;
    layout.units.push_back(std::move(unit));
  }
  return layout;
}

std::vector<DecaySpan> FlatLayout::decay_spans(const ParamList& params, int64_t first, int64_t count) const {
  std::vector<DecaySpan> spans;
  const int64_t end = first + count;
  const auto add = [&](int64_t a, int64_t b, float decay) {
    a = std::max(a, first), b = std::min(b, end);
    if (a >= b) return;
    if (!spans.empty() && spans.back().decay == decay) {
      spans.back().count += b - a;
    } else {
      spans.push_back({a - first, b - a, decay});
    }
  };
  for (const Unit& unit : units) {
    int64_t at = unit.first;
    for (const Segment& s : unit.segments) {
      const float decay = params[s.param].decay ? 1.0f : 0.0f;
      add(at, s.offset + s.count, decay);  // padding in front of a segment goes with it: zero stays zero either way
      at = s.offset + s.count;
    }
    add(at, unit.first + unit.count, 0.0f);
  }
  return spans;
}

}  // namespace thinwire
