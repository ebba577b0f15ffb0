// lloyd_max: golden bytes, a float64 oracle of its definition, the levels themselves, fidelity, and contraction.
#include <cmath>

#include "compression/codec_table.h"
#include "compression/codecs/block_kernels.h"
#include "engine/run/bench/codec_oracles.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::lloyd_max_test {
namespace {

using test::Bytes;
using test::encode_bytes;
using test::expect_hex;
using test::law_msg;
using test::round_trip;

std::shared_ptr<const Codec> make(int64_t bits, int64_t block = 0) {
  return make_codec({"lloyd_max", {{"bits", bits}, {"block", block}}}).codec;
}

TEST(LloydMax, GoldenBytes) {
  // Two bits, one block: mean magnitude 1 / 2, threshold 0.615; codes low 0, high 1, minus 2 more. Half of the elements
  // are 1 or -1 (high), half 0 (low): s = (32 * 1.5104) / (32 * (1.5104^2 + 0.4528^2)) = 0.60748, head 0.609375 = 3f1c,
  // and the only block is nearest to it: ff.
  std::vector<float> x(64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 4 == 0 ? 1.0f : i % 4 == 1 ? -1.0f : 0.0f;
  expect_hex(encode_bytes(*make(2, 64), x), "1c3f ff 0d0d0d0d 0d0d0d0d 0d0d0d0d 0d0d0d0d");
  x[63] = std::numeric_limits<float>::infinity();
  bool bad = false;
  const Bytes payload = encode_bytes(*make(2, 64), x, law_msg(), &bad);
  EXPECT_TRUE(bad);
  expect_hex(Bytes(payload.begin(), payload.begin() + 2), "c07f");
  // Three bits: eight codes in three bytes, the first in the low bits. All magnitudes equal: level 1 of 0..3.
  std::vector<float> y(64, 2.0f);
  y[1] = -2.0f;
  const Bytes three = encode_bytes(*make(3, 64), y);
  ASSERT_EQ(three.size(), 27u);
  expect_hex(Bytes(three.begin(), three.begin() + 9), "2a40 ff 699224 499224");  // 2 / 0.756 = 2.6455, up: 2.65625
  // Two blocks, the second eight times (24 steps) smaller, and a third of nothing.
  std::vector<float> z(128 + 5, 2.0f);
  for (size_t i = 64; i < z.size(); ++i) z[i] = i < 128 ? 0.25f : 0.0f;
  const Bytes many = encode_bytes(*make(3, 64), z);
  expect_hex(Bytes(many.begin(), many.begin() + 5), "2a40 ff e7 00");
}

TEST(LloydMax, LevelsAreTheOptimalOnes) {
  // A block of one magnitude decodes to itself whatever its level; two magnitudes show the ratio of two levels.
  for (const int64_t bits : {2, 3, 4}) {
    const std::vector<double> level = lloyd_levels(bits);
    std::vector<float> decoded;
    // A payload with scale 1 and every code.
    const int64_t codes = int64_t{1} << bits;
    Bytes payload(static_cast<size_t>(3 + 64 * bits / 8));
    payload[0] = std::byte{0x80};
    payload[1] = std::byte{0x3f};
    payload[2] = std::byte{0xff};
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t b = 0; b < bits; ++b)
        if ((i % codes >> b & 1) != 0)
          payload[static_cast<size_t>(3 + (i * bits + b) / 8)] |= std::byte{1} << ((i * bits + b) % 8);
    }
    decoded = test::decode_floats(*make(bits, 64), payload, 64);
    for (int64_t i = 0; i < 64; ++i) {
      const int64_t code = i % codes, half = codes / 2;
      const double expected = level[static_cast<size_t>(code % half)] * (code >= half ? -1.0 : 1.0);
      EXPECT_NEAR(decoded[static_cast<size_t>(i)], expected, 2e-7 * 4) << bits << " bits, code " << code;
    }
  }
}

// The definition in float64: mean magnitude, thresholds at the middles of levels, scale by least squares.
TEST(LloydMax, EqualsItsDefinition) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  int64_t near_threshold = 0, all = 0;
  for (int round = 0; round < 300; ++round) {
    const int64_t bits = 2 + static_cast<int64_t>(rng() % 3);
    const int64_t sizes[] = {16, 32, 64, 128, 192, 256, 4096, 8192};
    const int64_t block = sizes[rng() % std::size(sizes)], n = 1 + static_cast<int64_t>(rng() % 9000);
    const std::vector<double> level = lloyd_levels(bits);
    const double mean_of_normal = std::sqrt(2 / std::numbers::pi);
    std::vector<float> x(static_cast<size_t>(n));
    const float size = std::ldexp(1.0f, static_cast<int>(rng() % 200) - 110);
    for (float& v : x) {
      v = normal(rng) * size;
      if (round % 3 == 1) v *= std::exp(2.0f * normal(rng));
      if (round % 5 == 2 && rng() % 2 == 0) v = 0.0f;
    }
    const auto y = round_trip(*make(bits, block), x);
    for (int64_t b = 0; b < n; b += block) {
      const int64_t stop = std::min(n, b + block);
      double mean = 0.0;
      for (int64_t i = b; i < stop; ++i) mean += std::fabs(static_cast<double>(x[i]));
      mean /= static_cast<double>(stop - b);
      double with = 0.0, of = 0.0;
      std::vector<double> chosen;
      bool clear = true;  // no element within rounding of a threshold
      for (int64_t i = b; i < stop; ++i) {
        const double m = mean == 0.0 ? 0.0 : std::fabs(static_cast<double>(x[i])) / mean * mean_of_normal;
        size_t k = 0;
        for (size_t t = 0; t + 1 < level.size(); ++t) {
          const double threshold = (level[t] + level[t + 1]) / 2;
          if (m >= threshold) k = t + 1;
          if (std::fabs(m / threshold - 1) < 1e-5) clear = false;
        }
        chosen.push_back(level[k]);
        with += std::fabs(static_cast<double>(x[i])) * level[k];
        of += level[k] * level[k];
      }
      ++all;
      if (!clear) {
        ++near_threshold;
        continue;
      }
      const double scale = with / of;
      for (int64_t i = b; i < stop; ++i) {
        const double expected = std::signbit(x[i]) ? -scale * chosen[static_cast<size_t>(i - b)]
                                                   : scale * chosen[static_cast<size_t>(i - b)];
        // Half a step of the scale's logarithm; the rest is fp32 sums. Far below the group's head there is nothing.
        if (y[i] == 0.0f) continue;
        ASSERT_NEAR(y[i] / expected, 1.0, std::exp2(1.0 / 16) - 1 + 1e-4) << "block " << b << " of " << n;
      }
    }
  }
  EXPECT_LT(near_threshold, all / 2);
}

TEST(LloydMax, AllInstructionSetsWriteTheSameBytes) {
  std::vector<const BlockKernels*> sets = {&isa_avx2::lloyd_max_kernels};
  if (active_isa() != Isa::kAvx2) sets.push_back(&isa_avx512::lloyd_max_kernels);
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    const int64_t blocks[] = {16, 32, 64, 128, 192, 256, 4096};
    const int64_t block = blocks[rng() % std::size(blocks)];
    const BlockForm form{.block = block, .bits = 2 + static_cast<int>(rng() % 3)};
    const int64_t n = 1 + static_cast<int64_t>(rng()) % (block * std::max<int64_t>(1, 4096 / block));
    auto x = test::make_data(test::DataKind::kHeavyTail, n, static_cast<uint64_t>(round));
    if (round % 4 == 0) x[rng() % x.size()] = std::bit_cast<float>(static_cast<uint32_t>(0xffffffffu - rng() % 3));
    std::vector<uint8_t> first(static_cast<size_t>(n) * 2 + 64, 0xee);
    const bool finite = sets[0]->encode(form, {}, x.data(), n, first.data());
    for (size_t s = 1; s < sets.size(); ++s) {
      std::vector<uint8_t> bytes(first.size(), 0xee);
      ASSERT_EQ(sets[s]->encode(form, {}, x.data(), n, bytes.data()), finite);
      ASSERT_TRUE(bytes == first) << "round " << round;
      for (size_t i = 2; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(rng());
      std::vector<float> a(x.size(), 0.5f), b(x.size(), 0.5f);
      ASSERT_TRUE(sets[0]->decode(form, bytes.data(), n, a.data(), round % 2));
      ASSERT_TRUE(sets[s]->decode(form, bytes.data(), n, b.data(), round % 2));
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << "round " << round;
    }
  }
}

TEST(LloydMax, Laws) {
  for (const int64_t bits : {2, 3, 4}) {
    test::check_codec_laws(*make(bits), {.unit = 4096, .fuzz = 40});
    test::check_codec_laws(*make(bits, 16), {.unit = 4096, .fuzz = 40});
  }
  test::check_codec_laws(*make(3, 8192), {.fuzz = 40});
}

TEST(LloydMax, FidelityAndWireBits) {
  const auto x = test::make_data(test::DataKind::kGaussian, 1 << 18);
  // Max's table: distortion 0.1175, 0.03454, 0.009497 of the variance.
  EXPECT_NEAR(test::square_distance(x, round_trip(*make(2, 4096), x)) / test::square_sum(x), 0.1175, 0.0015);
  EXPECT_NEAR(test::square_distance(x, round_trip(*make(3, 4096), x)) / test::square_sum(x), 0.03454, 0.0006);
  EXPECT_NEAR(test::square_distance(x, round_trip(*make(4, 4096), x)) / test::square_sum(x), 0.009497, 0.0003);
  EXPECT_EQ(make(2)->wire_bytes(1 << 20, DType::f32), 256u * (2 + 64 + 1024));  // 2.129 bits a value
  EXPECT_EQ(make(3)->wire_bytes(1 << 20, DType::f32), 256u * (2 + 64 + 1536));  // 3.129
}

TEST(LloydMax, ContractsWhateverIsInABlock) {
  std::mt19937 rng(77);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2000; ++round) {
    const int64_t bits = 2 + static_cast<int64_t>(rng() % 3);
    std::vector<float> x(1 + rng() % 5000);
    const int shape = static_cast<int>(rng() % 4);
    for (float& v : x) {
      v = normal(rng);
      if (shape == 1) v = std::exp(8.0f * v);                   // a few rule the block
      if (shape == 2) v = rng() % x.size() == 0 ? 1e6f : 0.0f;  // one of all
      if (shape == 3) v = std::copysign(1.0f, v);               // signs
    }
    const double before = test::square_sum(x);
    if (before == 0.0) continue;
    // Least squares leaves |x|^2 (1 - cos^2); a scale that is off by d adds d^2 cos^2, at most 0.2 % of what it took.
    EXPECT_LT(test::square_distance(x, round_trip(*make(bits, 64), x)), before) << shape;
  }
}

TEST(LloydMax, RefusesWhatItDoesNotHave) {
  EXPECT_THROW(make(8), Error);
  EXPECT_THROW(make(1), Error);
  EXPECT_THROW(make(2, 48), Error);
  EXPECT_THROW(make(2, 100), Error);
  // A scale that no encoder writes.
  Bytes payload(3 + 16);
  payload[0] = std::byte{0x80};
  payload[1] = std::byte{0x7f};
  EXPECT_THROW(test::decode_floats(*make(2, 64), payload, 64), Error);
}

}  // namespace
}  // namespace thinwire::lloyd_max_test
