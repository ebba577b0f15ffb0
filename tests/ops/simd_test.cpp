// The vector helpers that kernels are made of, compiled here for one instruction set: exponential, ragged ends, dropout
// counters.
#include "engine/base/ops/simd.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "engine/base/core/philox.h"
#include "engine/base/ops/dropout_mask.h"

namespace thinwire::TW_ISA {
namespace {

class Simd : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) GTEST_SKIP() << "no AVX-512 here";
#endif
  }
};

TEST_F(Simd, ExponentialIsGoodToTwoUlp) {
  // Every 997th float of both signs: about four million, all binades.
  for (uint64_t start = 0; start < (uint64_t{1} << 32); start += 997 * kLanes) {
    alignas(64) float x[kLanes], y[kLanes];
    for (int i = 0; i < kLanes; ++i) x[i] = std::bit_cast<float>(static_cast<uint32_t>(start + 997u * i));
    store(y, vexp(load(x)));
    for (int i = 0; i < kLanes; ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(y[i]));
        continue;
      }
      const double want = std::exp(static_cast<double>(x[i]));
      if (x[i] > 88.7228f)
        ASSERT_TRUE(std::isinf(y[i])) << x[i];
      else if (x[i] < -87.3365f)
        ASSERT_EQ(y[i], 0.0f) << x[i];
      else
        ASSERT_LT(std::abs(y[i] - want) / (std::ldexp(1.0, std::ilogb(want)) * 0x1p-23), 2.0) << x[i];
    }
  }
}

template <typename T>
void check_ends() {
  T memory[3 * kLanes], out[3 * kLanes];
  for (int i = 0; i < 3 * kLanes; ++i) memory[i] = from_float<T>(static_cast<float>(i + 1));
  for (int64_t n = 1; n < kLanes; ++n) {
    const VecF v = load_first(memory + 3, n, -7.0f);
    for (int64_t i = 0; i < kLanes; ++i) ASSERT_EQ(v[i], i < n ? static_cast<float>(i + 4) : -7.0f);
    std::memset(out, 0x5a, sizeof(out));
    store_first(out + 5, v, n);
    for (int64_t i = 0; i < 3 * kLanes; ++i) {
      if (i >= 5 && i < 5 + n)
        ASSERT_EQ(to_float(out[i]), static_cast<float>(i - 1));
      else
        ASSERT_EQ(reinterpret_cast<unsigned char*>(out + i)[0], 0x5a);
    }
  }
}

TEST_F(Simd, RaggedEndsTouchOnlyTheirElements) {
  check_ends<float>();
  check_ends<Bf16>();
  check_ends<Fp16>();
}

// Elements and samples beyond 2^32 use the high halves of the counter: no tensor in a test is that large.
TEST_F(Simd, DropoutFactorsFollowTheCountersAtAnyStart) {
  DropoutPlan plan;
  plan.key0 = 0x1234567;
  plan.key1 = 0x89abcdef;
  plan.tag = 0x503;
  plan.threshold = 0x40000000;
  plan.scale = 2.0f;
  plan.active = true;
  float buffer[200 + kMaskSlack];
  for (uint64_t sample : {uint64_t{0}, uint64_t{0x123456789abc}}) {
    for (int64_t first : {int64_t{0}, int64_t{5}, (int64_t{1} << 34) - 35, (int64_t{1} << 45) + 2}) {
      for (int64_t count : {1, 3, 31, 200}) {
        const float* factors = keep_factors_of_sample(plan, sample, first, count, buffer);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t e = static_cast<uint64_t>(first + i);
          const PhiloxBlock words =
              philox({plan.key0, plan.key1},
                     {static_cast<uint32_t>(e / 4), static_cast<uint32_t>(sample),
                      static_cast<uint32_t>((sample >> 32 & 0xffff) << 16 | (e / 4 >> 32 & 0xffff)), plan.tag});
          ASSERT_EQ(factors[i], words[e % 4] >= plan.threshold ? 2.0f : 0.0f) << first << " + " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace thinwire::TW_ISA
