// Ops on CPUs take subnormal numbers as zero on every thread; whatever runs between ops keeps them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/base/ops/parallel_for.h"
#include "tests/ops/attention_oracle.h"

namespace thinwire::test::subnormal_test {
namespace {

constexpr double kTiny = 1e-20;          // normal; a product of two is 1e-40, subnormal
constexpr double kSubnormal = 0x1p-130;  // in fp32 and bf16

void expect_zeros(const Tensor& t, const std::string& what) {
  const std::vector<double> values = t.values();
  EXPECT_EQ(std::count(values.begin(), values.end(), 0.0), t.count()) << what;
}

class Subnormals : public ::testing::TestWithParam<int> {
 protected:
  CpuExec exec_{GetParam()};
};

// On oneDNN's own threads, and cut into tiles.
TEST_P(Subnormals, Products) {
  for (const bool trans_a : {false, true}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const std::string what = std::string(name_of(type)) + (trans_a ? ", a transposed" : "");
      const int64_t m = 300, n = 260, k = 520;
      const std::vector<int64_t> a_shape = trans_a ? std::vector<int64_t>{k, m} : std::vector<int64_t>{m, k};
      for (const auto& [x, y] : {std::pair{kTiny, kTiny * 1e-3}, {kSubnormal, 1.0}}) {
        const Tensor a = constant_tensor(type, a_shape, x), b = constant_tensor(type, {k, n}, y);
        Tensor c = constant_tensor(DType::f32, {m, n}, 1.0);
        matmul_op(*exec_, {.a = a, .b = b, .c = c, .trans_a = trans_a});
        expect_zeros(c, what);
      }
    }
  }
}

TEST_P(Subnormals, ElementsAndRows) {
  const int64_t n = 1 << 17;
  const Tensor x = constant_tensor(DType::f32, {n}, kSubnormal);
  Tensor y = constant_tensor(DType::f32, {n}, 1.0);
  residual_add_op(*exec_, {.x = x, .branch = x, .y = y});
  expect_zeros(y, "residual");
  y = constant_tensor(DType::f32, {n}, kTiny * kTiny);
  axpy_op(*exec_, {.alpha = 0.0f, .x = x, .y = y, .beta = 0.5f});
  expect_zeros(y, "axpy");
}

TEST_P(Subnormals, Attention) {
  for (const DType type : {DType::f32, DType::bf16}) {
    AttentionCase c{.dtype = type, .batch = 3, .q_len = 70, .kv_len = 70, .groups = 2, .head_dim = 32};
    std::mt19937 rng(7);
    AttentionTensors backward(c, rng);
    backward.run_forward(*exec_);
    backward.dout = constant_tensor(type, {backward.dout.count()}, kSubnormal);
    backward.run_backward(*exec_);
    expect_zeros(backward.dq, "all gradients of " + c.name());
    c.packing = Packing::kCache;  // v has a tensor of its own
    AttentionTensors forward(c, rng);
    forward.v = constant_tensor(type, {forward.v.count()}, kSubnormal);
    forward.run_forward(*exec_);
    expect_zeros(forward.out, "out of " + c.name());
  }
}

TEST_P(Subnormals, ModeEndsWithTheOp) {
  const unsigned before = float_mode();
  const int64_t n = 1 << 17;
  const Tensor x = constant_tensor(DType::f32, {n}, 1.0);
  Tensor y = x;
  axpy_op(*exec_, {.alpha = 1.0f, .x = x, .y = y, .beta = 1.0f});
  EXPECT_EQ(float_mode() & 0x8040u, before & 0x8040u);
  std::vector<float> halves(static_cast<size_t>(n), 0x1p-140f);
  parallel_blocks(GetParam(), n, 1024, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) halves[static_cast<size_t>(i)] *= 0.5f;
  });
  EXPECT_EQ(std::count(halves.begin(), halves.end(), 0x1p-141f), n);
}

INSTANTIATE_TEST_SUITE_P(Threads, Subnormals, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace thinwire::test::subnormal_test
