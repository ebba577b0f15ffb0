// AdamW and SGD against a float64 loop over ten steps: decay spans, working copies, gradient scale, ragged lengths,
// threads.
#include <gtest/gtest.h>

#include "engine/base/ops/ops.h"
#include "tests/support/op_test_support.h"

namespace thinwire::optimizer_test {
namespace {

using test::CpuExec;
using test::random_tensor;
using test::Tensor;

constexpr int kSteps = 10;

std::vector<DecaySpan> spans_of(int64_t n) {
  const int64_t a = n / 3, b = n - n / 5;
  return {{0, a, 1.0f}, {a, b - a, 0.0f}, {b, 0, 1.0f}, {b, n - b, 1.0f}};
}

double decay_at(const std::vector<DecaySpan>& spans, int64_t i) {
  for (const DecaySpan& s : spans) {
    if (i >= s.first && i < s.first + s.count) return s.decay;
  }
  return -1.0;
}

double rounded(double master, DType working) {
  const float x = static_cast<float>(master);
  return working == DType::bf16 ? to_float(to_bf16(x)) : to_float(to_fp16(x));
}

Tensor state_tensor() {
  return Tensor(DType::u8, {static_cast<int64_t>(sizeof(StepState))});
}

struct Buffers {
  Tensor master, m, v, working, state;
  std::vector<Tensor> gradients;
  Buffers(int64_t n, DType working_dtype, uint32_t seed) {
    std::mt19937 rng(seed);
    master = random_tensor(rng, DType::f32, {n}, 0.5);
    m = Tensor(DType::f32, {n}), v = Tensor(DType::f32, {n});
    if (working_dtype != DType::f32) working = Tensor(working_dtype, {n});
    state = state_tensor();
    for (int step = 0; step < kSteps; ++step) gradients.push_back(random_tensor(rng, DType::f32, {n}, 3.0));
  }
};

StepState step_state(int step, double beta1, double beta2) {
  StepState s;
  s.lr = 0.01f * static_cast<float>(step);
  s.bias_correction1 = static_cast<float>(1.0 - std::pow(beta1, step));
  s.bias_correction2 = static_cast<float>(1.0 - std::pow(beta2, step));
  s.grad_scale = 0.25f;
  s.weight_decay = 0.1f;
  return s;
}

void run_adamw(Exec& exec, Buffers& b, const std::vector<DecaySpan>& spans, bool zero) {
  for (int step = 1; step <= kSteps; ++step) {
    const StepState state = step_state(step, 0.9, 0.95);
    std::memcpy(b.state.view().data, &state, sizeof(state));
    AdamW op;
    op.master = b.master, op.m = b.m, op.v = b.v, op.gradient = b.gradients[step - 1], op.state = b.state;
    if (b.working.count() == b.master.count() && b.working.view()) op.working = b.working;
    op.beta1 = 0.9, op.beta2 = 0.95, op.eps = 1e-8;
    op.spans = spans, op.zero_gradient = zero;
    exec.ops.adamw(exec, op);
  }
}

// Each step rounds m, v and p a few times in fp32. m and v are convex combinations: their relative error grows by at
// most 4 u per step for v (all terms positive), for m by 4 u of the largest |g| so far. The update m^ / sqrt(v^) then
// is off by at most 10 u k relative to max|m^|/sqrt(v^) <= 1/sqrt(1 - beta2) < 5, times lr; p itself rounds twice per
// step. Sum over ten steps.
void check_adamw(int64_t n, DType working, int threads, bool zero) {
  Buffers buffers(n, working, 77);
  const std::vector<DecaySpan> spans = spans_of(n);
  std::vector<double> p = buffers.master.values(), m(p.size()), v(p.size()), bound(p.size());
  std::vector<std::vector<double>> gradients;
  for (const Tensor& g : buffers.gradients) gradients.push_back(g.values());
  const double u = test::unit_of(DType::f32);
  for (int step = 1; step <= kSteps; ++step) {
    const StepState s = step_state(step, 0.9, 0.95);
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = gradients[step - 1][i] * static_cast<double>(s.grad_scale);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      const double update =
          (m[i] / (1.0 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1.0 - std::pow(0.95, step))) + 1e-8);
      const double change = s.lr * (update + s.weight_decay * decay_at(spans, static_cast<int64_t>(i)) * p[i]);
      p[i] -= change;
      bound[i] += s.lr * (10.0 * step * u * 5.0) + 3.0 * u * (std::abs(p[i]) + std::abs(change));
    }
  }
  CpuExec exec(threads);
  run_adamw(*exec, buffers, spans, zero);
  const std::string what =
      "adamw of " + std::to_string(n) + " elements with a " + std::string(name_of(working)) + " copy";
  test::expect_close(
      buffers.master, p, [&](int64_t i) { return bound[i]; }, what + ", master");
  test::expect_close(
      buffers.v, v, [&](int64_t i) { return 5.0 * kSteps * u * v[i]; }, what + ", v");
  for (int64_t i = 0; i < n; ++i) {
    if (working != DType::f32) {
      ASSERT_EQ(buffers.working.at(i), rounded(buffers.master.at(i), working)) << what;
    }
    ASSERT_EQ(buffers.gradients[0].at(i), zero ? 0.0 : gradients[0][i]) << what;
  }
}

TEST(AdamWOp, TenStepsAgreeWithFloat64) {
  int threads = 1;
  for (const int64_t n : {1, 15, 16, 17, 1000, 140001}) {
    for (const DType working : {DType::f32, DType::bf16, DType::f16})
      check_adamw(n, working, threads++ % 3 + 1, n % 2 == 0);
  }
}

TEST(AdamWOp, BitsDoNotDependOnThreadsOrSpans) {
  const int64_t n = 200003;
  test::expect_same_bits_for_threads(
      [&](Exec& exec) {
        Buffers b(n, DType::bf16, 5);
        run_adamw(exec, b, spans_of(n), true);
        return std::vector<Tensor>{b.master, b.m, b.v, b.working};
      },
      "adamw");
  Buffers whole(n, DType::bf16, 5), cut(n, DType::bf16, 5);
  CpuExec exec(2);
  run_adamw(*exec, whole, {{0, n, 1.0f}}, false);
  run_adamw(*exec, cut, {{0, 7, 1.0f}, {7, 100000, 1.0f}, {100007, n - 100007, 1.0f}}, false);
  EXPECT_TRUE(whole.master.same_bits(cut.master));
  EXPECT_TRUE(whole.working.same_bits(cut.working));
}

// With a constant gradient m^ = g and v^ = g * g at every step, so every step is lr * sign(g): catches a wrong 1 -
// beta2.
TEST(AdamWOp, ConstantGradientMovesByTheLearningRate) {
  const int64_t n = 40;
  Tensor master(DType::f32, {n}), m(DType::f32, {n}), v(DType::f32, {n}), state = state_tensor();
  const Tensor gradient = test::constant_tensor(DType::f32, {n}, -3.0);
  const std::vector<DecaySpan> spans = {{0, n, 1.0f}};
  CpuExec exec(1);
  for (int step = 1; step <= 20; ++step) {
    StepState s;
    s.lr = 0x1p-6f;
    s.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step));
    s.bias_correction2 = static_cast<float>(1.0 - std::pow(0.999, step));
    std::memcpy(state.view().data, &s, sizeof(s));
    AdamW op;
    op.master = master, op.m = m, op.v = v, op.gradient = gradient, op.state = state, op.spans = spans;
    exec->ops.adamw(*exec, op);
    // m and v: 4 u per step each; square root, division and scaling: 6 u; the sum over steps: 1 u each.
    const double u = test::unit_of(DType::f32);
    for (int64_t i = 0; i < n; ++i)
      ASSERT_NEAR(master.at(i), step * 0x1p-6, step * 0x1p-6 * (7.0 * step + 8.0) * u) << "step " << step;
  }
}

void check_sgd(int64_t n, float momentum, DType working, int threads) {
  Buffers buffers(n, working, 13);
  const std::vector<DecaySpan> spans = spans_of(n);
  std::vector<double> p = buffers.master.values(), buffer(p.size()), bound(p.size());
  const double u = test::unit_of(DType::f32);
  CpuExec exec(threads);
  for (int step = 1; step <= kSteps; ++step) {
    const StepState s = step_state(step, 0.9, 0.95);
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = buffers.gradients[step - 1].at(static_cast<int64_t>(i)) * static_cast<double>(s.grad_scale);
      const double decay = s.weight_decay * decay_at(spans, static_cast<int64_t>(i));
      buffer[i] = static_cast<double>(momentum) * buffer[i] + (g + decay * p[i]);
      p[i] -= s.lr * buffer[i];
      // |buffer| <= 10 * max|step| with momentum 0.9; |g| < 5 here: each rounding is at most u * 60 * lr, about 4 per
      // step so far.
      bound[i] += s.lr * 4.0 * step * u * 60.0 + 2.0 * u * (std::abs(p[i]) + s.lr * std::abs(buffer[i]));
    }
    std::memcpy(buffers.state.view().data, &s, sizeof(s));
    Sgd op;
    op.master = buffers.master, op.gradient = buffers.gradients[step - 1], op.state = buffers.state;
    if (momentum != 0.0f) op.momentum_buffer = buffers.m;
    if (working != DType::f32) op.working = buffers.working;
    op.momentum = momentum, op.spans = spans, op.zero_gradient = true;
    exec->ops.sgd(*exec, op);
  }
  test::expect_close(
      buffers.master, p, [&](int64_t i) { return bound[i]; }, "sgd of " + std::to_string(n));
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(buffers.gradients[0].at(i), 0.0);
    if (working != DType::f32) {
      ASSERT_EQ(buffers.working.at(i), rounded(buffers.master.at(i), working));
    }
  }
}

TEST(SgdOp, TenStepsAgreeWithFloat64) {
  for (const int64_t n : {1, 33, 70000}) {
    for (const float momentum : {0.0f, 0.9f}) {
      check_sgd(n, momentum, DType::f32, 1);
      check_sgd(n, momentum, DType::bf16, 2);
    }
  }
}

// The same numbers as fp32.
TEST(OptimizerOps, GradientsInBf16GiveTheBitsOfFp32Ones) {
  for (const int64_t n : {1, 17, 1003, 70001}) {
    Buffers wide(n, DType::bf16, 9);
    for (Tensor& g : wide.gradients) {
      for (int64_t i = 0; i < n; ++i) g.set(i, rounded(g.at(i), DType::bf16));
    }
    Buffers narrow = wide;
    for (Tensor& g : narrow.gradients) {
      Tensor same(DType::bf16, {n});
      for (int64_t i = 0; i < n; ++i) same.set(i, g.at(i));
      g = same;
    }
    Buffers wide_sgd = wide, narrow_sgd = narrow;
    CpuExec exec(n % 2 == 0 ? 1 : 2);
    run_adamw(*exec, wide, spans_of(n), true);
    run_adamw(*exec, narrow, spans_of(n), true);
    for (Buffers* b : {&wide_sgd, &narrow_sgd}) {
      const StepState state = step_state(1, 0.9, 0.95);
      std::memcpy(b->state.view().data, &state, sizeof(state));
      const std::vector<DecaySpan> spans = spans_of(n);
      exec->ops.sgd(*exec, {.master = b->master,
                            .momentum_buffer = b->m,
                            .gradient = b->gradients[0],
                            .working = b->working,
                            .state = b->state,
                            .momentum = 0.9f,
                            .spans = spans,
                            .zero_gradient = n % 2 == 0});
    }
    EXPECT_TRUE(narrow.master.same_bits(wide.master) && narrow.m.same_bits(wide.m) && narrow.v.same_bits(wide.v));
    EXPECT_TRUE(narrow.working.same_bits(wide.working));
    EXPECT_TRUE(narrow_sgd.master.same_bits(wide_sgd.master) && narrow_sgd.m.same_bits(wide_sgd.m));
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(narrow.gradients[0].at(i), 0.0);
      ASSERT_EQ(narrow_sgd.gradients[0].at(i), wide_sgd.gradients[0].at(i));
    }
  }
}

TEST(OptimizerOps, WrongSpansAreRefused) {
  Buffers b(10, DType::f32, 1);
  CpuExec exec(1);
  EXPECT_ANY_THROW(run_adamw(*exec, b, {{0, 9, 1.0f}}, false));
  EXPECT_ANY_THROW(run_adamw(*exec, b, {{0, 5, 1.0f}, {6, 4, 1.0f}}, false));
}

}  // namespace
}  // namespace thinwire::optimizer_test
