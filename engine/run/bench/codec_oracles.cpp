// One oracle per family of codecs; allowances are half a step of the format, plus what fp32 arithmetic may round.
#include "engine/run/bench/codec_oracles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>
#include <set>
#include <utility>
#include <vector>

#include "compression/codec_table.h"
#include "engine/base/core/check.h"
#include "engine/run/bench/bench_codec_peers.h"

namespace thinwire {
namespace {

using Doubles = std::vector<double>;
constexpr double kFp32 = 0x1p-24;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A NaN stays, so that the case fails.
void raise(double& worst, double ratio) {
  if (ratio > worst || std::isnan(ratio)) worst = ratio;
}
double magnitude(std::span<const double> x) {
  double m = 0.0;
  for (double v : x) m = std::max(m, std::fabs(v));
  return m;
}

// A small float: mantissa bits, least and largest exponent of normal numbers, largest value (above it: saturated).
struct Format {
  int mantissa, least, largest;
  double most;
};
double half_ulp(const Format& f, double x) {
  int e = 0;
  std::frexp(x, &e);  // x = m 2^e, 1/2 <= m < 1
  return std::ldexp(0.5, std::max(x == 0.0 ? f.least : e - 1, f.least) - f.mantissa);
}
double allowed(const Format& f, double x) {
  return std::max(half_ulp(f, x), std::fabs(x) - f.most);
}
constexpr Format kBf16{7, -126, 127, 3.3895e38}, kFp16{10, -14, 15, 65504.0}, kE4m3{3, -6, 8, 448.0},
    kE5m2{2, -14, 15, 57344.0}, kE2m3{3, 0, 2, 7.5}, kE3m2{2, -2, 4, 28.0}, kE2m1{1, 0, 2, 6.0};

Format format_named(const std::string& name) {
  static const std::pair<const char*, Format> formats[] = {
      {"bf16", kBf16},       {"fp16", kFp16},       {"e4m3", kE4m3},       {"e5m2", kE5m2},  {"mxfp8_e4m3", kE4m3},
      {"mxfp8_e5m2", kE5m2}, {"mxfp6_e2m3", kE2m3}, {"mxfp6_e3m2", kE3m2}, {"mxfp4", kE2m1}, {"nvfp4", kE2m1}};
  for (const auto& [known, format] : formats) {
    if (name == known) return format;
  }
  TW_CHECK(false, "no oracle for format ", name);
  return kBf16;
}

// ---- formats with a scale per block ---------------------------------------------------------------------------------
// allowance(block, i): of element i of a block; the rest of the loop is the same for all.
using Allowance = std::function<double(std::span<const double> block, size_t i)>;

// Errors over allowances. Behind a Hadamard transform both sides are looked at in its domain, where the codec worked.
double over_blocks(const CodedMessage& m, size_t block, const std::function<Allowance(std::span<const double>)>& make) {
  Doubles x(m.x.begin(), m.x.end()), error(m.x.size());
  for (size_t i = 0; i < x.size(); ++i) error[i] = m.y[i] - x[i];
  double slack = 4.0 * kFp32;  // of the block's largest element
  if (m.hadamard) {
    slack = 64.0 * kFp32;  // two transforms of five additions each, and the scale, in fp32
    const auto transform = [](double* v) {
      for (int half = 1; half < 32; half *= 2)
        for (int i = 0; i < 32; ++i)
          if ((i & half) == 0) {
            const double a = v[i], b = v[i + half];
            v[i] = a + b, v[i + half] = a - b;
          }
      for (int i = 0; i < 32; ++i) v[i] /= std::sqrt(32.0);
    };
    for (size_t i = 0; i + 32 <= x.size(); i += 32) transform(&x[i]), transform(&error[i]);
  }
  double worst = 0.0;
  for (size_t at = 0; at < x.size(); at += block) {
    const std::span<const double> part(&x[at], std::min(block, x.size() - at));
    const Allowance allowance = make(part);
    const double rounding = slack * magnitude(part);
    for (size_t i = 0; i < part.size(); ++i) {
      if (error[at + i] != 0.0) raise(worst, std::fabs(error[at + i]) / (allowance(part, i) + rounding));
    }
  }
  return worst;
}

size_t block_of(const CodedMessage& m, size_t otherwise) {
  return m.spec.integer("block") > 0 ? static_cast<size_t>(m.spec.integer("block")) : otherwise;
}

CodecVerdict prove_block_int(const CodedMessage& m) {
  const CodecSpec& s = m.spec;
  const size_t block = block_of(m, 128);
  const double levels = std::ldexp(1.0, static_cast<int>(s.integer("bits")) - 1);
  // How far a scale is rounded, away from zero; least positive value of its type.
  const std::string& type = s.text("scale");
  const double rounded = type == "fp16" ? 0x1p-10 : type == "bf16" ? 0x1p-7 : 0x1p-22;
  const double least = type == "fp16" ? 0x1p-24 : 0x1p-126;
  const auto make = [&](std::span<const double> part) -> Allowance {
    const double top = magnitude(part);
    if (s.flag("asymmetric")) {
      const auto [low, high] = std::minmax_element(part.begin(), part.end());
      const double offset_rounding = top * rounded;
      const double step = ((*high - *low) / (2.0 * levels - 1.0) + offset_rounding) * (1.0 + rounded) + least;
      return [=](std::span<const double>, size_t) { return step / 2.0; };
    }
    if (type == "e8m0") {
      // The least power of two that reaches the largest element; above the largest code + 1/2 it is clipped.
      int e = 0;
      const double f = std::frexp(top / levels, &e);
      const double step = std::ldexp(1.0, f == 0.5 ? e - 1 : e);
      return [=](std::span<const double> x, size_t i) { return std::max(step / 2.0, x[i] - (levels - 1.0) * step); };
    }
    const bool stochastic = s.text("rounding") == "stochastic";
    const double step = top / (stochastic ? levels - 1.0 : levels) * (1.0 + rounded) + least;
    if (stochastic) return [=](std::span<const double>, size_t) { return step; };
    // The largest element has the one level more; those of the other sign that come near its size are clipped.
    const double lowest = *std::min_element(part.begin(), part.end());
    const double sign = -lowest >= top ? -1.0 : 1.0, most = (levels - 1.0) * top / levels;
    return [=](std::span<const double> x, size_t i) { return std::max(step / 2.0, -sign * x[i] - most); };
  };
  return {over_blocks(m, block, make), s.text("rounding") == "stochastic" ? "within a step" : "within half a step"};
}

CodecVerdict prove_mx(const CodedMessage& m) {
  const Format f = format_named(m.spec.text("format"));
  if (m.spec.text("format") != "nvfp4") {
    const auto make = [&](std::span<const double> part) -> Allowance {
      int e = 0;
      std::frexp(magnitude(part), &e);
      const double scale = std::ldexp(1.0, std::max(e - 1 - f.largest, -127));
      return [=](std::span<const double> x, size_t i) { return allowed(f, x[i] / scale) * scale; };
    };
    return {over_blocks(m, 32, make), "nearest value of the format"};
  }
  size_t at = 0;
  const auto make = [&](std::span<const double> part) -> Allowance {
    const size_t group = at / 4096 * 4096;
    at += part.size();
    const double g = magnitude(m.x.subspan(group, std::min<size_t>(4096, m.x.size() - group))) / 2688.0;
    const double exact = magnitude(part) / 6.0;
    const double rounding = std::max(exact * 0x1p-4, g * 0x1p-10);  // of the scale to E4M3, subnormals included
    const double low = std::max(exact - rounding, g * 0x1p-9), high = std::max(exact + rounding, g * 0x1p-9);
    return [=](std::span<const double> x, size_t i) {
      return std::max(half_ulp(f, x[i] / low) * high, std::fabs(x[i]) - f.most * low);
    };
  };
  return {over_blocks(m, 16, make), "nearest value of the format, for some scale nearest to the block's"};
}

CodecVerdict prove_e3m0(const CodedMessage& m) {
  const auto make = [](std::span<const double> part) -> Allowance {
    int e = 0;
    const double f = std::frexp(magnitude(part), &e);
    const double scale = std::ldexp(std::nearbyint(std::ldexp(f, 8)), e - 8);  // to bf16's 8 digits
    return [=](std::span<const double> x, size_t i) {
      double nearest = std::fabs(x[i]);
      for (int k = 1; k < 8; ++k) nearest = std::min(nearest, std::fabs(std::fabs(x[i]) - std::ldexp(scale, k - 7)));
      return nearest;
    };
  };
  return {over_blocks(m, block_of(m, 128), make), "the nearest of 15 levels"};
}

CodecVerdict prove_lloyd_max(const CodedMessage& m) {
  const std::vector<double> level = lloyd_levels(m.spec.integer("bits"));
  const auto make = [&](std::span<const double> part) -> Allowance {
    double mean = 0.0, with = 0.0, of = 0.0;
    for (double v : part) mean += std::fabs(v) / static_cast<double>(part.size());
    const auto level_of = [&level, unit = mean * std::sqrt(std::numbers::pi / 2)](double x) {
      size_t k = 0;
      while (k + 1 < level.size() && std::fabs(x) >= unit * (level[k] + level[k + 1]) / 2) ++k;
      return level[k];
    };
    for (double v : part) {
      with += std::fabs(v) * level_of(v);
      of += level_of(v) * level_of(v);
    }
    // The scale's logarithm travels in steps of an eighth.
    const double scale = with / of, off = std::exp2(1.0 / 16) - 1.0;
    return [=](std::span<const double> x, size_t i) {
      const double expected = scale * level_of(x[i]);
      return std::fabs(std::fabs(x[i]) - expected) + off * expected;
    };
  };
  return {over_blocks(m, block_of(m, 64), make), "the best of normal levels"};
}

// A unit is at most 2^(1/16) means of its block, the coarsest grid has steps of 2^(3/4) units, and what is nearest to
// an element is no farther than 0 is. Beyond 127 steps elements are cut (in blocks of up to 204, none is that large).
// The message may hold no frame that a Huffman code does not fit: those of 512 elements and more do, unless made not
// to. Below 2 bits: 0.6 of 2^(3/2) units, elements cut at 7 steps of at most 28, and signs in short frames.
CodecVerdict prove_ecsq(const CodedMessage& m) {
  constexpr size_t kFrame = 32768, kShort = 512;
  const size_t block = block_of(m, 64);
  // Sums of block / 16 magnitudes in fp32; units, steps and their inverses.
  const double rounding = 1.0 + (static_cast<double>(block) / 16 + 16) * kFp32;
  const bool low = m.spec.real("rate") < 2;
  const double coarsest = std::exp2(low ? 1.5 : 0.75), zero = low ? 0.6 : 0.5, unit_off = std::exp2(1.0 / 16);
  const auto mean_of = [](std::span<const double> part) {
    double mean = 0.0;
    for (double v : part) mean += std::fabs(v) / static_cast<double>(part.size());
    return mean;
  };
  double worst = 0.0;
  for (size_t at = 0; at < m.x.size(); at += kFrame) {  // frames begin blocks anew
    CodedMessage frame = m;
    frame.x = m.x.subspan(at, std::min(kFrame, m.x.size() - at));
    frame.y = m.y.subspan(at, frame.x.size());
    double largest = 0.0;
    for (size_t i = 0; i < frame.x.size(); i += block)
      largest = std::max(largest, mean_of(frame.x.subspan(i, std::min(block, frame.x.size() - i))));
    const auto make = [&](std::span<const double> part) -> Allowance {
      const double mean = mean_of(part);
      const bool nothing = mean < std::max(0x1p-120, largest * 0x1p-31) * rounding;  // has no unit
      const bool cut = nothing || frame.x.size() < kShort;                           // to the levels of fixed codes
      const double half = zero * coarsest * mean * unit_off * rounding;
      const double reach = 127 * coarsest * mean / unit_off / rounding;
      return [=](std::span<const double> x, size_t i) {
        const double size = std::fabs(x[i]), far = std::max(0.0, size - reach);
        if (low) return (cut ? std::max(size, mean * unit_off) : std::max(half, 0.75 * size)) * rounding;
        return (cut ? size : std::min(size, half + far)) * rounding;
      };
    };
    raise(worst, over_blocks(frame, block, make));
  }
  return {worst,
          low ? "within 0.6 of the coarsest step" : "within half of the coarsest step, and no farther than zero"};
}

CodecVerdict prove_one_bit(const CodedMessage& m) {
  const bool rms = m.spec.text("magnitude") == "rms";
  const auto make = [rms](std::span<const double> part) -> Allowance {
    double sum = 0.0;
    for (double v : part) sum += rms ? v * v : std::fabs(v);
    const double mean = sum / static_cast<double>(part.size()), scale = rms ? std::sqrt(mean) : mean;
    return [=](std::span<const double> x, size_t i) { return std::fabs(std::fabs(x[i]) - scale); };
  };
  return {over_blocks(m, block_of(m, m.x.size()), make),
          rms ? "sign times root mean square" : "sign times mean magnitude"};
}

CodecVerdict prove_cast(const CodedMessage& m) {
  const Format f = format_named(m.spec.text("format"));
  double worst = 0.0;
  for (size_t i = 0; i < m.x.size(); ++i) raise(worst, std::fabs(m.y[i] - m.x[i]) / allowed(f, m.x[i]));
  return {worst, "nearest value of the format"};
}

// ---- exact ones ----------------------------------------------------------------------------------------------------
CodecVerdict prove_equal(const CodedMessage& m) {
  for (size_t i = 0; i < m.x.size(); ++i)
    if (static_cast<double>(m.y[i]) != m.x[i]) return {kInfinity, "equal"};
  return {0.0, "equal"};
}

// Of a codec without an oracle of its own: what it loses is less than what it was given.
CodecVerdict prove_smaller(const CodedMessage& m) {
  double lost = 0.0, given = 0.0;
  for (size_t i = 0; i < m.x.size(); ++i) {
    const double d = m.x[i] - static_cast<double>(m.y[i]);
    lost += d * d, given += m.x[i] * m.x[i];
  }
  return {given == 0.0 && lost == 0.0 ? 0.0 : lost / given, "an error smaller than the message"};
}

CodecVerdict prove_zfp(const CodedMessage& m) {
  const auto library = make_libzfp_peer(m.spec.real("rate"), static_cast<int64_t>(m.x.size()));
  if (library) {
    const std::vector<float> x(m.x.begin(), m.x.end());
    std::vector<float> y(x.size());
    const std::span<const std::byte> theirs = library->encode(x);
    bool same = theirs.size() <= m.payload.size() && std::equal(theirs.begin(), theirs.end(), m.payload.begin());
    library->decode(theirs, y);
    same = same && std::memcmp(y.data(), m.y.data(), y.size() * sizeof(float)) == 0;
    return {same ? 0.0 : kInfinity, "libzfp's stream and numbers, bit for bit"};
  }
  double signal = 0.0, error = 0.0;
  for (size_t i = 0; i < m.x.size(); ++i) signal += m.x[i] * m.x[i], error += (m.y[i] - m.x[i]) * (m.y[i] - m.x[i]);
  const double db = 10.0 * std::log10(signal / error);
  return {(6.02 * m.spec.real("rate") - 23.8) / db, "6.02 rate - 22.8 dB (no libzfp in this build)"};
}

// ---- those that choose ---------------------------------------------------------------------------------------------
// The elements that arrived are the `keep` largest of x[first, last), and as exact as `error(x)` says.
double largest_kept(const CodedMessage& m, size_t first, size_t last, int64_t keep,
                    const std::function<double(double)>& error) {
  double least_kept = kInfinity, most_dropped = 0.0, worst = 0.0;
  int64_t kept = 0;
  for (size_t i = first; i < last; ++i) {
    const double size = std::fabs(m.x[i]);
    if (m.y[i] == 0.0f) {
      most_dropped = std::max(most_dropped, size);
      continue;
    }
    ++kept, least_kept = std::min(least_kept, size);
    const double off = std::fabs(m.y[i] - m.x[i]);
    if (off != 0.0) raise(worst, off / error(m.x[i]));
  }
  return kept == keep && least_kept >= most_dropped ? worst : kInfinity;
}
std::function<double(double)> error_of(const std::string& format) {
  if (format.empty() || format == "fp32") return [](double) { return 0.0; };
  // fp16 values travel with an exponent of the group's: relative like normal numbers, or below the group's least.
  if (format == "fp16") return [](double x) { return std::fabs(x) * 0x1p-11 + 1e-7; };
  return [](double x) { return half_ulp(kBf16, x); };
}

CodecVerdict prove_top_k(const CodedMessage& m) {
  const auto keep = std::max<int64_t>(1, std::llround(m.spec.real("density") * static_cast<double>(m.x.size())));
  return {largest_kept(m, 0, m.x.size(), keep, error_of(m.spec.text("format"))), "the k largest"};
}

CodecVerdict prove_chunked_top_k(const CodedMessage& m) {
  const auto block = block_of(m, 4096);
  const bool two_bit = m.spec.text("format") == "2bit";
  double worst = 0.0;
  for (size_t at = 0; at < m.x.size(); at += block) {
    const size_t end = std::min(at + block, m.x.size());
    const auto keep =
        static_cast<int64_t>((static_cast<size_t>(m.spec.integer("keep")) * (end - at) + block - 1) / block);
    const std::function<double(double)> error =
        two_bit ? std::function<double(double)>([](double) { return kInfinity; }) : error_of(m.spec.text("format"));
    raise(worst, largest_kept(m, at, end, keep, error));
    if (!two_bit) continue;
    // Two magnitudes, right signs, and no worse than the one magnitude that is best.
    double sum = 0.0, squares = 0.0, left = 0.0;
    std::set<float> sizes;
    for (size_t i = at; i < end; ++i) {
      if (m.y[i] == 0.0f) continue;
      sizes.insert(std::fabs(m.y[i]));
      if ((m.y[i] < 0.0f) != (m.x[i] < 0.0)) worst = kInfinity;
      sum += std::fabs(m.x[i]), squares += m.x[i] * m.x[i], left += (m.y[i] - m.x[i]) * (m.y[i] - m.x[i]);
    }
    const double one_level = squares - sum * sum / static_cast<double>(keep) + squares * 0x1p-14;
    raise(worst, sizes.size() <= 2 ? left / one_level : kInfinity);
  }
  return {worst, two_bit ? "the largest of each chunk, two magnitudes" : "the largest of each chunk"};
}

CodecVerdict prove_random_k(const CodedMessage& m) {
  const auto block = block_of(m, 4096);
  const auto kept =
      std::max<size_t>(1, static_cast<size_t>(std::llround(m.spec.real("density") * static_cast<double>(block))));
  const auto error = error_of(m.spec.text("format"));
  double worst = 0.0;
  for (size_t at = 0; at + block <= m.x.size(); at += block) {
    for (size_t j = 0; j < kept; ++j) {
      int arrived = 0;
      for (size_t i = at + j * block / kept; i < at + (j + 1) * block / kept; ++i) {
        if (m.y[i] == 0.0f) continue;
        ++arrived;
        const double off = std::fabs(m.y[i] - m.x[i]);
        if (off != 0.0) raise(worst, off / error(m.x[i]));
      }
      if (arrived != 1) worst = kInfinity;
    }
  }
  return {worst, "one of each stratum"};
}

CodecVerdict prove_sketch(const CodedMessage& m) {
  const auto keep = std::max<int64_t>(1, std::llround(m.spec.real("density") * static_cast<double>(m.x.size())));
  double step = 0.0;  // tables: of a grid of 30 bits; an element that falls on 0 counts as sent
  if (!m.spec.flag("compact")) step = std::ldexp(1.0, std::ilogb(magnitude(m.x)) + 1 - 30);
  return {largest_kept(m, 0, m.x.size(), keep, [=](double) { return step; }), "the k largest of one rank, exactly"};
}

// What is lost stands orthogonal to what arrives (a projection on the span of the columns, or of the rows), and what
// arrives is more than a random subspace would hold.
CodecVerdict prove_low_rank(const CodedMessage& m) {
  const auto rows = static_cast<size_t>(m.rows), cols = static_cast<size_t>(m.cols);
  const auto projected = [&](size_t lines, size_t length, size_t step, size_t stride) {
    constexpr size_t kSamples = 48;
    double worst = 0.0;
    for (size_t a = 0; a < kSamples; ++a) {
      const size_t ya = (a * 7919 % lines) * step;
      for (size_t b = 0; b < kSamples; ++b) {
        const size_t xb = (b * 104729 % lines) * step;
        double product = 0.0, y_square = 0.0, x_square = 0.0;
        for (size_t i = 0; i < length; ++i) {
          const double y = m.y[ya + i * stride], x = m.x[xb + i * stride];
          product += y * (x - m.y[xb + i * stride]);
          y_square += y * y, x_square += x * x;
        }
        // Sums of `length` fp32 products on both sides, roundings of either sign (lambda = 6).
        raise(worst, std::fabs(product) /
                         (6.0 * kFp32 * std::sqrt(static_cast<double>(length)) * std::sqrt(y_square * x_square)));
      }
    }
    return worst;
  };
  double worst = std::min(projected(cols, rows, 1, cols), projected(rows, cols, cols, 1));
  double signal = 0.0, arrived = 0.0;
  for (size_t i = 0; i < m.x.size(); ++i) signal += m.x[i] * m.x[i], arrived += static_cast<double>(m.y[i]) * m.y[i];
  const double share = static_cast<double>(std::min({m.spec.integer("rank"), m.rows, m.cols})) /
                       static_cast<double>(std::max(m.rows, m.cols));
  raise(worst, 0.8 * share * signal / arrived);
  return {worst, "a projection that holds more than a random one"};
}

}  // namespace

CodecVerdict prove(const CodedMessage& m) {
  TW_CHECK(m.x.size() == m.y.size(), "a message of another length came out");
  const std::string& name = m.spec.codec;
  if (name == "block_int") return prove_block_int(m);
  if (name == "mx") return prove_mx(m);
  if (name == "e3m0") return prove_e3m0(m);
  if (name == "lloyd_max") return prove_lloyd_max(m);
  if (name == "ecsq") return prove_ecsq(m);
  if (name == "one_bit") return prove_one_bit(m);
  if (name == "cast") return prove_cast(m);
  if (name == "zfp") return prove_zfp(m);
  if (name == "top_k") return prove_top_k(m);
  if (name == "chunked_top_k") return prove_chunked_top_k(m);
  if (name == "random_k") return prove_random_k(m);
  if (name == "sketch") return prove_sketch(m);
  if (name == "low_rank") return prove_low_rank(m);
  return codec_row(name).lossless ? prove_equal(m) : prove_smaller(m);
}

}  // namespace thinwire
