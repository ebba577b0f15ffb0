// Sums in double against long double loops; what is not a number must stay one.
#include <limits>

#include "engine/base/ops/op_list.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::reduce_test {
namespace {

const std::vector<int64_t> kSizes = {1, 3, 17, 63, 65, 1003, 4096, 4097, 100003, 1100000};

TEST(Reduce, AgreesWithLongDouble) {
  for (int64_t n : kSizes) {
    std::mt19937 rng(static_cast<unsigned>(n));
    const Tensor a = random_tensor(rng, DType::f32, {n}, 3.0, 1.0), b = random_tensor(rng, DType::f32, {n});
    long double plain = 0, product = 0, squares = 0, plain_size = 1, product_size = 1;
    for (int64_t i = 0; i < n; ++i) {
      const long double x = a.at(i), y = b.at(i);
      plain += x;
      product += x * y;
      squares += x * x;
      plain_size += std::abs(x);
      product_size += std::abs(x * y);
    }
    Tensor sum = constant_tensor(DType::f64, {1}, 1.0), dot = sum, square = sum;
    CpuExec exec;
    weighted_sum_op(*exec, {a, constant_tensor(DType::f32, {n}, 1.0), sum});
    weighted_sum_op(*exec, {a, b, dot});
    sum_squares_op(*exec, {a, square});
    // 4096 / 16 additions on a path inside a block, then one per block, and the products of fp32 numbers are exact.
    const double depth = 256 + 16 + static_cast<double>(n) / 4096 + 2;
    const double unit = 0x1p-53 * depth;
    EXPECT_NEAR(sum.at(0), static_cast<double>(1 + plain), unit * static_cast<double>(plain_size)) << n;
    EXPECT_NEAR(dot.at(0), static_cast<double>(1 + product), unit * static_cast<double>(product_size)) << n;
    EXPECT_NEAR(square.at(0), static_cast<double>(1 + squares), unit * static_cast<double>(1 + squares)) << n;
  }
}

TEST(Reduce, LargeAndSmallNumbersDoNotOverflowOrVanish) {
  const Tensor large = constant_tensor(DType::f32, {5000}, 3e38), small = constant_tensor(DType::f32, {5000}, 2e-38);
  Tensor a(DType::f64, {1}), b(DType::f64, {1});
  CpuExec exec;
  sum_squares_op(*exec, {large, a});
  sum_squares_op(*exec, {small, b});
  EXPECT_NEAR(a.at(0) / (5000 * 9e76), 1.0, 1e-6);
  EXPECT_NEAR(b.at(0) / (5000 * 4e-76), 1.0, 1e-6);
}

TEST(Reduce, NonFiniteNumbersShowWhereverTheyAre) {
  for (int64_t at : {0, 15, 16, 4095, 4096, 9000}) {
    for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      Tensor x = constant_tensor(DType::f32, {9001}, 1.0);
      x.set(at, bad);
      Tensor sum(DType::f64, {1}), squares(DType::f64, {1});
      CpuExec exec;
      weighted_sum_op(*exec, {x, constant_tensor(DType::f32, {9001}, 1.0), sum});
      sum_squares_op(*exec, {x, squares});
      EXPECT_FALSE(std::isfinite(sum.at(0)));
      EXPECT_FALSE(std::isfinite(squares.at(0)));
    }
  }
}

TEST(Reduce, SquaresOfBf16AreThoseOfTheSameNumbersInFp32) {
  for (int64_t n : kSizes) {
    std::mt19937 rng(static_cast<unsigned>(n));
    const Tensor narrow = random_tensor(rng, DType::bf16, {n}, 3.0);
    Tensor wide(DType::f32, {n}), a(DType::f64, {1}), b(DType::f64, {1});
    for (int64_t i = 0; i < n; ++i) wide.set(i, narrow.at(i));
    CpuExec exec(2);
    sum_squares_op(*exec, {narrow, a});
    sum_squares_op(*exec, {wide, b});
    EXPECT_EQ(a.at(0), b.at(0)) << n;
  }
  Tensor bad = constant_tensor(DType::bf16, {5000}, 1.0), sum(DType::f64, {1});
  bad.set(4999, std::nan(""));
  CpuExec exec;
  sum_squares_op(*exec, {bad, sum});
  EXPECT_FALSE(std::isfinite(sum.at(0)));
  // Factor 0 adds nothing but what is not finite.
  Tensor total = constant_tensor(DType::f64, {1}, 7.0), large = constant_tensor(DType::f32, {5000}, 3e38);
  sum_squares_op(*exec, {large, total, 0.0});
  EXPECT_EQ(total.at(0), 7.0);
  large.set(4999, INFINITY);
  sum_squares_op(*exec, {large, total, 0.0});
  EXPECT_FALSE(std::isfinite(total.at(0)));
}

TEST(Reduce, SameBitsForAnyNumberOfThreads) {
  for (int64_t n : kSizes) {
    std::mt19937 rng(1);
    const Tensor a = random_tensor(rng, DType::f32, {n}), b = random_tensor(rng, DType::f32, {n});
    expect_same_bits_for_threads(
        [&](Exec& exec) {
          std::vector<Tensor> out(2, Tensor(DType::f64, {1}));
          weighted_sum_op(exec, {a, b, out[0]});
          sum_squares_op(exec, {a, out[1]});
          return out;
        },
        "reduce");
  }
}

}  // namespace
}  // namespace thinwire::test::reduce_test
