// What tests of ecsq share: a reader of its frames from docs/wire_formats.md, its definition in float64, kinds of data.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "compression/codec_table.h"
#include "tests/codecs/codec_laws.h"

namespace thinwire::test {

inline constexpr size_t kFrame = 32768;
inline constexpr double kUlp = 0x1p-24;  // what one fp32 operation may be off by, relatively
inline constexpr size_t kHead = 16;      // bytes of a frame's header
inline constexpr int kFixed = 0, kHuffman = 1, kConstant = 2, kPaired = 3;

inline std::shared_ptr<const Codec> make(double rate, int64_t block = 0) {
  return make_codec({"ecsq", {{"rate", rate}, {"block", block}}}).codec;
}
inline uint32_t number(std::span<const std::byte> p, size_t at, size_t bytes) {
  uint32_t v = 0;
  for (size_t i = 0; i < bytes; ++i) v |= static_cast<uint32_t>(p[at + i]) << 8 * i;
  return v;
}
inline size_t room_of(size_t n, double rate) {
  return static_cast<size_t>(std::ceil(static_cast<double>(n) * rate / 8));
}
inline size_t frame_bytes(size_t n, double rate, size_t block) {
  return n == 0 ? 0 : kHead + 2 + (n + block - 1) / block + room_of(n, rate);
}

// ---- a decoder from the description ---------------------------------------------------------------------------------
struct Frame {
  int mode = -1, notch = 0;
  double step = 0.0;         // in units
  std::vector<double> unit;  // of each block
  std::vector<int> q;        // of each element
};

inline void read_streams(std::span<const std::byte> p, std::span<const std::byte> codes, std::vector<int>& symbols) {
  const size_t n = symbols.size();
  const uint32_t first = number(p, 2, 1), last = number(p, 3, 1);
  ASSERT_LT(first, last);
  // Canonical codes, most significant bit first: length and number to symbol.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> symbol_of;
  uint32_t next = 0;
  for (uint32_t length = 1; length <= 11; ++length, next <<= 1)
    for (uint32_t s = first; s <= last; ++s)
      if ((number(codes, (s - first) / 2, 1) >> (s - first) % 2 * 4 & 15) == length) symbol_of[{length, next++}] = s;
  ASSERT_EQ(next, 1u << 12) << "the code is not complete";
  size_t at = (last - first + 2) / 2;
  std::set<int> seen;
  const size_t quarter = (n + 3) / 4;
  for (size_t q = 0; q < 4; ++q) {
    const size_t bytes = number(p, 4 + 2 * q, 2);
    ASSERT_LE(at + bytes, codes.size());
    size_t bit = 0;
    for (size_t i = q * quarter; i < std::min(n, (q + 1) * quarter); ++i) {
      uint32_t code = 0, length = 0;
      do {
        ASSERT_LT(bit, 8 * bytes);
        code = code << 1 | (number(codes, at + bit / 8, 1) >> bit % 8 & 1u);
        ++bit;
      } while (!symbol_of.contains({++length, code}));
      symbols[i] = static_cast<int>(symbol_of[{length, code}]);
      seen.insert(symbols[i]);
    }
    ASSERT_EQ((bit + 7) / 8, bytes);
    at += bytes;
  }
  EXPECT_EQ(seen.size(), symbol_of.size()) << "a code for a symbol that does not occur";
  EXPECT_EQ(*seen.begin(), static_cast<int>(first));
  EXPECT_EQ(*seen.rbegin(), static_cast<int>(last));
  for (; at < codes.size(); ++at) ASSERT_EQ(codes[at], std::byte{0}) << "padding";
}

inline Frame read_frame(std::span<const std::byte> p, size_t n, double rate, size_t block) {
  Frame f;
  f.mode = static_cast<int>(number(p, 0, 1));
  f.notch = static_cast<int8_t>(number(p, 1, 1));
  f.step = std::exp2(1.0 - f.notch / 16.0);
  EXPECT_EQ(number(p, 12, 4), 0u) << "reserved";
  const size_t blocks = (n + block - 1) / block;
  const double head = std::bit_cast<float>(number(p, kHead, 2) << 16);
  for (size_t b = 0; b < blocks; ++b) {
    const int code = static_cast<int>(number(p, kHead + 2 + b, 1));
    f.unit.push_back(std::isnan(head) ? head : code == 0 ? 0.0 : head * std::exp2((code - 255) / 8.0));
  }
  f.q.assign(n, 0);
  const auto codes = p.subspan(kHead + 2 + blocks);
  EXPECT_EQ(codes.size(), room_of(n, rate));
  if (f.mode == kConstant) f.q.assign(n, static_cast<int>(number(p, 2, 1)) - 128);
  if (f.mode == kHuffman) {
    read_streams(p, codes, f.q);
    for (int& q : f.q) q -= 128;
  }
  if (f.mode == kPaired) {  // of whole eights, with zeros behind the last
    std::vector<int> pairs((n + 7) / 8 * 4);
    read_streams(p, codes, pairs);
    for (size_t i = 0; i < 2 * pairs.size(); ++i) {
      const int q = (i % 2 == 0 ? pairs[i / 2] % 16 : pairs[i / 2] / 16) - 8;
      if (i < n) f.q[i] = q;
      EXPECT_TRUE(q > -8 && (i < n || q == 0)) << "element " << i;
    }
  }
  if (f.mode == kFixed && rate < 2) {
    for (size_t i = 0; i < n; ++i) f.q[i] = (number(codes, i / 8, 1) >> i % 8 & 1u) != 0 ? -1 : 1;
  } else if (f.mode == kFixed) {
    const size_t bits = static_cast<size_t>(rate);
    for (size_t i = 0; i < n; ++i)
      for (size_t b = 0; b < bits; ++b) {
        const int bit = static_cast<int>(number(codes, (i * bits + b) / 8, 1) >> (i * bits + b) % 8 & 1u);
        f.q[i] += b + 1 == bits ? -(bit << b) : bit << b;
      }
  }
  return f;
}

// ---- the definition, for any data -----------------------------------------------------------------------------------
inline void check_frame(const Frame& f, std::span<const float> x, std::span<const float> y, double rate, size_t block) {
  const bool low = rate < 2;
  ASSERT_TRUE(f.mode == kFixed || f.mode == kHuffman || f.mode == kConstant || (f.mode == kPaired && low));
  const int most = f.mode == kFixed ? (1 << (static_cast<int>(rate) - 1)) - 1 : f.mode == kPaired ? 7 : 127;
  const double less = low ? 0.1 : 0.0;
  if (x.size() < 512) {
    EXPECT_EQ(f.mode, kFixed);
  }
  if (f.mode != kFixed) {
    EXPECT_GE(f.notch, low ? -8 : 4);
    EXPECT_LE(f.notch, 96);
  }
  double largest_mean = 0.0, head = 0.0, reach = 0.0;
  // A mean is at most block / 16 roundings of a lane and 6 more off; of magnitudes, so relatively.
  const double mean_off = (static_cast<double>(block) / 16 + 6) * kUlp;
  for (size_t b = 0; b < f.unit.size(); ++b) {
    const size_t stop = std::min(x.size(), (b + 1) * block);
    double mean = 0.0, top = 0.0;
    for (size_t i = b * block; i < stop; ++i) {
      const double m = std::fabs(static_cast<double>(x[i]));
      mean += m / static_cast<double>(stop - b * block);
      top = std::max(top, m);
    }
    if (low) mean = std::min(mean, top / 1.8);
    const double unit = f.unit[b];
    largest_mean = std::max(largest_mean, mean);
    head = std::max(head, unit);
    if (unit == 0.0) {
      // Nothing, or beyond what is counted; in relation to the head, see below.
      for (size_t i = b * block; i < stop; ++i) ASSERT_EQ(y[i], 0.0f);
      continue;
    }
    reach = std::max(reach, top / unit);
    // The nearest eighth, in the logarithm. 2^125 * 1.984 is the largest unit.
    if (mean < 0x1.fcp+125) {
      ASSERT_LE(std::fabs(std::log2(mean / unit)) * 8, 0.5 + 8 * std::log2(1 + mean_off + 8 * kUlp)) << "block " << b;
    }
  }
  for (size_t b = 0; b < f.unit.size(); ++b) {
    const size_t stop = std::min(x.size(), (b + 1) * block);
    const double grain = f.unit[b] * f.step;
    if (grain == 0.0) {
      double mean = 0.0, top = 0.0;
      for (size_t i = b * block; i < stop; ++i) {
        mean += std::fabs(x[i]) / static_cast<double>(stop - b * block);
        top = std::max(top, static_cast<double>(std::fabs(x[i])));
      }
      if (low) mean = std::min(mean, top / 1.8);
      ASSERT_TRUE(mean < 0x1.001p-120 || mean < 0x1.001p-31 * head) << "block " << b << " was thrown away";
      continue;
    }
    bool something = false;
    for (size_t i = b * block; i < stop; ++i) {
      something |= f.q[i] != 0;
      // unit: power, head's product; grain; the product with q.
      ASSERT_NEAR(y[i], f.q[i] * grain, std::fabs(f.q[i] * grain) * 6 * kUlp) << "element " << i;
      // The same, the inverses of both, their product, that with x: where |x| / grain is near a tie, either is right.
      const double exact = x[i] / grain - std::copysign(less, x[i]);
      if (low && f.mode == kFixed) {
        ASSERT_EQ(std::signbit(x[i]), f.q[i] < 0) << "element " << i;
        continue;
      }
      if (std::abs(f.q[i]) == most && std::fabs(exact) > most) {
        ASSERT_EQ(std::signbit(exact), f.q[i] < 0);
      } else {
        ASSERT_LE(std::fabs(exact - f.q[i]), 0.5 + (std::fabs(exact) + less) * 8 * kUlp)
            << "element " << i << " of " << x[i];
      }
      // A number that is just above half a step becomes a step: twice itself.
      ASSERT_LE(std::fabs(static_cast<double>(x[i]) - y[i]), std::fabs(x[i]) * (1 + 16 * kUlp)) << "element " << i;
    }
    if (low) {
      ASSERT_TRUE(something) << "nothing is sent of block " << b;
    }
  }
  if (head > 0.0 && largest_mean < 0x1.fcp+125) {  // in bf16, rounded up
    EXPECT_GE(head, largest_mean * (1 - mean_off));
    EXPECT_LE(head, largest_mean * (1 + mean_off) * (1 + 0x1p-7));
  }
  // Nothing is cut that the coarsest grid reaches; of pairs, a quarter goes at least.
  if (f.mode == kPaired || (f.mode != kFixed && f.notch > (low ? -8 : 4))) {
    EXPECT_LE(reach, (low ? 28 : 127) * f.step * (1 + 8 * kUlp));
  }
}

// Encodes, reads the payload by the description, compares. Returns the frames.
inline std::vector<Frame> check(std::span<const float> x, double rate, size_t block) {
  const auto codec = make(rate, static_cast<int64_t>(block));
  bool bad = false;
  const Bytes payload = encode_bytes(*codec, x, law_msg(), &bad);
  EXPECT_FALSE(bad);
  const auto y = decode_floats(*codec, payload, static_cast<int64_t>(x.size()));
  std::vector<Frame> frames;
  std::span<const std::byte> rest = payload;
  for (size_t at = 0; at < x.size(); at += kFrame) {
    const size_t n = std::min(kFrame, x.size() - at), bytes = frame_bytes(n, rate, block);
    EXPECT_LE(bytes, rest.size());
    if (bytes > rest.size()) return frames;
    frames.push_back(read_frame(rest.first(bytes), n, rate, block));
    if (::testing::Test::HasFatalFailure()) return frames;
    check_frame(frames.back(), x.subspan(at, n), std::span(y).subspan(at, n), rate, block);
    rest = rest.subspan(bytes);
  }
  EXPECT_TRUE(rest.empty());
  return frames;
}

// ---- data -----------------------------------------------------------------------------------------------------------
// Each 64 of these hold the same magnitudes, of mean 0.992: 0, and what lies just above half a step, one and a half and
// so on of the coarsest grid, each as often as makes most of the entropy. On this grid, and on each finer one, an
// element's integer takes 2.35 bits.
inline float stubborn(size_t i, std::mt19937& rng) {
  const size_t turn = (i * 37 + i / 64 * 11) % 64;
  const float sign = rng() % 2 == 0 ? 1.0f : -1.0f;
  if (turn < 24) return 0.0f;
  return sign * (0.8577f + 1.7155f * static_cast<float>(turn < 52 ? 0 : turn < 60 ? 1 : turn < 63 ? 2 : 3));
}

struct Kind {
  const char* name;
  std::function<float(size_t i, std::mt19937& rng)> at;
};
inline float normal(std::mt19937& rng) {
  return std::normal_distribution<float>()(rng);
}
inline bool sampled(size_t i) {
  return i % kFrame / 64 % 4 == 0;
}
inline const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"gaussian", [](size_t, std::mt19937& r) { return normal(r); }},
      {"heavy", [](size_t, std::mt19937& r) { return normal(r) * std::exp(2.0f * normal(r)); }},
      {"heavier", [](size_t, std::mt19937& r) { return normal(r) * std::exp(8.0f * normal(r)); }},
      {"constant", [](size_t, std::mt19937&) { return -0.3f; }},
      {"two values", [](size_t, std::mt19937& r) { return r() % 2 ? 1e-20f : -1e-20f; }},
      {"zeros", [](size_t i, std::mt19937&) { return i % 2 ? 0.0f : -0.0f; }},
      {"half zeros", [](size_t, std::mt19937& r) { return r() % 2 ? 0.0f : normal(r); }},
      {"nearly all zeros", [](size_t, std::mt19937& r) { return r() % 50 ? 0.0f : normal(r); }},
      {"spikes", [](size_t, std::mt19937& r) { return r() % 100 ? normal(r) : 1e6f * normal(r); }},
      {"one spike", [](size_t i, std::mt19937&) { return i == 700 ? 3e7f : 0.0f; }},
      {"blocks apart", [](size_t i, std::mt19937& r) { return std::ldexp(normal(r), -static_cast<int>(i / 64 % 50)); }},
      {"uniform", [](size_t, std::mt19937& r) { return std::uniform_real_distribution<float>(-1, 1)(r); }},
      {"stubborn", [](size_t i, std::mt19937& r) { return stubborn(i, r); }},
      {"sample of zeros", [](size_t i, std::mt19937& r) { return sampled(i) ? 0.0f : normal(r); }},
      {"sample of one number", [](size_t i, std::mt19937& r) { return sampled(i) ? 1.0f : normal(r); }},
      {"sample of few", [](size_t i, std::mt19937& r) { return sampled(i) && r() % 8 ? 0.0f : normal(r); }},
      {"sample of spikes",
       [](size_t i, std::mt19937& r) { return sampled(i) ? (r() % 64 ? 0.0f : 1.0f) : stubborn(i, r); }},
      {"sample alone is rich", [](size_t i, std::mt19937& r) { return sampled(i) ? normal(r) : 1.0f; }},
  };
  return all;
}
inline std::vector<float> data_of(const Kind& kind, size_t n, unsigned seed = 1) {
  std::mt19937 rng(seed);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = kind.at(i, rng);
  return x;
}

}  // namespace thinwire::test
