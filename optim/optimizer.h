// The optimizer over flat pieces: it knows slices and spans of weight decay, not tensors.
#pragma once

#include <vector>

#include "engine/base/ops/ops.h"
#include "optim/optim_config.h"

namespace thinwire {

// All [n] fp32 but `working` (bf16 / fp16 copy of master, empty in fp32). m, v belong to AdamW, momentum to SGD; the
// rest stay empty.
struct OptimizerBuffers {
  View master, gradient, working;
  View m, v;
  View momentum;
  std::vector<DecaySpan> spans;  // covers [0, n)
};

// What the buffers `gradient` hold when an update is applied (parallel/zero/sent_value.h says who decides).
enum class Summed : uint8_t { kGradient, kMomentum };

class Optimizer {
 public:
  // The pieces that this rank updates; usually one.
  Optimizer(const OptimConfig& config, std::vector<OptimizerBuffers> pieces);

  // One update with the scalars of `state` (a StepState on the device). Every gradient is read once and left zero.
  // kMomentum (AdamW only): the sum is the new momentum; the variance stays as it is (AdamW::takes_momentum).
  void apply(Exec& exec, View state, Summed summed = Summed::kGradient) const;
  // The same for one of the pieces: in any order, each once per update.
  void apply_piece(Exec& exec, View state, size_t piece, Summed summed = Summed::kGradient) const;
  const std::vector<OptimizerBuffers>& pieces() const { return pieces_; }

 private:
  OptimConfig config_;
  std::vector<OptimizerBuffers> pieces_;
};

}  // namespace thinwire
