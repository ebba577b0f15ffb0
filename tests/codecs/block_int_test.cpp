// block_int: golden bytes, a scalar oracle for every form, fidelity against the published quantiser, and the defects of
// published quantisers (reference/zero-and-tagc.md 1.8, 1.9, 1.12) by name.
#include "compression/codec_table.h"
#include "compression/codecs/block_kernels.h"
#include "engine/base/core/philox.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::block_int_test {
namespace {

using test::Bytes;
using test::decode_floats;
using test::encode_bytes;
using test::expect_hex;
using test::law_msg;
using test::round_trip;

CodecSpec spec_of(int64_t bits, int64_t block, const std::string& scale, bool asymmetric = false,
                  const std::string& rounding = "nearest") {
  return {"block_int",
          {{"bits", bits}, {"block", block}, {"scale", scale}, {"asymmetric", asymmetric}, {"rounding", rounding}}};
}
std::shared_ptr<const Codec> make(int64_t bits, int64_t block, const std::string& scale, bool asymmetric = false,
                                  const std::string& rounding = "nearest") {
  return make_codec(spec_of(bits, block, scale, asymmetric, rounding)).codec;
}

// ---- golden bytes: each can be followed with pencil and paper
// --------------------------------------------------------
TEST(BlockIntGolden, Symmetric) {
  // Largest element -2: step 2 / 128 = 2^-6 (3c800000), codes 64, -128, 32, 0.
  expect_hex(encode_bytes(*make(8, 4, "fp32"), std::vector<float>{1, -2, 0.5f, 0}), "0000803c 40802000");
  // Largest +8: step -1 (fp16 bc00), codes -8, 7, -3 | a second block of two, all zero. Low nibble first.
  expect_hex(encode_bytes(*make(4, 3, "fp16"), std::vector<float>{8, -7, 3, 0, 0}), "00bc 0000 78 0d 00");
  // Step 1 (bf16 3f80), codes 0x20, 0x1f, 0x01, 0x3f: 24 bits fc17e0.
  expect_hex(encode_bytes(*make(6, 4, "bf16"), std::vector<float>{-32, 31, 1, -1}), "803f e017fc");
  // Step 1, codes 2, 1, 0, 3: 2 + 1 * 4 + 0 * 16 + 3 * 64.
  expect_hex(encode_bytes(*make(2, 4, "fp16"), std::vector<float>{-2, 1, 0, -1}), "003c c6");
  // Step 2^0: byte 127. +128 would need code 128 and saturates.
  expect_hex(encode_bytes(*make(8, 3, "e8m0"), std::vector<float>{-3, 128, 0.5f}), "7f fd7f00");
  // Ties go to the even code: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2, -0.5 -> 0.
  expect_hex(encode_bytes(*make(8, 8, "fp16"), std::vector<float>{-128, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, 0}),
             "003c 80000202 00fe7e00");
}
TEST(BlockIntGolden, Asymmetric) {
  // 0 to 15 in 16 levels: offset 8 (fp16 4800), step 1; codes -8, 7, -5, 0.
  expect_hex(encode_bytes(*make(4, 4, "fp16", true), std::vector<float>{0, 15, 3, 8}), "0048 003c 78 0b");
}
TEST(BlockIntGolden, NonFinite) {
  bool bad = false;
  const Bytes payload =
      encode_bytes(*make(4, 4, "fp16"),
                   std::vector<float>{1, std::numeric_limits<float>::infinity(), 0, -1, 2, 1, 0, -2}, law_msg(), &bad);
  EXPECT_TRUE(bad);
  expect_hex(payload, "007e 0034 8888 4780");  // NaN; the second block: largest -2, step 1/4 (fp16 3400)
}

// ---- the oracle ----------------------------------------------------------------------------------------------------
struct Oracle {
  int64_t bits, block;
  std::string scale;
  bool asymmetric, stochastic;
  float half() const { return static_cast<float>(int64_t{1} << (bits - 1)); }

  static float from_bits(uint32_t u) { return std::bit_cast<float>(u); }
  float step_for(float wanted) const {
    if (wanted == 0.0f) return 0.0f;
    if (scale == "fp32") return std::min(std::max(wanted, 0x1p-126f), 0x1.fffffep127f / half());
    if (scale == "fp16") {
      Fp16 h = to_fp16(std::min(wanted, 65504.0f));
      if (to_float(h) < wanted && h.bits < 0x7bff) ++h.bits;
      return to_float(h);
    }
    if (scale == "bf16") {
      uint32_t u = std::bit_cast<uint32_t>(wanted);
      if (u & 0xffffu) u += 0x10000u;
      return std::min(std::max(from_bits(u & 0xffff0000u), 0x1p-126f), 0x1.fep127f / half());
    }
    int e = 0;
    const float m = std::frexp(wanted, &e);  // wanted = m 2^e, m in [1/2, 1)
    const int k = m == 0.5f ? e - 1 : e;
    return std::ldexp(1.0f, std::min(std::max(k, -126), 127 - static_cast<int>(bits - 1)));
  }
  float offset_for(float v) const {
    if (scale == "fp32") return v;
    if (scale == "fp16") return to_float(to_fp16(std::min(std::max(v, -65504.0f), 65504.0f)));
    return to_float(to_bf16(std::min(std::max(v, -0x1.fep127f), 0x1.fep127f)));
  }
  void put(std::string& out, float v) const {
    char b[4];
    const Fp16 h = to_fp16(v);
    const Bf16 s = to_bf16(v);
    const uint32_t u = std::bit_cast<uint32_t>(v);
    if (scale == "fp32") std::memcpy(b, &u, 4), out.append(b, 4);
    if (scale == "fp16") std::memcpy(b, &h, 2), out.append(b, 2);
    if (scale == "bf16") std::memcpy(b, &s, 2), out.append(b, 2);
    if (scale == "e8m0") out.push_back(static_cast<char>(u >> 23));
  }

  // Rounding number of element i of the message.
  static float noise(const Msg& msg, uint64_t i) {
    const uint64_t step = static_cast<uint64_t>(msg.step);
    const PhiloxBlock a =
        philox({static_cast<uint32_t>(msg.seed), static_cast<uint32_t>(msg.seed >> 32)},
               {msg.slot, msg.sequence, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)});
    const PhiloxBlock b = philox({a[0], a[1]}, {static_cast<uint32_t>(msg.rank), a[2], a[3], 5});
    const PhiloxBlock words =
        philox({b[0], b[1]}, {static_cast<uint32_t>(i / 8), static_cast<uint32_t>(i / 8 >> 32), 5, 0});
    const uint32_t word = words[i % 8 / 2];
    return (static_cast<float>(i % 2 ? word >> 16 : word & 0xffff) + 0.5f) / 65536.0f;
  }

  // Payload and what it decodes to.
  std::string encode(const Msg& msg, std::span<const float> x, std::vector<float>& decoded) const {
    std::string out;
    const int64_t n = static_cast<int64_t>(x.size()), group = block * std::max<int64_t>(1, 4096 / block);
    decoded.assign(x.size(), 0.0f);
    for (int64_t g = 0; g < n; g += group) {
      const int64_t end = std::min(n, g + group);
      std::vector<int> codes;
      for (int64_t b = g; b < end; b += block) {
        float low = x[b], high = x[b], largest = x[b];
        for (int64_t i = b; i < std::min(end, b + block); ++i) {
          low = std::min(low, x[i]);
          high = std::max(high, x[i]);
          if (std::fabs(x[i]) > std::fabs(largest) || (x[i] == -largest && x[i] < 0)) largest = x[i];
        }
        float offset = 0.0f, step;
        if (asymmetric) {
          offset =
              offset_for((low * 0.5f + high * 0.5f) + (high * 0.5f - low * 0.5f) * (1.0f / (2.0f * half() - 1.0f)));
          step = step_for(std::max(0.0f, std::max((offset - low) / half(), (high - offset) / (half() - 1.0f))));
          put(out, offset);
        } else {
          step = step_for(std::fabs(largest) / (stochastic ? half() - 1.0f : half()));
          if (!stochastic && scale != "e8m0" && largest > 0.0f) step = -step;
        }
        put(out, step);
        const float inverse = step == 0.0f ? 0.0f : 1.0f / step;
        for (int64_t i = b; i < std::min(end, b + block); ++i) {
          const float v = (x[i] - offset) * inverse;
          float q = stochastic ? std::floor(v + noise(msg, static_cast<uint64_t>(msg.first + i))) : std::nearbyint(v);
          q = std::min(std::max(q, -half()), half() - 1.0f);
          codes.push_back(static_cast<int>(q));
          const double value = static_cast<double>(offset) + static_cast<double>(q) * step;
          decoded[i] = std::min(std::max(static_cast<float>(value), -0x1.fffffep127f), 0x1.fffffep127f);
        }
      }
      std::string packed((codes.size() * static_cast<size_t>(bits) + 7) / 8, '\0');
      for (size_t i = 0; i < codes.size(); ++i)
        for (size_t k = 0; k < static_cast<size_t>(bits); ++k)
          if (codes[i] >> k & 1) packed[(i * bits + k) / 8] |= static_cast<char>(1 << (i * bits + k) % 8);
      out += packed;
    }
    return out;
  }
};

std::vector<float> wild_data(std::mt19937& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  std::normal_distribution<float> normal;
  const int kind = static_cast<int>(rng() % 6);
  const float size = std::ldexp(1.0f, static_cast<int>(rng() % 60) - 35);
  for (float& v : x) {
    v = normal(rng) * size;
    if (kind == 1) v = static_cast<float>(static_cast<int>(rng() % 17) - 8) * size;  // many ties
    if (kind == 2) v *= std::exp(3.0f * normal(rng));
    if (kind == 3) v = size * (5.0f + 0.01f * normal(rng));  // far from zero
    if (kind == 4 && rng() % 3) v = 0.0f;
    if (kind == 5) v = std::bit_cast<float>(static_cast<uint32_t>(rng()) & 0xfeffffffu);  // any finite bits
  }
  return x;
}

TEST(BlockInt, EveryFormEqualsAScalarOracle) {
  std::mt19937 rng(11);
  const int64_t blocks[] = {2, 3, 16, 31, 32, 64, 100, 128, 192, 1000, 2048, 6144};
  for (int64_t bits : {8, 6, 4, 2}) {
    for (const char* scale : {"fp32", "fp16", "bf16", "e8m0"}) {
      for (int form = 0; form < 4; ++form) {
        const bool asymmetric = form & 1, stochastic = form & 2;
        if (asymmetric && std::string(scale) == "e8m0") continue;
        for (int round = 0; round < 12; ++round) {
          const int64_t block = blocks[rng() % std::size(blocks)];
          const int64_t n = 1 + static_cast<int64_t>(rng() % (round % 3 ? 700 : 13000));
          const std::vector<float> x = wild_data(rng, n);
          Msg msg = law_msg(1);
          msg.first = static_cast<int64_t>(rng() % 5) * 4096 * 11;
          const auto codec = make(bits, block, scale, asymmetric, stochastic ? "stochastic" : "nearest");
          SCOPED_TRACE(codec->name() + ", " + std::to_string(n) + " elements, round " + std::to_string(round));
          std::vector<float> expected;
          const std::string bytes = Oracle{bits, block, scale, asymmetric, stochastic}.encode(msg, x, expected);
          const Bytes payload = encode_bytes(*codec, x, msg);
          ASSERT_EQ(payload.size(), bytes.size());
          for (size_t i = 0; i < bytes.size(); ++i)
            ASSERT_EQ(static_cast<int>(payload[i]), static_cast<int>(static_cast<uint8_t>(bytes[i]))) << "byte " << i;
          const std::vector<float> y = decode_floats(*codec, payload, n, msg);
          for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], expected[i]) << "element " << i << " of " << x[i];
        }
      }
    }
  }
}

// Both builds of the kernels, whichever this machine can run.
TEST(BlockInt, AllInstructionSetsWriteTheSameBytes) {
  std::vector<const BlockKernels*> sets = {&isa_avx2::block_int_kernels};
  if (active_isa() != Isa::kAvx2) sets.push_back(&isa_avx512::block_int_kernels);
  std::mt19937 rng(5);
  for (int round = 0; round < 600; ++round) {
    BlockForm form;
    form.bits = 2 + 2 * static_cast<int>(rng() % 4);
    const int64_t blocks[] = {2, 5, 16, 32, 48, 64, 128, 100, 512};
    form.block = blocks[rng() % std::size(blocks)];
    form.scale = static_cast<BlockScale>(rng() % 4);
    form.asymmetric = form.scale != BlockScale::kE8m0 && rng() % 2;
    form.stochastic = rng() % 2;
    const int64_t group = form.block * std::max<int64_t>(1, 4096 / form.block);
    const int64_t n = 1 + static_cast<int64_t>(rng()) % group;
    std::vector<float> x = wild_data(rng, n);
    if (round % 5 == 0)
      x[rng() % x.size()] =
          std::bit_cast<float>(static_cast<uint32_t>(0xff800000u | (rng() & 0x7fffffu)));  // -inf or NaN
    const BlockNoise noise{static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng()), (rng() << 8) + rng() % 8};
    std::vector<uint8_t> first(static_cast<size_t>(n) * 9 + 64, 0xee);
    std::vector<float> first_out(x.size(), 0.25f);
    const bool finite = sets[0]->encode(form, noise, x.data(), n, first.data());
    ASSERT_TRUE(sets[0]->decode(form, first.data(), n, first_out.data(), round % 2));
    for (size_t s = 1; s < sets.size(); ++s) {
      std::vector<uint8_t> bytes(first.size(), 0xee);
      std::vector<float> out(x.size(), 0.25f);
      ASSERT_EQ(sets[s]->encode(form, noise, x.data(), n, bytes.data()), finite);
      ASSERT_TRUE(bytes == first) << "round " << round << ", bits " << form.bits << ", block " << form.block;
      sets[s]->decode(form, bytes.data(), n, out.data(), round % 2);
      ASSERT_EQ(std::memcmp(out.data(), first_out.data(), out.size() * 4), 0) << "round " << round;
    }
  }
}

TEST(BlockInt, Laws) {
  for (int64_t bits : {8, 6, 4, 2}) test::check_codec_laws(*make(bits, 0, "fp16"), {.unit = 128, .fuzz = 40});
  test::check_codec_laws(*make(8, 32, "fp32"), {.unit = 32, .fuzz = 40});
  test::check_codec_laws(*make(4, 128, "bf16"), {.unit = 128, .fuzz = 40});
  test::check_codec_laws(*make(8, 64, "e8m0"), {.unit = 64, .fuzz = 40});
  test::check_codec_laws(*make(4, 2048, "fp16"), {.fuzz = 40});
  test::check_codec_laws(*make(4, 100, "fp32"), {.unit = 100, .fuzz = 40});
  for (int64_t bits : {8, 4, 2}) test::check_codec_laws(*make(bits, 128, "bf16", true), {.unit = 128, .fuzz = 40});
  test::check_codec_laws(*make(4, 30, "fp32", true), {.unit = 30, .fuzz = 40});
}
TEST(BlockInt, LawsOfStochasticRounding) {
  test::check_codec_laws(*make(4, 128, "bf16", false, "stochastic"), {.unit = 128, .fuzz = 20});
  test::check_codec_laws(*make(8, 3, "fp32", false, "stochastic"), {.unit = 3, .fuzz = 20});
  test::check_codec_laws(*make(2, 64, "bf16", true, "stochastic"), {.unit = 64, .fuzz = 20});
}

// ---- sizes ---------------------------------------------------------------------------------------------------------
double bits_per_value(const Codec& codec) {
  const int64_t n = int64_t{1} << 24;
  return 8.0 * static_cast<double>(codec.wire_bytes(n, DType::f32)) / static_cast<double>(n);
}
TEST(BlockInt, WireBits) {
  EXPECT_DOUBLE_EQ(bits_per_value(*make(8, 0, "fp16")), 8.125);
  EXPECT_DOUBLE_EQ(bits_per_value(*make(4, 0, "fp16")), 4.125);
  EXPECT_DOUBLE_EQ(bits_per_value(*make(8, 32, "fp16")), 8.5);
  EXPECT_DOUBLE_EQ(bits_per_value(*make(4, 32, "fp16")), 4.5);
  EXPECT_DOUBLE_EQ(bits_per_value(*make(4, 2048, "fp16")), 4.0078125);
  EXPECT_DOUBLE_EQ(bits_per_value(*make(4, 32, "e8m0")), 4.25);
  EXPECT_DOUBLE_EQ(bits_per_value(*make(8, 128, "bf16", true)), 8.25);
  EXPECT_EQ(make(4, 128, "fp16")->wire_bytes(4097, DType::f32), 64u + 2048u + 2u + 1u);
}

TEST(BlockInt, RefusesWhatItCannotDo) {
  const auto refused = [](const CodecSpec& spec, const std::string& word) {
    try {
      make_codec(spec);
      FAIL() << "accepted: " << word;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  refused(spec_of(5, 0, "fp16"), "bits");
  refused(spec_of(0, 0, "fp16"), "bits");
  refused(spec_of(8, 1, "fp16"), "block");
  refused(spec_of(8, -4, "fp16"), "block");
  refused(spec_of(8, (1 << 20) + 1, "fp16"), "block");
  refused(spec_of(8, 32, "fp8"), "scale");
  refused(spec_of(8, 32, "e8m0", true), "asymmetric");
  refused(spec_of(8, 32, "fp16", false, "up"), "rounding");
}
TEST(BlockInt, InfiniteScaleOfADamagedPayloadIsNamed) {
  const auto codec = make(8, 4, "fp16");
  Bytes payload = encode_bytes(*codec, std::vector<float>{1, 2, 3, 4});
  payload[0] = std::byte{0x00};
  payload[1] = std::byte{0x7c};
  try {
    decode_floats(*codec, payload, 4);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadData);
    EXPECT_NE(std::string(e.what()).find("infinite scale"), std::string::npos);
  }
}

// ---- fidelity ------------------------------------------------------------------------------------------------------
TEST(BlockInt, GaussianRowOfTheFidelityTable) {
  const auto x = test::make_data(test::DataKind::kGaussian, 1 << 20);
  const struct {
    int64_t bits, block;
    double db;
  } rows[] = {{8, 32, 45.3}, {8, 256, 43.1}, {4, 32, 20.2}};
  for (const auto& row : rows) {
    for (const char* scale : {"fp32", "fp16", "bf16"}) {
      const double db = test::snr_db(x, round_trip(*make(row.bits, row.block, scale), x));
      EXPECT_GT(db, row.db - 0.5) << row.bits << "/" << row.block << " " << scale;
      EXPECT_LT(db, row.db + 1.5) << "too good to be true";
    }
  }
}

double relative_rms(std::span<const float> x, std::span<const float> y) {
  return std::sqrt(test::square_distance(x, y) / test::square_sum(x));
}
// The published quantiser: step max / 2^(b-1), both signs alike, +max clipped; `sevenths`: max / (2^(b-1) - 1).
std::vector<float> published(std::span<const float> x, int64_t bits, int64_t block, bool sevenths) {
  std::vector<float> y(x.size());
  const double half = static_cast<double>(int64_t{1} << (bits - 1));
  for (size_t b = 0; b < x.size(); b += static_cast<size_t>(block)) {
    const size_t end = std::min(x.size(), b + static_cast<size_t>(block));
    double most = 0.0;
    for (size_t i = b; i < end; ++i) most = std::max(most, std::fabs(static_cast<double>(x[i])));
    const double step = most / (sevenths ? half - 1.0 : half);
    for (size_t i = b; i < end; ++i)
      y[i] = static_cast<float>(std::min(std::max(std::nearbyint(x[i] / step), -half), half - 1.0) * step);
  }
  return y;
}
TEST(BlockInt, SignedScaleIsBetterThanBothPublishedChoices) {
  const int64_t n = 6144 * 80;
  const double table[] = {0.106, 0.119, 0.132, 0.141};  // Gaussian, int4, published form
  std::mt19937_64 rng(3);
  std::student_t_distribution<double> t3(3.0);
  std::vector<float> heavy(static_cast<size_t>(n));
  for (float& v : heavy) v = static_cast<float>(t3(rng));
  const auto gauss = test::make_data(test::DataKind::kGaussian, n);
  int row = 0;
  for (int64_t block : {128, 512, 2048, 6144}) {
    EXPECT_NEAR(relative_rms(gauss, published(gauss, 4, block, false)), table[row++], 0.003);  // the table's oracle
    for (const std::vector<float>* x : {&gauss, static_cast<const std::vector<float>*>(&heavy)}) {
      for (int64_t bits : {8, 4, 2}) {
        const double ours = relative_rms(*x, round_trip(*make(bits, block, "fp16"), *x));
        EXPECT_LT(ours, 1.002 * relative_rms(*x, published(*x, bits, block, false))) << bits << "/" << block;
        EXPECT_LT(ours, 1.002 * relative_rms(*x, published(*x, bits, block, true))) << bits << "/" << block;
      }
    }
  }
}

// The secondary copy of zeropp relies on it: weights that were received go through the codec once more.
TEST(BlockInt, DecodedWeightsCodedAgainAreTheSame) {
  for (int64_t block : {128, 2048}) {
    const auto codec = make(8, block, "fp32");
    const auto weights = test::make_data(test::DataKind::kGaussian, 5 * block + 17);
    for (DType dtype : {DType::f32, DType::bf16}) {
      const auto sent = test::as_floats(test::as_dtype(weights, dtype), dtype);
      const Bytes received = test::as_dtype(round_trip(*codec, sent), dtype);
      const Bytes again = test::as_dtype(round_trip(*codec, test::as_floats(received, dtype)), dtype);
      EXPECT_TRUE(again == received) << block << " " << size_of(dtype);
    }
  }
}

// ---- stochastic rounding -------------------------------------------------------------------------------------------
TEST(BlockInt, StochasticRoundingIsUnbiasedElementByElement) {
  // A draw is one of the two neighbouring levels: variance at most step^2 / 4. The mean of K draws is within
  // 6 * step / (2 sqrt(K)) of x but for one case in 5e8; 16-bit numbers and fp32 products add at most 2^-15 step.
  constexpr int kDraws = 4096;
  for (int64_t bits : {8, 4, 2}) {
    for (bool asymmetric : {false, true}) {
      const auto codec = make(bits, 64, "fp32", asymmetric, "stochastic");
      const auto x = test::make_data(test::DataKind::kHeavyTail, 256, 4);
      std::vector<double> mean(x.size());
      std::vector<float> y(x.size());
      Bytes payload(codec->wire_bytes(256, DType::f32));  // not fenced: that is most of the time
      for (int k = 0; k < kDraws; ++k) {
        Msg msg = law_msg();
        msg.step = k;
        codec->encode(msg, View(const_cast<float*>(x.data()), DType::f32, {256}), payload, nullptr);
        codec->decode(msg, payload, View(y.data(), DType::f32, {256}), false);
        for (size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(kDraws);
      }
      for (size_t i = 0; i < x.size(); ++i) {
        const auto block = std::span(x).subspan(i / 64 * 64, 64);
        const auto [low, high] = std::minmax_element(block.begin(), block.end());
        const double levels = static_cast<double>(int64_t{1} << bits) - 1.0;
        const double most = std::max(std::fabs(*low), std::fabs(*high));
        const double step =
            asymmetric ? (static_cast<double>(*high) - *low) / levels * 1.001 : 2.0 * most / (levels - 1.0);
        EXPECT_NEAR(mean[i], x[i], step * (3.0 / std::sqrt(kDraws) + 0x1p-15)) << "element " << i;
      }
    }
  }
}
TEST(BlockInt, EveryPartOfTheKeyChangesTheRoundingNumbers) {
  const auto codec = make(4, 128, "fp16", false, "stochastic");
  const auto x = test::make_data(test::DataKind::kGaussian, 4096);
  const Msg base = law_msg();
  const Bytes reference = encode_bytes(*codec, x, base);
  EXPECT_TRUE(encode_bytes(*codec, x, base) == reference);
  const std::function<void(Msg&)> changes[] = {[](Msg& m) { m.seed ^= 1; },
                                               [](Msg& m) { m.seed ^= uint64_t{1} << 40; },
                                               [](Msg& m) { ++m.slot; },
                                               [](Msg& m) { ++m.sequence; },
                                               [](Msg& m) { ++m.step; },
                                               [](Msg& m) { m.step += int64_t{1} << 33; },
                                               [](Msg& m) { ++m.rank; },
                                               [](Msg& m) { m.first += 4096; },
                                               [](Msg& m) { m.first += int64_t{1} << 36; }};
  for (size_t c = 0; c < std::size(changes); ++c) {
    Msg msg = base;
    changes[c](msg);
    EXPECT_FALSE(encode_bytes(*codec, x, msg) == reference) << "change " << c;
  }
}

// ---- defects of published quantisers -------------------------------------------------------------------------------
TEST(BlockIntDefect, Bf16GradientsAreNeverReinterpretedAsFp16) {  // ZeRO++ 1.8 item 1
  const auto codec = make(4, 128, "fp16");
  std::vector<Bf16> x(256, to_bf16(1.5f));
  std::vector<std::byte> out(codec->wire_bytes(256, DType::bf16));
  EXPECT_THROW(codec->encode(law_msg(), View(x.data(), DType::bf16, {256}), out, nullptr), Error);
  EXPECT_FALSE(codec->traits().native);  // the coder converts
}
TEST(BlockIntDefect, GroupCountsThatDoNotDivideDropNothing) {  // 1.8 item 3
  const auto codec = make(8, 128, "fp32");
  for (int64_t n : {50432 * 3 + 1, 4096 * 7 + 129, 127, 5}) {
    std::vector<float> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i + 1);
    const auto y = round_trip(*codec, x);
    for (int64_t i = 0; i < n; ++i)
      ASSERT_NEAR(y[static_cast<size_t>(i)], x[static_cast<size_t>(i)], static_cast<float>(i + 129) / 256.0f) << i;
  }
}
TEST(BlockIntDefect, GroupsLargerThanAKernelLimitAreQuantised) {  // 1.5: above 40,960 nothing is written
  for (int64_t block : {40961, 65536, 1 << 20}) {
    const auto x = test::make_data(test::DataKind::kGaussian, block + 7);
    EXPECT_GT(test::snr_db(x, round_trip(*make(8, block, "fp16"), x)), 38.0) << block;
  }
}
TEST(BlockIntDefect, LargestPositiveElementIsNotClipped) {  // 1.12: 7/8 of it in int4
  for (const char* scale : {"fp32", "fp16", "bf16"}) {
    std::vector<float> x(128, 0.01f);
    x[77] = 3.7f;
    const float relative = 0x1p-7f;  // of bf16's spacing
    EXPECT_NEAR(round_trip(*make(4, 128, scale), x)[77], 3.7f, 3.7f * relative) << scale;
    x[77] = -3.7f;
    EXPECT_NEAR(round_trip(*make(4, 128, scale), x)[77], -3.7f, 3.7f * relative) << scale;
  }
}
TEST(BlockIntDefect, SumsOfLossScaledGradientsDoNotOverflow) {  // 1.8 item 4: half precision accumulation
  const auto codec = make(4, 128, "fp16");
  const std::vector<float> x(256, -60000.0f);
  const Bytes payload = encode_bytes(*codec, x);
  std::vector<float> sum(x.size());
  for (int rank = 0; rank < 64; ++rank) codec->decode(law_msg(), payload, View(sum.data(), DType::f32, {256}), true);
  for (float v : sum) EXPECT_NEAR(v, -64.0f * 60000.0f, 64.0f * 60000.0f * 0x1p-10f);
}
TEST(BlockIntDefect, OddSizesAndTinyParametersWork) {  // 1.9: #3864, #4309, #4386, #6659
  for (int64_t n = 1; n <= 70; ++n) {
    const auto x = test::make_data(test::DataKind::kGaussian, n, static_cast<uint64_t>(n));
    for (int64_t bits : {8, 6, 4, 2})
      EXPECT_LT(test::square_distance(x, round_trip(*make(bits, 128, "fp16"), x)), test::square_sum(x)) << n;
  }
}
TEST(BlockIntDefect, Fp16ScalesOfTinyAndHugeBlocksStayFinite) {
  const auto codec = make(8, 128, "fp16");
  for (float size : {1e-30f, 1e-9f, 6e-8f, 1e-6f, 1.0f, 8e6f, 1e9f, 3e38f}) {
    std::vector<float> x(128, size / 3);
    x[0] = size;
    x[2] = -size * 0.99f;
    bool bad = true;
    const auto y = decode_floats(*codec, encode_bytes(*codec, x, law_msg(), &bad), 128);
    EXPECT_FALSE(bad);
    // What fp16 steps of 2^-24 (one code) to 65504 (code -128) can say; no element decodes above its size.
    const float nearest = std::min(size, 128.0f * 65504.0f);
    EXPECT_NEAR(y[0], nearest, std::max(nearest * 0.01f, 0x1p-25f)) << size;
    EXPECT_LE(y[2], 0.0f) << size;  // a huge element does not change its sign
    EXPECT_LE(std::fabs(y[1]), std::max(nearest, 0x1p-24f)) << size;
  }
  // bf16 has neither limit.
  for (float size : {1e-30f, 1e-9f, 1e9f, 3e38f}) {
    const std::vector<float> x(128, size);
    EXPECT_NEAR(round_trip(*make(8, 128, "bf16"), x)[5], size, size * 0x1p-7f);
  }
}

}  // namespace
}  // namespace thinwire::block_int_test
