// Site zero.parameter: a unit's weights are gathered before use and behind the step, where they are sharded.
#pragma once

#include "parallel/channel/channel.h"
#include "parallel/zero/placement.h"

namespace thinwire {

// sync: the parameter all-gather behind the optimizer; gather and keep: before use.
struct ParameterChannels {
  Channel sync, gather, keep;
};

class ZeroParameter {
 public:
  ZeroParameter() = default;  // one rank
  explicit ZeroParameter(ParameterChannels channels) : channels_(std::move(channels)) {}

  // After the optimizer: `weights` [unit.weights.count], of which this rank has stepped its optimizer range, becomes
  // whole. master: that range in fp32 where it does not lie in `weights` and compression starts from it, else empty.
  Ticket sync(const MessageKey& key, const UnitShard& unit, View master, View weights, Stream& stream);
  // Before use: `full` [unit] from the `weights` ranges of the group.
  Ticket gather(const MessageKey& key, const UnitShard& unit, View weights, View full, Stream& stream);
  // In the backward pass from the secondary copy: `kept` [unit.secondary.count].
  Ticket gather_kept(const MessageKey& key, const UnitShard& unit, View kept, View full, Stream& stream);

 private:
  ParameterChannels channels_;
};

}  // namespace thinwire
