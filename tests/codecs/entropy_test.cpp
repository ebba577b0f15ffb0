// Codec entropy against a decoder that reads its frames bit by bit from the description; ratios, limits, hostile
// frames.
#include <chrono>
#include <map>

#include "compression/codec_table.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::test::entropy_test {
namespace {

constexpr size_t kFrame = 32768;

std::shared_ptr<const Codec> entropy() {
  return make_codec({"entropy"}).codec;
}
uint32_t number(std::span<const std::byte> p, size_t at, size_t bytes) {
  uint32_t v = 0;
  for (size_t i = 0; i < bytes; ++i) v |= static_cast<uint32_t>(p[at + i]) << 8 * i;
  return v;
}

// The values of one frame of n elements of `dtype`, and how it is coded.
Bytes slow_frame(std::span<const std::byte> p, DType dtype, size_t n, int* mode = nullptr) {
  const size_t size = size_of(dtype);
  EXPECT_EQ(number(p, 0, 4), p.size());
  EXPECT_EQ(number(p, 5, 1), dtype == DType::f32 ? 0u : dtype == DType::bf16 ? 1u : 2u);
  const uint32_t kind = number(p, 4, 1), first = number(p, 6, 1), last = number(p, 7, 1);
  if (mode) *mode = static_cast<int>(kind);
  if (kind == 0) return Bytes(p.begin() + 8, p.end());
  std::vector<uint32_t> symbols(n, first);
  size_t rest = 8;
  if (kind == 1) {
    rest = 8 + 8 + (last - first + 2) / 2;
    // Canonical codes as text, from the most significant bit on.
    std::map<std::string, uint32_t> symbol_of;
    uint32_t next = 0;
    for (size_t length = 1; length <= 11; ++length, next <<= 1)
      for (uint32_t s = first; s <= last; ++s) {
        if ((number(p, 16 + (s - first) / 2, 1) >> (s - first) % 2 * 4 & 15) != length) continue;
        std::string code;
        for (size_t i = length; i-- > 0;) code += next >> i & 1u ? '1' : '0';
        symbol_of[code] = s;
        ++next;
      }
    const size_t quarter = (n + 3) / 4;
    size_t at = rest + n * (size - 1);
    for (size_t q = 0; q < 4; ++q) {
      const size_t bytes = number(p, 8 + 2 * q, 2);
      size_t bit = 0;
      for (size_t i = q * quarter; i < std::min(n, (q + 1) * quarter); ++i) {
        std::string code;
        while (!symbol_of.contains(code)) {
          EXPECT_LT(bit, 8 * bytes);
          if (bit >= 8 * bytes) return {};
          code += number(p, at + bit / 8, 1) >> bit % 8 & 1 ? '1' : '0';
          ++bit;
        }
        symbols[i] = symbol_of[code];
      }
      EXPECT_EQ((bit + 7) / 8, bytes);
      at += bytes;
    }
    EXPECT_EQ(at, p.size());
  }
  Bytes out(n * size);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t upper = number(p, rest + i, 1);
    uint32_t v = (upper & 0x80) << 8 | symbols[i] << 7 | (upper & 0x7f);
    if (dtype == DType::f16) v = symbols[i] << 8 | upper;
    if (dtype == DType::f32) v = v << 16 | number(p, rest + n + 2 * i, 2);
    for (size_t k = 0; k < size; ++k) out[size * i + k] = static_cast<std::byte>(v >> 8 * k);
  }
  return out;
}
Bytes slow_decode(std::span<const std::byte> p, DType dtype, size_t n) {
  Bytes out;
  for (size_t first = 0; first < n; first += kFrame) {
    const size_t bytes = number(p, 0, 4);
    const Bytes part = slow_frame(p.first(bytes), dtype, std::min(kFrame, n - first));
    out.insert(out.end(), part.begin(), part.end());
    p = p.subspan(bytes);
  }
  EXPECT_TRUE(p.empty());
  return out;
}
void expect_round_trip(const Bytes& x, DType dtype, int expected_mode = -1) {
  const auto codec = entropy();
  const size_t n = x.size() / size_of(dtype);
  const Bytes payload = encode_raw(*codec, x, dtype, law_msg());
  EXPECT_TRUE(decode_raw(*codec, payload, Bytes(x.size()), dtype, false, law_msg()) == x);
  EXPECT_TRUE(slow_decode(payload, dtype, n) == x);
  if (expected_mode >= 0) {
    int mode = -1;
    slow_frame(std::span(payload).first(number(payload, 0, 4)), dtype, std::min(n, kFrame), &mode);
    EXPECT_EQ(mode, expected_mode);
  }
}
double ratio(std::span<const float> x, DType dtype) {
  const Bytes raw = as_dtype(x, dtype);
  return static_cast<double>(raw.size()) / static_cast<double>(encode_raw(*entropy(), raw, dtype, law_msg()).size());
}

TEST(EntropyTest, Laws) {
  LawOptions options;
  options.extra_counts = {4, 5, 6, 7, 79, 80, 81, 200};
  check_codec_laws(*entropy(), options);
}

TEST(EntropyTest, Golden) {
  std::vector<float> x(24);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 ? 1.0f : i % 4 ? -2.0f : 4.5f;
  expect_hex(encode_raw(*entropy(), as_dtype(x, DType::bf16), DType::bf16, law_msg()),
             "32000000 01 01 7f 81 0200 0200 0200 0200 2102 100080001000800010008000100080001000800010008000 cb00 5900 "
             "cb00 5900");
  expect_hex(encode_bytes(*entropy(), std::span(x).first(2)), "10000000 00 00 00 00 00009040 0000803f");
  expect_hex(encode_bytes(*entropy(), std::vector<float>{1.0f, 1.5f}), "0e000000 02 00 7f 7f 0040 00000000");
}

TEST(EntropyTest, FramesAreThoseOfTheDescription) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 60; ++i) {
    const auto kind = kDataKinds[rng() % 5];
    const DType dtype = i % 3 == 0 ? DType::f32 : i % 3 == 1 ? DType::bf16 : DType::f16;
    expect_round_trip(as_dtype(make_data(kind, 1 + static_cast<int64_t>(rng() % 5000), rng()), dtype), dtype);
    if (HasFailure()) return;
  }
  expect_round_trip(as_dtype(make_data(DataKind::kGaussian, 100000), DType::bf16), DType::bf16, 1);
}

// Every size, with streams so short that no fast loop runs and so long that all do.
TEST(EntropyTest, EverySize) {
  const auto codec = entropy();
  const Bytes x = as_dtype(make_data(DataKind::kGaussian, 1500), DType::bf16);
  for (size_t n = 1; n <= 1500; ++n) {
    const std::span part(x.data(), 2 * n);
    const Bytes payload = encode_raw(*codec, part, DType::bf16, law_msg());
    const Bytes y = decode_raw(*codec, payload, Bytes(2 * n), DType::bf16, false, law_msg());
    ASSERT_TRUE(std::equal(y.begin(), y.end(), part.begin(), part.end())) << n;
  }
}

// Counts 1, 1, 2, 3, 5, 8, ... want codes as long as there are symbols; 256 equal ones want 8 bits each.
TEST(EntropyTest, CodesAreCutToElevenBitsAndStayComplete) {
  for (int symbols : {2, 3, 12, 13, 18, 256}) {
    Bytes x;
    const auto put = [&x](int exponent, int times) {
      for (int i = 0; i < times; ++i) {
        x.push_back(static_cast<std::byte>(exponent << 7));
        x.push_back(static_cast<std::byte>(exponent >> 1));
      }
    };
    int a = 1, b = 1;
    for (int s = 0; s < symbols; ++s) {
      put(s, symbols == 256 ? 100 : a);
      const int next = symbols == 256 ? 1 : a + b;
      a = b, b = next;
    }
    expect_round_trip(x, DType::bf16, symbols == 256 ? 0 : symbols == 2 ? 0 : -1);
    // The same, shuffled, so that quarters look alike and codes of all lengths meet.
    std::vector<uint16_t> values(x.size() / 2);
    std::memcpy(values.data(), x.data(), x.size());
    std::mt19937 rng(static_cast<unsigned>(symbols));
    std::shuffle(values.begin(), values.end(), rng);
    std::memcpy(x.data(), values.data(), x.size());
    expect_round_trip(x, DType::bf16);
  }
  // One rare symbol among many distinct ones: deep trees of another shape.
  std::mt19937_64 rng(7);
  for (int i = 0; i < 40; ++i) {
    std::vector<uint16_t> values(3000 + rng() % 30000);
    const double steep = 0.05 + 0.1 * static_cast<double>(rng() % 20);
    for (auto& v : values) {
      const double u = static_cast<double>((rng() >> 11) + 1) * 0x1p-53;
      const int exponent = std::min(255, static_cast<int>(-std::log(u) / steep));
      v = static_cast<uint16_t>((rng() & 0x807f) | static_cast<uint64_t>(exponent) << 7);
    }
    Bytes x(2 * values.size());
    std::memcpy(x.data(), values.data(), x.size());
    expect_round_trip(x, DType::bf16);
    if (HasFailure()) return;
  }
}

TEST(EntropyTest, ConstantExponentsCostNothingAndRandomBitsEightBytesAFrame) {
  const size_t n = 3 * kFrame + 11;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Bytes zeros(n * size_of(dtype));
    EXPECT_EQ(encode_raw(*entropy(), zeros, dtype, law_msg()).size(), n * (size_of(dtype) - 1) + 4 * 8);
    expect_round_trip(zeros, dtype, 2);
    Bytes noise(zeros.size());
    std::mt19937_64 rng(2);
    for (std::byte& b : noise) b = static_cast<std::byte>(rng());
    EXPECT_EQ(encode_raw(*entropy(), noise, dtype, law_msg()).size(), entropy()->wire_bytes(n, dtype));
    EXPECT_EQ(entropy()->wire_bytes(n, dtype), n * size_of(dtype) + 4 * 8);
    expect_round_trip(noise, dtype, 0);
  }
}

TEST(EntropyTest, NonFiniteValuesTravelAndRaiseTheFlag) {
  std::vector<float> x = make_data(DataKind::kGaussian, 5000);
  const uint32_t specials[] = {0x7f800001u, 0xffc12345u, 0x7f800000u, 0xff800000u, 0x7fffffffu};
  for (size_t i = 0; i < 5; ++i) x[900 * i + 3] = std::bit_cast<float>(specials[i]);
  bool bad = false;
  const Bytes raw = as_dtype(x, DType::f32), payload = encode_raw(*entropy(), raw, DType::f32, law_msg(), &bad);
  EXPECT_TRUE(bad);
  EXPECT_TRUE(decode_raw(*entropy(), payload, Bytes(raw.size()), DType::f32, false, law_msg()) == raw);
}

// Entropy bound of Gaussian exponents (2.55 bits): bf16 1.52, fp32 1.21.
TEST(EntropyTest, RatiosOnGaussianData) {
  const std::vector<float> x = make_data(DataKind::kGaussian, 1 << 20);
  for (DataKind kind : kDataKinds) {
    const std::vector<float> y = make_data(kind, 1 << 20);
    std::printf("%-10s bf16 %.3f  fp32 %.3f  fp16 %.3f\n", name_of(kind), ratio(y, DType::bf16), ratio(y, DType::f32),
                ratio(y, DType::f16));
  }
  EXPECT_GE(ratio(x, DType::bf16), 1.45);
  EXPECT_LE(ratio(x, DType::bf16), 1.53);
  EXPECT_GE(ratio(x, DType::f32), 1.18);
  EXPECT_LE(ratio(x, DType::f32), 1.215);
  EXPECT_GE(ratio(x, DType::f16), 1.15);
}

TEST(EntropyTest, HostileFramesAreRefused) {
  const auto codec = entropy();
  constexpr size_t n = 4000;
  const Bytes x = as_dtype(make_data(DataKind::kGaussian, n), DType::bf16);
  const Bytes good = encode_raw(*codec, x, DType::bf16, law_msg());
  const auto refused = [&](const Bytes& p, DType dtype = DType::bf16, size_t count = 4000) {
    EXPECT_THROW(decode_raw(*codec, p, Bytes(count * size_of(dtype)), dtype, false, law_msg()), Error);
  };
  const auto with = [&](size_t at, int value) {
    Bytes p = good;
    p[at] = static_cast<std::byte>(value);
    return p;
  };
  ASSERT_EQ(number(good, 4, 1), 1u);
  refused(with(0, static_cast<int>(good[0]) ^ 1));  // length
  refused(with(3, 255));                            // length beyond the end
  refused(with(4, 3));                              // no such mode
  refused(with(4, 0));                              // raw, but too short for it
  refused(with(4, 2));                              // constant, but too long for it
  refused(with(5, 2));                              // fp16 where bf16 is wanted
  refused(with(5, 7));                              // no such dtype
  refused(with(6, static_cast<int>(good[7]) + 1));  // first symbol behind the last
  refused(with(8, static_cast<int>(good[8]) ^ 1));  // streams that do not add up
  const size_t table = (number(good, 7, 1) - number(good, 6, 1) + 2) / 2;
  for (size_t at = 16; at < 16 + table; ++at) {
    refused(with(at, static_cast<int>(good[at]) ^ 0x01));  // codes that do not fill the table
    refused(with(at, 0xff));                               // codes of 15 bits
  }
  Bytes moved = good;  // one byte from the second quarter to the first
  moved[8] = static_cast<std::byte>(number(good, 8, 1) + 1);
  moved[10] = static_cast<std::byte>(number(good, 10, 1) - 1);
  refused(moved);
  refused(good, DType::f16);
  for (size_t count : {n - 1, n + 1, n / 2, n + kFrame}) refused(good, DType::bf16, count);
  Bytes longer = good;  // a byte behind the last quarter that nobody needs
  longer.push_back(std::byte{0});
  longer[0] = static_cast<std::byte>(number(good, 0, 1) + 1);
  longer[14] = static_cast<std::byte>(number(good, 14, 1) + 1);
  ASSERT_TRUE(number(good, 0, 1) < 255 && number(good, 14, 1) < 255);
  refused(longer);
  Bytes shorter(good.begin(), good.end() - 1);
  refused(shorter);
  refused({});
}

// --gtest_also_run_disabled_tests --gtest_filter='*Speed*': one core, best of 9, GB/s of input.
TEST(EntropyTest, DISABLED_Speed) {
  const int64_t n = 1 << 20;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Bytes x = as_dtype(make_data(DataKind::kGaussian, n), dtype);
    const auto codec = entropy();
    Bytes payload(codec->wire_bytes(n, dtype)), y(x.size()), wide(4 * static_cast<size_t>(n));
    double best[3] = {1e9, 1e9, 1e9};
    for (int round = 0; round < 9; ++round) {
      const auto time = [&](int which, auto f) {
        const auto start = std::chrono::steady_clock::now();
        f();
        best[which] =
            std::min(best[which], std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      };
      size_t length = 0;
      time(0, [&] {
        length = codec->encode({}, View(const_cast<std::byte*>(x.data()), dtype, {n}), payload, nullptr).bytes;
      });
      time(1, [&] { codec->decode({}, std::span(payload).first(length), View(y.data(), dtype, {n}), false); });
      time(2, [&] { codec->decode({}, std::span(payload).first(length), View(wide.data(), DType::f32, {n}), true); });
    }
    EXPECT_TRUE(x == y);
    const double bytes = 1e-9 * static_cast<double>(x.size());
    std::printf("%s: encode %.2f GB/s, decode %.2f GB/s, decode and add to fp32 %.2f GB/s\n",
                std::string(name_of(dtype)).c_str(), bytes / best[0], bytes / best[1], bytes / best[2]);
    EXPECT_GE(bytes / best[0], 0.5);
    EXPECT_GE(bytes / best[1], 0.5);
  }
}

}  // namespace
}  // namespace thinwire::test::entropy_test
