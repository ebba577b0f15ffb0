// Codec one_bit: the sign of every element and one scale, as in 1-bit Adam and signSGD with error feedback.
//
// x ~ s * sgn(x) with sgn(0) = +1 and s fp32, of the whole message (which then cannot be cut) or of every block:
// s = mean |x|, the one nearest to x in the l2 norm: |x - decoded|^2 = (1 - r^2) |x|^2 with r = |x|_1 / (sqrt(n)
// |x|_2), so error feedback contracts whatever x is. Or, as the released 1-bit Adam does, s = |x|_2 / sqrt(n), which
// loses more than |x|^2 where r < 1/2: it is allowed a residual because it was published with one. Sums are in double,
// in an order that depends on the number of elements and on where padding lies, no more. A message (or block) that
// holds NaN or infinity raises Encoded::non_finite and has a NaN scale: all of it decodes to NaN. Whole messages take
// 4 + ceil(n / 8) bytes, others BlockLayout's with 4 bytes a scale. Bit i of a byte, from the low end, is set where
// element i is below 0.
//
// Padding counts in no scale and decodes to zero: else flat messages of small tensors, half of them padding, would
// have scales that are half of what they should be.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

constexpr int64_t kRun = 1 << 16;  // elements summed by one thread at a time

class OneBit final : public BlockCodec {
 public:
  OneBit(int64_t block, bool rms)
      : BlockCodec({block, 1, 4}, "one_bit(block=" + std::to_string(block) + (rms ? ",magnitude=rms)" : ")")),
        rms_(rms) {}
  Traits traits() const override {
    return {.contractive = !rms_,
            .published_with_residual = rms_,
            .linear = true,
            .granule = whole() ? 0 : layout_.group()};
  }
  size_t wire_bytes(int64_t count, DType) const override {
    if (count == 0) return 0;
    return whole() ? 4 + (static_cast<size_t>(count) + 7) / 8 : layout_.bytes(count);
  }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state) const override {
    const int64_t n = in.count();
    if (!whole()) return BlockCodec::encode(msg, in, out, state);
    const size_t bytes = wire_bytes(n, DType::f32);
    TW_CHECK(out.size() >= bytes, name_, ": room for ", out.size(), " bytes, needs ", bytes);
    const bool finite = n == 0 || encode_whole(msg, in.as<float>(), n, reinterpret_cast<uint8_t*>(out.data()));
    return {bytes, !finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    if (whole())
      decode_whole(msg, in, out, accumulate);
    else
      BlockCodec::decode(msg, in, out, accumulate);
    float* const y = out.as<float>();  // also what is added to holds zeros there
    for_padding(msg, msg.first, out.count(), [y](int64_t from, int64_t to) { std::fill(y + from, y + to, 0.0f); });
  }

 private:
  bool whole() const { return layout_.block == 0; }
  // Of magnitudes, or of their squares.
  double sum_of(const float* x, int64_t n) const {
    if (!rms_) return kernels_.sum_magnitudes(x, n);
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
    return std::isinf(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
  }
  // Elements that are data, and their sum.
  struct Sum {
    double sum = 0.0;
    int64_t count = 0;
  };
  // Of n elements, the first of which has this index in the message.
  Sum data_sum(const Msg& msg, const float* x, int64_t first, int64_t n) const {
    Sum data;
    for_data(msg, first, n, [&](int64_t from, int64_t to) {
      data.sum += sum_of(x + from, to - from);
      data.count += to - from;
    });
    return data;
  }
  // NaN if the sum is NaN.
  float scale_of(const Sum& data) const {
    if (data.count == 0) return 0.0f;
    double mean = data.sum / static_cast<double>(data.count);
    if (rms_) mean = std::sqrt(mean);
    return std::isnan(mean) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(mean);
  }
  static float read_scale(const uint8_t* in) {
    float scale;
    std::memcpy(&scale, in, sizeof scale);
    return scale;
  }
  static bool possible(float scale) { return !std::signbit(scale) && !std::isinf(scale); }

  bool encode_whole(const Msg& msg, const float* x, int64_t n, uint8_t* out) const {
    std::vector<Sum> sums(static_cast<size_t>((n + kRun - 1) / kRun));
    parallel_blocks(msg.threads, n, kRun, [&](int64_t first, int64_t last) {
      sums[static_cast<size_t>(first / kRun)] = data_sum(msg, x + first, msg.first + first, last - first);
      kernels_.pack(x + first, last - first, out + 4 + first / 8);
    });
    Sum all;
    for (const Sum& s : sums) all.sum += s.sum, all.count += s.count;
    const float scale = scale_of(all);
    std::memcpy(out, &scale, sizeof scale);
    return !std::isnan(scale);
  }
  void decode_whole(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const {
    const int64_t n = out.count();
    check_payload(name_, in, wire_bytes(n, DType::f32), n);
    if (n == 0) return;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
    const float scale = read_scale(from);
    if (!possible(scale)) throw_bad_data(name_ + ": a scale in a payload that no encoder writes; it was damaged");
    parallel_blocks(msg.threads, n, kRun, [&](int64_t first, int64_t last) {
      kernels_.unpack(from + 4 + first / 8, last - first, scale, out.as<float>() + first, accumulate);
    });
  }
  bool encode_group(const Msg& msg, const float* x, int64_t first, int64_t n, uint8_t* out) const override {
    const int64_t block = layout_.block, blocks = (n + block - 1) / block;
    bool finite = true;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t count = std::min(block, n - b * block);
      const float scale = scale_of(data_sum(msg, x + b * block, msg.first + first + b * block, count));
      std::memcpy(out + b * 4, &scale, sizeof scale);
      finite &= !std::isnan(scale);
    }
    kernels_.pack(x, n, out + blocks * 4);
    return finite;
  }
  bool decode_group(const uint8_t* in, int64_t n, float* y, bool accumulate) const override {
    const int64_t block = layout_.block, blocks = (n + block - 1) / block;
    for (int64_t b = 0; b < blocks; ++b) {
      const float scale = read_scale(in + b * 4);
      if (!possible(scale)) return false;
      kernels_.unpack(in + blocks * 4 + b * block / 8, std::min(block, n - b * block), scale, y + b * block,
                      accumulate);
    }
    return true;
  }

  bool rms_;
  const OneBitKernels& kernels_ = TW_PICK_KERNELS(one_bit_kernels);
};

}  // namespace

CodecRow one_bit_row() {
  return {.name = "one_bit",
          .parameters = {block_parameter("elements that share a scale, 0 for the whole message"),
                         codec_parameter(std::string("mean"),
                                         {.name = "magnitude",
                                          .allowed = {"mean", "rms"},
                                          .doc = "what every element becomes but for its sign: the mean of the "
                                                 "magnitudes, or the root of their mean square (as released with "
                                                 "1-bit Adam; it loses more where sizes differ much)"})},
          .make = [](const CodecSpec& spec) -> MadeCodec {
            return {std::make_shared<OneBit>(block_of(spec, 0, 64, BlockLayout::kLargestBlock, 64),
                                             spec.text("magnitude") == "rms")};
          },
          .cases = {{}, {{"block", 1024}}, {{"magnitude", "rms"}}},
          .crosses_tensors = [](const CodecSpec& spec) { return spec.integer("block") == 0; }};
}

}  // namespace thinwire
