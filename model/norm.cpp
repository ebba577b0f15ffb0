// Norm layer over the op table.
#include "model/norm.h"

#include "engine/base/core/check.h"

namespace thinwire {

Norm::Norm(const ModelConfig& config, const ParamStore& store, const std::string& prefix)
    : kind_(config.norm),
      eps_(config.norm_eps),
      weight_(store.weight(prefix + ".weight")),
      bias_(store.weight(prefix + ".bias")),
      weight_gradient_(store.gradient(prefix + ".weight")),
      bias_gradient_(store.gradient(prefix + ".bias")) {
  TW_CHECK(static_cast<bool>(weight_) == config.gain_norm, prefix);
}

void Norm::forward(Exec& exec, const ResidualStream& stream, View sum, View y, View mean, View rstd) const {
  exec.ops.norm_forward(exec, {.kind = kind_,
                               .eps = eps_,
                               .x = stream.x,
                               .branch = stream.branch,
                               .sum = stream.branch ? sum : View{},
                               .dropout = stream.dropout,
                               .weight = weight_,
                               .bias = bias_,
                               .y = y,
                               .mean = mean,
                               .rstd = rstd});
}

void Norm::forward(Exec& exec, View x, View y, View mean, View rstd) const {
  forward(exec, ResidualStream{x, {}, {}}, {}, y, mean, rstd);
}

void Norm::backward(Exec& exec, View dy, View x, View mean, View rstd, View residual, View dx) const {
  exec.ops.norm_backward(exec, {.kind = kind_,
                                .dy = dy,
                                .x = x,
                                .weight = weight_,
                                .mean = mean,
                                .rstd = rstd,
                                .residual = residual,
                                .dx = dx,
                                .dweight = weight_gradient_,
                                .dbias = bias_gradient_});
}

}  // namespace thinwire
