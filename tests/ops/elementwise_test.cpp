// Element-by-element ops, dropout and column sums against their definitions.
#include <bit>
#include <limits>

#include "engine/base/ops/op_list.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::elementwise_test {
namespace {

constexpr double kU = 0x1p-24;

const std::vector<std::pair<int64_t, int64_t>> kShapes = {{1, 1},  {3, 1},    {6, 17},   {3, 63},
                                                          {9, 65}, {12, 130}, {3, 5003}, {300, 33}};
const int64_t kIds[3] = {0, (int64_t{0x1234} << 32) + 77, 99};

Dropout some_dropout(float p, int64_t rows) {
  return {p, seed_key(0xdeadbeefcafeull), RandomPurpose::kHiddenDropout, 11, kIds, rows % 3 == 0 ? 3 : 1};
}

TEST(ResidualAdd, AddsTheDroppedBranch) {
  unsigned seed = 1;
  for (DType type : compute_types()) {
    for (auto [rows, cols] : kShapes) {
      for (float p : {0.0f, 0.25f}) {
        for (bool alias : {false, true}) {
          SCOPED_TRACE(testing::Message() << name_of(type) << " [" << rows << "," << cols << "] p " << p);
          std::mt19937 rng(seed++);
          Tensor x = random_tensor(rng, type, {rows, cols}), y(type, {rows, cols});
          const Tensor branch = random_tensor(rng, type, {rows, cols}), before = x;
          const Dropout dropout = some_dropout(p, rows);
          CpuExec exec;
          residual_add_op(*exec, {x, branch, alias ? x.view() : y.view(), dropout});
          std::vector<double> want, bound;
          for (int64_t i = 0; i < x.count(); ++i) {
            const double dropped = branch.at(i) * dropout_factor(dropout, x.count(), i);
            want.push_back(before.at(i) + dropped);
            // Product and sum rounded to fp32, then once to T.
            bound.push_back((kU * (std::abs(dropped) + std::abs(want.back())) + unit_of(type) * std::abs(want.back())) *
                                1.01 +
                            tiny_of(type));
          }
          expect_close(
              alias ? x : y, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "residual_add");
        }
      }
    }
  }
}

TEST(Dropout, KeepsExactlyTheElementsOfTheDefinition) {
  for (DType type : compute_types()) {
    for (auto [rows, cols] : kShapes) {
      for (float p : {1e-9f, 0.1f, 0.5f, 0.999f}) {
        std::mt19937 rng(5);
        const Tensor x = random_tensor(rng, type, {rows, cols});
        Tensor y(type, {rows, cols});
        const Dropout dropout = some_dropout(p, rows);
        CpuExec exec;
        dropout_apply_op(*exec, {x, y, dropout});
        for (int64_t i = 0; i < x.count(); ++i) {
          Tensor one(type, {1});
          one.set(0, static_cast<float>(x.at(i)) * static_cast<float>(dropout_factor(dropout, x.count(), i)));
          ASSERT_EQ(y.at(i), one.at(0)) << name_of(type) << " [" << rows << "," << cols << "] p " << p << " element "
                                        << i;
        }
      }
    }
  }
}

TEST(Dropout, DependsOnTheSampleAndNotOnTheBatch) {
  std::mt19937 rng(6);
  const Tensor x = constant_tensor(DType::f32, {6, 35}, 1.0);
  Tensor together(DType::f32, {6, 35}), alone(DType::f32, {2, 35});
  CpuExec exec;
  Dropout dropout = some_dropout(0.4f, 6);
  dropout_apply_op(*exec, {x, together, dropout});
  dropout.batch = 1;
  dropout.sample_ids = kIds + 1;
  dropout_apply_op(*exec, {x.view().row_range(0, 2), alone, dropout});
  EXPECT_EQ(std::memcmp(alone.view().data, together.view().row_range(2, 2).data, alone.view().bytes()), 0);
  Tensor other(DType::f32, {2, 35});
  dropout.layer += 1;
  dropout_apply_op(*exec, {x.view().row_range(0, 2), other, dropout});
  EXPECT_FALSE(other.same_bits(alone));
}

TEST(Dropout, KeepsTheRightShare) {
  const int64_t n = 200000;
  const Tensor x = constant_tensor(DType::f32, {1, n}, 1.0);
  Tensor y(DType::f32, {1, n});
  CpuExec exec;
  dropout_apply_op(*exec, {x, y, some_dropout(0.1f, 1)});
  double kept = 0.0;
  for (int64_t i = 0; i < n; ++i) kept += y.at(i) != 0.0;
  // Binomial: five standard deviations.
  EXPECT_NEAR(kept, 0.9 * n, 5 * std::sqrt(0.09 * n));
}

TEST(Dropout, RefusesImpossibleSettings) {
  const Tensor x(DType::f32, {4, 4}), y(DType::f32, {4, 4});
  CpuExec exec;
  Dropout dropout = some_dropout(1.0f, 3);
  EXPECT_ANY_THROW(dropout_apply_op(*exec, {x, y, dropout}));
  dropout.p = 0.5f;
  EXPECT_ANY_THROW(dropout_apply_op(*exec, {x, y, dropout}));  // 16 elements over 3 samples
  dropout.batch = 2;
  dropout.sample_ids = nullptr;
  EXPECT_ANY_THROW(dropout_apply_op(*exec, {x, y, dropout}));
}

TEST(Cast, EveryPairRoundsLikeTheScalarConversion) {
  const float inf = std::numeric_limits<float>::infinity();
  for (DType from : compute_types()) {
    for (DType to : compute_types()) {
      for (int64_t n : {1, 3, 17, 63, 65, 1003, 70001}) {
        std::mt19937 rng(7);
        std::uniform_int_distribution<uint32_t> bits;
        Tensor src(from, {n}), dst(to, {n});
        const float special[] = {0.0f,   -0.0f, inf,   -inf,        NAN,         65504.0f, 65519.0f, 65520.0f,
                                 1e-40f, 3e-8f, 6e-8f, 1.00390625f, 1.01171875f, 3.4e38f,  -1e-45f,  2049.0f};
        for (int64_t i = 0; i < n; ++i) {
          src.set(i, i < 16       ? special[i]
                     : i % 2 == 0 ? std::bit_cast<float>(bits(rng))
                                  : std::ldexp(1.0, -30) * bits(rng));
        }
        CpuExec exec;
        cast_op(*exec, {src, dst});
        for (int64_t i = 0; i < n; ++i) {
          Tensor want(to, {1});
          want.set(0, src.at(i));
          const double got = dst.at(i), expected = want.at(0);
          ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected)))
              << name_of(from) << " to " << name_of(to) << ": " << src.at(i) << " became " << got << ", not "
              << expected;
        }
      }
    }
  }
}

TEST(Axpy, RoundsOnce) {
  for (DType type : compute_types()) {
    for (int64_t n : {1, 3, 17, 65, 1003, 70001}) {
      for (const float beta : {1.0f, 0.3f}) {  // beta * y is rounded to fp32 first, unless it is y
        std::mt19937 rng(8);
        const Tensor x = random_tensor(rng, type, {n});
        Tensor y = random_tensor(rng, type, {n});
        std::vector<double> want, bound;
        for (int64_t i = 0; i < n; ++i) {
          const double scaled = static_cast<double>(beta) * y.at(i);
          want.push_back(scaled + 0.7f * x.at(i));
          bound.push_back((kU + unit_of(type)) * std::abs(want.back()) * 1.01 + tiny_of(type) +
                          (beta == 1.0f ? 0.0 : 1.01 * kU * std::abs(scaled)));
        }
        CpuExec exec;
        axpy_op(*exec, {.alpha = 0.7f, .x = x, .y = y, .beta = beta});
        expect_close(
            y, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "axpy");
      }
    }
  }
}

TEST(FillConstant, FillsToTheLastElement) {
  for (DType type : compute_types()) {
    for (int64_t n : {1, 15, 16, 17, 33001}) {
      Tensor x(type, {n});
      CpuExec exec;
      fill_constant_op(*exec, {x, -1.5f});
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(x.at(i), -1.5);
    }
  }
}

TEST(BiasGradient, IsTheColumnSum) {
  for (DType type : compute_types()) {
    for (auto [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {8, 17}, {65, 63}, {1000, 65}, {9001, 5}, {3, 1003}}) {
      std::mt19937 rng(9);
      const Tensor dy = random_tensor(rng, type, {rows, cols}, 1.0, 0.5);
      Tensor dbias = random_tensor(rng, DType::f32, {cols});
      std::vector<double> want = dbias.values(), size;
      for (double v : want) size.push_back(std::abs(v));
      for (int64_t i = 0; i < dy.count(); ++i) {
        want[static_cast<size_t>(i % cols)] += dy.at(i);
        size[static_cast<size_t>(i % cols)] += std::abs(dy.at(i));
      }
      CpuExec exec;
      bias_gradient_op(*exec, {dy, dbias});
      // Levels of addition: rows / 8 groups in a partial sum of max(32, rows / 256) rows, three in a group, 256 partial
      // sums.
      const double depth =
          static_cast<double>(std::max<int64_t>(32, rows / 256 + 4)) + 3 + std::min<double>(257, rows / 32.0 + 2);
      expect_close(
          dbias, want, [&](int64_t c) { return depth * kU * size[static_cast<size_t>(c)]; }, "bias_gradient");
    }
  }
}

TEST(Elementwise, SameBitsForAnyNumberOfThreads) {
  for (DType type : compute_types()) {
    std::mt19937 rng(10);
    const Tensor x = random_tensor(rng, type, {999, 131}), y = random_tensor(rng, type, {999, 131});
    expect_same_bits_for_threads(
        [&](Exec& exec) {
          std::vector<Tensor> out = {Tensor(type, {999, 131}), Tensor(type, {999, 131}), y, Tensor(DType::f32, {131}),
                                     Tensor(DType::f16, {999, 131})};
          residual_add_op(exec, {x, y, out[0], some_dropout(0.2f, 999)});
          dropout_apply_op(exec, {x, out[1], some_dropout(0.2f, 999)});
          axpy_op(exec, {0.3f, x, out[2]});
          bias_gradient_op(exec, {x, out[3]});
          cast_op(exec, {x, out[4]});
          return out;
        },
        "elementwise");
  }
}

// Runs of every length, in steps that vectors allow and in others; what lies between stays.
TEST(CopyRuns, MovesEachRunToItsPlace) {
  std::mt19937 rng(9);
  const auto within = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); };
  for (DType type : compute_types()) {
    for (int i = 0; i < 40; ++i) {
      const int64_t unit = i % 2 == 0 ? 8 : 1;  // elements that all sizes are multiples of
      CopyRuns op;
      op.counts[0] = within(1, 5), op.counts[1] = within(1, 4), op.width = unit * within(1, i % 4 == 0 ? 400 : 20);
      const auto place = [&](int64_t& first, int64_t(&strides)[2]) {
        strides[1] = op.width + unit * within(0, 3);
        strides[0] = op.counts[1] * strides[1] + unit * within(0, 3);
        first = unit * within(0, 4);
        return first + op.counts[0] * strides[0] + unit * within(0, 2);
      };
      const Tensor from = random_tensor(rng, type, {place(op.from_first, op.from_strides)});
      Tensor to = random_tensor(rng, type, {place(op.to_first, op.to_strides)}), want = to;
      for (int64_t a = 0; a < op.counts[0]; ++a)
        for (int64_t b = 0; b < op.counts[1]; ++b)
          for (int64_t k = 0; k < op.width; ++k)
            want.set(op.to_first + a * op.to_strides[0] + b * op.to_strides[1] + k,
                     static_cast<float>(from.at(op.from_first + a * op.from_strides[0] + b * op.from_strides[1] + k)));
      op.from = from, op.to = to;
      CpuExec exec;
      copy_runs_op(*exec, op);
      EXPECT_TRUE(to.same_bits(want)) << name_of(type) << ", case " << i;
    }
  }
}

}  // namespace
}  // namespace thinwire::test::elementwise_test
