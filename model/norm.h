// LayerNorm or RMSNorm, with parameters or without, and the residual addition in front of it fused in.
#pragma once

#include <string>

#include "model/param_store.h"

namespace thinwire {

// The residual stream between two points of the model: its value is x + dropout(branch). Keeping the branch apart lets
// the next norm do the addition while it reads x anyway. An empty branch means that x is already the value.
struct ResidualStream {
  View x, branch;
  Dropout dropout;
};

class Norm {
 public:
  Norm(const ModelConfig& config, const ParamStore& store, const std::string& prefix);

  // sum: [N,h] receives the stream's value (left alone when the branch is empty); y: [N,h] the normalised value.
  void forward(Exec& exec, const ResidualStream& stream, View sum, View y, View mean, View rstd) const;
  // Again from the stream's value, for recomputation.
  void forward(Exec& exec, View x, View y, View mean, View rstd) const;
  // dx = residual + gradient through the norm; weight gradients are accumulated. x is the stream's value.
  void backward(Exec& exec, View dy, View x, View mean, View rstd, View residual, View dx) const;

 private:
  NormKind kind_;
  float eps_;
  View weight_, bias_, weight_gradient_, bias_gradient_;
};

}  // namespace thinwire
