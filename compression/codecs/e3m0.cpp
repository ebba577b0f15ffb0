// Parameters, sizes and threads of e3m0; the loops are in e3m0_kernel.cpp.
#include "compression/codecs/e3m0.h"

#include "compression/codecs/block_layout.h"
#include "compression/codecs/e3m0_kernel.h"

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
    const float* x = in.as<float>();
    const int64_t n = in.count();
    const size_t bytes = layout_.bytes(n);
    TW_CHECK(out.size() >= bytes, name_, ": room for ", out.size(), " bytes, needs ", bytes);
    const E3m0Kernels& kernels = TW_PICK_KERNELS(e3m0_kernels);
    uint8_t* to = reinterpret_cast<uint8_t*>(out.data());
    const bool finite = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return kernels.encode(layout_.block, x + first, count, to + offset);
    });
    return {bytes, !finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    float* y = out.as<float>();
    const int64_t n = out.count();
    check_payload(name_, in, layout_.bytes(n), n);
    const E3m0Kernels& kernels = TW_PICK_KERNELS(e3m0_kernels);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
    const bool good = layout_.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
      return kernels.decode(layout_.block, from + offset, count, y + first, accumulate);
    });
    if (!good) throw_bad_data(name_ + ": a scale in a payload that no encoder writes; it was damaged");
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

}  // namespace thinwire
