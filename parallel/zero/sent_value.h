// What a unit's gradient site sends: the gradient, or what the optimizer would rather have summed.
#pragma once

#include "engine/base/core/view.h"

namespace thinwire {

// The hook of the sites dp.gradient and embedding, the counterpart of value_difference at zero.parameter: there the
// owner sends how far its weights have moved from what everybody holds; here a rank sends its share of a value that the
// optimizer keeps. UnitTraffic asks for the transform before the last reduction of a unit; whoever implements it also
// tells the optimizer, behind the reduction, what the sum means (Summed in optim/optimizer.h).
//
// Rules, CHECKed or tested:
//   - the sum of all shares, decoded, is what every holder of the unit takes: nothing else may be added to it;
//   - whether values other than gradients are sent is the same on all ranks in every step, coded or not;
//   - a transform reads state and writes none: a step that is skipped behind it leaves no trace;
//   - gradients are replicated: with sharded ones, which are summed micro-batch by micro-batch, nobody holds the whole
//     state of a unit.
class SentValue {
 public:
  virtual ~SentValue() = default;
  // gradient [unit, with padding] fp32: this rank's share of the gradient (the mean over data ranks is the sum over
  // shares; times the loss scale). Leaves this rank's share of what is sent there, in place. shares: how many ranks'
  // are summed. Tensor ranks' parts were summed before. Called once per unit and step.
  virtual void transform(int unit, View gradient, int shares) = 0;
};

}  // namespace thinwire
