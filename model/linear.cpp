// Linear layer over the op table.
#include "model/linear.h"

namespace thinwire {

Linear::Linear(const ParamStore& store, const std::string& prefix, bool adds_bias)
    : store_(&store),
      weight_(store.weight(prefix + ".weight")),
      bias_(adds_bias ? store.weight(prefix + ".bias") : View{}),
      weight_gradient_(store.gradient(prefix + ".weight")),
      bias_gradient_(store.gradient(prefix + ".bias")) {
  TW_CHECK(weight_, prefix);
}

void Linear::forward(Exec& exec, View x, View y, bool accumulate) const {
  exec.ops.matmul(exec, {.a = x.as_2d(),
                         .b = weight_,
                         .c = y.as_2d(),
                         .trans_b = true,
                         .bias = bias_,
                         .accumulate = accumulate,
                         .b_version = store_->version()});
}

void Linear::backward_input(Exec& exec, View dy, View dx) const {
  exec.ops.matmul(exec, {.a = dy.as_2d(), .b = weight_, .c = dx.as_2d(), .b_version = store_->version()});
}

void Linear::backward_weight(Exec& exec, View x, View dy) const {
  exec.ops.matmul(exec, {.a = dy.as_2d(), .b = x.as_2d(), .c = weight_gradient_, .trans_a = true, .accumulate = true});
  if (bias_gradient_) exec.ops.bias_gradient(exec, {dy.as_2d(), bias_gradient_});
}

}  // namespace thinwire
