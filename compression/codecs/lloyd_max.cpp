// Parameters, sizes and threads of lloyd_max; the loops are in lloyd_max_kernel.cpp.
#include "compression/codecs/lloyd_max.h"

#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

constexpr int64_t kDefaultBlock = 64, kLargestBlock = int64_t{1} << 20;

class LloydMax final : public Codec {
 public:
  LloydMax(int bits, int64_t block)
      : layout_{block, bits, 1, 2},
        name_("lloyd_max(bits=" + std::to_string(bits) + ",block=" + std::to_string(block) + ")") {}
  std::string name() const override { return name_; }
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = layout_.group()}; }
  size_t wire_bytes(int64_t count, DType) const override { return layout_.bytes(count); }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState*) const override {
    return encode_groups(layout_, name_, msg, in, out,
                         [&, encode = TW_PICK_KERNELS(lloyd_max_kernels).encode](
                             const float* x, [[maybe_unused]] int64_t first, int64_t count, uint8_t* to) {
                           return encode(layout_.bits, layout_.block, x, count, to);
                         });
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    decode_groups(
        layout_, name_, msg, in, out,
        [&, decode = TW_PICK_KERNELS(lloyd_max_kernels).decode](const uint8_t* from, int64_t count, float* y) {
          return decode(layout_.bits, layout_.block, from, count, y, accumulate);
        });
  }

 private:
  BlockLayout layout_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Codec> make_lloyd_max(const CodecSpec& spec) {
  refuse_rounding_parameters(spec);
  if (spec.bits != 2 && spec.bits != 3 && spec.bits != 4)
    throw_bad_config("codec lloyd_max: bits is " + std::to_string(spec.bits) + "; it may be 2, 3 or 4");
  const int64_t block = spec.block == 0 ? kDefaultBlock : spec.block;
  if (block != 16 && block != 32 && (block < 64 || block > kLargestBlock || block % 64 != 0))
    throw_bad_config("codec lloyd_max: block is " + std::to_string(spec.block) +
                     "; it may be 16, 32, a multiple of 64 up to " + std::to_string(kLargestBlock) + ", or 0 for " +
                     std::to_string(kDefaultBlock));
  return std::make_shared<LloydMax>(static_cast<int>(spec.bits), block);
}

CodecRow lloyd_max_row() {
  return {.defaults = {.codec = "lloyd_max"},
          .parameters = {codec_parameter(
                             &CodecSpec::bits,
                             {.name = "bits", .bounds = {2, 4}, .unit = "bits", .doc = "bits per value, 4, 3 or 2"}),
                         block_parameter("elements that share a scale, 0 for 64")},
          .make =
              [](const CodecSpec& spec) {
                return MadeCodec{make_lloyd_max(spec), nullptr};
              },
          .cases = {
              {.codec = "lloyd_max", .bits = 4}, {.codec = "lloyd_max", .bits = 3}, {.codec = "lloyd_max", .bits = 2}}};
}

}  // namespace thinwire
