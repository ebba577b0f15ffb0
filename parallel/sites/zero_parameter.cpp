// Parameter all-gathers and gathers before use as all-gathers over the channels of the unit's kind.
#include "parallel/sites/zero_parameter.h"

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

// Where nobody has a piece there is nothing to tell: all members see the same bounds.
Ticket gather_pieces(Channel& channel, const MessageKey& key, View mine, View whole, const ShardGroup& group,
                     Stream& stream) {
  TW_CHECK(static_cast<int>(group.members.size()) == channel.size(), group.members.size(), " pieces over ",
           channel.size(), " ranks");
  if (channel.size() == 1 || whole.count() == 0) return Ticket::finished();
  return channel.all_gather(mine, whole, group.bounds, stream, key);
}

}  // namespace

Ticket ZeroParameter::sync(const MessageKey& key, const UnitShard& unit, View master, View weights, Stream& stream) {
  const View mine = weights.element_range(unit.optimizer.first - unit.weights.first, unit.optimizer.count);
  return gather_pieces(channels_.sync, key, master.rank > 0 ? master : mine, weights, unit.sync, stream);
}

Ticket ZeroParameter::gather(const MessageKey& key, const UnitShard& unit, View weights, View full, Stream& stream) {
  return gather_pieces(channels_.gather, key, weights, full, unit.gather, stream);
}

Ticket ZeroParameter::gather_kept(const MessageKey& key, const UnitShard& unit, View kept, View full, Stream& stream) {
  return gather_pieces(channels_.keep, key, kept, full, unit.keep, stream);
}

}  // namespace thinwire
