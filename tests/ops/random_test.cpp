// Normal numbers: the documented counters, any cut into slices, and the moments of the distribution.
#include "engine/base/ops/op_list.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::random_test {
namespace {

TEST(FillNormal, FollowsTheDocumentedCounters) {
  const uint64_t seed = 0x123456789abcdefull;
  for (DType type : compute_types()) {
    for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{6}, (int64_t{1} << 35) + 3}) {
      for (int64_t n : {1, 3, 17, 1003}) {
        Tensor x(type, {n});
        CpuExec exec;
        fill_normal_op(*exec, {x, 0.02f, seed, 42, first});
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t e = static_cast<uint64_t>(first + i);
          const PhiloxBlock w = philox({0x89abcdefu, 0x01234567u},
                                       {static_cast<uint32_t>(e / 4), static_cast<uint32_t>(e / 4 >> 32), 42, 1});
          const size_t pair = e % 4 / 2 * 2;
          Tensor want(type, {1});
          want.set(0, normal_pair(w[pair], w[pair + 1])[e % 2] * 0.02f);
          ASSERT_EQ(x.at(i), want.at(0)) << name_of(type) << " first " << first << " element " << i;
        }
      }
    }
  }
}

TEST(FillNormal, SlicesAreTheWhole) {
  Tensor whole(DType::f32, {10007}), pieces(DType::f32, {10007});
  CpuExec exec;
  fill_normal_op(*exec, {whole, 1.0f, 7, 3, 0});
  for (int64_t at = 0, n = 1; at < 10007; at += n, n = n * 2 + 1) {
    fill_normal_op(*exec, {pieces.view().element_range(at, std::min(n, 10007 - at)), 1.0f, 7, 3, at});
  }
  EXPECT_TRUE(whole.same_bits(pieces));
  Tensor other(DType::f32, {10007});
  fill_normal_op(*exec, {other, 1.0f, 7, 4, 0});
  EXPECT_FALSE(whole.same_bits(other));
}

TEST(FillNormal, HasTheMomentsOfANormalDistribution) {
  const int64_t n = 200000;
  Tensor x(DType::f32, {n});
  CpuExec exec;
  fill_normal_op(*exec, {x, 2.0f, 11, 1, 0});
  double moment[5] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (int k = 1; k <= 4; ++k) moment[k] += std::pow(x.at(i) / 2.0, k) / static_cast<double>(n);
  }
  // Five standard errors of the sample moments: their variances are 1, 2, 15 and 96 over n.
  const double root = std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(moment[1], 0.0, 5 / root);
  EXPECT_NEAR(moment[2], 1.0, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(moment[3], 0.0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(moment[4], 3.0, 5 * std::sqrt(96.0) / root);
}

TEST(FillNormal, SameBitsForAnyNumberOfThreads) {
  for (DType type : compute_types()) {
    expect_same_bits_for_threads(
        [&](Exec& exec) {
          std::vector<Tensor> out = {Tensor(type, {20011})};
          fill_normal_op(exec, {out[0], 0.5f, 1, 2, 3});
          return out;
        },
        "fill_normal");
  }
}

}  // namespace
}  // namespace thinwire::test::random_test
