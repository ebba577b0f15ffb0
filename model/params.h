// THE list of parameters of a model: init, sharding, optimizer, checkpoint and import / export iterate it.
#pragma once

#include "engine/base/core/param_spec.h"
#include "model/model_config.h"

namespace thinwire {

// Units: 0 = word embedding, 1..layers = blocks, layers + 1 = head (final norm and, untied, the head matrix), layers +
// 2 = learned positions (a unit of their own, because a tied word embedding lives on two stages and they do not).
inline constexpr int kEmbeddingUnit = 0;
inline int block_unit(int64_t layer) {
  return static_cast<int>(layer) + 1;
}
inline int head_unit(const ModelConfig& config) {
  return static_cast<int>(config.layers) + 1;
}
inline int position_unit(const ModelConfig& config) {
  return static_cast<int>(config.layers) + 2;
}

// The whole model: `local` is the whole tensor.
ParamList list_parameters(const ModelConfig& config);

// Standard deviations of reference/trainers.md 6: normal s; scaled_normal s / sqrt(2 L); small_init sqrt(2 / (5 h));
// wang_init 2 / (L sqrt(h)).
double init_deviation(InitMethod method, const ModelConfig& config);

// Parameters by name; CHECK failure if there is none.
const ParamSpec& find_parameter(const ParamList& params, const std::string& name);

// Sum of all counts; `padded` counts vocabulary padding rows too.
int64_t count_parameters(const ParamList& params, bool padded);

}  // namespace thinwire
