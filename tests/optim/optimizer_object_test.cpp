// The Optimizer object hands its configuration and buffers to the right op.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/optimizer.h"
#include "tests/support/op_test_support.h"

namespace thinwire::optimizer_object_test {
namespace {

using test::Tensor;

Tensor state_of(const StepState& s) {
  Tensor t(DType::u8, {static_cast<int64_t>(sizeof(StepState))});
  std::memcpy(t.view().data, &s, sizeof(s));
  return t;
}

void apply(const Optimizer& optimizer, Exec& exec, View state, Summed summed = Summed::kGradient) {
  for (size_t piece = 0; piece < optimizer.pieces().size(); ++piece) optimizer.apply_piece(exec, state, piece, summed);
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
  apply(Optimizer(c, {b}), *exec, state_of(s));
  // m^ = 3, v^ = 9: the step is 3 / (3 + 0.5), the decay 0.25 * 2. A beta2 rounded to fp32 shows as 6e-6 of the
  // update.
  const double update = 3.0 / 3.5;
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(master.at(i), 2.0 - 0.5 * (update + (i < 4 ? 0.5 : 0.0)), 1e-6);
    EXPECT_EQ(gradient.at(i), 0.0);
    EXPECT_EQ(working.at(i), to_float(to_bf16(static_cast<float>(master.at(i)))));
  }
}

// What the next step writes anew keeps what it held: zeros would be written for nothing.
TEST(OptimizerObject, WhatIsAddedToIsZeroedAlone) {
  for (OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    OptimConfig c;
    c.kind = kind;
    const Tensor master = test::constant_tensor(DType::f32, {40}, 1.0),
                 gradient = test::constant_tensor(DType::f32, {40}, 3.0);
    const Tensor m(DType::f32, {40}), v(DType::f32, {40});
    OptimizerBuffers b;
    b.master = master, b.gradient = gradient;
    if (kind == OptimizerKind::kAdamW) b.m = m, b.v = v;
    b.spans = {{0, 40, 0.0f}};
    b.added = {gradient.view().element_range(3, 5), gradient.view().element_range(32, 8)};
    test::CpuExec exec(1);
    apply(Optimizer(c, {b}), *exec, state_of({.lr = 0.5f}));
    for (int64_t i = 0; i < 40; ++i)
      EXPECT_EQ(gradient.at(i), (i >= 3 && i < 8) || i >= 32 ? 0.0 : 3.0) << "element " << i;
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
    const Optimizer optimizer(c, {b});
    for (int step = 0; step < 2; ++step) {
      for (int64_t i = 0; i < 5; ++i) write_element(gradient, i, 2.0);
      apply(optimizer, *exec, state_of(s));
    }
    // Steps of 0.25 * 1, then 0.25 * (1 + momentum): all exact.
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(master.at(i), 1.0 - 0.25 - 0.25 * (1.0 + momentum));
  }
}

// Summed::kMomentum: m is the buffer, v is read only, the step is cut at kMomentumLimit * sqrt(v^), and what has no
// variance does not move. Ragged length, so that vectors and the rest of them are both seen.
TEST(OptimizerObject, AMomentumIsTakenAsItComes) {
  constexpr int64_t kSize = 1003;
  OptimConfig c;
  c.beta1 = 0.9, c.beta2 = 0.95, c.eps = 1e-8;
  StepState s;
  s.lr = 0.25f, s.bias_correction1 = 0.3f, s.bias_correction2 = 0.125f, s.grad_scale = 0.5f, s.weight_decay = 0.0625f;
  std::mt19937 rng(3);
  const Tensor start = test::random_tensor(rng, DType::f32, {kSize}, 1.0),
               sum = test::random_tensor(rng, DType::f32, {kSize}, 4.0);
  const Tensor master(DType::f32, {kSize}), gradient(DType::f32, {kSize}), m(DType::f32, {kSize}),
      v(DType::f32, {kSize}), working(DType::bf16, {kSize});
  const auto variance = [](int64_t i) {
    return i % 5 == 0 ? 0.0 : i % 5 == 1 ? 1e-12 : 0.25 + 0.001 * static_cast<double>(i);
  };
  for (int64_t i = 0; i < kSize; ++i) {
    write_element(master, i, start.at(i)), write_element(gradient, i, sum.at(i)), write_element(v, i, variance(i));
    write_element(m, i, 123.0);
  }
  OptimizerBuffers b;
  b.master = master, b.gradient = gradient, b.m = m, b.v = v, b.working = working;
  b.spans = {{0, 500, 1.0f}, {500, kSize - 500, 0.0f}};
  test::CpuExec exec(2);
  apply(Optimizer(c, {b}), *exec, state_of(s), Summed::kMomentum);
  const double u = test::unit_of(DType::f32);
  int64_t cut = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    const double root = std::sqrt(static_cast<double>(static_cast<float>(variance(i))) / 0.125);
    const double whole = 0.5 * sum.at(i) / static_cast<double>(s.bias_correction1), limit = 10.0 * root;
    cut += std::abs(whole) > limit;
    const double update = std::clamp(whole, -limit, limit) / (root + 1e-8);
    const double expected = start.at(i) - 0.25 * (update + (i < 500 ? 0.0625 * start.at(i) : 0.0));
    EXPECT_NEAR(master.at(i), expected,
                0.25 * 10.0 * u * std::abs(update) + 3.0 * u * (std::abs(expected) + std::abs(start.at(i))));
    if (i % 5 == 0 && i >= 500) {
      EXPECT_EQ(master.at(i), start.at(i)) << "without variance";
    }
    EXPECT_EQ(m.at(i), i % 5 == 0 ? 0.0 : 0.5 * sum.at(i));
    EXPECT_EQ(v.at(i), static_cast<double>(static_cast<float>(variance(i))));
    EXPECT_EQ(gradient.at(i), 0.0);
    EXPECT_EQ(working.at(i), to_float(to_bf16(static_cast<float>(master.at(i)))));
  }
  EXPECT_GT(cut, kSize / 5);
  EXPECT_LT(cut, kSize / 2);
}

TEST(OptimizerObject, AShareOfTheMomentum) {
  for (const int64_t size : {1, 7, 16, 70001}) {
    std::mt19937 rng(5);
    const Tensor m = test::random_tensor(rng, DType::f32, {size}, 1.0),
                 g = test::random_tensor(rng, DType::f32, {size}, 1.0);
    std::vector<Tensor> results;
    for (const int threads : {1, 3}) {
      Tensor out(DType::f32, {size});
      for (int64_t i = 0; i < size; ++i) write_element(out, i, g.at(i));
      test::CpuExec exec(threads);
      exec->ops.axpy(
          *exec, {.alpha = static_cast<float>(0.9 * 8 / 3), .x = m, .y = out, .beta = static_cast<float>(1.0 - 0.9)});
      // Two factors rounded to fp32, a product and a sum.
      const double u = test::unit_of(DType::f32);
      for (int64_t i = 0; i < size; ++i) {
        const double a = 2.4 * m.at(i), b = 0.1 * g.at(i);
        ASSERT_NEAR(out.at(i), a + b, 3.0 * u * (std::abs(a) + std::abs(b)));
      }
      results.push_back(std::move(out));
    }
    EXPECT_TRUE(results[0].same_bits(results[1]));
  }
}

// Cutting a buffer into pieces, with spans cut along, changes no bit; a rank that owns nothing has no piece.
TEST(OptimizerObject, PiecesGiveTheBitsOfTheWhole) {
  constexpr int64_t kSize = 100;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    OptimConfig c;
    c.kind = kind, c.momentum = 0.9;
    StepState s;
    s.lr = 0.1f, s.bias_correction1 = 0.1f, s.bias_correction2 = 0.001f, s.weight_decay = 0.25f;
    test::CpuExec exec(1);
    std::vector<float> results[2];
    for (const std::vector<int64_t>& bounds : {std::vector<int64_t>{0, kSize}, {0, 7, 40, 41, kSize}}) {
      const Tensor master(DType::f32, {kSize}), gradient(DType::f32, {kSize}), m(DType::f32, {kSize}),
          v(DType::f32, {kSize}), momentum(DType::f32, {kSize}), working(DType::bf16, {kSize});
      std::vector<OptimizerBuffers> pieces;
      for (size_t p = 0; p + 1 < bounds.size(); ++p) {
        const int64_t first = bounds[p], n = bounds[p + 1] - first;
        const auto cut = [&](const Tensor& t) { return t.view().element_range(first, n); };
        OptimizerBuffers b;
        b.master = cut(master), b.gradient = cut(gradient), b.working = cut(working);
        if (kind == OptimizerKind::kAdamW) b.m = cut(m), b.v = cut(v);
        if (kind == OptimizerKind::kSgd) b.momentum = cut(momentum);
        const int64_t decayed = std::clamp<int64_t>(60 - first, 0, n);  // elements 0 .. 59 take weight decay
        if (decayed > 0) b.spans.push_back({0, decayed, 1.0f});
        if (decayed < n) b.spans.push_back({decayed, n - decayed, 0.0f});
        pieces.push_back(b);
      }
      const Optimizer optimizer(c, pieces);
      EXPECT_EQ(optimizer.pieces().size(), bounds.size() - 1);
      for (int step = 0; step < 3; ++step) {
        for (int64_t i = 0; i < kSize; ++i) {
          if (step == 0) write_element(master, i, std::sin(static_cast<double>(i)));
          write_element(gradient, i, std::cos(static_cast<double>(i * (step + 1))));
        }
        apply(optimizer, *exec, state_of(s));
      }
      std::vector<float>& out = results[bounds.size() > 2];
      for (int64_t i = 0; i < kSize; ++i) {
        out.push_back(static_cast<float>(master.at(i)));
        out.push_back(static_cast<float>(working.at(i)));
        EXPECT_EQ(gradient.at(i), 0.0);
      }
    }
    EXPECT_EQ(results[0], results[1]);
    apply(Optimizer(c, {}), *exec, state_of(s));
  }
}

}  // namespace
}  // namespace thinwire::optimizer_object_test
