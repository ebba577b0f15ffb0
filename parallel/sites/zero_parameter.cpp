// Parameter all-gathers and gathers before use as all-gathers over the channels of the unit's kind.
#include "parallel/sites/zero_parameter.h"

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

// Where nobody has a piece there is nothing to tell: all members see the same bounds.
Ticket gather_pieces(Channel& channel, const ZeroParameter::What& what, View mine, View whole, const ShardGroup& group,
                     Stream& stream) {
  TW_CHECK(static_cast<int>(group.members.size()) == channel.size(), group.members.size(), " pieces over ",
           channel.size(), " ranks");
  if (channel.size() == 1 || whole.count() == 0) return Ticket::finished();
  return channel.all_gather(mine, whole, group.bounds, stream,
                            {static_cast<uint32_t>(what.unit), what.coded, {}, nullptr, what.awaited});
}

}  // namespace

Ticket ZeroParameter::sync(What what, const UnitShard& unit, View master, View weights, Stream& stream) {
  const View mine = weights.element_range(unit.optimizer.first - unit.weights.first, unit.optimizer.count);
  return gather_pieces((what.tied ? tied_ : units_).sync, what, master.rank > 0 ? master : mine, weights, unit.sync,
                       stream);
}

Ticket ZeroParameter::gather(What what, const UnitShard& unit, View weights, View full, Stream& stream) {
  return gather_pieces((what.tied ? tied_ : units_).gather, what, weights, full, unit.gather, stream);
}

Ticket ZeroParameter::gather_kept(What what, const UnitShard& unit, View kept, View full, Stream& stream) {
  return gather_pieces((what.tied ? tied_ : units_).keep, what, kept, full, unit.keep, stream);
}

}  // namespace thinwire
