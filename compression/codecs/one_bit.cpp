// Parameters, scales, sizes and threads of one_bit; the loops are in one_bit_kernel.cpp.
#include "compression/codecs/one_bit.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

constexpr int64_t kLargestBlock = int64_t{1} << 20;
constexpr int64_t kRun = 1 << 16;  // elements summed by one thread at a time

const OneBitKernels& kernels() {
  return TW_PICK_KERNELS(one_bit_kernels);
}

class OneBit final : public Codec {
 public:
  OneBit(int64_t block, bool rms) : layout_{block, 1, 4}, rms_(rms) {
    name_ = "one_bit(block=" + std::to_string(block) + (rms ? ",format=rms)" : ")");
  }
  std::string name() const override { return name_; }
  Traits traits() const override {
    return {.contractive = !rms_, .linear = true, .granule = whole() ? 0 : layout_.group()};
  }
  size_t wire_bytes(int64_t count, DType) const override {
    if (count == 0) return 0;
    return whole() ? 4 + (static_cast<size_t>(count) + 7) / 8 : layout_.bytes(count);
  }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState*) const override {
    const float* x = in.as<float>();
    const int64_t n = in.count();
    const size_t bytes = wire_bytes(n, DType::f32);
    TW_CHECK(out.size() >= bytes, name_, ": room for ", out.size(), " bytes, needs ", bytes);
    if (n == 0) return {};
    uint8_t* to = reinterpret_cast<uint8_t*>(out.data());
    if (whole()) return {bytes, !encode_whole(msg.threads, x, n, to)};
    const bool finite = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return encode_group(x + first, count, to + offset);
    });
    return {bytes, !finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const int64_t n = out.count();
    check_payload(name_, in, wire_bytes(n, DType::f32), n);
    if (n == 0) return;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
    const bool good = whole() ? decode_whole(msg.threads, from, n, y, accumulate)
                              : layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
                                  return decode_group(from + offset, count, y + first, accumulate);
                                });
    if (!good) throw_bad_data(name_ + ": a scale in a payload that no encoder writes; it was damaged");
  }

 private:
  bool whole() const { return layout_.block == 0; }
  // From the sum over n elements; NaN if that is NaN.
  float scale_of(double sum, int64_t n) const {
    const double mean = sum / static_cast<double>(n);
    if (std::isnan(mean)) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(rms_ ? std::sqrt(mean) : mean);
  }
  static float read_scale(const uint8_t* in) {
    float scale;
    std::memcpy(&scale, in, sizeof scale);
    return scale;
  }
  static bool possible(float scale) { return !std::signbit(scale) && !std::isinf(scale); }

  bool encode_whole(int threads, const float* x, int64_t n, uint8_t* out) const {
    std::vector<double> sums(static_cast<size_t>((n + kRun - 1) / kRun));
    parallel_blocks(threads, n, kRun, [&](int64_t first, int64_t last) {
      sums[static_cast<size_t>(first / kRun)] = kernels().sum(x + first, last - first, rms_);
      kernels().pack(x + first, last - first, out + 4 + first / 8);
    });
    double sum = 0.0;
    for (double s : sums) sum += s;
    const float scale = scale_of(sum, n);
    std::memcpy(out, &scale, sizeof scale);
    return !std::isnan(scale);
  }
  bool decode_whole(int threads, const uint8_t* in, int64_t n, float* y, bool accumulate) const {
    const float scale = read_scale(in);
    if (!possible(scale)) return false;
    parallel_blocks(threads, n, kRun, [&](int64_t first, int64_t last) {
      kernels().unpack(in + 4 + first / 8, last - first, scale, y + first, accumulate);
    });
    return true;
  }
  bool encode_group(const float* x, int64_t n, uint8_t* out) const {
    const int64_t block = layout_.block, blocks = (n + block - 1) / block;
    bool finite = true;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t count = std::min(block, n - b * block);
      const float scale = scale_of(kernels().sum(x + b * block, count, rms_), count);
      std::memcpy(out + b * 4, &scale, sizeof scale);
      finite &= !std::isnan(scale);
    }
    kernels().pack(x, n, out + blocks * 4);
    return finite;
  }
  bool decode_group(const uint8_t* in, int64_t n, float* y, bool accumulate) const {
    const int64_t block = layout_.block, blocks = (n + block - 1) / block;
    for (int64_t b = 0; b < blocks; ++b) {
      const float scale = read_scale(in + b * 4);
      if (!possible(scale)) return false;
      kernels().unpack(in + blocks * 4 + b * block / 8, std::min(block, n - b * block), scale, y + b * block,
                       accumulate);
    }
    return true;
  }

  BlockLayout layout_;
  bool rms_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Codec> make_one_bit(const CodecSpec& spec) {
  refuse_rounding_parameters(spec);
  if (spec.block < 0 || spec.block > kLargestBlock || spec.block % 64 != 0)
    throw_bad_config("codec one_bit: block is " + std::to_string(spec.block) +
                     "; it may be 0 (one scale for the whole message) or a multiple of 64 up to " +
                     std::to_string(kLargestBlock));
  if (!spec.format.empty() && spec.format != "mean" && spec.format != "rms")
    throw_bad_config("codec one_bit: format is '" + spec.format + "'; it may be mean or rms");
  return std::make_shared<OneBit>(spec.block, spec.format == "rms");
}

CodecRow one_bit_row() {
  return {.defaults = {.codec = "one_bit"},
          .parameters = {block_parameter("elements that share a scale, 0 for the whole message")},
          .make =
              [](const CodecSpec& spec) {
                return MadeCodec{make_one_bit(spec), nullptr};
              },
          .cases = {{.codec = "one_bit"}, {.codec = "one_bit", .block = 1024}},
          .crosses_tensors = [](const CodecSpec& spec) { return spec.block == 0; }};
}

}  // namespace thinwire
