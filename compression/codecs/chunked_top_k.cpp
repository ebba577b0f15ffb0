// Codec chunked_top_k: the `keep` largest of every chunk of `block` elements (SparseLoCo, DeMo: 64 of 4096), short
// indices, values in 32, 16 or 2 bits.
//
// A chunk of c elements keeps kept(c) = ceil(keep c / block), which is `keep` for a whole one. Its payload:
//   format bf16, fp32: nothing; fp16: the byte of the exponent; 2bit: two bf16 magnitudes, small and large
//   the indices within the chunk, ascending, log2(block) bits each, packed least significant bit first, zero padded
//   the values (2bit: codes of 2 bits, packed alike: bit 0 large, bit 1 negative)
//   wire_bytes = sum over chunks of head + ceil(kept log2(block) / 8) + (fp32: 4 kept, bf16 and fp16: 2 kept, 2bit:
//   ceil(kept / 4)),   head = fp16: 1, 2bit: 4, else 0
// 64 of 4096 in 2bit: 116 bytes, 0.2266 bits an element (0.21875 of them indices and codes, as published).
// 2bit: two steps of Lloyd's iteration, from the mean of |v| on, divide the kept values into small and large ones; each
// decodes to the mean magnitude of its class, so that the error of the kept values is below their size. Sums are taken
// in double, in ascending order of index: the bytes must not depend on the instruction set.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "compression/codec_table.h"
#include "compression/codecs/sparse_select.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kTask = 1 << 15;  // elements that a thread takes together

struct TwoLevels {
  float split, small, large;
};

// split: |v| above it are large.
TwoLevels two_levels(const float* values, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += std::fabs(static_cast<double>(values[i]));
  double split = sum / static_cast<double>(count), small = split, large = split;
  for (int step = 0; step < 2; ++step) {
    double low = 0.0, high = 0.0;
    int64_t below = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double v = std::fabs(static_cast<double>(values[i]));
      const bool is_large = v > split;
      below += !is_large;
      high += is_large ? v : 0.0;  // no branch: which it is cannot be predicted
      low += is_large ? 0.0 : v;
    }
    if (below > 0) small = low / static_cast<double>(below);
    if (below < count) large = high / static_cast<double>(count - below);
    if (step == 0) split = static_cast<float>(0.5 * (small + large));  // rounded, as encode() compares with it
  }
  return {static_cast<float>(split), static_cast<float>(small), static_cast<float>(large)};
}

class ChunkedTopK final : public Codec {
 public:
  ChunkedTopK(int64_t keep, int64_t block, ValueFormat format)
      : keep_(keep), block_(block), index_bits_(std::countr_zero(static_cast<uint64_t>(block))), format_(format) {}
  std::string name() const override {
    return detail::join("chunked_top_k(keep=", keep_, ",block=", block_, ",format=", name_of(format_), ")");
  }
  Traits traits() const override { return {.contractive = true, .selects = true, .linear = true, .granule = block_}; }
  size_t wire_bytes(int64_t count, DType) const override {
    return static_cast<size_t>(count / block_ * layout(block_).bytes + layout(count % block_).bytes);
  }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const float* x = in.as<float>();
    const int64_t n = in.count(), chunks = (n + block_ - 1) / block_, stride = layout(block_).bytes;
    TW_CHECK(out.size() >= wire_bytes(n, DType::f32));
    const SparseKernels& kernels = sparse_table();
    std::atomic<bool> non_finite{false};
    parallel_blocks(msg.threads, chunks, std::max<int64_t>(1, kTask / block_), [&](int64_t first, int64_t last) {
      std::vector<uint32_t> scratch(static_cast<size_t>(block_ + 2 * kSparseSlack));
      std::vector<float> values(static_cast<size_t>(keep_ + kSparseSlack));
      for (int64_t c = first; c < last; ++c) {
        const Layout l = layout(std::min(block_, n - c * block_));
        std::byte* to = out.data() + c * stride;
        Threshold t = kernels.find_small(x + c * block_, l.elements, l.kept, scratch.data());
        if (t.max_key >= kInfiniteKey) non_finite.store(true, std::memory_order_relaxed);
        const int64_t count = kernels.take(x + c * block_, l.elements, t.key, &t.ties, scratch.data(), values.data());
        BitWriter indices(to + l.head);
        for (int64_t i = 0; i < count; ++i) indices.put(scratch[static_cast<size_t>(i)], index_bits_);
        indices.finish();
        if (format_ != ValueFormat::kTwoBits) {
          const int exponent = value_exponent(format_, t.max_key);
          write_header(format_, exponent, to);
          write_values(format_, exponent, values.data(), count, to + l.codes);
          continue;
        }
        const TwoLevels levels = two_levels(values.data(), count);
        const float magnitudes[2] = {levels.small, levels.large};
        write_values(ValueFormat::kBf16, 0, magnitudes, 2, to);
        BitWriter codes(to + l.codes);
        for (int64_t i = 0; i < count; ++i) {
          const float v = values[static_cast<size_t>(i)];
          codes.put(static_cast<uint32_t>(std::fabs(v) > levels.split) | static_cast<uint32_t>(std::signbit(v)) << 1,
                    2);
        }
        codes.finish();
      }
    });
    return {wire_bytes(n, DType::f32), non_finite.load()};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const int64_t n = out.count(), chunks = (n + block_ - 1) / block_, stride = layout(block_).bytes;
    check_payload(name(), in, wire_bytes(n, DType::f32), n);
    std::atomic<int64_t> corrupt{-1};  // a chunk; thrown behind the loop, as threads must not throw
    parallel_blocks(msg.threads, chunks, std::max<int64_t>(1, kTask / block_), [&](int64_t first, int64_t last) {
      std::vector<uint32_t> index(static_cast<size_t>(keep_));
      std::vector<float> values(static_cast<size_t>(keep_));
      for (int64_t c = first; c < last; ++c) {
        const Layout l = layout(std::min(block_, n - c * block_));
        const std::byte* from = in.data() + c * stride;
        BitReader indices(from + l.head);
        int64_t previous = -1;
        bool good = true;
        for (int64_t i = 0; i < l.kept; ++i) {
          const int64_t at = indices.get(index_bits_);
          good &= at > previous && at < l.elements;
          previous = at;
          index[static_cast<size_t>(i)] = static_cast<uint32_t>(at);
        }
        good &= indices.padding_is_zero();
        if (format_ == ValueFormat::kTwoBits) {
          float magnitudes[2];
          read_values(ValueFormat::kBf16, 0, from, 2, magnitudes);
          const float meaning[4] = {magnitudes[0], magnitudes[1], -magnitudes[0], -magnitudes[1]};
          BitReader codes(from + l.codes);
          for (int64_t i = 0; i < l.kept; ++i) values[static_cast<size_t>(i)] = meaning[codes.get(2)];
          good &= codes.padding_is_zero();
        } else {
          const int exponent = format_ == ValueFormat::kFp16 ? static_cast<int8_t>(*from) : 0;
          good &= exponent >= kMinValueExponent && exponent <= kMaxValueExponent;
          if (good) read_values(format_, exponent, from + l.codes, l.kept, values.data());
        }
        if (!good) {
          corrupt.store(c, std::memory_order_relaxed);
          continue;
        }
        float* to = y + c * block_;
        if (!accumulate) std::memset(to, 0, static_cast<size_t>(l.elements) * sizeof(float));
        for (int64_t i = 0; i < l.kept; ++i) {
          float& v = to[index[static_cast<size_t>(i)]];
          v = accumulate ? v + values[static_cast<size_t>(i)] : values[static_cast<size_t>(i)];
        }
      }
    });
    if (corrupt.load() >= 0)
      throw_bad_data(detail::join(name(), ": chunk ", corrupt.load(),
                                  " does not hold ascending indices and sound values: the payload is corrupt"));
  }

 private:
  struct Layout {
    int64_t elements, kept;
    int64_t head, codes, bytes;  // bytes before the indices, before the values or codes, and in all
  };
  Layout layout(int64_t elements) const {
    Layout l{elements, (keep_ * elements + block_ - 1) / block_, 0, 0, 0};
    if (elements == 0) return l;
    const bool two_bits = format_ == ValueFormat::kTwoBits;
    l.head = two_bits ? 4 : value_header(format_);
    l.codes = l.head + (l.kept * index_bits_ + 7) / 8;
    l.bytes = l.codes + (two_bits ? (l.kept + 3) / 4 : l.kept * value_bytes(format_));
    return l;
  }
  int64_t keep_, block_;
  int index_bits_;
  ValueFormat format_;
};

MadeCodec make_chunked_top_k(const CodecSpec& spec) {
  const int64_t block = block_of(spec, 4096, 16, 65536), keep = spec.integer("keep");
  if (!std::has_single_bit(static_cast<uint64_t>(block)))
    throw_bad_config(detail::join("chunked_top_k: block is a power of two from 16 to 65536, not ", block));
  if (keep > block)
    throw_bad_config(detail::join("chunked_top_k: keep is from 1 to the block's ", block, " elements, not ", keep));
  return {std::make_shared<ChunkedTopK>(keep, block, value_format(spec))};
}

}  // namespace

CodecRow chunked_top_k_row() {
  return {.name = "chunked_top_k",
          .parameters = {value_format_parameter(true), block_parameter("elements that a choice is made of, 0 for 4096"),
                         codec_parameter(64, {.name = "keep",
                                              .bounds = {1, 1 << 24},
                                              .unit = "elements",
                                              .doc = "elements kept of each block",
                                              .ramp = true})},
          .make = make_chunked_top_k,
          .cases = {{}, {{"format", "2bit"}}},
          .selects = true};
}

}  // namespace thinwire
