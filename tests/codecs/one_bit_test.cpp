// one_bit: golden bytes, a float64 oracle for scales, and error feedback over many steps.
#include "compression/codec_table.h"
#include "compression/codecs/block_kernels.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::one_bit_test {
namespace {

using test::Bytes;
using test::decode_floats;
using test::encode_bytes;
using test::expect_hex;
using test::law_msg;
using test::round_trip;

std::shared_ptr<const Codec> make(int64_t block = 0) {
  return make_codec({"one_bit", {{"block", block}}}).codec;
}

TEST(OneBit, GoldenBytes) {
  const std::vector<float> x = {1, -2, 0, -0.0f, -1, 4, 3, -5, -2};  // sum |x| = 18; both zeros are +
  expect_hex(encode_bytes(*make(), x), "00000040 9201");             // 2; bits 1, 4, 7 and 8
  std::vector<float> blocks(65, -1.0f);
  blocks[64] = 8;
  expect_hex(encode_bytes(*make(64), blocks), "0000803f 00000041 ffffffffffffffff 00");
  blocks[3] = std::numeric_limits<float>::infinity();
  bool bad = false;
  expect_hex(encode_bytes(*make(64), blocks, law_msg(), &bad), "0000c07f 00000041 f7ffffffffffffff 00");
  EXPECT_TRUE(bad);
}

// It counts in no scale and decodes to zero, in a piece as in the whole. Before, flat messages of small tensors had
// scales that were far too small, and signs of nothing in their residuals.
TEST(OneBit, PaddingIsNoData) {
  const std::vector<ElementRange> padding = {{3, 2}, {7, 2}}, tail = {{70, 122}};
  const std::vector<float> x = {1, -2, 3, 0, 0, 4, -5, 0, 0}, part = {4, -5, 0, 0};
  Msg msg = law_msg();
  msg.padding = padding;
  expect_hex(encode_bytes(*make(), x, msg), "00004040 4200");  // 15 / 5
  EXPECT_EQ(round_trip(*make(), x, msg), (std::vector<float>{3, -3, 3, 0, 0, 3, -3, 0, 0}));
  const auto rms = make_codec({"one_bit", {{"magnitude", std::string("rms")}}}).codec;
  EXPECT_FLOAT_EQ(round_trip(*rms, x, msg)[1], -std::sqrt(11.0f));
  msg.first = 5;
  EXPECT_EQ(round_trip(*make(), part, msg), (std::vector<float>{4.5f, -4.5f, 0, 0}));
  // Blocks: without padding, with some, of nothing else.
  std::vector<float> blocks(192, 0.0f), sum(192, 0.0f);
  std::fill_n(blocks.begin(), 64, -1.0f), std::fill_n(blocks.begin() + 64, 6, 2.0f);
  std::fill_n(sum.begin(), 64, -2.0f), std::fill_n(sum.begin() + 64, 6, 4.0f);
  msg.first = 0;
  msg.padding = tail;
  const Bytes payload = encode_bytes(*make(64), blocks, msg);
  expect_hex(payload, "0000803f 00000040 00000000 ffffffffffffffff 00000000000000000000000000000000");
  const Bytes before = test::as_dtype(blocks, DType::f32);
  EXPECT_EQ(test::as_floats(test::decode_raw(*make(64), payload, before, DType::f32, true, msg), DType::f32), sum);
}

// Whole vectors as the tail above: both zeros and what is above are +, the least number below 0 is -.
TEST(OneBit, ZerosArePositiveInEveryLane) {
  for (int64_t i = 0; i < 128; ++i) {
    std::vector<float> x(128, 0.0f);
    for (int64_t j = 0; j < 128; j += 3) x[static_cast<size_t>(j)] = -0.0f;
    x[static_cast<size_t>(i)] = -std::numeric_limits<float>::denorm_min();
    const auto payload = encode_bytes(*make(), x);
    for (int64_t j = 0; j < 128; ++j)
      ASSERT_EQ(static_cast<int>(payload[static_cast<size_t>(4 + j / 8)]) >> (j % 8) & 1, j == i) << i << ", " << j;
  }
}

TEST(OneBit, ScalesEqualAFloat64Oracle) {
  std::mt19937 rng(4);
  for (int round = 0; round < 60; ++round) {
    const int64_t n = 1 + static_cast<int64_t>(rng() % 200000);
    const int64_t block = round % 3 == 0 ? 0 : 64 * (1 + static_cast<int64_t>(rng() % 100));
    const auto x = test::make_data(test::DataKind::kHeavyTail, n, static_cast<uint64_t>(round));
    const auto y = round_trip(*make(block), x);
    const int64_t size = block == 0 ? n : block;
    for (int64_t b = 0; b < n; b += size) {
      const int64_t end = std::min(n, b + size);
      long double sum = 0.0L;
      for (int64_t i = b; i < end; ++i) sum += std::fabs(static_cast<long double>(x[i]));
      const double scale = static_cast<double>(sum / static_cast<long double>(end - b));
      for (int64_t i = b; i < end; ++i)
        ASSERT_NEAR(y[i], x[i] < 0 ? -scale : scale, scale * 0x1p-23) << "element " << i;
    }
  }
}

TEST(OneBit, AllInstructionSetsGiveTheSameBits) {
  std::vector<const OneBitKernels*> sets = {&isa_avx2::one_bit_kernels};
  if (active_isa() != Isa::kAvx2) sets.push_back(&isa_avx512::one_bit_kernels);
  for (int64_t n = 1; n < 400; n += 3) {
    const auto x = test::make_data(test::DataKind::kHeavyTail, n, static_cast<uint64_t>(n));
    const size_t bytes = static_cast<size_t>(n + 7) / 8;
    std::vector<uint8_t> first(bytes);
    sets[0]->pack(x.data(), n, first.data());
    for (size_t s = 1; s < sets.size(); ++s) {
      EXPECT_EQ(sets[s]->sum_magnitudes(x.data(), n), sets[0]->sum_magnitudes(x.data(), n)) << n;
      std::vector<uint8_t> other(bytes);
      sets[s]->pack(x.data(), n, other.data());
      ASSERT_TRUE(first == other) << n;
      std::vector<float> a(x), b(x);
      sets[0]->unpack(first.data(), n, 0.3f, a.data(), n % 2);
      sets[s]->unpack(first.data(), n, 0.3f, b.data(), n % 2);
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << n;
    }
  }
}

TEST(OneBit, Laws) {
  test::check_codec_laws(*make(), {.extra_counts = {65535, 65537, 200001}, .fuzz = 40});
  test::check_codec_laws(*make(64), {.unit = 64, .fuzz = 40});
  test::check_codec_laws(*make(1024), {.unit = 1024, .fuzz = 40});
}

TEST(OneBit, WireBits) {
  EXPECT_EQ(make()->wire_bytes(1000001, DType::f32), 4u + 125001u);
  EXPECT_EQ(make(1024)->wire_bytes(1 << 20, DType::f32), (1u << 17) + 4096u);  // 1.03125 bits a value
  EXPECT_EQ(make()->traits().granule, 0);
  EXPECT_EQ(make(1024)->traits().granule, 4096);
}

// |x - decoded|^2 is (1 - r^2) |x|^2 with r = |x|_1 / (sqrt(n) |x|_2).
TEST(OneBit, ErrorsAreWhatTheContractSays) {
  for (test::DataKind kind : {test::DataKind::kGaussian, test::DataKind::kHeavyTail, test::DataKind::kOutliers}) {
    const auto x = test::make_data(kind, 100000);
    double one = 0.0;
    for (float v : x) one += std::fabs(static_cast<double>(v));
    const double square = test::square_sum(x), r = one / std::sqrt(square * static_cast<double>(x.size()));
    EXPECT_NEAR(test::square_distance(x, round_trip(*make(), x)) / square, 1.0 - r * r, 1e-5);
  }
}
TEST(OneBitDefect, PublishedScaleDoesNotContractOnOutliers) {  // 1-bit Adam's |x|_2 / sqrt(n)
  const auto x = test::make_data(test::DataKind::kOutliers, 1 << 16);
  const float published = static_cast<float>(std::sqrt(test::square_sum(x) / static_cast<double>(x.size())));
  std::vector<float> y(x);
  for (float& v : y) v = std::copysign(published, v);
  EXPECT_GT(test::square_distance(x, y), test::square_sum(x));
  EXPECT_LT(test::square_distance(x, round_trip(*make(), x)), test::square_sum(x));
  EXPECT_TRUE(make()->traits().contractive);
}

// e <- x + e - decoded, 1000 steps: sum of decoded = sum of x - e, so a bounded e is a mean that converges.
TEST(OneBit, ErrorFeedbackStaysBounded) {
  for (int64_t block : {0, 64}) {
    for (test::DataKind kind : {test::DataKind::kGaussian, test::DataKind::kHeavyTail}) {
      const auto codec = make(block);
      const int64_t n = 2048;
      std::vector<float> e(static_cast<size_t>(n));
      double early = 0.0, late = 0.0, signal = 0.0;
      for (int step = 0; step < 1000; ++step) {
        auto v = test::make_data(kind, n, static_cast<uint64_t>(step) + 1);
        signal += test::square_sum(v) / 1000.0;
        for (size_t i = 0; i < v.size(); ++i) v[i] += e[i];
        const auto y = round_trip(*codec, v);
        for (size_t i = 0; i < v.size(); ++i) e[i] = v[i] - y[i];
        if (step >= 200 && step < 400) early += test::square_sum(e) / 200.0;
        if (step >= 800) late += test::square_sum(e) / 200.0;
      }
      EXPECT_LT(late, 1.5 * early) << "block " << block << ", " << test::name_of(kind);
      EXPECT_LT(late, 50.0 * signal) << "block " << block << ", " << test::name_of(kind);
    }
  }
}

TEST(OneBit, RefusesWhatItCannotDo) {
  for (int64_t block : {1, 63, 100, -64, (1 << 20) + 64}) EXPECT_THROW(make(block), Error) << block;
  Bytes payload = encode_bytes(*make(), std::vector<float>{1, 2, 3});
  payload[3] |= std::byte{0x80};  // a negative scale
  EXPECT_THROW(decode_floats(*make(), payload, 3), Error);
}

}  // namespace
}  // namespace thinwire::one_bit_test
