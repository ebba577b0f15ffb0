// The optimizer over flat pieces: it knows slices and spans of weight decay, not tensors.
#pragma once

#include <cstdint>
#include <optional>
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
  // What the next step adds to, inside `gradient`: zeroed behind the step; the rest it writes anew. Nothing: it adds to
  // all.
  std::optional<std::vector<View>> added;
};

// What the buffers `gradient` hold when a step is applied (parallel/zero/sent_value.h says who decides).
enum class Summed : uint8_t { kGradient, kMomentum };

// Steps that AdamW's moments have seen since they were zero; their bias corrections count these, not the steps of
// the run: moments may begin in its middle (no_load_optim), and a variance may stand still for a while (1-bit Adam).
struct MomentSteps {
  int64_t m = 0, v = 0;
  MomentSteps after(Summed summed) const { return {m + 1, v + (summed == Summed::kGradient ? 1 : 0)}; }
};

// Gradient clipping by global norm: the factor for every gradient is max_norm / (norm + 1e-6) if that is below 1,
// else 1. max_norm 0 switches clipping off.
inline double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

class Optimizer {
 public:
  // The pieces that this rank steps; usually one.
  Optimizer(const OptimConfig& config, std::vector<OptimizerBuffers> pieces);

  // A step of one of the pieces (in any order, each once per step) with the scalars of `state`, a StepState on the
  // device. The gradient is read once, and what the next one adds to (OptimizerBuffers::added) left zero.
  // kMomentum (AdamW only): the sum is the new momentum; the variance stays as it is (AdamW::takes_momentum).
  void apply_piece(Exec& exec, View state, size_t piece, Summed summed = Summed::kGradient) const;
  const std::vector<OptimizerBuffers>& pieces() const { return pieces_; }
  OptimizerKind kind() const { return config_.kind; }

  // State beside the moments; whoever has applied all pieces of a step sets it to after() that step.
  MomentSteps& moment_steps() { return moment_steps_; }
  const MomentSteps& moment_steps() const { return moment_steps_; }

 private:
  OptimConfig config_;
  std::vector<OptimizerBuffers> pieces_;
  MomentSteps moment_steps_;
};

}  // namespace thinwire
