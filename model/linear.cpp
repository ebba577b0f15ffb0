// The linear layer as calls of the op table.
#include "model/linear.h"

namespace thinwire {

Linear::Linear(const ParamStore& store, const std::string& prefix, const ModelShard* summed)
    : store_(&store),
      weight_(store.weight(prefix + ".weight")),
      bias_(summed == nullptr || summed->tensor_rank == 0 ? store.weight(prefix + ".bias") : View{}),
      weight_gradient_(store.gradient(prefix + ".weight")),
      bias_gradient_(store.gradient(prefix + ".bias")),
      written_first_(store.product_gradient(prefix + ".weight")),
      common_bias_(summed != nullptr && summed->tensor_size > 1),
      uneven_(common_bias_ && summed->whole.ffn % summed->tensor_size != 0) {
  TW_CHECK(weight_, prefix);
  if (store.fp8()) forward_fp8_ = Fp8::kForward, backward_fp8_ = Fp8::kGradient;
}

Matmul Linear::forward_product(View x, View y) const {
  return {.a = x.as_2d(),
          .b = weight_,
          .c = y.as_2d(),
          .trans_b = true,
          .bias = bias_,
          .b_version = store_->version(),
          .fp8 = forward_fp8_};
}

Matmul Linear::backward_product(View dy, View dx) const {
  return {.a = dy.as_2d(), .b = weight_, .c = dx.as_2d(), .b_version = store_->version(), .fp8 = backward_fp8_};
}

void Linear::forward(Exec& exec, View x, View y, bool accumulate) const {
  Matmul op = forward_product(x, y);
  op.accumulate = accumulate;
  exec.ops.matmul(exec, op);
}

void Linear::forward_gelu(Exec& exec, View x, View pre, View y) const {
  if (!exec.ops.fused_products) {
    forward(exec, x, pre);
    exec.ops.gelu_forward(exec, {GeluKind::kTanh, pre, y});
    return;
  }
  Matmul op = forward_product(x, y);
  op.gelu_input = pre.as_2d();
  exec.ops.matmul(exec, op);
}

void Linear::backward_input(Exec& exec, View dy, View dx) const {
  exec.ops.matmul(exec, backward_product(dy, dx));
}

void Linear::backward_input_gelu(Exec& exec, View dy, View pre, View dx, View d_pre) const {
  if (!exec.ops.fused_products) {
    backward_input(exec, dy, dx);
    exec.ops.gelu_backward(exec, {GeluKind::kTanh, pre, dx, d_pre});
    return;
  }
  Matmul op = backward_product(dy, d_pre);
  op.dgelu_input = pre.as_2d();
  exec.ops.matmul(exec, op);
}

void Linear::backward_weight(Exec& exec, View x, View dy) const {
  Matmul op = {.a = dy.as_2d(), .b = x.as_2d(), .c = weight_gradient_, .trans_a = true};
  op.accumulate = !store_->writes_first(written_first_);
  op.fp8 = backward_fp8_;
  // Another algorithm adds in another order, and copies of a bias would drift apart: products of other widths have
  // others, and without `deterministic` every rank times its own.
  const bool alike = exec.deterministic && !uneven_;
  if (exec.ops.fused_products && (alike || !common_bias_)) op.a_sums = bias_gradient_;
  exec.ops.matmul(exec, op);
  if (bias_gradient_ && !op.a_sums) exec.ops.bias_gradient(exec, {dy.as_2d(), bias_gradient_});
}

}  // namespace thinwire
