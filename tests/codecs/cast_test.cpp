// Codec cast against float64: every code of every format, every tie, every instruction set's ragged end.
#include <gtest/gtest.h>

#include "compression/codec_table.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::test::cast_test {
namespace {

std::shared_ptr<const Codec> make_cast(const std::string& format) {
  return make_codec({"cast", {{"format", format}}}).codec;
}

// A small floating-point format, from its definition.
struct Format {
  const char* name;
  int bytes, exponent_bits, mantissa_bits;
  bool infinity;  // false: e4m3, where only the last code of the largest exponent is NaN
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t codes() const { return 1u << (8 * bytes); }
  uint32_t sign_bit() const { return codes() >> 1; }
  uint32_t first_special() const {  // the first code, without sign, that is no finite number
    return infinity ? ((1u << exponent_bits) - 1u) << mantissa_bits : sign_bit() - 1u;
  }
  double value(uint32_t code) const {
    const uint32_t size = code & (sign_bit() - 1u);
    const int exponent = static_cast<int>(size >> mantissa_bits);
    const double fraction = std::ldexp(static_cast<double>(size & ((1u << mantissa_bits) - 1u)), -mantissa_bits);
    double v = exponent == 0 ? std::ldexp(fraction, 1 - bias()) : std::ldexp(1.0 + fraction, exponent - bias());
    if (size >= first_special())
      v = infinity && size == first_special() ? std::numeric_limits<double>::infinity()
                                              : std::numeric_limits<double>::quiet_NaN();
    return code & sign_bit() ? -v : v;
  }
};
constexpr Format kFormats[] = {
    {"bf16", 2, 8, 7, true}, {"fp16", 2, 5, 10, true}, {"e4m3", 1, 4, 3, false}, {"e5m2", 1, 5, 2, true}};

Bytes code_bytes(const Format& f, uint32_t code) {
  Bytes b = {static_cast<std::byte>(code & 0xff)};
  if (f.bytes == 2) b.push_back(static_cast<std::byte>(code >> 8));
  return b;
}
uint32_t code_at(const Format& f, const Bytes& b, size_t i) {
  uint32_t code = static_cast<uint32_t>(b[i * static_cast<size_t>(f.bytes)]);
  if (f.bytes == 2) code |= static_cast<uint32_t>(b[2 * i + 1]) << 8;
  return code;
}

// The nearest finite code without sign, ties to the even code; for formats of 16 bits what lies beyond the middle
// between the largest number and the next power becomes infinite, for those of 8 bits it saturates.
uint32_t nearest(const Format& f, double x) {
  const double size = std::fabs(x);
  const uint32_t last = f.first_special() - 1;
  if (size > f.value(last)) {
    const double next = 2.0 * f.value(last) - f.value(last - 1);
    const bool beyond = size >= (f.value(last) + next) / 2.0;
    return f.bytes == 2 && beyond ? f.first_special() : last;
  }
  uint32_t low = 0, high = last;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (f.value(middle) <= size ? low : high) = middle;
  }
  const double below = size - f.value(low), above = f.value(high) - size;
  if (below != above) return below < above ? low : high;
  return low % 2 == 0 ? low : high;
}

class CastFormats : public ::testing::TestWithParam<Format> {};

TEST_P(CastFormats, EveryCodeDecodesToItsDefinitionAndComesBack) {
  const Format& f = GetParam();
  const auto codec = make_cast(f.name);
  Bytes all;
  for (uint32_t code = 0; code < f.codes(); ++code) {
    const Bytes b = code_bytes(f, code);
    all.insert(all.end(), b.begin(), b.end());
  }
  const std::vector<float> x = decode_floats(*codec, all, f.codes());
  bool bad = false;
  const Bytes again = encode_bytes(*codec, x, law_msg(), &bad);
  EXPECT_TRUE(bad);  // there are NaNs among them
  for (uint32_t code = 0; code < f.codes(); ++code) {
    const double expected = f.value(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(x[code])) << f.name << " code " << code;
      EXPECT_TRUE(std::isnan(f.value(code_at(f, again, code)))) << f.name << " code " << code;
      EXPECT_EQ(std::signbit(x[code]), (code & f.sign_bit()) != 0) << f.name << " code " << code;
      continue;
    }
    EXPECT_EQ(x[code], expected) << f.name << " code " << code;
    EXPECT_EQ(std::signbit(x[code]), (code & f.sign_bit()) != 0) << f.name << " code " << code;
    EXPECT_EQ(code_at(f, again, code), code) << f.name;
  }
}

// Around every code: the middle to the next one, and a float's step to both sides of it; and random floats.
TEST_P(CastFormats, EncodesToTheNearestCodeTiesToEven) {
  const Format& f = GetParam();
  const auto codec = make_cast(f.name);
  std::vector<float> x;
  for (uint32_t code = 0; code < f.first_special(); ++code) {
    const double here = f.value(code);
    const double next = code + 1 < f.first_special() ? f.value(code + 1) : 2.0 * here - f.value(code - 1);
    const float middle = static_cast<float>((here + next) / 2.0);
    for (float v : {static_cast<float>(here), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)})
      if (std::isfinite(v)) x.push_back(v), x.push_back(-v);
  }
  std::mt19937 rng(4);
  for (int i = 0; i < 200000; ++i) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (std::isfinite(v)) x.push_back(v);
  }
  const Bytes codes = encode_bytes(*codec, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t expected = nearest(f, x[i]) | (std::signbit(x[i]) ? f.sign_bit() : 0u);
    ASSERT_EQ(code_at(f, codes, i), expected) << f.name << " of " << std::hexfloat << x[i];
  }
}

TEST_P(CastFormats, Laws) {
  check_codec_laws(*make_cast(GetParam().name), {.extra_counts = {32769, 100003}, .huge_overflows = true});
}

INSTANTIATE_TEST_SUITE_P(All, CastFormats, ::testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Cast, GoldenBytes) {
  const std::vector<float> x = {0.0f, -0.0f, 1.0f, -2.5f, 0.1f, 448.0f, 1e-3f, 60000.0f};
  expect_hex(encode_bytes(*make_cast("bf16"), x), "0000 0080 803f 20c0 cd3d e043 833a 6a47");
  expect_hex(encode_bytes(*make_cast("fp16"), x), "0000 0080 003c 00c1 662e 005f 1914 537b");
  expect_hex(encode_bytes(*make_cast("e4m3"), x), "00 80 38 c2 1d 7e 01 7e");
  expect_hex(encode_bytes(*make_cast("e5m2"), x), "00 80 3c c1 2e 5f 14 7b");
}

TEST(Cast, OverflowIsInfinityIn16BitsAndSaturationIn8) {
  const auto flag = [](const char* format, float v) {
    bool bad = false;
    encode_bytes(*make_cast(format), std::vector<float>(40, v), law_msg(), &bad);
    return bad;
  };
  EXPECT_FALSE(flag("fp16", 65519.0f));
  EXPECT_TRUE(flag("fp16", 65520.0f));
  EXPECT_TRUE(flag("fp16", -1e20f));
  EXPECT_FALSE(flag("bf16", 3.38e38f));
  EXPECT_TRUE(flag("bf16", std::numeric_limits<float>::max()));
  for (const char* format : {"e4m3", "e5m2"}) EXPECT_FALSE(flag(format, std::numeric_limits<float>::max()));
  const std::vector<float> big = {1e9f, -1e9f};
  EXPECT_EQ(round_trip(*make_cast("e4m3"), big), (std::vector<float>{448.0f, -448.0f}));
  EXPECT_EQ(round_trip(*make_cast("e5m2"), big), (std::vector<float>{57344.0f, -57344.0f}));
  const std::vector<float> infinite = {INFINITY, -INFINITY};
  EXPECT_TRUE(std::isnan(round_trip(*make_cast("e4m3"), infinite)[1]));
  EXPECT_EQ(round_trip(*make_cast("e5m2"), infinite), infinite);
}

// The published table says 55.6 dB for bf16 on Gaussian data.
TEST(Cast, Fidelity) {
  const std::vector<float> x = make_data(DataKind::kGaussian, 1 << 20);
  EXPECT_NEAR(snr_db(x, round_trip(*make_cast("bf16"), x)), 55.6, 0.5);
}

TEST(Cast, UnknownFormatIsRefusedByName) {
  try {
    make_cast("fp12");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    EXPECT_NE(std::string(e.what()).find("fp12"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("e4m3"), std::string::npos);
  }
}

}  // namespace
}  // namespace thinwire::test::cast_test
