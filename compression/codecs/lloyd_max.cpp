// Parameters, sizes and threads of lloyd_max; the loops are in lloyd_max_kernel.cpp.
#include "compression/codecs/lloyd_max.h"

#include "compression/codecs/block_layout.h"
#include "compression/codecs/lloyd_max_kernel.h"

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
    const float* x = in.as<float>();
    const int64_t n = in.count();
    const size_t bytes = layout_.bytes(n);
    TW_CHECK(out.size() >= bytes, name_, ": room for ", out.size(), " bytes, needs ", bytes);
    const LloydMaxKernels& kernels = TW_PICK_KERNELS(lloyd_max_kernels);
    uint8_t* to = reinterpret_cast<uint8_t*>(out.data());
    const bool finite = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return kernels.encode(layout_.bits, layout_.block, x + first, count, to + offset);
    });
    return {bytes, !finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const int64_t n = out.count();
    check_payload(name_, in, layout_.bytes(n), n);
    const LloydMaxKernels& kernels = TW_PICK_KERNELS(lloyd_max_kernels);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
    const bool good = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return kernels.decode(layout_.bits, layout_.block, from + offset, count, y + first, accumulate);
    });
    if (!good) throw_bad_data(name_ + ": a scale in a payload that no encoder writes; it was damaged");
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

}  // namespace thinwire
