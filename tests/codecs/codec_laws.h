// What every codec must satisfy, as one call: check_codec_laws(codec, options); and the helpers that codec tests share.
//
//   encode_bytes / decode_floats   one call each, memory fenced on both sides
//   make_data, snr_db              the data kinds of the fidelity table, and the decibels
//   to_hex, expect_hex             golden bytes
// Memory handed to a codec ends exactly at an unreadable page (an over-read crashes, an over-write too) and starts
// behind a canary that is checked; its alignment is whatever its size makes it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "compression/data_kinds.h"
#include "engine/base/core/error.h"

namespace thinwire::test {

// Bytes that end at an unreadable page. The bytes before it, up to the start of the mapping, are a canary.
class Fenced {
 public:
  explicit Fenced(size_t bytes, size_t behind = 0) : bytes_(bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + behind + 64 + page - 1) / page * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + mapped_, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = base_ + mapped_ - behind - bytes;
    std::memset(base_, 0xA5, mapped_);
    page_ = page;
  }
  Fenced(const void* from, size_t bytes, size_t behind = 0) : Fenced(bytes, behind) {
    if (bytes > 0) std::memcpy(data_, from, bytes);
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  ~Fenced() {
    if (!intact()) ADD_FAILURE() << "something wrote outside of a buffer of " << bytes_ << " bytes";
    munmap(base_, mapped_ + page_);
  }
  bool intact() const {
    for (const std::byte* p = base_; p < data_; ++p)
      if (*p != std::byte{0xA5}) return false;
    for (const std::byte* p = data_ + bytes_; p < base_ + mapped_; ++p)
      if (*p != std::byte{0xA5}) return false;
    return true;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }
  View view(DType dtype) const { return View(data_, dtype, {static_cast<int64_t>(bytes_ / size_of(dtype))}); }

 private:
  std::byte *base_ = nullptr, *data_ = nullptr;
  size_t bytes_ = 0, mapped_ = 0, page_ = 0;
};

using Bytes = std::vector<std::byte>;

inline std::string to_hex(std::span<const std::byte> bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (std::byte b : bytes) {
    out += digits[static_cast<int>(b) >> 4];
    out += digits[static_cast<int>(b) & 15];
  }
  return out;
}
// `expected` may hold blanks to group digits. Prints both, so that a new golden value can be pasted.
inline void expect_hex(std::span<const std::byte> bytes, std::string expected) {
  std::erase(expected, ' ');
  EXPECT_EQ(to_hex(bytes), expected);
}

// Where tests have always found them.
using thinwire::DataKind;
using thinwire::kDataKinds;
using thinwire::make_data;
using thinwire::name_of;
using thinwire::snr_db;
using thinwire::square_distance;
using thinwire::square_sum;

// ---- one encode, one decode ----------------------------------------------------------------------------------------
struct LawOptions {
  // Matrices of a message of so many elements, for matrix codecs.
  std::function<std::vector<MatrixShape>(int64_t)> matrices = [](int64_t) { return std::vector<MatrixShape>(); };
  std::vector<int64_t> extra_counts;  // beside 0, 1, granule +- 1, primes, several granules
  int64_t unit = 0;                   // block that counts straddle where the granule does not show it
  bool fused_accumulate = false;      // decode-and-add rounds once: it differs from decode, then add by a rounding
  bool huge_overflows = false;        // finite values near FLT_MAX may become infinite if non_finite says so
  int fuzz = 300;                     // hostile payloads per size
};

inline Msg law_msg(int threads = 1) {
  Msg msg;
  msg.seed = 0x1234567;
  msg.slot = 3;
  msg.sequence = 1;
  msg.step = 17;
  msg.rank = 1;
  msg.ranks = 4;
  msg.threads = threads;
  return msg;
}

// x in memory as `dtype` (rounded to it).
inline Bytes as_dtype(std::span<const float> x, DType dtype) {
  Bytes out(x.size() * size_of(dtype));
  for (size_t i = 0; i < x.size(); ++i) {
    const Bf16 b = to_bf16(x[i]);
    const Fp16 h = to_fp16(x[i]);
    if (dtype == DType::f32) std::memcpy(&out[4 * i], &x[i], 4);
    if (dtype == DType::bf16) std::memcpy(&out[2 * i], &b, 2);
    if (dtype == DType::f16) std::memcpy(&out[2 * i], &h, 2);
  }
  return out;
}
inline std::vector<float> as_floats(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> out(bytes.size() / size_of(dtype));
  for (size_t i = 0; i < out.size(); ++i) {
    Bf16 b;
    Fp16 h;
    if (dtype == DType::f32) std::memcpy(&out[i], &bytes[4 * i], 4);
    if (dtype == DType::bf16) std::memcpy(&b, &bytes[2 * i], 2), out[i] = to_float(b);
    if (dtype == DType::f16) std::memcpy(&h, &bytes[2 * i], 2), out[i] = to_float(h);
  }
  return out;
}

// Encodes elements in memory `raw` of `dtype`, with a fresh state; `behind` shifts alignment. Checks the length.
inline Bytes encode_raw(const Codec& codec, std::span<const std::byte> raw, DType dtype, Msg msg,
                        bool* non_finite = nullptr, const LawOptions& options = {}, size_t behind = 0) {
  const int64_t n = static_cast<int64_t>(raw.size() / size_of(dtype));
  const auto matrices = options.matrices(n);
  msg.matrices = matrices;
  const auto state = codec.make_state(n, matrices);
  Fenced in(raw.data(), raw.size(), behind * size_of(dtype));
  Fenced out(codec.wire_bytes(n, dtype), behind);
  const Encoded e = codec.encode(msg, in.view(dtype), out.span(), state.get());
  if (codec.traits().framed)
    EXPECT_LE(e.bytes, out.size()) << codec.name() << ": longer than its bound for " << n << " elements";
  else
    EXPECT_EQ(e.bytes, out.size()) << codec.name() << ": not wire_bytes() for " << n << " elements";
  EXPECT_TRUE(std::ranges::equal(in.span(), raw)) << codec.name() << ": encode changed its input";
  if (non_finite) *non_finite = e.non_finite;
  return Bytes(out.data(), out.data() + std::min(e.bytes, out.size()));
}
inline Bytes encode_bytes(const Codec& codec, std::span<const float> x, const Msg& msg = law_msg(),
                          bool* non_finite = nullptr, const LawOptions& options = {}) {
  return encode_raw(codec, as_dtype(x, DType::f32), DType::f32, msg, non_finite, options);
}
// Decodes into `before` (memory of `dtype`), which is then returned.
inline Bytes decode_raw(const Codec& codec, std::span<const std::byte> payload, std::span<const std::byte> before,
                        DType dtype, bool accumulate, Msg msg, const LawOptions& options = {}, size_t behind = 0) {
  const auto matrices = options.matrices(static_cast<int64_t>(before.size() / size_of(dtype)));
  msg.matrices = matrices;
  Fenced in(payload.data(), payload.size(), behind);
  Fenced out(before.data(), before.size(), behind * size_of(dtype));
  codec.decode(msg, in.span(), out.view(dtype), accumulate);
  return Bytes(out.data(), out.data() + out.size());
}
inline std::vector<float> decode_floats(const Codec& codec, std::span<const std::byte> payload, int64_t n,
                                        const Msg& msg = law_msg(), const LawOptions& options = {}) {
  const Bytes nothing(static_cast<size_t>(n) * 4, std::byte{0x7f});
  return as_floats(decode_raw(codec, payload, nothing, DType::f32, false, msg, options), DType::f32);
}
inline std::vector<float> round_trip(const Codec& codec, std::span<const float> x, const Msg& msg = law_msg(),
                                     const LawOptions& options = {}) {
  return decode_floats(codec, encode_bytes(codec, x, msg, nullptr, options), static_cast<int64_t>(x.size()), msg,
                       options);
}

// ---- the laws ------------------------------------------------------------------------------------------------------
inline std::vector<DType> law_dtypes(const Codec& codec) {
  if (codec.traits().native) return {DType::f32, DType::bf16, DType::f16};
  return {DType::f32};
}
inline std::vector<int64_t> law_counts(const Codec& codec, const LawOptions& options) {
  std::vector<int64_t> counts = {0, 1, 2, 3, 17, 101, 1021, 4099};
  for (int64_t g : {codec.traits().granule, options.unit})
    for (int64_t c : {g - 1, g, g + 1, 2 * g + g / 2 + 1, 5 * g})
      if (g > 1 && c >= 1 && (g <= 16384 || c < 3 * g)) counts.push_back(c);
  counts.insert(counts.end(), options.extra_counts.begin(), options.extra_counts.end());
  return counts;
}

// Decoding into fp32 gives the numbers that decoding into `dtype` rounds; accumulate is decode, then add.
inline void check_fp32_output(const Codec& codec, const Bytes& payload, const Bytes& decoded, DType dtype,
                              const LawOptions& options) {
  const int64_t n = static_cast<int64_t>(decoded.size() / size_of(dtype));
  const Bytes filler32(static_cast<size_t>(n) * 4, std::byte{0x3f});
  const std::vector<float> wide =
      as_floats(decode_raw(codec, payload, filler32, DType::f32, false, law_msg(), options), DType::f32);
  if (dtype == DType::f32) {
    EXPECT_TRUE(as_dtype(wide, DType::f32) == decoded);
  } else {
    EXPECT_TRUE(as_dtype(wide, dtype) == decoded) << "fp32 output is not what 16-bit output was rounded from";
  }
  const std::vector<float> base = make_data(DataKind::kGaussian, n, 77);
  for (int threads : {1, 5}) {
    const std::vector<float> sum =
        as_floats(decode_raw(codec, payload, as_dtype(base, DType::f32), DType::f32, true, law_msg(threads), options),
                  DType::f32);
    for (size_t i = 0; i < base.size(); ++i) {
      const float expected = base[i] + wide[i];
      if (std::bit_cast<uint32_t>(sum[i]) == std::bit_cast<uint32_t>(expected)) continue;
      const double rounding = 0x1p-24 * std::fabs(wide[i]) + 0x1p-24 * std::fabs(expected) * 2;
      const bool close = options.fused_accumulate && std::fabs(static_cast<double>(sum[i]) - expected) <= rounding;
      EXPECT_TRUE(close) << "accumulate, element " << i << ": " << sum[i] << " not " << expected;
      if (!close) break;
    }
  }
}

// Threads and alignment do not show; the payload of a message is that of its pieces.
inline void check_shape_laws(const Codec& codec, int64_t n, DType dtype, const LawOptions& options) {
  SCOPED_TRACE(codec.name() + ", " + std::to_string(n) + " elements of " + std::string(name_of(dtype)));
  const size_t size = size_of(dtype);
  const Bytes x = as_dtype(make_data(DataKind::kHeavyTail, n, static_cast<uint64_t>(n) + 5), dtype);
  bool bad = false;
  const Bytes payload = encode_raw(codec, x, dtype, law_msg(), &bad, options);
  EXPECT_FALSE(bad) << "finite input called non-finite";
  const Bytes filler(x.size(), std::byte{0x3f});
  const Bytes decoded = decode_raw(codec, payload, filler, dtype, false, law_msg(), options);
  for (int threads : {2, 5}) {
    EXPECT_TRUE(encode_raw(codec, x, dtype, law_msg(threads), nullptr, options) == payload) << threads << " threads";
    EXPECT_TRUE(decode_raw(codec, payload, filler, dtype, false, law_msg(threads), options) == decoded)
        << threads << " threads, decode";
  }
  for (size_t behind : {1, 2, 3, 5}) {
    EXPECT_TRUE(encode_raw(codec, x, dtype, law_msg(), nullptr, options, behind) == payload) << "alignment";
    EXPECT_TRUE(decode_raw(codec, payload, filler, dtype, false, law_msg(), options, behind) == decoded) << "alignment";
  }

  // Into fp32: the same numbers. Added: the same sums. (identity's bytes do not say what they are: only as encoded.)
  const bool into_fp32 = dtype == DType::f32 || !codec.traits().alias;
  if (into_fp32) check_fp32_output(codec, payload, decoded, dtype, options);

  const int64_t granule = codec.traits().granule;
  if (granule == 0) return;
  std::mt19937 rng(static_cast<unsigned>(n));
  for (int round = 0; round < 4; ++round) {
    Bytes joined, parts(x.size());
    for (int64_t first = 0; first < n;) {
      const int64_t most = (n - first + granule - 1) / granule;
      const int64_t count =
          std::min(n - first, granule * (1 + static_cast<int64_t>(rng() % static_cast<unsigned>(most))));
      Msg msg = law_msg(1 + round);
      msg.first = first;
      const std::span piece(x.data() + static_cast<size_t>(first) * size, static_cast<size_t>(count) * size);
      const Bytes p = encode_raw(codec, piece, dtype, msg, nullptr, options);
      const Bytes d = decode_raw(codec, p, piece, dtype, false, msg, options);
      joined.insert(joined.end(), p.begin(), p.end());
      std::memcpy(parts.data() + static_cast<size_t>(first) * size, d.data(), d.size());
      first += count;
    }
    EXPECT_TRUE(joined == payload) << "payloads of the pieces do not join to the payload of the whole";
    EXPECT_TRUE(parts == decoded) << "pieces decode to something else";
    if (::testing::Test::HasFailure()) return;
  }
}

// Bytes by formula, far beyond what fits in memory or in 32 bits.
inline void check_size_laws(const Codec& codec, const LawOptions& options) {
  SCOPED_TRACE(codec.name());
  const Traits traits = codec.traits();
  for (DType dtype : law_dtypes(codec)) {
    EXPECT_EQ(codec.wire_bytes(0, dtype), 0u);
    size_t previous = 0;
    std::vector<int64_t> counts = law_counts(codec, options);
    std::sort(counts.begin(), counts.end());
    for (int shift : {20, 31, 32, 33, 36, 40})
      for (int64_t d : {-1, 0, 1}) counts.push_back((int64_t{1} << shift) + d);
    for (int64_t n : counts) {
      const size_t bytes = codec.wire_bytes(n, dtype);
      EXPECT_GE(bytes, previous) << n << " elements";
      EXPECT_LE(static_cast<double>(bytes), 16.0 * static_cast<double>(n) + 4096.0) << n << " elements";
      previous = bytes;
      if (traits.granule > 0 && !traits.framed && n > traits.granule) {
        const int64_t head = n / 2 / traits.granule * traits.granule;
        EXPECT_EQ(codec.wire_bytes(head, dtype) + codec.wire_bytes(n - head, dtype), bytes) << n << " elements";
      }
    }
  }
}

// Zeros, constants, the ends of the number line: they decode to finite numbers, zeros to zeros, and raise no flag.
inline void check_value_laws(const Codec& codec, const LawOptions& options) {
  const int64_t granule = std::max<int64_t>(codec.traits().granule, 1);
  const int64_t n = 2 * granule + granule / 2 + 37;
  const auto fill = [n](auto f) {
    std::vector<float> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = f(i);
    return x;
  };
  const float denormal = std::numeric_limits<float>::denorm_min();
  struct Case {
    const char* name;
    std::vector<float> x;
    bool huge = false;
  };
  const Case cases[] = {
      {"all zero", fill([](int64_t) { return 0.0f; })},
      {"+-0", fill([](int64_t i) { return i % 3 ? -0.0f : 0.0f; })},
      {"constant", fill([](int64_t) { return -1.37f; })},
      {"denormals", fill([=](int64_t i) { return denormal * static_cast<float>(i % 9 - 4); })},
      {"tiny", fill([](int64_t i) { return 1.2e-38f * static_cast<float>(i % 5 - 2); })},
      {"below 2^-98", fill([](int64_t i) { return 1e-31f * static_cast<float>(i % 7 - 3); })},
      {"one spike", fill([=](int64_t i) { return i == n - 1 ? 1e30f : 0.0f; }), true},
      {"huge", fill([](int64_t i) { return 3.4028234e38f * (i % 2 ? -1.0f : 1.0f); }), true},
      {"huge and tiny", fill([](int64_t i) { return i % 2 ? 3e38f : 1e-38f; }), true},
      {"1, then 2^-20", fill([](int64_t i) { return i % 64 ? 0x1p-20f : 1.0f; })},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(codec.name() + ", " + c.name);
    bool bad = false;
    const Bytes payload = encode_bytes(codec, c.x, law_msg(2), &bad, options);
    const std::vector<float> y = decode_floats(codec, payload, n, law_msg(2), options);
    if (c.huge && options.huge_overflows && bad) continue;
    EXPECT_FALSE(bad) << "finite input called non-finite";
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_TRUE(std::isfinite(y[i])) << "element " << i << " of " << c.x[i];
      if (c.name[0] == 'a' || c.name[0] == '+') {
        EXPECT_EQ(y[i], 0.0f) << "element " << i;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Law 8: a NaN or infinity anywhere raises the flag.
inline void check_non_finite_law(const Codec& codec, const LawOptions& options) {
  const uint32_t specials32[] = {0x7fc00000u, 0xffc00001u, 0x7f800001u, 0x7f800000u, 0xff800000u};
  const uint16_t specials_bf16[] = {0x7fc0, 0x7f81, 0x7f80, 0xff80, 0xffff};
  const uint16_t specials_fp16[] = {0x7e00, 0x7c01, 0x7c00, 0xfc00, 0xffff};
  for (DType dtype : law_dtypes(codec)) {
    for (int64_t n : law_counts(codec, options)) {
      if (n == 0) continue;
      SCOPED_TRACE(codec.name() + ", " + std::to_string(n) + " elements of " + std::string(name_of(dtype)));
      const Bytes clean = as_dtype(make_data(DataKind::kGaussian, n, 3), dtype);
      for (int64_t at : {int64_t{0}, n / 3, n / 2, std::max<int64_t>(n - 2, 0), n - 1}) {
        for (int s = 0; s < 5; ++s) {
          if (n > 2000 && (s + at) % 5 > (n > 20000 ? 0 : 1)) continue;
          Bytes x = clean;
          const size_t where = static_cast<size_t>(at) * size_of(dtype);
          if (dtype == DType::f32) std::memcpy(&x[where], &specials32[s], 4);
          if (dtype == DType::bf16) std::memcpy(&x[where], &specials_bf16[s], 2);
          if (dtype == DType::f16) std::memcpy(&x[where], &specials_fp16[s], 2);
          bool bad = false;
          const Bytes payload = encode_raw(codec, x, dtype, law_msg(1 + s % 2), &bad, options);
          EXPECT_TRUE(bad) << "special " << s << " at element " << at << " went unnoticed";
          decode_raw(codec, payload, clean, dtype, false, law_msg(), options);  // anything, but no crash
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Hostile payloads decode to anything or throw Error(kBadData). A wrong length throws: framed payloads, too, say
// how long they are.
inline void check_hostile_laws(const Codec& codec, const LawOptions& options) {
  std::mt19937_64 rng(99);
  const auto attempt = [&](const Bytes& payload, int64_t n, bool must_throw, const char* what) {
    const Bytes before(static_cast<size_t>(n) * 4, std::byte{0});
    bool threw = false;
    try {
      decode_raw(codec, payload, before, DType::f32, (rng() & 1) != 0, law_msg(1 + static_cast<int>(rng() % 2)),
                 options);
    } catch (const Error& e) {
      threw = true;
      EXPECT_EQ(e.code(), ExitCode::kBadData) << codec.name() << ", " << what << ": " << e.what();
    }
    if (must_throw) {
      EXPECT_TRUE(threw) << codec.name() << ", " << n << " elements: " << what << " was accepted";
    }
  };
  for (int64_t n : law_counts(codec, options)) {
    if (n == 0 || n > 5000) continue;
    SCOPED_TRACE(codec.name() + ", " + std::to_string(n) + " elements");
    const Bytes good = encode_bytes(codec, make_data(DataKind::kHeavyTail, n, 8), law_msg(), nullptr, options);
    for (int i = 0; i < options.fuzz; ++i) {
      Bytes p = good;
      for (std::byte& b : p) b = static_cast<std::byte>(rng());
      attempt(p, n, false, "random bytes");
      p = good;
      for (int flips = 1 + static_cast<int>(rng() % 3); flips > 0 && !p.empty(); --flips)
        p[rng() % p.size()] ^= static_cast<std::byte>(1u << (rng() % 8));
      attempt(p, n, false, "flipped bits");
      p = good;
      if (!p.empty()) p.resize(rng() % p.size());
      attempt(p, n, !good.empty(), "a truncated payload");
      if (::testing::Test::HasFailure()) return;
    }
    Bytes p = good;
    p.push_back(std::byte{0});
    attempt(p, n, true, "a payload one byte too long");
    p.assign(good.size(), std::byte{0});
    attempt(p, n, false, "zero bytes");
    p.assign(good.size(), std::byte{0xff});
    attempt(p, n, false, "bytes of ones");
    attempt({}, n, !good.empty(), "an empty payload");
  }
}

// Law 9 for payloads of several frames, which the sizes above do not reach: a cut anywhere, also where a frame ends,
// and frames that are whole but too few, too many or of other lengths than their places have. Each is Error(kBadData).
inline void check_frame_laws(const Codec& codec, const LawOptions& options) {
  const Traits traits = codec.traits();
  if (!traits.framed || traits.granule == 0) return;
  SCOPED_TRACE(codec.name());
  const int64_t n = 2 * traits.granule + 37;
  const std::vector<float> x = make_data(DataKind::kHeavyTail, n, 9);
  const Bytes good = encode_bytes(codec, x, law_msg(), nullptr, options);
  std::vector<Bytes> frames;  // the payload of a message is that of its pieces
  for (int64_t first = 0; first < n; first += traits.granule) {
    Msg msg = law_msg();
    msg.first = first;
    const int64_t count = std::min(traits.granule, n - first);
    const auto piece = std::span(x).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    frames.push_back(encode_bytes(codec, piece, msg, nullptr, options));
  }
  const auto joined = [&](std::initializer_list<size_t> order) {
    Bytes all;
    for (const size_t f : order) all.insert(all.end(), frames[f].begin(), frames[f].end());
    return all;
  };
  ASSERT_TRUE(joined({0, 1, 2}) == good) << "the pieces are not the frames: nothing is tested";
  const auto expect_refused = [&](const Bytes& payload, const std::string& what) {
    const Bytes before(static_cast<size_t>(n) * 4, std::byte{0});
    try {
      decode_raw(codec, payload, before, DType::f32, false, law_msg(2), options);
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData) << what << ": " << e.what();
    }
  };
  expect_refused(joined({0}), "the first frame alone");
  expect_refused(joined({0, 1}), "a payload without its last frame");
  expect_refused(joined({1, 2}), "a payload without one of its long frames");
  expect_refused(joined({0, 2}), "a payload without its middle");
  expect_refused(joined({0, 2, 1}), "a short frame in the place of a long one");
  expect_refused(joined({0, 1, 0}), "a long frame in the place of a short one");
  expect_refused(joined({0, 1, 2, 2}), "a frame behind the last");
  expect_refused(joined({0, 1, 1, 2}), "a frame sent twice");
  std::mt19937_64 rng(98);
  for (int i = 0; i < 60; ++i) {
    const size_t length = rng() % good.size();
    expect_refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)),
                   "a cut behind byte " + std::to_string(length));
  }
}

// lossless, contractive and unbiased as the traits promise them.
inline void check_promises(const Codec& codec, const LawOptions& options) {
  const Traits traits = codec.traits();
  SCOPED_TRACE(codec.name());
  const int64_t n = std::max<int64_t>(4 * traits.granule, 4096) + 37;
  if (traits.lossless) {
    std::mt19937_64 rng(5);
    for (DType dtype : law_dtypes(codec)) {
      Bytes x(static_cast<size_t>(n) * size_of(dtype));
      for (std::byte& b : x) b = static_cast<std::byte>(rng());
      const Bytes payload = encode_raw(codec, x, dtype, law_msg(), nullptr, options);
      EXPECT_TRUE(decode_raw(codec, payload, Bytes(x.size()), dtype, false, law_msg(), options) == x)
          << "not lossless on random bits of " << name_of(dtype);
      const Bytes y = as_dtype(make_data(DataKind::kGaussian, n, 4), dtype);
      EXPECT_TRUE(decode_raw(codec, encode_raw(codec, y, dtype, law_msg(), nullptr, options), Bytes(y.size()), dtype,
                             false, law_msg(), options) == y);
    }
  }
  for (DataKind kind : kDataKinds) {
    const std::vector<float> x = make_data(kind, n, 6);
    const double signal = square_sum(x), error = square_distance(x, round_trip(codec, x, law_msg(), options));
    if (traits.contractive && signal > 0.0) {
      EXPECT_LT(error, signal) << "not contractive on " << name_of(kind);
    }
    if (signal == 0.0) {
      EXPECT_EQ(error, 0.0);
    }
    if (!traits.unbiased || traits.lossless || signal == 0.0) continue;
    // The error of a mean of K independent unbiased estimates is 1/K of one's; a bias would stay.
    constexpr int kSteps = 64;
    std::vector<double> mean(x.size());
    double each = 0.0, left = 0.0;
    for (int step = 0; step < kSteps; ++step) {
      Msg msg = law_msg();
      msg.step = step;
      const std::vector<float> y = round_trip(codec, x, msg, options);
      each += square_distance(x, y) / kSteps;
      for (size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(kSteps);
    }
    for (size_t i = 0; i < x.size(); ++i) left += (mean[i] - x[i]) * (mean[i] - x[i]);
    EXPECT_LT(left, 1.5 * each / kSteps) << "biased on " << name_of(kind);
  }
}

inline void check_codec_laws(const Codec& codec, const LawOptions& options = {}) {
  check_size_laws(codec, options);
  for (DType dtype : law_dtypes(codec))
    for (int64_t n : law_counts(codec, options)) check_shape_laws(codec, n, dtype, options);
  check_value_laws(codec, options);
  check_non_finite_law(codec, options);
  check_hostile_laws(codec, options);
  check_frame_laws(codec, options);
  check_promises(codec, options);
}

}  // namespace thinwire::test
