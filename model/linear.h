// A linear layer y = x W^T + b: forward, and its backward in two parts (input, weight).
#pragma once

#include <string>

#include "model/param_store.h"

namespace thinwire {

class Linear {
 public:
  // `prefix` + ".weight" [out, in] and ".bias" [out] (may be absent) of the store. summed: the shard, where the results
  // of its tensor ranks are summed: one of them adds the bias, whose gradient is whole on all of them.
  Linear(const ParamStore& store, const std::string& prefix, const ModelShard* summed = nullptr);

  // y: [N,out]. accumulate: y += instead of y =, the bias added all the same.
  void forward(Exec& exec, View x, View y, bool accumulate = false) const;
  // y = gelu_tanh(pre), pre = x W^T + b: one op where the table fuses them.
  void forward_gelu(Exec& exec, View x, View pre, View y) const;
  // dx: [N,in] = dy W.
  void backward_input(Exec& exec, View dy, View dx) const;
  // d_pre = (dy W) * gelu_tanh'(pre), [N,in]: of what was activated before it came in. dx: [N,in], may be written.
  void backward_input_gelu(Exec& exec, View dy, View pre, View dx, View d_pre) const;
  // dW += dy^T x, db += column sums of dy (dW = for the first of a step: ParamStore::begin_gradients). x, dy: [N,in],
  // [N,out].
  void backward_weight(Exec& exec, View x, View dy) const;

 private:
  Matmul forward_product(View x, View y) const;
  Matmul backward_product(View dy, View dx) const;

  const ParamStore* store_;
  View weight_, bias_, weight_gradient_, bias_gradient_;
  int written_first_ = -1;
  bool common_bias_, uneven_;  // the bias of several tensor ranks, which have parts of different widths
  Fp8 forward_fp8_ = Fp8::kOff, backward_fp8_ = Fp8::kOff;
};

}  // namespace thinwire
