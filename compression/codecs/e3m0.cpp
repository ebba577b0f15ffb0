// Parameters, sizes and threads of e3m0; the loops are in e3m0_kernel.cpp.
#include "compression/codecs/e3m0.h"

#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

constexpr int64_t kDefaultBlock = 128, kLargestBlock = int64_t{1} << 20;

class E3m0 final : public Codec {
 public:
  explicit E3m0(int64_t block) : layout_{block, 4, 2}, name_("e3m0(block=" + std::to_string(block) + ")") {}
  std::string name() const override { return name_; }
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = layout_.group()}; }
  size_t wire_bytes(int64_t count, DType) const override { return layout_.bytes(count); }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState*) const override {
    return encode_groups(layout_, name_, msg, in, out,
                         [&, encode = TW_PICK_KERNELS(e3m0_kernels).encode](
                             const float* x, [[maybe_unused]] int64_t first, int64_t count, uint8_t* to) {
                           return encode(layout_.block, x, count, to);
                         });
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    decode_groups(layout_, name_, msg, in, out,
                  [&, decode = TW_PICK_KERNELS(e3m0_kernels).decode](const uint8_t* from, int64_t count, float* y) {
                    return decode(layout_.block, from, count, y, accumulate);
                  });
  }

 private:
  BlockLayout layout_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Codec> make_e3m0(const CodecSpec& spec) {
  refuse_rounding_parameters(spec);
  const int64_t block = spec.block == 0 ? kDefaultBlock : spec.block;
  if (block < 2 || block > kLargestBlock)
    throw_bad_config("codec e3m0: block is " + std::to_string(spec.block) + "; it may be 2 to " +
                     std::to_string(kLargestBlock) + ", or 0 for " + std::to_string(kDefaultBlock));
  return std::make_shared<E3m0>(block);
}

CodecRow e3m0_row() {
  return {.defaults = {.codec = "e3m0"},
          .parameters = {block_parameter("elements that share a scale, 0 for 128")},
          .make =
              [](const CodecSpec& spec) {
                return MadeCodec{make_e3m0(spec), nullptr};
              },
          .cases = {{.codec = "e3m0"}}};
}

}  // namespace thinwire
