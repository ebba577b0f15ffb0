// Site zero.parameter: a unit's weights are gathered before use and after the update, where they are sharded.
#pragma once

#include "parallel/sites/reduction_groups.h"

namespace thinwire {

class ZeroParameter {
 public:
  ZeroParameter() = default;  // one rank
  explicit ZeroParameter(ParameterChannels units, ParameterChannels tied_embedding = {})
      : units_(std::move(units)), tied_(std::move(tied_embedding)) {}

  // After the optimizer: `weights` [unit.weights.count], of which this rank has updated its optimizer range, becomes
  // whole. tied: the unit is the embedding that two stages share.
  Ticket publish(const UnitShard& unit, View weights, bool tied, Stream& stream);
  // Before use: `full` [unit] from the `weights` ranges of the group.
  Ticket gather(const UnitShard& unit, View weights, View full, bool tied, Stream& stream);
  // In the backward pass from the secondary copy: `kept` [unit.secondary.count].
  Ticket gather_kept(const UnitShard& unit, View kept, View full, bool tied, Stream& stream);

 private:
  ParameterChannels units_, tied_;
};

}  // namespace thinwire
