// Which rules the gradients of a stage fall under where rules of dp.gradient are for critical messages alone: such a
// rule codes what nothing hides, and what is hidden falls under the rules behind it, with more bits.
//
// A unit's gradient is ready as its stage's plan says: at its place in the last backward pass of its chunk, by the work
// of layers and head and the stated time of a layer. It leaves over a rank's link of link_gbps, in the order of
// readiness and one message behind the other, in the lengths that the codecs have, among the messages of all other
// sites (link_traffic.h), which are not made later than somebody needs them. The pipelined part, or what the rules with
// the fewest bits take if that is longer, is not made longer. Of micro-batches whose gradients are summed one by one
// the last counts. All ranks of all stages work out the same: no clock, no payload. Units weigh alike, by their
// elements, or by compression.sensitivities: an element has its share of what its class was measured to lose.
#pragma once

#include <vector>

#include "engine/run/train/rank_layout.h"
#include "parallel/rules/message_rules.h"

namespace thinwire {

struct GradientBits {
  int unit = 0;
  double ready_ms = 0.0;        // from the start of the step
  double slack_ms = 0.0;        // see spend_slack
  double bits = 0.0;            // that travel per element of the gradient, from this rank, before the way back
  std::vector<UnitRule> rules;  // what its tensors fall under, in this order
};
// In the order in which they leave, without a tied embedding's. Empty: no rule is for critical gradients, or there is
// one data rank.
std::vector<GradientBits> gradient_bits(const RunConfig& config, const RankLayout& layout, const ParamStore& store);

}  // namespace thinwire
