// Thresholds of large vectors, index codes and value formats of the selectors.
#include "compression/codecs/sparse_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "compression/tile_kernel.h"
#include "engine/base/core/dtype.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kSmall = 1 << 14;  // up to here a vector is handled in cache
constexpr int64_t kSample = 1 << 13;

// Two keys that very probably enclose the k-th largest: order statistics of a sample, four standard deviations around
// the expected one. Positions are hashed: a stride would see a few columns of a matrix only.
std::array<uint32_t, 2> sample_bracket(const float* x, int64_t n, int64_t k) {
  const auto sample = std::make_unique_for_overwrite<uint32_t[]>(kSample);
  for (int64_t i = 0; i < kSample; ++i) {
    const uint64_t h = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
    const int64_t stratum = n / kSample;  // >= 2
    const int64_t at = i * stratum + static_cast<int64_t>((h >> 32) % static_cast<uint64_t>(stratum));
    sample[i] = std::bit_cast<uint32_t>(x[at]) & 0x7fffffffu;
  }
  const double p = static_cast<double>(k) / static_cast<double>(n);
  const double mean = p * kSample, slack = 4.0 * std::sqrt(mean * (1.0 - p)) + 2.0;
  const int64_t upper =
      static_cast<int64_t>(std::floor(mean - slack));  // this many of the sample lie above the high key
  const int64_t lower = static_cast<int64_t>(std::ceil(mean + slack));
  const auto& kernels = sparse_table();
  const uint32_t high = upper < 1 ? 0x7fffffffu : kernels.kth_largest(sample.get(), kSample, upper, 0, 0x7fffffffu);
  const uint32_t low = lower > kSample ? 0u : kernels.kth_largest(sample.get(), kSample, lower, 0, high);
  return {low, high};
}

// Which of the counted classes holds the k-th largest key.
enum class Where { kAbove, kHigh, kBetween, kLow, kBelow };
Where locate(const Bracket& c, int64_t k) {
  if (k <= c.above) return Where::kAbove;
  if (k <= c.above + c.at_high) return Where::kHigh;
  if (k <= c.above + c.at_high + c.between) return Where::kBetween;
  return k <= c.above + c.at_high + c.between + c.at_low ? Where::kLow : Where::kBelow;
}

}  // namespace

const SparseKernels& sparse_table() {
  return TW_PICK_KERNELS(sparse_kernels);
}

int64_t count_bits(const uint8_t* bits, int64_t bytes) {
  int64_t set = 0, at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, bits + at, 8);
    set += std::popcount(word);
  }
  for (; at < bytes; ++at) set += std::popcount(bits[at]);
  return set;
}

int64_t kept_of(int64_t n, double density) {
  if (n == 0) return 0;
  return std::clamp<int64_t>(std::llround(density * static_cast<double>(n)), 1, n);
}

Threshold find_threshold(const float* x, int64_t n, int64_t k, int threads) {
  TW_CHECK(k >= 1 && k <= n, k, " of ", n);
  const SparseKernels& kernels = sparse_table();
  if (n <= kSmall) {
    const auto scratch = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(n + 2 * kSparseSlack));
    return kernels.find_small(x, n, k, scratch.get());
  }
  const int64_t blocks = (n + kSparseBlock - 1) / kSparseBlock;
  std::vector<Bracket> counts(static_cast<size_t>(blocks));
  const std::array<uint32_t, 2> sampled = sample_bracket(x, n, k);
  uint32_t low = sampled[0], high = sampled[1];  // clang 14 lets no lambda capture structured bindings
  for (;;) {
    std::fill(counts.begin(), counts.end(), Bracket{});
    parallel_blocks(threads, n, kSparseBlock, [&](int64_t first, int64_t last) {
      kernels.bracket(x + first, last - first, low, high, &counts[static_cast<size_t>(first / kSparseBlock)]);
    });
    Bracket all;
    for (const Bracket& c : counts) {
      all.above += c.above;
      all.at_high += c.at_high;
      all.between += c.between;
      all.at_low += c.at_low;
      all.max_key = std::max(all.max_key, c.max_key);
    }
    Threshold t{.max_key = all.max_key};
    switch (locate(all, k)) {
      case Where::kHigh:
        t.key = high;
        t.ties = k - all.above;
        return t;
      case Where::kLow:
        t.key = low;
        t.ties = k - all.above - all.at_high - all.between;
        return t;
      case Where::kAbove:  // the sample misled: look on the other side of the bracket
        low = high;
        high = 0x7fffffffu;
        continue;
      case Where::kBelow:
        high = low;
        low = 0;
        continue;
      case Where::kBetween:
        break;
    }
    const auto keys =
        std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(all.between + kSparseSlack * blocks));
    std::vector<int64_t> start(static_cast<size_t>(blocks));
    int64_t total = 0;
    for (size_t b = 0; b < start.size(); ++b) {
      start[b] = total;
      total += counts[b].between + kSparseSlack;
    }
    parallel_blocks(threads, n, kSparseBlock, [&](int64_t first, int64_t last) {
      const size_t b = static_cast<size_t>(first / kSparseBlock);
      if (counts[b].between == 0) return;
      kernels.gather_keys(x + first, last - first, low, high, keys.get() + start[b]);
    });
    int64_t packed = 0;
    for (size_t b = 0; b < start.size(); ++b) {
      std::memmove(keys.get() + packed, keys.get() + start[b], static_cast<size_t>(counts[b].between) * 4);
      packed += counts[b].between;
    }
    const int64_t left = k - all.above - all.at_high;
    t.key = kernels.kth_largest(keys.get(), packed, left, low, std::min(high, all.max_key));
    int64_t over = 0;
    for (int64_t i = 0; i < packed; ++i) over += keys[i] > t.key;
    t.ties = left - over;
    return t;
  }
}

IndexCode index_code(int64_t n, int64_t k, bool dense) {
  IndexCode best{.bytes = bit_bytes(n)};
  if (dense || k == 0) return best;
  for (int low = 0; low <= 40; ++low) {
    const int64_t low_bytes = bit_bytes(k * low), high_bytes = bit_bytes(k + ((n - 1) >> low));
    if (low_bytes + high_bytes < best.bytes) best = {false, low, low_bytes, high_bytes, low_bytes + high_bytes};
  }
  return best;
}

namespace {

constexpr const char* kFormatNames[] = {"fp32", "bf16", "fp16", "2bit"};  // in the order of ValueFormat

}  // namespace

CodecParameter value_format_parameter(bool two_bits) {
  return format_parameter({kFormatNames, kFormatNames + (two_bits ? 4 : 3)}, "bf16", "what kept values become");
}

ValueFormat value_format(const CodecSpec& spec) {
  return static_cast<ValueFormat>(std::find(std::begin(kFormatNames), std::end(kFormatNames), spec.text("format")) -
                                  kFormatNames);
}

const char* name_of(ValueFormat format) {
  return kFormatNames[static_cast<int>(format)];
}

int value_exponent(ValueFormat format, uint32_t max_key) {
  if (format != ValueFormat::kFp16 || max_key >= kInfiniteKey) return 0;
  return std::clamp(static_cast<int>(max_key >> 23) - 127 - 14, kMinValueExponent, kMaxValueExponent);
}

void write_values(ValueFormat format, int exponent, const float* values, int64_t count, std::byte* out) {
  if (count == 0) return;
  if (format == ValueFormat::kFp32) {
    std::memcpy(out, values, static_cast<size_t>(count) * 4);
    return;
  }
  const SparseKernels& kernels = sparse_table();
  alignas(64) uint16_t words[1024];
  for (int64_t i = 0; i < count; i += 1024) {
    const int64_t m = std::min<int64_t>(1024, count - i);
    if (format == ValueFormat::kBf16)
      kernels.to_bf16(values + i, m, words);
    else
      kernels.to_fp16(values + i, m, std::ldexp(1.0f, -exponent), words);
    std::memcpy(out + i * 2, words, static_cast<size_t>(m) * 2);
  }
}

void read_values(ValueFormat format, int exponent, const std::byte* in, int64_t count, float* values) {
  if (count == 0) return;
  if (format == ValueFormat::kFp32) {
    std::memcpy(values, in, static_cast<size_t>(count) * 4);
    return;
  }
  const SparseKernels& kernels = sparse_table();
  alignas(64) uint16_t words[1024];
  for (int64_t i = 0; i < count; i += 1024) {
    const int64_t m = std::min<int64_t>(1024, count - i);
    std::memcpy(words, in + i * 2, static_cast<size_t>(m) * 2);
    if (format == ValueFormat::kBf16)
      TW_PICK_KERNELS(tile_kernels).load[index_of(DType::bf16)](words, values + i, m);
    else
      kernels.from_fp16(words, m, std::ldexp(1.0f, exponent), values + i);
  }
}

void write_header(ValueFormat format, int exponent, std::byte* out) {
  if (format == ValueFormat::kFp16) *out = static_cast<std::byte>(static_cast<int8_t>(exponent));
}

int read_header(ValueFormat format, const std::byte* in) {
  if (format != ValueFormat::kFp16) return 0;
  const int exponent = static_cast<int8_t>(*in);
  if (exponent < kMinValueExponent || exponent > kMaxValueExponent)
    throw_bad_data("a payload of fp16 values has the exponent " + std::to_string(exponent) + ": it is corrupt");
  return exponent;
}

}  // namespace thinwire
