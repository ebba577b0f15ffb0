// mx: golden bytes, every code of every format, a brute-force oracle, and the Gaussian row of the fidelity table.
#include <map>

#include "compression/codec_table.h"
#include "compression/codecs/block_kernels.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::mx_test {
namespace {

using test::Bytes;
using test::decode_floats;
using test::encode_bytes;
using test::expect_hex;
using test::law_msg;
using test::round_trip;

std::shared_ptr<const Codec> make(const std::string& format) {
  return make_codec({"mx", {{"format", format}}}).codec;
}

// A format by its definition.
struct Definition {
  const char* name;
  int bits, exponent_bits, mantissa_bits, bias;
  int largest;       // code
  int max_exponent;  // of the largest number
};
constexpr Definition kE4m3 = {"mxfp8_e4m3", 8, 4, 3, 7, 0x7e, 8};
constexpr Definition kE2m1 = {"mxfp4", 4, 2, 1, 1, 0x7, 2};
constexpr Definition kDefinitions[] = {kE4m3,
                                       {"mxfp8_e5m2", 8, 5, 2, 15, 0x7b, 15},
                                       {"mxfp6_e2m3", 6, 2, 3, 1, 0x1f, 2},
                                       {"mxfp6_e3m2", 6, 3, 2, 3, 0x1f, 4},
                                       kE2m1};
double value_of(const Definition& d, int code) {  // without sign
  const int exponent = code >> d.mantissa_bits, mantissa = code & ((1 << d.mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - d.bias - d.mantissa_bits);
  return std::ldexp(mantissa + (1 << d.mantissa_bits), exponent - d.bias - d.mantissa_bits);
}
// Nearest by search over all codes, ties to the even one.
int nearest_code(const Definition& d, double v) {
  int best = 0;
  for (int code = 1; code <= d.largest; ++code) {
    const double a = std::fabs(value_of(d, code) - v), b = std::fabs(value_of(d, best) - v);
    if (a < b || (a == b && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Mx, NumbersOfTheFormats) {
  EXPECT_EQ(value_of(kE4m3, 0x7e), 448.0);
  EXPECT_EQ(value_of(kDefinitions[1], 0x7b), 57344.0);
  EXPECT_EQ(value_of(kDefinitions[2], 0x1f), 7.5);
  EXPECT_EQ(value_of(kDefinitions[3], 0x1f), 28.0);
  EXPECT_EQ(value_of(kE2m1, 0x7), 6.0);
}

TEST(Mx, EveryCodeDecodesToItsDefinition) {
  for (const Definition& d : kDefinitions) {
    const auto codec = make(d.name);
    const int codes = 1 << d.bits;
    for (int scale : {0, 1, 127, 140, 254, 255}) {
      Bytes payload;
      for (int b = 0; b < (codes + 31) / 32; ++b) payload.push_back(static_cast<std::byte>(scale));
      const size_t head = payload.size();
      payload.resize(head + static_cast<size_t>(codes * d.bits / 8));
      for (int i = 0; i < codes; ++i)
        for (int k = 0; k < d.bits; ++k)
          if (i >> k & 1)
            payload[head + static_cast<size_t>((i * d.bits + k) / 8)] |= std::byte(1 << (i * d.bits + k) % 8);
      const auto y = decode_floats(*codec, payload, codes);
      for (int i = 0; i < codes; ++i) {
        SCOPED_TRACE(std::string(d.name) + ", code " + std::to_string(i) + ", scale " + std::to_string(scale));
        const int size = i & (codes / 2 - 1);
        const double expected = value_of(d, size) * (i >= codes / 2 ? -1.0 : 1.0) * std::ldexp(1.0, scale - 127);
        if (scale == 255 || (d.bits == 8 && size > d.largest + (d.mantissa_bits == 2 ? 1 : 0))) {
          EXPECT_TRUE(std::isnan(y[i]));
        } else if (d.mantissa_bits == 2 && d.bits == 8 && size == 0x7c) {
          EXPECT_TRUE(std::isinf(y[i]));  // E5M2 has an infinity; no encoder of ours writes it
        } else {
          EXPECT_EQ(y[i], static_cast<float>(expected));
          EXPECT_EQ(std::signbit(y[i]), i >= codes / 2);
        }
      }
    }
  }
}

TEST(MxGolden, Bytes) {
  // max 448 = 1.75 * 2^8: scale 2^0 (7f). 448 -> 7e, -1 -> b8 (exponent 7), 2^-9 -> 01, 0.
  std::vector<float> x(32);
  x[0] = 448, x[1] = -1, x[2] = 0x1p-9f;
  expect_hex(encode_bytes(*make("mxfp8_e4m3"), x), "7f 7eb80100" + std::string(56, '0'));
  // 511 = 1.99 * 2^8 has the same scale and saturates.
  x[0] = 511;
  expect_hex(encode_bytes(*make("mxfp8_e4m3"), x), "7f 7eb80100" + std::string(56, '0'));
  // Three elements of a short block: 6 -> 7, -1.5 -> b, 2.5 (tie between 2 = 4 and 3 = 5) -> 4. Low nibble first.
  expect_hex(encode_bytes(*make("mxfp4"), std::vector<float>{6, -1.5f, 2.5f}), "7f b7 04");
  // 6 bits, four in three bytes: 7.5 -> 1f, -1 -> 28, 0.125 -> 01, 0 -> 00: 0x1f + (0x28 << 6) + (1 << 12) = 001a1f.
  expect_hex(encode_bytes(*make("mxfp6_e2m3"), std::vector<float>{7.5f, -1, 0.125f, 0}), "7f 1f1a00");
  // 28 -> 1f, -1 -> 2c, 1/16 -> 01: 0x1f + (0x2c << 6) + (1 << 12) = 001b1f.
  expect_hex(encode_bytes(*make("mxfp6_e3m2"), std::vector<float>{28, -1, 0.0625f, 0}), "7f 1f1b00");
  expect_hex(encode_bytes(*make("mxfp8_e5m2"), std::vector<float>{57344, -1, 0x1p-16f}), "7f 7bbc01");
  // Group scale 2688 / 2688 = 1 (3f800000); block scale 448 (7e) and 16 elements, then 6 / 6 = 1 (38).
  std::vector<float> y(18);
  y[0] = 2688, y[1] = -1344, y[16] = 6, y[17] = 1;
  expect_hex(encode_bytes(*make("nvfp4"), y), "0000803f 7e38 d7 00000000000000 27");
  // NaN: the block's scale is NaN and its codes are 0; the group scale is the other block's, 6 / 2688.
  y[3] = std::numeric_limits<float>::quiet_NaN();
  bool bad = false;
  expect_hex(encode_bytes(*make("nvfp4"), y, law_msg(), &bad), "2549123b 7f7e 0000000000000000 27");
  EXPECT_TRUE(bad);
  x[0] = -std::numeric_limits<float>::infinity();
  expect_hex(encode_bytes(*make("mxfp8_e4m3"), x, law_msg(), &bad), "ff" + std::string(64, '0'));
  EXPECT_TRUE(bad);
}

std::vector<float> wild_data(std::mt19937& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  std::normal_distribution<float> normal;
  const int kind = static_cast<int>(rng() % 5);
  const float size = std::ldexp(1.0f, static_cast<int>(rng() % 200) - 120);
  for (float& v : x) {
    v = normal(rng) * size;
    if (kind == 1) v = static_cast<float>(static_cast<int>(rng() % 129) - 64) * size;  // many ties
    if (kind == 2) v *= std::exp(3.0f * normal(rng));
    if (kind == 3 && rng() % 3) v = 0.0f;
    if (kind == 4) v = std::bit_cast<float>(static_cast<uint32_t>(rng()) & 0xfeffffffu);  // any finite bits
    if (!std::isfinite(v)) v = size;
  }
  return x;
}

TEST(Mx, EqualsABruteForceOracle) {
  std::mt19937 rng(2);
  for (const Definition& d : kDefinitions) {
    const auto codec = make(d.name);
    for (int round = 0; round < 60; ++round) {
      const int64_t n = 1 + static_cast<int64_t>(rng() % 300);
      const auto x = wild_data(rng, n);
      const auto y = round_trip(*codec, x);
      for (int64_t b = 0; b < n; b += 32) {
        const int64_t end = std::min(n, b + 32);
        float most = 0.0f;
        for (int64_t i = b; i < end; ++i) most = std::max(most, std::fabs(x[i]));
        int e = -127;
        if (most > 0.0f) e = std::max(std::ilogb(most) - d.max_exponent, -127);
        for (int64_t i = b; i < end; ++i) {
          const int code = nearest_code(d, std::ldexp(std::fabs(static_cast<double>(x[i])), -e));
          const double expected = std::ldexp(value_of(d, code), e) * (std::signbit(x[i]) ? -1.0 : 1.0);
          ASSERT_EQ(y[i], static_cast<float>(expected)) << d.name << ", " << x[i] << " in a block up to " << most;
        }
      }
    }
  }
}
TEST(Mx, Nvfp4EqualsABruteForceOracle) {
  std::mt19937 rng(3);
  const auto codec = make("nvfp4");
  for (int round = 0; round < 60; ++round) {
    const int64_t n = 1 + static_cast<int64_t>(rng() % 600);
    auto x = wild_data(rng, n);
    const auto y = round_trip(*codec, x);
    float most = 0.0f;
    for (float v : x) most = std::max(most, std::fabs(v));
    const float group = most == 0.0f ? 0.0f : std::min(std::max(most * (1.0f / 2688.0f), 0x1p-100f), 0x1.8p116f);
    for (int64_t b = 0; b < n; b += 16) {
      const int64_t end = std::min(n, b + 16);
      float top = 0.0f;
      for (int64_t i = b; i < end; ++i) top = std::max(top, std::fabs(x[i]));
      float step = 0.0f;
      if (top > 0.0f) {
        const float ratio = top * (1.0f / (group * 6.0f));
        step = static_cast<float>(value_of(kE4m3, std::max(1, nearest_code(kE4m3, ratio)))) * group;
      }
      for (int64_t i = b; i < end; ++i) {
        const float v = step == 0.0f ? 0.0f : std::fabs(x[i] * (1.0f / step));
        const float expected = static_cast<float>(value_of(kE2m1, nearest_code(kE2m1, v))) * step;
        ASSERT_EQ(y[i], std::signbit(x[i]) ? -expected : expected) << x[i] << " in a block up to " << top;
      }
    }
  }
}

TEST(Mx, AllInstructionSetsWriteTheSameBytes) {
  std::vector<const BlockKernels*> sets = {&isa_avx2::mx_kernels};
  if (active_isa() != Isa::kAvx2) sets.push_back(&isa_avx512::mx_kernels);
  std::mt19937 rng(5);
  for (int round = 0; round < 600; ++round) {
    const BlockForm form{.format = static_cast<MxFormat>(round % 6)};
    const int64_t n = 1 + static_cast<int64_t>(rng() % 4096);
    auto x = wild_data(rng, n);
    if (round % 5 == 0) x[rng() % x.size()] = std::bit_cast<float>(static_cast<uint32_t>(0xff800000u | rng() % 9));
    std::vector<uint8_t> first(static_cast<size_t>(n) * 2 + 64, 0xee), random(first.size());
    std::vector<float> first_out(x.size(), 0.25f);
    for (uint8_t& b : random) b = static_cast<uint8_t>(rng() % 100);  // all codes, and scales that pass
    const bool finite = sets[0]->encode(form, {}, x.data(), n, first.data());
    for (const auto* payload : {&first, &random}) {
      sets[0]->decode(form, payload->data(), n, first_out.data(), round % 2);
      for (size_t s = 1; s < sets.size(); ++s) {
        std::vector<uint8_t> bytes(first.size(), 0xee);
        std::vector<float> out(x.size(), 0.25f);
        if (payload == &random) std::fill(out.begin(), out.end(), 0.0f);
        ASSERT_EQ(sets[s]->encode(form, {}, x.data(), n, bytes.data()), finite);
        ASSERT_TRUE(bytes == first) << "round " << round;
        std::vector<float> reference(x.size(), out[0]);
        sets[0]->decode(form, payload->data(), n, reference.data(), round % 2);
        sets[s]->decode(form, payload->data(), n, out.data(), round % 2);
        for (size_t i = 0; i < out.size(); ++i)
          ASSERT_TRUE(std::bit_cast<uint32_t>(out[i]) == std::bit_cast<uint32_t>(reference[i]) ||
                      (std::isnan(out[i]) && std::isnan(reference[i])))
              << "round " << round << ", element " << i;
      }
    }
  }
}

TEST(Mx, Laws) {
  for (const Definition& d : kDefinitions) test::check_codec_laws(*make(d.name), {.unit = 32, .fuzz = 40});
  test::check_codec_laws(*make("nvfp4"), {.unit = 16, .fuzz = 40});
}

TEST(Mx, WireBits) {
  const std::map<std::string, double> bits = {{"mxfp8_e4m3", 8.25}, {"mxfp8_e5m2", 8.25}, {"mxfp6_e2m3", 6.25},
                                              {"mxfp6_e3m2", 6.25}, {"mxfp4", 4.25},      {"nvfp4", 4.5 + 1.0 / 128}};
  for (const auto& [name, expected] : bits) {
    const size_t bytes = make(name)->wire_bytes(1 << 20, DType::f32);
    EXPECT_DOUBLE_EQ(8.0 * static_cast<double>(bytes) / (1 << 20), expected) << name;
  }
}

TEST(Mx, GaussianRowOfTheFidelityTable) {
  const auto x = test::make_data(test::DataKind::kGaussian, 1 << 20);
  const std::map<std::string, double> table = {{"mxfp8_e4m3", 30.7}, {"mxfp4", 18.8}, {"nvfp4", 20.4}};
  for (const auto& [name, db] : table) EXPECT_NEAR(test::snr_db(x, round_trip(*make(name), x)), db, 0.5) << name;
}

TEST(MxDefect, LargerTargetDoesNotClipE5m2To448) {  // TACO: values clamped to +-448 also in E5M2 mode
  std::vector<float> x(32, 1.0f);
  x[9] = 57344.0f;
  x[10] = -40960.0f;
  const auto y = round_trip(*make("mxfp8_e5m2"), x);
  EXPECT_EQ(y[9], 57344.0f);
  EXPECT_EQ(y[10], -40960.0f);
}
TEST(MxDefect, NanDoesNotSpreadBeyondItsBlock) {
  for (const char* name : {"mxfp8_e4m3", "mxfp4", "nvfp4"}) {
    std::vector<float> x(64, 1.0f);
    x[33] = std::numeric_limits<float>::quiet_NaN();
    const auto y = round_trip(*make(name), x);
    EXPECT_TRUE(std::isnan(y[33])) << name;
    for (int i = 0; i < 32; ++i) EXPECT_EQ(y[i], 1.0f) << name;
  }
}

TEST(Mx, RefusesWhatItCannotDo) {
  const auto refused = [](const CodecValues& parameters, const std::string& word) {
    try {
      make_codec({"mx", parameters});
      FAIL() << "accepted: " << word;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  refused({{"format", "mxfp8"}}, "format");
  refused({{"format", "mxfp4"}, {"block", 16}}, "block");
}

}  // namespace
}  // namespace thinwire::mx_test
