// Residuals in bf16 and int8: what is stored is what is missing, rounded up or down by less than a step, and right on
// average; fp32 stays as it was.
#include <gtest/gtest.h>

#include "compression/codec_table.h"
#include "tests/codecs/coder_fixtures.h"

namespace thinwire::test::residual_dtype_test {
namespace {

// The step that r is rounded to: in bf16 of its own size, in int8 of the largest of its block.
std::vector<double> steps_of(ResidualDtype dtype, const std::vector<float>& r) {
  std::vector<double> steps(r.size());
  for (size_t i = 0; i < r.size(); ++i) {
    if (dtype == ResidualDtype::kBf16) {
      const double size = std::fabs(r[i]);
      steps[i] = size == 0.0 ? 0.0 : std::ldexp(1.0, std::max(-126, std::ilogb(size)) - 7);
      continue;
    }
    const size_t first = i / static_cast<size_t>(kResidualBlock) * static_cast<size_t>(kResidualBlock);
    for (size_t k = first; k < std::min(r.size(), first + static_cast<size_t>(kResidualBlock)); ++k)
      steps[i] = std::max(steps[i], std::fabs(r[k]) / 127.0);
  }
  return steps;
}

ResidualSpec kept(ResidualKind kind, ResidualDtype dtype) {
  return {.kind = kind, .dtype = dtype};
}

constexpr ResidualDtype kSmall[] = {ResidualDtype::kBf16, ResidualDtype::kInt8};

// decoded + stored + rounding == input + what was stored before, and rounding is less than a step.
TEST(ResidualDtype, Identity) {
  std::mt19937_64 random(5);
  const DataKind kinds[] = {DataKind::kGaussian, DataKind::kHeavyTail, DataKind::kOutliers, DataKind::kZeros};
  for (int n_case = 0; n_case < 60; ++n_case) {
    const std::vector<Subject> all = subjects();
    const Subject& s = all[random() % all.size()];
    const ResidualDtype dtype = kSmall[random() % 2];
    const ResidualKind kind = random() % 2 == 0 ? ResidualKind::kErrorFeedback : ResidualKind::kLazy;
    SCOPED_TRACE(s.name + " case " + std::to_string(n_case));
    const Coder coder(s.codec, with(s.hadamard), kept(kind, dtype));
    const auto n = static_cast<int64_t>(random() % 9000 + 1);
    const auto state = coder.make_state(n, {});
    std::vector<float> before(static_cast<size_t>(n));
    for (int64_t step = 0; step < 6; ++step) {
      const std::vector<float> x = make_data(kinds[random() % 4], n, random());
      const std::vector<float> y = absorb(coder, pack(coder, x, state.get(), message(step)), n, message(step));
      state->commit();
      const std::vector<float> after = residual_of(*state);
      std::vector<float> missing(x.size());
      for (size_t i = 0; i < x.size(); ++i)
        missing[i] = static_cast<float>(static_cast<double>(x[i]) + before[i] - y[i]);
      const std::vector<double> steps = steps_of(dtype, missing);
      for (size_t i = 0; i < x.size(); ++i) {
        const double arithmetic = 0x1p-23 * (std::fabs(static_cast<double>(x[i])) + std::fabs(before[i]));
        ASSERT_LE(std::fabs(after[i] - missing[i]), steps[i] * 1.0001 + arithmetic + 1e-37) << i;
      }
      before = after;
    }
  }
}

// Over many steps the mean of what is stored is what is missing: within six deviations of what chance leaves, for every
// element; and neighbours do not round alike.
TEST(ResidualDtype, RoundsWithoutBias) {
  constexpr int kTrials = 600;
  const int64_t n = 2 * kResidualBlock + 37;
  for (const ResidualDtype dtype : kSmall) {
    const Coder coder(cast_to("e4m3"), plain(), kept(ResidualKind::kErrorFeedback, dtype));
    const Coder exact(cast_to("e4m3"), plain(), kept(ResidualKind::kErrorFeedback, ResidualDtype::kFp32));
    const std::vector<float> x = make_data(DataKind::kHeavyTail, n, 3);
    const auto reference = exact.make_state(n, {});
    pack(exact, x, reference.get(), message(0));
    reference->commit();
    const std::vector<float> missing = residual_of(*reference);
    const std::vector<double> steps = steps_of(dtype, missing);
    std::vector<double> sum(x.size());
    double alike = 0.0, pairs = 0.0;
    for (int64_t step = 0; step < kTrials; ++step) {
      const auto state = coder.make_state(n, {});
      pack(coder, x, state.get(), message(step));
      state->commit();
      const std::vector<float> e = residual_of(*state);
      for (size_t i = 0; i < e.size(); ++i) sum[i] += e[i] - missing[i];
      for (size_t i = 1; i < e.size(); ++i) {
        if (e[i] == missing[i] || e[i - 1] == missing[i - 1]) continue;
        alike += (e[i] > missing[i]) == (e[i - 1] > missing[i - 1]), pairs += 1.0;
      }
    }
    for (size_t i = 0; i < sum.size(); ++i)
      ASSERT_LE(std::fabs(sum[i] / kTrials), 6.0 * 0.5 * steps[i] / std::sqrt(kTrials) + 0x1p-16 * steps[i]) << i;
    // A deviation of sqrt(pairs) / 2, and those that are near one side of their step are alike a little more often.
    EXPECT_NEAR(alike / pairs, 0.5, 0.05);
  }
}

TEST(ResidualDtype, CostsWhatIsPriced) {
  const int64_t n = 4 * kResidualBlock;
  const auto bytes = [&](ResidualDtype dtype) {
    const Coder coder(cast_to("e4m3"), plain(), kept(ResidualKind::kErrorFeedback, dtype));
    EXPECT_EQ(coder.state_bytes(n, {}), coder.make_state(n, {})->bytes());
    return coder.state_bytes(n, {});
  };
  EXPECT_EQ(bytes(ResidualDtype::kFp32), 2 * 4 * n);
  EXPECT_EQ(bytes(ResidualDtype::kBf16), 2 * 2 * n);
  EXPECT_EQ(bytes(ResidualDtype::kInt8), 2 * (n + 4 * 4));
}

// What is no number stays none, whatever is drawn, and the largest number stays one.
TEST(ResidualDtype, HalvesOfWhatIsNoNumber) {
  constexpr uint32_t kBits[] = {0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0x7f800001u, 0x7f800000u, 0xff800000u};
  std::vector<float> x(600);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::bit_cast<float>(kBits[i % std::size(kBits)]);
  std::vector<uint16_t> out(x.size());
  TW_PICK_KERNELS(tile_kernels).dither16(x.data(), 3, 5, 0, out.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(out[i], kBits[i % std::size(kBits)] >> 16) << i;
  std::ranges::fill(x, -std::numeric_limits<float>::max());
  TW_PICK_KERNELS(tile_kernels).dither16(x.data(), 3, 5, 0, out.data(), static_cast<int64_t>(x.size()));
  for (const uint16_t half : out) EXPECT_EQ(half, 0xff7f);
}

// A codec that takes messages whole, as pipeline gradients in low rank.
TEST(ResidualDtype, AroundLowRank) {
  const CodecSpec spec = codec_spec("low_rank", {{"rank", 2}});
  const MatrixShape matrix{0, 40, 24};
  for (const ResidualDtype dtype : kSmall) {
    const Coder coder(make_codec(spec).codec, spec, kept(ResidualKind::kLazy, dtype));
    const int64_t n = matrix.rows * matrix.cols;
    const auto state = coder.make_state(n, {&matrix, 1});
    std::vector<float> before(static_cast<size_t>(n));
    for (int64_t step = 0; step < 4; ++step) {
      Msg msg = message(step);
      msg.matrices = {&matrix, 1};
      const std::vector<float> x = make_data(DataKind::kGaussian, n, static_cast<uint64_t>(step));
      const std::vector<float> y = absorb(coder, pack(coder, x, state.get(), msg), n, msg);
      state->commit();
      const std::vector<float> after = residual_of(*state);
      std::vector<float> missing(x.size());
      for (size_t i = 0; i < x.size(); ++i) missing[i] = x[i] + before[i] - y[i];
      const std::vector<double> steps = steps_of(dtype, missing);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::fabs(after[i] - missing[i]), steps[i] * 1.001 + 1e-6) << i;
      before = after;
    }
  }
}

}  // namespace
}  // namespace thinwire::test::residual_dtype_test
