// Matrix products against a float64 loop: ragged shapes, transposes, dtypes, bias, accumulation, thread counts, steady
// state.
#include <gtest/gtest.h>

#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/isa.h"
#include "engine/base/ops/ops.h"
#include "tests/support/op_test_support.h"

namespace thinwire::matmul_test {
namespace {

using test::CpuExec;
using test::random_tensor;
using test::Tensor;

struct Case {
  int64_t m, n, k;
  bool trans_a, trans_b, bias, accumulate;
  DType input, output;
  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (trans_a ? " ta" : "") +
           (trans_b ? " tb" : "") + (bias ? " bias" : "") + (accumulate ? " accumulate " : " ") +
           std::string(name_of(input)) + "->" + std::string(name_of(output));
  }
};

struct Operands {
  Tensor a, b, c, bias;
  Operands(const Case& p, uint32_t seed) {
    std::mt19937 rng(seed);
    a = random_tensor(rng, p.input, p.trans_a ? std::vector<int64_t>{p.k, p.m} : std::vector<int64_t>{p.m, p.k});
    b = random_tensor(rng, p.input, p.trans_b ? std::vector<int64_t>{p.n, p.k} : std::vector<int64_t>{p.k, p.n});
    c = random_tensor(rng, p.output, {p.m, p.n});
    if (p.bias) bias = random_tensor(rng, p.input, {p.n});
  }
  void run(Exec& exec, const Case& p) {
    Matmul op;
    op.a = a, op.b = b, op.c = c;
    op.trans_a = p.trans_a, op.trans_b = p.trans_b, op.accumulate = p.accumulate;
    if (p.bias) op.bias = bias;
    exec.ops.matmul(exec, op);
  }
};

// Every product and sum is rounded at most once each to fp32, in any order: |error| <= (k + 3) u32 (sum |a b| + |bias|
// + |c|); then one rounding to the output type. (AVX-512-bf16 sums two products per rounding, which is within the same
// bound.)
void check_against_loop(const Case& p, uint32_t seed, int threads) {
  Operands operands(p, seed);
  const std::vector<double> a = operands.a.values(), b = operands.b.values(), before = operands.c.values();
  const std::vector<double> bias = p.bias ? operands.bias.values() : std::vector<double>();
  std::vector<double> expected(before.size()), size(before.size());
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const size_t at = static_cast<size_t>(i * p.n + j);
      double sum = (p.bias ? bias[j] : 0.0) + (p.accumulate ? before[at] : 0.0);
      double total = (p.bias ? std::abs(bias[j]) : 0.0) + (p.accumulate ? std::abs(before[at]) : 0.0);
      for (int64_t k = 0; k < p.k; ++k) {
        const double product = a[p.trans_a ? k * p.m + i : i * p.k + k] * b[p.trans_b ? j * p.k + k : k * p.n + j];
        sum += product, total += std::abs(product);
      }
      expected[at] = sum, size[at] = total;
    }
  }
  CpuExec exec(threads);
  operands.run(*exec, p);
  test::expect_close(
      operands.c, expected,
      [&](int64_t i) {
        return static_cast<double>(p.k + 3) * test::unit_of(DType::f32) * size[i] * 1.01 +
               test::unit_of(p.output) * std::abs(expected[i]) * 1.01 + test::tiny_of(p.output);
      },
      p.name());
}

const std::vector<std::pair<DType, DType>>& dtype_pairs() {
  static const std::vector<std::pair<DType, DType>> pairs = {{DType::f32, DType::f32},
                                                             {DType::bf16, DType::bf16},
                                                             {DType::bf16, DType::f32},
                                                             {DType::f16, DType::f16},
                                                             {DType::f16, DType::f32}};
  return pairs;
}

TEST(Matmul, RaggedShapesAgreeWithFloat64) {
  std::mt19937 rng(11);
  const auto draw = [&rng](int64_t limit) { return std::uniform_int_distribution<int64_t>(1, limit)(rng); };
  for (const auto& [input, output] : dtype_pairs()) {
    for (int flags = 0; flags < 16; ++flags) {
      const Case p{draw(150),        draw(150), draw(150), (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0,
                   (flags & 8) != 0, input,     output};
      check_against_loop(p, static_cast<uint32_t>(flags), flags % 3 + 1);
    }
  }
}

TEST(Matmul, ThinShapesAgreeWithFloat64) {
  for (const auto& [input, output] : dtype_pairs()) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        check_against_loop({1, 300, 257, trans_a, trans_b, true, false, input, output}, 1, 2);
        check_against_loop({300, 1, 257, trans_a, trans_b, false, true, input, output}, 2, 2);
        check_against_loop({65, 33, 1, trans_a, trans_b, true, true, input, output}, 3, 2);
        check_against_loop({1, 1, 1, trans_a, trans_b, false, false, input, output}, 4, 2);
      }
    }
  }
}

// Large K is where a backend may sum in parallel, and where the widened products are cut into pieces of 1024.
TEST(Matmul, PiecesOfLargeShapesAgreeWithFloat64) {
  for (const auto& [input, output] : dtype_pairs()) {
    check_against_loop({40, 70, 4096, true, false, false, true, input, output}, 5, 2);
    check_against_loop({17, 1100, 90, false, true, true, false, input, output}, 6, 2);
    check_against_loop({1100, 19, 1030, false, false, true, true, input, output}, 7, 2);
  }
}

TEST(Matmul, EmptyShapes) {
  CpuExec exec(2);
  for (const auto& [input, output] : dtype_pairs()) {
    for (const bool accumulate : {false, true}) {
      for (const bool with_bias : {false, true}) {
        const Case p{3, 5, 0, false, true, with_bias, accumulate, input, output};
        Operands operands(p, 9);
        const std::vector<double> before = operands.c.values();
        operands.run(*exec, p);
        for (int64_t i = 0; i < 15; ++i) {
          const double want = (with_bias ? operands.bias.at(i % 5) : 0.0) + (accumulate ? before[i] : 0.0);
          EXPECT_NEAR(operands.c.at(i), want, std::abs(want) * epsilon_of(output)) << p.name();
        }
      }
    }
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 7}, {7, 0}}) {
      const Case p{m, n, 4, false, false, false, false, input, output};
      Operands operands(p, 9);
      operands.run(*exec, p);
    }
  }
}

// What a forward, an input gradient and a weight gradient of a block look like, small and large K, more threads than
// tiles.
TEST(Matmul, BitsDoNotDependOnThreads) {
  std::mt19937 rng(3);
  std::vector<Case> cases;
  for (const auto& [input, output] : dtype_pairs()) {
    cases.push_back({256, 384, 192, false, true, true, false, input, output});
    cases.push_back({256, 192, 384, false, false, false, false, input, output});
    cases.push_back({200, 333, 192, false, true, false, false, input, output});
    // Several tiles: the grid is the shape's.
    cases.push_back({800, 96, 700, true, false, false, true, input, DType::f32});
    cases.push_back({96, 1600, 600, true, true, true, false, input, output});
    cases.push_back({65, 1601, 130, false, false, true, true, input, output});
    for (const int64_t k : {256, 1024, 1025, 2048, 4096, 5000}) {
      cases.push_back({384, 96, k, true, false, false, true, input, DType::f32});
      cases.push_back({64, 64, k, true, false, false, true, input, DType::f32});
      cases.push_back({77, 65, k, true, false, false, false, input, DType::f32});
      cases.push_back({70, 400, k, false, true, false, false, input, output});
    }
    for (int i = 0; i < 12; ++i) {
      const auto draw = [&rng](int64_t limit) { return std::uniform_int_distribution<int64_t>(1, limit)(rng); };
      cases.push_back({draw(300), draw(300), draw(700), rng() % 2 == 0, rng() % 2 == 0, rng() % 2 == 0, rng() % 2 == 0,
                       input, output});
    }
  }
  CpuExec one(1);
  for (const Case& p : cases) {
    Operands reference(p, 21);
    Operands start = reference;
    reference.run(*one, p);
    for (const int threads : {2, 3, 5, 16}) {
      CpuExec many(threads);
      Operands other = start;
      other.run(*many, p);
      EXPECT_TRUE(reference.c.same_bits(other.c)) << p.name() << " with " << threads << " threads";
    }
  }
}

TEST(Matmul, NonFiniteNumbersReachTheResult) {
  CpuExec exec(2);
  for (const auto& [input, output] : dtype_pairs()) {
    const Case p{64, 70, 300, false, true, false, false, input, output};
    Operands operands(p, 31);
    operands.a.set(5 * 300 + 299, std::numeric_limits<double>::quiet_NaN());
    operands.a.set(9 * 300, std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < operands.c.count(); ++i)
      operands.c.set(i, std::numeric_limits<double>::quiet_NaN());  // not read
    operands.run(*exec, p);
    for (int64_t j = 0; j < 70; ++j) {
      EXPECT_TRUE(std::isnan(operands.c.at(5 * 70 + j)));
      EXPECT_TRUE(std::isinf(operands.c.at(9 * 70 + j)));
      EXPECT_TRUE(std::isfinite(operands.c.at(8 * 70 + j)));
    }
  }
}

TEST(Matmul, SteadyStateMakesNothing) {
  CpuExec exec(2);
  int64_t after_first = 0;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [input, output] : dtype_pairs()) {
      const Case p{200, 150, 120, true, false, true, true, input, output};
      Operands operands(p, static_cast<uint32_t>(round));
      operands.run(*exec, p);
    }
    const int64_t made = cpu_state(*exec).products().primitives_made();
    EXPECT_GT(made, 0);
    if (round == 0) after_first = made;
    EXPECT_EQ(made, after_first);
  }
}

// 16-bit accumulation into a 16-bit c rounds once, after the fp32 sum: 1 + 200 * 2^-9 survives bf16, 200 roundings
// would not.
TEST(Matmul, AccumulatorIsWide) {
  CpuExec exec(1);
  for (const DType t : {DType::bf16, DType::f16}) {
    const Tensor a = test::constant_tensor(t, {1, 200}, 0x1p-9), b = test::constant_tensor(t, {200, 1}, 1.0);
    const Tensor c = test::constant_tensor(t, {1, 1}, 1.0);
    Matmul op;
    op.a = a, op.b = b, op.c = c, op.accumulate = true;
    exec->ops.matmul(*exec, op);
    EXPECT_NEAR(c.at(0), 1.0 + 200 * 0x1p-9, 1.5 * test::unit_of(t));
  }
}

TEST(Matmul, WrongShapesAreRefused) {
  CpuExec exec(1);
  const Tensor a(DType::f32, {4, 3}), b(DType::f32, {3, 5}), c(DType::f32, {4, 5}), wrong(DType::f32, {5, 4});
  const Tensor half(DType::bf16, {3, 5});
  Matmul op;
  op.a = a, op.b = b, op.c = wrong;
  EXPECT_ANY_THROW(exec->ops.matmul(*exec, op));
  op.c = c, op.trans_b = true;
  EXPECT_ANY_THROW(exec->ops.matmul(*exec, op));
  op.trans_b = false, op.b = half;
  EXPECT_ANY_THROW(exec->ops.matmul(*exec, op));
}

}  // namespace
}  // namespace thinwire::matmul_test
