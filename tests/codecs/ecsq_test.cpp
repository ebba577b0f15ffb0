// ecsq: golden bytes, its definition and its length whatever the data, fidelity, contraction, damaged frames.
#include <array>
#include <map>
#include <numbers>
#include <queue>

#include "compression/codec_table.h"
#include "compression/codecs/ecsq_kernel.h"
#include "compression/codecs/huffman.h"
#include "engine/base/core/crc32c.h"
#include "tests/codecs/codec_laws.h"
#include "tests/codecs/ecsq_frames.h"

namespace thinwire::test::ecsq_test {
namespace {

TEST(Ecsq, EveryKindFitsAndIsItsDefinition) {
  const size_t sizes[] = {0,   1,   2,   3,   63,  64,   65,   127,  191,  192,  255,  256,  257, 511,
                          512, 513, 575, 576, 577, 1000, 2047, 3333, 4095, 4096, 4097, 4159, 5000};
  const double rates[] = {1.0, 1.25, 1.5, 1.99, 2.0, 2.37, 2.5, 3.0, 3.99, 4.0, 5.0};
  const size_t blocks[] = {64, 128, 192, 256, 4096};
  size_t at = 0;
  for (const Kind& kind : kinds())
    for (const size_t n : sizes)
      for (int round = 0; round < 3; ++round, ++at) {
        const double rate = rates[at % std::size(rates)];
        const size_t block = blocks[at % std::size(blocks)];
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(n) + " elements, rate " + std::to_string(rate) +
                     ", block " + std::to_string(block));
        check(data_of(kind, n, static_cast<unsigned>(at)), rate, block);
        if (HasFailure()) return;
      }
}

TEST(Ecsq, EveryKindFitsInWholeFrames) {
  std::map<int, int> modes;
  for (const Kind& kind : kinds())
    for (const size_t n : {kFrame - 1, kFrame, kFrame + 1, 2 * kFrame + 513})
      for (const auto& [rate, block] :
           {std::pair(1.0, size_t{256}), std::pair(1.25, size_t{256}), std::pair(2.0, size_t{64}),
            std::pair(2.5, size_t{256}), std::pair(5.0, size_t{4096})}) {
        if (n != kFrame && rate > 2.0) continue;
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(n) + " elements, rate " + std::to_string(rate));
        const auto frames = check(data_of(kind, n), rate, block);
        for (const Frame& f : frames)
          if (f.q.size() >= kFrame - 1) ++modes[f.mode];
        if (kind.name == std::string(rate < 2.0 ? "two values" : "stubborn") && (rate == 1.0 || rate == 2.0)) {
          EXPECT_EQ(frames[0].mode, kFixed);
        }
        if (HasFailure()) return;
      }
  for (const int mode : {kFixed, kHuffman, kConstant, kPaired})
    EXPECT_GT(modes[mode], 0) << "no frame of mode " << mode;
}

// ---- bytes ----------------------------------------------------------------------------------------------------------
TEST(Ecsq, GoldenBytes) {
  // Mean 1. Notch 6, a step of 1.542: integers 1 -1 0 1 -1 1 0 1, two bits each.
  const std::vector<float> x = {1, -1, 0, 2, -2, 1, 0, 1};
  expect_hex(encode_bytes(*make(2), x), "00060000 0000 0000 0000 0000 00000000 803f ff 4d47");
  // Notch 21, a step of 0.805: integers 2 -1 0 1 2, three bits each; 3.5 bits leave a byte over.
  const std::vector<float> y = {2, -1, 0, 0.5f, 1.5f};
  expect_hex(encode_bytes(*make(3), y), "00150000 0000 0000 0000 0000 00000000 803f ff 3a22");
  expect_hex(encode_bytes(*make(3.5), y), "00150000 0000 0000 0000 0000 00000000 803f ff 3a2200");
  // Three blocks: 2, eight times (24 steps) smaller, nothing.
  std::vector<float> z(130, 2.0f);
  for (size_t i = 64; i < z.size(); ++i) z[i] = i < 128 ? 0.25f : 0.0f;
  const Bytes many = encode_bytes(*make(2), z);
  expect_hex(std::span(many).subspan(kHead, 5), "0040 ff e7 00");
  // Symbols of one kind: a unit is 32 of the finest steps.
  const Bytes constant = encode_bytes(*make(3), std::vector<float>(512, 1.0f));
  expect_hex(std::span(constant).first(26), "0260a0a0 0000 0000 0000 0000 00000000 803f ffffffffffffffff");
  for (size_t i = 26; i < constant.size(); ++i) EXPECT_EQ(constant[i], std::byte{0});
  // Two symbols, 96 (code 0) and 160 (code 1), in turns: a table of 65 nibbles, streams of 16 bytes.
  std::vector<float> turns(512, 1.0f);
  for (size_t i = 1; i < turns.size(); i += 2) turns[i] = -1.0f;
  std::string expected = "016060a0 1000 1000 1000 1000 00000000 803f ffffffffffffffff 01";
  for (int i = 0; i < 31; ++i) expected += "00";
  expected += "01";
  for (int i = 0; i < 64; ++i) expected += "55";
  for (int i = 0; i < 192 - 33 - 64; ++i) expected += "00";
  expect_hex(encode_bytes(*make(3), turns), expected);
  // Not finite.
  bool bad = false;
  std::vector<float> nan = x;
  nan[3] = std::numeric_limits<float>::quiet_NaN();
  expect_hex(encode_bytes(*make(2), nan, law_msg(), &bad), "02008080 0000 0000 0000 0000 00000000 c07f 00 0000");
  EXPECT_TRUE(bad);
}

// A whole frame, from numbers that are the same everywhere.
TEST(Ecsq, GoldenFrame) {
  std::vector<float> x(kFrame);
  uint64_t state = 1;
  for (float& v : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<int>(state >> 32 & 255) + static_cast<int>(state >> 40 & 255) +
                           static_cast<int>(state >> 48 & 255) + static_cast<int>(state >> 56) - 510);
  }
  const auto frames = check(x, 2.5, 64);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].mode, kHuffman);
  const Bytes payload = encode_bytes(*make(2.5), x);
  ASSERT_EQ(payload.size(), 16u + 2u + 512u + 10240u);
  expect_hex(std::span(payload).first(24), "0111 7c85 fa09 f809 e709 e809 00000000 1543 fcfcfcfdfbfd");
  EXPECT_EQ(crc32c_table(payload), 0x69bb1754u);
}

TEST(Ecsq, ThreadsWriteTheSameBytes) {
  const auto x = make_data(DataKind::kHeavyTail, 3 * static_cast<int64_t>(kFrame) + 777);
  const auto codec = make(2.25, 128);
  const Bytes one = encode_bytes(*codec, x);
  for (const int threads : {2, 3, 8}) EXPECT_TRUE(encode_bytes(*codec, x, law_msg(threads)) == one);
}

TEST(Ecsq, AllInstructionSetsWriteTheSameBytes) {
  std::vector<const EcsqKernels*> sets = {&isa_avx2::ecsq_kernels};
  std::vector<const HuffmanKernels*> coders = {&isa_avx2::huffman_kernels};
  if (active_isa() != Isa::kAvx2) {
    sets.push_back(&isa_avx512::ecsq_kernels);
    coders.push_back(&isa_avx512::huffman_kernels);
  }
  struct Result {
    bool finite = false;
    std::vector<uint8_t> units, symbols;
    std::vector<float> inverses, out;
    float reach = 0.0f;
    int64_t seen = 0;
    std::vector<uint32_t> bins;
    std::vector<uint32_t> counts;
    std::array<std::vector<std::byte>, 4> streams;
  };
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    const int64_t blocks[] = {64, 128, 192, 256, 4096};
    const int64_t block = blocks[rng() % std::size(blocks)], n = 1 + static_cast<int64_t>(rng() % 9000);
    auto x = data_of(kinds()[rng() % kinds().size()], static_cast<size_t>(n), rng());
    if (round % 8 == 0) x[rng() % x.size()] = std::bit_cast<float>(static_cast<uint32_t>(0xffffffffu - rng() % 3));
    const float fineness = std::exp2(static_cast<float>(rng() % 96) / 16.0f - 1.0f);
    const float share = round % 3 ? 2.0f : 0.5f, less = round % 3 ? 0.0f : 0.1f, most = round % 3 ? 127.0f : 7.0f;
    const bool accumulate = round % 2 == 0;
    std::vector<Result> results;
    for (size_t s = 0; s < sets.size(); ++s) {
      Result r;
      const auto count = static_cast<size_t>((n + block - 1) / block);
      r.units.assign(count + 2, 0xee);
      r.inverses.assign(count, -1.0f);
      r.finite = sets[s]->units(x.data(), n, block, share, r.units.data(), r.inverses.data(), &r.reach);
      r.symbols.assign(x.size(), 0xee);
      r.out.assign(x.size(), 0.5f);
      if (r.finite) {
        r.bins.assign(kEcsqBins, 7);
        r.seen =
            sets[s]->sample(x.data(), n, block, r.inverses.data(), 1 + static_cast<int64_t>(round % 4), r.bins.data());
        sets[s]->quantize(x.data(), n, block, r.inverses.data(), fineness, less, most, r.symbols.data());
      } else {
        r.reach = 0.0f, r.inverses.clear();
      }
      ASSERT_TRUE(sets[s]->restore(r.symbols.data(), n, block, r.units.data(), 0.3f, r.out.data(), accumulate));
      // Streams of at least two symbols.
      r.symbols[0] = 128, r.symbols.push_back(129);
      const auto m = static_cast<int64_t>(r.symbols.size());
      uint32_t counts[4][256];
      coders[s]->count(r.symbols.data(), m, counts);
      r.counts.assign(&counts[0][0], &counts[0][0] + 1024);
      std::array<uint32_t, 256> all{};
      for (size_t i = 0; i < 1024; ++i) all[i % 256] += r.counts[i];
      const HuffmanLengths lengths = huffman_lengths(all);
      const auto codes = huffman_codes(lengths);
      std::byte* to[4];
      const std::byte* from[4];
      size_t bytes[4];
      for (size_t q = 0; q < 4; ++q) {
        size_t bits = 0;
        for (size_t i = 0; i < 256; ++i) bits += size_t{counts[q][i]} * lengths[i];
        bytes[q] = (bits + 7) / 8;
        r.streams[q].assign(bytes[q] + 1, std::byte{0xee});
        from[q] = to[q] = r.streams[q].data();
      }
      coders[s]->encode(r.symbols.data(), m, codes.data(), to, bytes);
      for (size_t q = 0; q < 4; ++q) ASSERT_EQ(r.streams[q].back(), std::byte{0xee}) << "wrote behind a stream";
      std::vector<uint8_t> back(r.symbols.size());
      ASSERT_TRUE(coders[s]->decode(from, bytes, codes.data(), m, back.data()));
      ASSERT_TRUE(back == r.symbols);
      results.push_back(std::move(r));
    }
    for (size_t s = 1; s < results.size(); ++s) {
      const Result &a = results[0], &b = results[s];
      ASSERT_EQ(a.finite, b.finite);
      ASSERT_TRUE(a.units == b.units) << "round " << round;
      ASSERT_TRUE(a.inverses == b.inverses);
      ASSERT_EQ(a.reach, b.reach);
      ASSERT_EQ(a.seen, b.seen);
      ASSERT_TRUE(a.bins == b.bins);
      ASSERT_TRUE(a.symbols == b.symbols);
      ASSERT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.size() * 4), 0) << "round " << round;
      ASSERT_TRUE(a.counts == b.counts);
      ASSERT_TRUE(a.streams == b.streams);
    }
  }
}

// Two symbols at a time: the same streams as one by one.
TEST(Ecsq, PairsWriteTheStreamsOfTheirSymbols) {
  std::vector<const HuffmanKernels*> sets = {&isa_avx2::huffman_kernels};
  if (active_isa() != Isa::kAvx2) sets.push_back(&isa_avx512::huffman_kernels);
  std::mt19937 rng(8);
  for (int round = 0; round < 400; ++round) {
    const auto base = static_cast<uint8_t>(rng() % 240);
    const size_t n = 8 * (1 + rng() % (round % 2 ? 8 : 600));
    const uint32_t skew = rng() % 5;  // the most skewed have codes of 11 bits, 22 a pair
    std::vector<uint8_t> symbols(n);
    for (uint8_t& s : symbols) {
      const uint32_t run = static_cast<uint32_t>(std::countr_zero(rng() | 0x8000u));
      s = static_cast<uint8_t>(base + (skew == 0 ? rng() % 16 : std::min(15u, run * 4 / skew)));
    }
    symbols[0] = base, symbols[n - 1] = static_cast<uint8_t>(base + 15);
    std::array<uint32_t, 256> all{};
    for (const uint8_t s : symbols) ++all[s];
    const HuffmanLengths lengths = huffman_lengths(all);
    const auto codes = huffman_codes(lengths);
    std::array<uint32_t, 256> both;
    uint32_t longest = 0;
    for (uint32_t p = 0; p < 256; ++p) {
      const uint32_t first = codes[base + p % 16], second = codes[base + p / 16];
      const uint32_t length = (first >> 16) + (second >> 16);
      both[p] = (first & 0xffff) | (second & 0xffff) << (first >> 16) | length << 24;
      longest = std::max(longest, length);
    }
    size_t bytes[4];
    for (size_t q = 0; q < 4; ++q) {
      size_t bits = 0;
      for (size_t i = q * n / 4; i < (q + 1) * n / 4; ++i) bits += lengths[symbols[i]];
      bytes[q] = (bits + 7) / 8;
    }
    for (const HuffmanKernels* kernels : sets) {
      std::vector<uint8_t> pairs(n / 2 + 1, 0xee);
      kernels->pair(symbols.data(), static_cast<int64_t>(n), base, pairs.data());
      ASSERT_EQ(pairs.back(), 0xee);
      std::vector<uint8_t> back(n + 1, 0xee);
      kernels->unpair(pairs.data(), static_cast<int64_t>(n), base, back.data());
      ASSERT_EQ(back.back(), 0xee);
      ASSERT_TRUE(std::equal(symbols.begin(), symbols.end(), back.begin()));
      // Each quarter ends where it must: the next one follows.
      Fenced one(bytes[0] + bytes[1] + bytes[2] + bytes[3]), two(one.size());
      std::byte *to_one[4], *to_two[4];
      for (size_t q = 0, at = 0; q < 4; at += bytes[q++]) to_one[q] = one.data() + at, to_two[q] = two.data() + at;
      kernels->encode(symbols.data(), static_cast<int64_t>(n), codes.data(), to_one, bytes);
      kernels->encode_pairs(pairs.data(), static_cast<int64_t>(n / 2), both.data(), longest, to_two, bytes);
      ASSERT_EQ(std::memcmp(one.data(), two.data(), one.size()), 0) << n << " symbols, longest " << longest;
    }
  }
}

TEST(Ecsq, RoundTripIsWhatDecodingGives) {
  for (const Kind& kind : kinds())
    for (const size_t n : {size_t{7}, size_t{512}, size_t{1001}, size_t{4096}, kFrame + 700})
      for (const double rate : {1.25, 2.0, 3.5}) {
        const auto codec = make(rate, 128);
        std::vector<float> x = data_of(kind, n);
        const Bytes payload = encode_bytes(*codec, x);
        const auto y = decode_floats(*codec, payload, static_cast<int64_t>(n));
        Fenced in(x.data(), 4 * n), out(payload.size()), apart(4 * n);
        for (const View decoded : {apart.view(DType::f32), in.view(DType::f32)}) {  // the second one in place
          const Encoded e = codec->round_trip(law_msg(3), in.view(DType::f32), out.span(), nullptr, decoded);
          EXPECT_FALSE(e.non_finite);
          ASSERT_EQ(e.bytes, payload.size());
          ASSERT_TRUE(std::ranges::equal(out.span(), payload)) << kind.name << ", " << n << " elements";
          ASSERT_EQ(std::memcmp(decoded.as<float>(), y.data(), 4 * n), 0) << kind.name << ", " << n << " elements";
        }
      }
}

TEST(Ecsq, Laws) {
  const LawOptions options{.extra_counts = {511, 512, 513, 2049}, .unit = 64, .huge_overflows = true, .fuzz = 40};
  for (const double rate : {1.0, 1.5, 2.0, 2.3, 3.0, 5.0}) check_codec_laws(*make(rate), options);
  check_codec_laws(*make(3.5, 4096), options);
}

// ---- Huffman codes --------------------------------------------------------------------------------------------------
// Bits of the best prefix code: merge the two lightest.
template <typename T>
T huffman_cost(const std::vector<T>& weights) {
  std::priority_queue<T, std::vector<T>, std::greater<T>> heap;
  for (const T w : weights)
    if (w > T{}) heap.push(w);
  T cost{};
  while (heap.size() > 1) {
    T w = heap.top();
    heap.pop();
    w += heap.top();
    heap.pop();
    heap.push(w);
    cost += w;
  }
  return cost;
}

TEST(Ecsq, HuffmanCodesAreTheShortest) {
  std::mt19937 rng(3);
  int exact = 0;
  for (int round = 0; round < 500; ++round) {
    std::array<uint32_t, 256> counts{};
    const size_t symbols = 2 + rng() % 255;
    for (size_t k = 0; k < symbols; ++k)
      counts[rng() % 256] = static_cast<uint32_t>(round % 2 ? 100 + rng() % 900 : 1 + rng() % (1u << rng() % 15));
    counts[3] += 100, counts[200] += 100;
    const HuffmanLengths lengths = huffman_lengths(counts);
    ASSERT_TRUE(huffman_complete(lengths));
    uint64_t cost = 0, total = 0;
    int longest = 0;
    for (size_t s = 0; s < 256; ++s) {
      ASSERT_EQ(lengths[s] > 0, counts[s] > 0);
      cost += uint64_t{counts[s]} * lengths[s];
      total += counts[s];
      longest = std::max<int>(longest, lengths[s]);
    }
    ASSERT_LE(longest, kHuffmanBits);
    const uint64_t best = huffman_cost(std::vector<uint64_t>(counts.begin(), counts.end()));
    ASSERT_GE(cost, best);
    // Where no code reaches the limit nothing was cut.
    if (longest < kHuffmanBits) {
      ++exact;
      ASSERT_EQ(cost, best);
    } else {
      // A code of at most 11 bits that is a bit longer than its entropy there always is, with at most 256 symbols.
      ASSERT_LE(cost, best + total);
    }
  }
  EXPECT_GT(exact, 50);
  // Lengths that would be 25 and more.
  std::array<uint32_t, 256> fibonacci{};
  uint32_t a = 1, b = 1;
  for (size_t s = 0; s < 26; ++s, b += a, a = b - a) fibonacci[s] = a;
  EXPECT_TRUE(huffman_complete(huffman_lengths(fibonacci)));
  HuffmanLengths lengths{};
  EXPECT_FALSE(huffman_complete(lengths));
  lengths[7] = 1;
  EXPECT_FALSE(huffman_complete(lengths));
  lengths[8] = 2, lengths[9] = 2;
  EXPECT_TRUE(huffman_complete(lengths));
  lengths[10] = 11;
  EXPECT_FALSE(huffman_complete(lengths));
  lengths[9] = lengths[10] = 3, lengths[11] = 12;
  EXPECT_FALSE(huffman_complete(lengths));
}

// ---- fidelity -------------------------------------------------------------------------------------------------------
// Of normal numbers on the grid of a notch, the unit being their exact mean magnitude: bits of the best Huffman code,
// of pairs below 2 bits, and decibels. Midpoint sums.
struct GridOfNormal {
  double bits, db;
};
GridOfNormal grid_of_normal(int notch, bool in_pairs) {
  const double step = std::exp2(1.0 - notch / 16.0) * std::sqrt(2 / std::numbers::pi);
  constexpr double kWidth = 1e-3;
  std::map<int, double> share;
  double error = 0.0;
  for (double x = -9.0 + kWidth / 2; x < 9.0; x += kWidth) {
    const double p = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi) * kWidth;
    const double q = std::nearbyint(x / step - std::copysign(in_pairs ? 0.1 : 0.0, x));
    share[static_cast<int>(q)] += p;
    error += p * (x - q * step) * (x - q * step);
  }
  std::vector<double> weights;
  for (const auto& [q, p] : share)
    if (in_pairs)
      for (const auto& [other, at] : share) weights.push_back(p * at);
    else
      weights.push_back(p);
  return {huffman_cost(weights) / (in_pairs ? 2 : 1), -10 * std::log10(error)};
}

// What the search may lose: it decides by entropy and 0.04 bits for the code, on a sample, and goes on by sixteenths of
// a bit, so that it may come to rest a notch beyond the best.
TEST(Ecsq, NormalNumbersHaveTheFinestGridButOne) {
  const auto x = make_data(DataKind::kGaussian, 8 * static_cast<int64_t>(kFrame));
  for (const double rate : {1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0}) {
    const bool in_pairs = rate < 2;
    int finest = in_pairs ? -8 : 4;
    while (finest < 96 && grid_of_normal(finest + 1, in_pairs).bits <= rate) ++finest;
    EXPECT_GE(snr_db(x, round_trip(*make(rate, 256), x)), grid_of_normal(finest - 1, in_pairs).db) << "rate " << rate;
  }
}

// A frame's levels are as many as it needs: more than those of the same number of fixed bits where these are best.
TEST(Ecsq, LosesLessThanFixedLevels) {
  const int64_t n = 8 * static_cast<int64_t>(kFrame);
  for (const int64_t bits : {3, 4}) {
    const auto fixed = make_codec({"lloyd_max", {{"bits", bits}, {"block", 256}}}).codec;
    for (const DataKind kind : {DataKind::kGaussian, DataKind::kHeavyTail}) {
      const auto x = make_data(kind, n);
      EXPECT_GT(snr_db(x, round_trip(*make(static_cast<double>(bits), 256), x)), snr_db(x, round_trip(*fixed, x)))
          << bits << " bits, " << name_of(kind);
    }
  }
}

// Half of the coarsest step is 0.841 units, a unit at most 2^(1/16) means: of a block's magnitudes at most 0.878 stay
// behind where nothing is cut, whatever is in it, so the residual's never exceed 0.878 / 0.122 = 7.2 times the input's.
// In short messages (fixed codes, 64 elements a block) all but one element may stay as they are, and of that one,
// which is at least a mean, 0.37 of 0.957 goes: 180 times. Below 2 bits all but the largest element may stay, too: of
// it, at least 1.72 units, 0.61 go, and a unit is 0.957 means of 64 elements: 108 times. (Signs of short messages
// contract in the sum of squares alone.)
TEST(Ecsq, ErrorFeedbackContracts) {
  std::mt19937 rng(11);
  for (const auto& [n, bound, rates] :
       {std::tuple(size_t{4096}, 7.2, std::array{2.0, 3.0}), std::tuple(size_t{480}, 180.0, std::array{2.0, 3.0}),
        std::tuple(size_t{4096}, 108.0, std::array{1.0, 1.5})})
    for (const double rate : rates)
      for (int shape = 0; shape < 4; ++shape) {
        const auto codec = make(rate);
        std::vector<float> residual(n);
        std::vector<double> largest(n / 64 + 1);
        const auto always = make_data(DataKind::kHeavyTail, static_cast<int64_t>(n), 9);
        for (int round = 0; round < 100; ++round) {
          std::vector<float> x = always;
          for (size_t i = 0; i < n; ++i) {
            if (shape == 1) x[i] += 3.0f * normal(rng);
            if (shape == 2) x[i] = i % 64 == static_cast<size_t>(round) % 64 ? 50.0f : 0.01f * normal(rng);
            if (shape == 3) x[i] = i % 64 == 5 ? 1.0f : 0.0f;
          }
          for (size_t b = 0; b * 64 < n; ++b) {
            double sum = 0.0;
            for (size_t i = b * 64; i < std::min(n, b * 64 + 64); ++i) sum += std::fabs(x[i]);
            largest[b] = std::max(largest[b], sum);
          }
          for (size_t i = 0; i < n; ++i) x[i] += residual[i];
          const auto y = round_trip(*codec, x);
          for (size_t i = 0; i < n; ++i) residual[i] = x[i] - y[i];
          for (size_t b = 0; b * 64 < n; ++b) {
            double sum = 0.0;
            for (size_t i = b * 64; i < std::min(n, b * 64 + 64); ++i) sum += std::fabs(residual[i]);
            ASSERT_LE(sum, bound * largest[b])
                << n << " elements, rate " << rate << ", shape " << shape << ", round " << round << ", block " << b;
          }
        }
      }
}

// ---- what is not finite, and what is nearly not ---------------------------------------------------------------------
TEST(Ecsq, OnlyTheFrameOfWhatIsNotFiniteIsLost) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto codec = make(2.5);
  const auto clean = make_data(DataKind::kGaussian, 2 * static_cast<int64_t>(kFrame) + 700, 2);
  const Bytes whole = encode_bytes(*codec, clean);
  const size_t frame = frame_bytes(kFrame, 2.5, 64);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 0x1p+127f, -0x1.000002p+126f})
    for (const size_t at : {kFrame, kFrame + 63, 2 * kFrame - 1}) {
      auto x = clean;
      x[at] = bad;
      bool flag = false;
      const Bytes payload = encode_bytes(*codec, x, law_msg(3), &flag);
      EXPECT_TRUE(flag) << bad;
      EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(frame), payload.begin()));
      EXPECT_TRUE(std::equal(whole.begin() + static_cast<ptrdiff_t>(2 * frame), whole.end(),
                             payload.begin() + static_cast<ptrdiff_t>(2 * frame)));
      const auto y = decode_floats(*codec, payload, static_cast<int64_t>(x.size()));
      for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i / kFrame == 1) << "element " << i;
    }
}

// A block whose mean is above 2^125 * 1.984 once had a head that the decoder took for one that no encoder writes.
TEST(Ecsq, LargestNumbersDecode) {
  for (const float v : {0x1.fcp+125f, 0x1.fc0002p+125f, 0x1.fep+125f, 0x1p+126f})
    for (const size_t n : {7, 64, 640, 5000}) {
      check(std::vector<float>(n, -v), 2.0, 64);
      std::vector<float> x(n, v);
      x[n / 2] = 0.0f;
      check(x, 4.0, 192);
    }
  // The smallest: a mean of 2^-120 is a unit, less is nothing.
  for (const float v : {0x1p-120f, 0x1.1p-120f, 0x1p-119f, 0x1p-126f, 0x1p-149f})
    for (const size_t n : {64, 640}) check(std::vector<float>(n, v), 2.0, 64);
}

// ---- damage ---------------------------------------------------------------------------------------------------------
bool decodes(const Codec& codec, const Bytes& payload, size_t n) {
  try {
    decode_floats(codec, payload, static_cast<int64_t>(n));
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadData);
    return false;
  }
}

TEST(Ecsq, DamagedFramesAreRefusedOrDecodeInsideOfTheirMemory) {
  for (const double rate : {1.5, 2.0, 3.5})
    for (const size_t n : {size_t{7}, size_t{512}, size_t{1000}, size_t{4096}, kFrame}) {
      const auto codec = make(rate);
      const Bytes good = encode_bytes(*codec, make_data(DataKind::kGaussian, static_cast<int64_t>(n), 4));
      SCOPED_TRACE(std::to_string(n) + " elements, rate " + std::to_string(rate));
      ASSERT_TRUE(decodes(*codec, good, n));
      const bool low = rate < 2, coded = number(good, 0, 1) == static_cast<uint32_t>(low ? kPaired : kHuffman);
      ASSERT_EQ(coded, n >= 512);
      for (size_t at = 0; at < kHead + 2; ++at)
        for (int value = 0; value < 256; value += n == kFrame ? 5 : 1) {
          Bytes p = good;
          p[at] = static_cast<std::byte>(value);
          const bool whole = decodes(*codec, p, n);
          if (at == 0 && value > (low ? 3 : 2)) {
            EXPECT_FALSE(whole) << "mode " << value;
          }
          if (at == 1 && value > 96 && (!low || value < 248)) {
            EXPECT_FALSE(whole) << "notch " << value;
          }
          if (coded && at == 2 && value > static_cast<int>(number(good, 3, 1))) {
            EXPECT_FALSE(whole) << "first symbol";
          }
          if (coded && at >= 4 && at < 12 && p != good) {
            EXPECT_FALSE(whole) << "a stream's length, byte " << at;
          }
          if (at == kHead + 1 && value > 0x7f) {
            EXPECT_FALSE(whole) << "a negative unit";
          }
        }
      if (!coded) continue;
      // Longer streams than there is room, and lengths that only add up.
      Bytes p = good;
      for (size_t at = 4; at < 12; ++at) p[at] = std::byte{0xff};
      EXPECT_FALSE(decodes(*codec, p, n));
      p = good;
      p[4] = static_cast<std::byte>(number(good, 4, 1) + 1), p[6] = static_cast<std::byte>(number(good, 6, 1) - 1);
      EXPECT_FALSE(decodes(*codec, p, n)) << "a byte from one stream to the next";
      // Any other length of one code leaves the table incomplete or overfull.
      const size_t table = kHead + 2 + (n + 63) / 64, symbols = number(good, 3, 1) - number(good, 2, 1) + 1;
      for (size_t s = 0; s < symbols; ++s)
        for (uint32_t length = 0; length < 16; ++length) {
          const uint32_t shift = s % 2 * 4, old = number(good, table + s / 2, 1);
          if ((old >> shift & 15) == length) continue;
          p = good;
          p[table + s / 2] = static_cast<std::byte>((old & ~(15u << shift)) | length << shift);
          EXPECT_FALSE(decodes(*codec, p, n)) << "symbol " << s << ", length " << length;
        }
      // Streams of other bits: they end elsewhere, or decode to something.
      std::mt19937 rng(6);
      for (int round = 0; round < (n == kFrame ? 20 : 200); ++round) {
        p = good;
        for (size_t at = table + (symbols + 1) / 2; at < p.size(); ++at)
          if (round % 2 == 0 || rng() % 50 == 0) p[at] = static_cast<std::byte>(rng());
        decodes(*codec, p, n);
      }
    }
}

TEST(Ecsq, RefusesWhatItDoesNotHave) {
  for (const double rate : {0.0, 0.5, 0.99, 5.1, 8.0, -3.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THROW(make(rate), Error) << rate;
  for (const int64_t block : {-64, 1, 32, 63, 65, 100, 4095, 4097, 8192}) EXPECT_THROW(make(2, block), Error) << block;
  for (const int64_t block : {0, 64, 192, 4096}) EXPECT_NO_THROW(make(2, block)) << block;
}

TEST(Ecsq, BytesByFormula) {
  EXPECT_EQ(make(2)->wire_bytes(kFrame, DType::f32), 16u + 2 + 512 + 8192);          // 2.129 bits a value
  EXPECT_EQ(make(2.25, 256)->wire_bytes(kFrame, DType::f32), 16u + 2 + 128 + 9216);  // 2.286
  EXPECT_EQ(make(3)->wire_bytes(2 * kFrame + 5, DType::f32), 2u * (16 + 2 + 512 + 12288) + 16 + 2 + 1 + 2);
  EXPECT_EQ(make(3.5)->name(), "ecsq(rate=3.5,block=64)");
}

}  // namespace
}  // namespace thinwire::test::ecsq_test
