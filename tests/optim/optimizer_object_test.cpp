// The Optimizer object hands its configuration and buffers to the right op.
#include <gtest/gtest.h>

#include "optim/optimizer.h"
#include "tests/support/op_test_support.h"

namespace thinwire {
namespace {

using test::Tensor;

Tensor state_of(const StepState& s) {
  Tensor t(DType::u8, {static_cast<int64_t>(sizeof(StepState))});
  std::memcpy(t.view().data, &s, sizeof(s));
  return t;
}

TEST(OptimizerObject, AdamWUsesItsConstantsAndZeroesGradients) {
  OptimConfig c;
  c.beta1 = 0.9, c.beta2 = 0.999, c.eps = 0.5;
  const Tensor master = test::constant_tensor(DType::f32, {8}, 2.0),
               gradient = test::constant_tensor(DType::f32, {8}, 3.0);
  const Tensor m(DType::f32, {8}), v(DType::f32, {8}), working(DType::bf16, {8});
  OptimizerBuffers b;
  b.master = master, b.gradient = gradient, b.m = m, b.v = v, b.working = working;
  b.spans = {{0, 4, 1.0f}, {4, 4, 0.0f}};
  StepState s;
  s.lr = 0.5f, s.bias_correction1 = 0.1f, s.bias_correction2 = 0.001f, s.weight_decay = 0.25f;
  test::CpuExec exec(1);
  Optimizer(c, b).apply(*exec, state_of(s));
  // m^ = 3, v^ = 9: the update is 3 / (3 + 0.5), the decay 0.25 * 2. A beta2 rounded to fp32 shows as 6e-6 of the
  // update.
  const double update = 3.0 / 3.5;
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(master.at(i), 2.0 - 0.5 * (update + (i < 4 ? 0.5 : 0.0)), 1e-6);
    EXPECT_EQ(gradient.at(i), 0.0);
    EXPECT_EQ(working.at(i), to_float(to_bf16(static_cast<float>(master.at(i)))));
  }
}

TEST(OptimizerObject, SgdWithAndWithoutMomentum) {
  for (const double momentum : {0.0, 0.5}) {
    OptimConfig c;
    c.kind = OptimizerKind::kSgd, c.momentum = momentum;
    const Tensor master = test::constant_tensor(DType::f32, {5}, 1.0), gradient(DType::f32, {5}),
                 buffer(DType::f32, {5});
    OptimizerBuffers b;
    b.master = master, b.gradient = gradient;
    if (momentum != 0.0) b.momentum = buffer;
    b.spans = {{0, 5, 0.0f}};
    StepState s;
    s.lr = 0.25f, s.grad_scale = 0.5f;
    test::CpuExec exec(1);
    const Optimizer optimizer(c, b);
    for (int step = 0; step < 2; ++step) {
      for (int64_t i = 0; i < 5; ++i) write_element(gradient, i, 2.0);
      optimizer.apply(*exec, state_of(s));
    }
    // Steps of 0.25 * 1, then 0.25 * (1 + momentum): all exact.
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(master.at(i), 1.0 - 0.25 - 0.25 * (1.0 + momentum));
  }
}

}  // namespace
}  // namespace thinwire
