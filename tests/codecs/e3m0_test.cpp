// e3m0: golden bytes, an oracle that searches all levels, fidelity, and error feedback.
#include "compression/codec_table.h"
#include "compression/codecs/block_kernels.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::e3m0_test {
namespace {

using test::Bytes;
using test::decode_floats;
using test::encode_bytes;
using test::expect_hex;
using test::law_msg;
using test::round_trip;

std::shared_ptr<const Codec> make(int64_t block = 0) {
  return make_codec({"e3m0", {{"block", block}}}).codec;
}

TEST(E3m0, GoldenBytes) {
  // Scale 4 (bf16 4080). 4 -> 7, -2 -> e, 3 (midpoint of 2 and 4: up) -> 7, 2.9 -> 6, 0 -> 0, 1/16 -> 1,
  // 1/32 (half of the lowest level: up) -> 1, -0.03 -> 8 | 0.
  expect_hex(encode_bytes(*make(8), std::vector<float>{4, -2, 3, 2.9f, 0, 0.0625f, 0.03125f, -0.03f}),
             "8040 e7 67 10 81");
  bool bad = false;
  const Bytes payload =
      encode_bytes(*make(2), std::vector<float>{1, std::numeric_limits<float>::quiet_NaN(), -1, 0.5f}, law_msg(), &bad);
  EXPECT_TRUE(bad);
  expect_hex(payload, "c07f 803f 77 6f");
}

double level(int k) {
  return k == 0 ? 0.0 : std::ldexp(1.0, k - 7);
}
TEST(E3m0, EqualsASearchOverAllLevels) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    const int64_t blocks[] = {2, 7, 16, 32, 64, 128, 100, 4096, 5000};
    const int64_t block = blocks[rng() % std::size(blocks)], n = 1 + static_cast<int64_t>(rng() % 9000);
    std::vector<float> x(static_cast<size_t>(n));
    const float size = std::ldexp(1.0f, static_cast<int>(rng() % 200) - 110);
    for (float& v : x) {
      v = normal(rng) * size;
      if (round % 3 == 0) v = static_cast<float>(static_cast<int>(rng() % 513) - 256) * size;  // meets midpoints
      if (round % 3 == 1) v *= std::exp(2.0f * normal(rng));
    }
    const auto y = round_trip(*make(block), x);
    for (int64_t b = 0; b < n; b += block) {
      float most = 0.0f;
      for (int64_t i = b; i < std::min(n, b + block); ++i) most = std::max(most, std::fabs(x[i]));
      const float scale = most == 0.0f ? 0.0f : std::max(to_float(to_bf16(most)), 0x1p-126f);
      for (int64_t i = b; i < std::min(n, b + block); ++i) {
        const float v = most == 0.0f ? 0.0f : std::fabs(x[i]) * (1.0f / scale);
        int best = 0;
        for (int k = 1; k <= 7; ++k)
          if (std::fabs(level(k) - v) <= std::fabs(level(best) - v)) best = k;  // midpoints go up
        const float expected = static_cast<float>(level(best)) * scale;
        ASSERT_EQ(y[i], std::signbit(x[i]) ? -expected : expected) << x[i] << ", scale " << scale;
      }
    }
  }
}

TEST(E3m0, AllInstructionSetsWriteTheSameBytes) {
  std::vector<const BlockKernels*> sets = {&isa_avx2::e3m0_kernels};
  if (active_isa() != Isa::kAvx2) sets.push_back(&isa_avx512::e3m0_kernels);
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    const int64_t blocks[] = {2, 16, 32, 100, 128, 4096};
    const int64_t block = blocks[rng() % std::size(blocks)];
    const int64_t n = 1 + static_cast<int64_t>(rng()) % (block * std::max<int64_t>(1, 4096 / block));
    auto x = test::make_data(test::DataKind::kHeavyTail, n, static_cast<uint64_t>(round));
    if (round % 4 == 0) x[rng() % x.size()] = std::bit_cast<float>(static_cast<uint32_t>(0xffffffffu - rng() % 3));
    std::vector<uint8_t> first(static_cast<size_t>(n) * 2 + 64, 0xee);
    const bool finite = sets[0]->encode({.block = block}, {}, x.data(), n, first.data());
    for (size_t s = 1; s < sets.size(); ++s) {
      std::vector<uint8_t> bytes(first.size(), 0xee);
      ASSERT_EQ(sets[s]->encode({.block = block}, {}, x.data(), n, bytes.data()), finite);
      ASSERT_TRUE(bytes == first) << "round " << round;
      for (size_t i = static_cast<size_t>((n + block - 1) / block) * 2; i < bytes.size(); ++i)
        bytes[i] = static_cast<uint8_t>(rng());  // every code, 8 as well
      std::vector<float> a(x.size(), 0.5f), b(x.size(), 0.5f);
      ASSERT_TRUE(sets[0]->decode({.block = block}, bytes.data(), n, a.data(), round % 2));
      ASSERT_TRUE(sets[s]->decode({.block = block}, bytes.data(), n, b.data(), round % 2));
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << "round " << round;
    }
  }
}

TEST(E3m0, Laws) {
  test::check_codec_laws(*make(), {.unit = 128, .fuzz = 40});
  test::check_codec_laws(*make(30), {.unit = 30, .fuzz = 40});
  test::check_codec_laws(*make(4096), {.fuzz = 40});
}

TEST(E3m0, FidelityAndWireBits) {
  const auto x = test::make_data(test::DataKind::kGaussian, 1 << 18);
  // Independent simulation in float64: relative RMS 0.1924 (14.3 dB); midpoints in the logarithm: 0.2013.
  EXPECT_NEAR(std::sqrt(test::square_distance(x, round_trip(*make(), x)) / test::square_sum(x)), 0.1924, 0.002);
  EXPECT_EQ(make()->wire_bytes(1 << 20, DType::f32) * 8, (4u << 20) + (1u << 17));  // 4.125 bits a value
}

TEST(E3m0, ErrorFeedbackContractsByAThird) {
  // Above half of the lowest level no element loses more than a third of itself; below, all of it.
  const auto x = test::make_data(test::DataKind::kGaussian, 4096);
  const auto y = round_trip(*make(), x);
  for (size_t b = 0; b < x.size(); b += 128) {
    float most = 0.0f;
    for (size_t i = b; i < b + 128; ++i) most = std::max(most, std::fabs(x[i]));
    for (size_t i = b; i < b + 128; ++i)
      if (std::fabs(x[i]) > most * 0.012f) {
        EXPECT_LE(std::fabs(x[i] - y[i]), std::fabs(x[i]) * 0.34f);
      }
  }
}

TEST(E3m0, RefusesWhatItCannotDo) {
  for (int64_t block : {1, -2, (1 << 20) + 1}) EXPECT_THROW(make(block), Error);
  const auto codec = make(4);
  Bytes payload = encode_bytes(*codec, std::vector<float>{1, 2, 3, 4});
  payload[1] = std::byte{0xbf};  // a negative scale
  EXPECT_THROW(decode_floats(*codec, payload, 4), Error);
}

}  // namespace
}  // namespace thinwire::e3m0_test
