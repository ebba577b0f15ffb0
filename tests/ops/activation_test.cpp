// GELU and SwiGLU against float64, over both tails and the special values; the backward against central differences
// too.
#include <limits>

#include "engine/base/ops/op_list.h"
#include "engine/run/bench/op_oracles.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::activation_test {
namespace {

constexpr double kU = 0x1p-24;
// The vector exponential is good to 2 ulp; what it flushes to zero (or its inverse to infinity) is below this.
constexpr double kExpError = 4 * kU, kFlushed = 1e-35;
// The slope of tanh GELU stops its exponential at e^80 and x at 16: beyond, it returns at most 16 * 57 * e^-80.
constexpr double kFlatSlope = 2e-32;

struct Value : oracle::Smooth {
  double y_error, slope_error;  // bounds of the fp32 arithmetic
};

Value gelu(GeluKind kind, double x) {
  Value v{oracle::gelu(kind, x), 0.0, 0.0};
  if (kind == GeluKind::kTanh) {
    const double two_u = 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    const double derivative = 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    const double s = oracle::sigmoid(two_u), rest = oracle::sigmoid(-two_u);
    // 2u has four roundings (and its constants); e^-2u carries them with weight |2u|, and reaches s with weight 1 - s.
    const double e_error = 5 * kU * std::abs(two_u) + kExpError;
    const double s_error = e_error * rest + 3 * kU;
    v.y_error = std::abs(v.y) * (s_error + kU) + kFlushed;
    v.slope_error = s * s_error + std::abs(x * s * rest * derivative) * (e_error + 2 * s_error + 8 * kU) +
                    kU * std::abs(v.slope) + kFlatSlope;
  } else {
    const double cumulative = 0.5 * std::erfc(-x / std::sqrt(2.0)), bell = std::exp(-x * x / 2);
    // Tail: exponential (its argument's rounding is carried along), polynomial of degree 9 whose terms shrink (4
    // roundings), fit 1.4e-8 (a quarter of a unit), quotient and products 6.
    const double tail_error = kExpError + 12 * kU;
    const double error = x < 0 ? cumulative * tail_error : (1 - cumulative) * tail_error + kU;
    v.y_error = std::abs(x) * error + 2 * kU * std::abs(v.y) + kFlushed;
    v.slope_error = error + std::abs(x) * bell * 0.4 * (kExpError + 5 * kU) + kU * std::abs(v.slope) + kFlushed;
  }
  return v;
}

std::vector<double> inputs(std::mt19937& rng, int64_t n) {
  std::vector<double> out;
  std::uniform_real_distribution<double> wide(-20.0, 20.0), narrow(-3.0, 3.0), magnitude(-30.0, 4.0);
  for (int64_t i = 0; i < n; ++i) {
    const double tiny = std::exp2(magnitude(rng));
    out.push_back(i % 3 == 0 ? wide(rng) : i % 3 == 1 ? narrow(rng) : (i % 2 == 0 ? tiny : -tiny));
  }
  return out;
}

Tensor tensor_of(DType type, const std::vector<double>& values) {
  Tensor t(type, {1, static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) t.set(static_cast<int64_t>(i), values[i]);
  return t;
}

TEST(Gelu, ForwardAndBackwardAgreeWithFloat64) {
  for (GeluKind kind : {GeluKind::kTanh, GeluKind::kExact}) {
    for (DType type : compute_types()) {
      for (int64_t n : {1, 3, 17, 63, 65, 1003, 40001}) {
        for (bool alias : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << (kind == GeluKind::kTanh ? "tanh " : "exact ") << name_of(type) << " " << n);
          std::mt19937 rng(static_cast<unsigned>(n));
          const Tensor x = tensor_of(type, inputs(rng, n));
          Tensor y(type, {1, n}), dy = random_tensor(rng, type, {1, n}), dx(type, {1, n});
          const Tensor dy_before = dy;
          CpuExec exec;
          gelu_forward_op(*exec, {kind, x, y});
          gelu_backward_op(*exec, {kind, x, dy, alias ? dy.view() : dx.view()});
          std::vector<double> want_y, want_dx, bound_y, bound_dx;
          for (int64_t i = 0; i < n; ++i) {
            const Value v = gelu(kind, x.at(i));
            const double d = dy_before.at(i);
            want_y.push_back(v.y);
            want_dx.push_back(d * v.slope);
            bound_y.push_back(v.y_error + unit_of(type) * std::abs(v.y) * 1.01 + tiny_of(type));
            bound_dx.push_back(std::abs(d) * v.slope_error + (kU + unit_of(type)) * std::abs(d * v.slope) * 1.01 +
                               tiny_of(type));
          }
          expect_close(
              y, want_y, [&](int64_t i) { return bound_y[static_cast<size_t>(i)]; }, "gelu");
          expect_close(
              alias ? dy : dx, want_dx, [&](int64_t i) { return bound_dx[static_cast<size_t>(i)]; }, "gelu'");
        }
      }
    }
  }
}

TEST(Gelu, BackwardAgreesWithCentralDifferences) {
  for (GeluKind kind : {GeluKind::kTanh, GeluKind::kExact}) {
    std::mt19937 rng(4);
    const int64_t n = 999;
    const Tensor x = tensor_of(DType::f32, inputs(rng, n)), dy = constant_tensor(DType::f32, {1, n}, 1.0);
    Tensor dx(DType::f32, {1, n});
    CpuExec exec;
    gelu_backward_op(*exec, {kind, x, dy, dx});
    const auto forward = [&](double v) {
      return kind == GeluKind::kTanh ? 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)))
                                     : 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    };
    for (int64_t i = 0; i < n; ++i) {
      const double h = 1e-4, v = x.at(i);
      // h^2 / 6 times a third derivative below 2; rounding of the difference 20 * 2^-52 / h.
      EXPECT_NEAR(dx.at(i), (forward(v + h) - forward(v - h)) / (2 * h), gelu(kind, v).slope_error + 1e-8) << v;
    }
  }
}

TEST(Gelu, SpecialValues) {
  const double inf = std::numeric_limits<double>::infinity();
  for (GeluKind kind : {GeluKind::kTanh, GeluKind::kExact}) {
    const Tensor x = tensor_of(DType::f32, {0.0, inf, std::nan(""), 1e30, -1e30, 100.0, -100.0});
    const Tensor dy = constant_tensor(DType::f32, {1, 7}, 1.0);
    Tensor y(DType::f32, {1, 7}), dx(DType::f32, {1, 7});
    CpuExec exec;
    gelu_forward_op(*exec, {kind, x, y});
    gelu_backward_op(*exec, {kind, x, dy, dx});
    EXPECT_EQ(y.at(0), 0.0);
    EXPECT_EQ(dx.at(0), 0.5);
    EXPECT_EQ(y.at(1), inf);
    EXPECT_EQ(dx.at(1), 1.0);
    EXPECT_TRUE(std::isnan(y.at(2)));
    EXPECT_TRUE(std::isnan(dx.at(2)));
    EXPECT_EQ(y.at(3), static_cast<double>(1e30f));
    EXPECT_EQ(dx.at(3), 1.0);
    EXPECT_EQ(y.at(4), 0.0);
    EXPECT_NEAR(dx.at(4), 0.0, 1e-30);
    EXPECT_EQ(y.at(5), 100.0);
    EXPECT_NEAR(y.at(6), 0.0, 1e-30);
  }
}

// silu and its slope, with bounds as above.
Value silu(double g) {
  const double s = 1 / (1 + std::exp(-g)), rest = 1 / (1 + std::exp(g));
  const double s_error = kExpError * rest + 3 * kU;
  Value v{g * s, s + g * s * rest, 0, 0};
  v.y_error = std::abs(v.y) * (s_error + kU) + kFlushed;
  v.slope_error =
      s * s_error + std::abs(g * s * rest) * (kExpError + 2 * s_error + 4 * kU) + kU * std::abs(v.slope) + kFlushed;
  return v;
}

TEST(Swiglu, ForwardAndBackwardAgreeWithFloat64) {
  for (DType type : compute_types()) {
    for (auto [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {5, 17}, {2, 63}, {7, 65}, {3, 1003}, {100, 340}}) {
      for (bool alias : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << " [" << rows << "," << cols << "]");
        std::mt19937 rng(static_cast<unsigned>(cols));
        Tensor x = random_tensor(rng, type, {rows, 2 * cols}, 5.0), dx(type, {rows, 2 * cols}), y(type, {rows, cols});
        const Tensor dy = random_tensor(rng, type, {rows, cols}), before = x;
        CpuExec exec;
        swiglu_forward_op(*exec, {x, y});
        swiglu_backward_op(*exec, {x, dy, alias ? x.view() : dx.view()});
        const size_t n = static_cast<size_t>(rows * cols);
        std::vector<double> want_y(n), want_dx(2 * n), bound_y(n), bound_dx(2 * n);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const int64_t at = r * 2 * cols + c;
            const size_t i = static_cast<size_t>(r * cols + c), g_at = static_cast<size_t>(at),
                         u_at = static_cast<size_t>(at + cols);
            const double g = before.at(at), u = before.at(at + cols), d = dy.at(r * cols + c);
            const Value v = silu(g);
            const auto rounding = [&](double exact) {
              return (2 * kU + unit_of(type)) * std::abs(exact) * 1.01 + tiny_of(type);
            };
            want_y[i] = v.y * u;
            bound_y[i] = std::abs(u) * v.y_error + rounding(want_y[i]);
            want_dx[g_at] = d * u * v.slope;
            bound_dx[g_at] = std::abs(d * u) * v.slope_error + rounding(want_dx[g_at]);
            want_dx[u_at] = d * v.y;
            bound_dx[u_at] = std::abs(d) * v.y_error + rounding(want_dx[u_at]);
          }
        }
        expect_close(
            y, want_y, [&](int64_t i) { return bound_y[static_cast<size_t>(i)]; }, "swiglu");
        expect_close(
            alias ? x : dx, want_dx, [&](int64_t i) { return bound_dx[static_cast<size_t>(i)]; }, "swiglu'");
      }
    }
  }
}

TEST(Swiglu, BackwardAgreesWithCentralDifferencesAndBoundsItsTails) {
  std::vector<double> values = {0.0, 0.5, -0.5, 3.0, -3.0, 30.0, -30.0, 100.0, -100.0, 1e4, -1e4, 1e30, -1e30};
  const int64_t n = static_cast<int64_t>(values.size());
  values.resize(static_cast<size_t>(2 * n), 1.5);  // up
  const Tensor x = tensor_of(DType::f32, values), dy = constant_tensor(DType::f32, {1, n}, 1.0);
  Tensor dx(DType::f32, {1, 2 * n});
  CpuExec exec;
  swiglu_backward_op(*exec, {x, dy, dx});
  const auto f = [](double g) { return g / (1 + std::exp(-g)); };
  for (int64_t i = 0; i < n; ++i) {
    const double g = x.at(i), h = 1e-4;
    const double slope = std::abs(g) > 50 ? (g > 0 ? 1.0 : 0.0) : (f(g + h) - f(g - h)) / (2 * h);
    EXPECT_NEAR(dx.at(i), 1.5 * slope, 1e-8 + 20 * kU * std::abs(slope)) << g;
    EXPECT_NEAR(dx.at(n + i), f(g), 1e-30 + 8 * kU * std::abs(f(g))) << g;
  }
}

TEST(Activation, SameBitsForAnyNumberOfThreads) {
  for (DType type : compute_types()) {
    std::mt19937 rng(10);
    const Tensor x = random_tensor(rng, type, {301, 260}), dy = random_tensor(rng, type, {301, 260}),
                 half = random_tensor(rng, type, {301, 130});
    expect_same_bits_for_threads(
        [&](Exec& exec) {
          std::vector<Tensor> out(6, Tensor(type, {301, 260}));
          out[4] = Tensor(type, {301, 130});
          gelu_forward_op(exec, {GeluKind::kTanh, x, out[0]});
          gelu_forward_op(exec, {GeluKind::kExact, x, out[1]});
          gelu_backward_op(exec, {GeluKind::kTanh, x, dy, out[2]});
          gelu_backward_op(exec, {GeluKind::kExact, x, dy, out[3]});
          swiglu_forward_op(exec, {x, out[4]});
          swiglu_backward_op(exec, {x, half, out[5]});
          return out;
        },
        "activation");
  }
}

}  // namespace
}  // namespace thinwire::test::activation_test
