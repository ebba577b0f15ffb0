// Feed-forward layer over the op table.
#include "model/mlp.h"

namespace thinwire {
namespace {

GeluKind gelu_kind(ActivationKind kind) {
  return kind == ActivationKind::kGeluTanh ? GeluKind::kTanh : GeluKind::kExact;
}

}  // namespace

Mlp::Mlp(const ModelShard& shard, const ParamStore& store, int layer)
    : activation_(shard.whole.activation),
      fc1_(store, "layers." + std::to_string(layer) + ".mlp.fc1"),
      fc2_(store, "layers." + std::to_string(layer) + ".mlp.fc2", &shard) {}

void Mlp::activate(Exec& exec, const BlockActivations& a) const {
  if (activation_ == ActivationKind::kSwiglu) {
    exec.ops.swiglu_forward(exec, {a.mlp_in, a.mlp_act});
  } else {
    exec.ops.gelu_forward(exec, {gelu_kind(activation_), a.mlp_in, a.mlp_act});
  }
}

void Mlp::forward_inner(Exec& exec, View x, const BlockActivations& a) const {
  if (activation_ == ActivationKind::kGeluTanh) return fc1_.forward_gelu(exec, x, a.mlp_in, a.mlp_act);
  fc1_.forward(exec, x, a.mlp_in);
  activate(exec, a);
}

void Mlp::forward(Exec& exec, View x, const BlockActivations& a, View y, bool accumulate) const {
  forward_inner(exec, x, a);
  fc2_.forward(exec, a.mlp_act, y, accumulate);
}

void Mlp::backward_input(Exec& exec, const BlockActivations& a, const MlpWork& work, View d_act, View dx) const {
  if (activation_ == ActivationKind::kGeluTanh) {
    fc2_.backward_input_gelu(exec, work.dy, a.mlp_in, d_act, work.d_in);
  } else {
    fc2_.backward_input(exec, work.dy, d_act);
    if (activation_ == ActivationKind::kSwiglu)
      exec.ops.swiglu_backward(exec, {a.mlp_in, d_act, work.d_in});
    else
      exec.ops.gelu_backward(exec, {GeluKind::kExact, a.mlp_in, d_act, work.d_in});
  }
  fc1_.backward_input(exec, work.d_in, dx);
}

void Mlp::backward_weight(Exec& exec, View x, const BlockActivations& a, const MlpWork& work) const {
  fc2_.backward_weight(exec, a.mlp_act, work.dy);
  fc1_.backward_weight(exec, x, work.d_in);
}

}  // namespace thinwire
