// THE list of parameters of a model: init, sharding, optimizer, checkpoint and import / export iterate it.
#pragma once

#include "engine/base/core/model_units.h"
#include "engine/base/core/param_spec.h"
#include "model/model_config.h"

namespace thinwire {

inline int head_unit(const ModelConfig& config) {
  return head_unit(config.layers);
}
inline int position_unit(const ModelConfig& config) {
  return position_unit(config.layers);
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
