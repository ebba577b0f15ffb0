// Chooses the fused optimizer op and runs it over a piece.
#include "optim/optimizer.h"

#include <utility>

#include "engine/base/core/check.h"

namespace thinwire {

Optimizer::Optimizer(const OptimConfig& config, std::vector<OptimizerBuffers> pieces)
    : config_(config), pieces_(std::move(pieces)) {}

void Optimizer::apply_piece(Exec& exec, View state, size_t piece, Summed summed) const {
  TW_CHECK(summed == Summed::kGradient || config_.kind == OptimizerKind::kAdamW, "only AdamW takes a momentum");
  const OptimizerBuffers& b = pieces_.at(piece);
  // All of it in the same pass; a few vectors among matrices in passes of their own.
  const bool all = !b.added || (b.added->size() == 1 && b.added->front().count() == b.gradient.count());
  if (config_.kind == OptimizerKind::kAdamW) {
    exec.ops.adamw(exec, {.master = b.master,
                          .m = b.m,
                          .v = b.v,
                          .gradient = b.gradient,
                          .working = b.working,
                          .state = state,
                          .beta1 = config_.beta1,
                          .beta2 = config_.beta2,
                          .eps = config_.eps,
                          .spans = b.spans,
                          .zero_gradient = all,
                          .takes_momentum = summed == Summed::kMomentum});
  } else {
    exec.ops.sgd(exec, {.master = b.master,
                        .momentum_buffer = b.momentum,
                        .gradient = b.gradient,
                        .working = b.working,
                        .state = state,
                        .momentum = static_cast<float>(config_.momentum),
                        .spans = b.spans,
                        .zero_gradient = all});
  }
  if (all) return;
  for (const View& part : *b.added) exec.ops.fill_constant(exec, {part, 0.0f});
}

}  // namespace thinwire
