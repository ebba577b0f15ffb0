// Parameters, sizes and threads of block_int; the loops are in block_int_kernel.cpp.
#include "compression/codecs/block_int.h"

#include "compression/codecs/block_int_kernel.h"
#include "compression/codecs/block_layout.h"
#include "engine/base/core/philox.h"

namespace thinwire {
namespace {

constexpr int64_t kDefaultBlock = 128, kLargestBlock = int64_t{1} << 20;

// A key of its own for every message: seed, slot, sequence, step and rank all count.
PhiloxKey rounding_key(const Msg& msg) {
  const uint64_t step = static_cast<uint64_t>(msg.step);
  const PhiloxBlock a = philox(
      seed_key(msg.seed), {msg.slot, msg.sequence, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)});
  const PhiloxBlock b = philox(
      {a[0], a[1]}, {static_cast<uint32_t>(msg.rank), a[2], a[3], static_cast<uint32_t>(RandomPurpose::kRounding)});
  return {b[0], b[1]};
}

class BlockInt final : public Codec {
 public:
  BlockInt(const BlockIntForm& form, const std::string& scale) : form_(form), layout_{form.block, form.bits} {
    const size_t size = form.scale == BlockScale::kFp32 ? 4 : form.scale == BlockScale::kE8m0 ? 1 : 2;
    layout_.scale_bytes = form.asymmetric ? 2 * size : size;
    name_ = "block_int(bits=" + std::to_string(form.bits) + ",block=" + std::to_string(form.block) + ",scale=" + scale +
            (form.asymmetric ? ",asymmetric" : "") + (form.stochastic ? ",stochastic" : "") + ")";
  }
  std::string name() const override { return name_; }
  Traits traits() const override {
    return {.unbiased = form_.stochastic, .contractive = contractive(), .linear = true, .granule = layout_.group()};
  }
  size_t wire_bytes(int64_t count, DType) const override { return layout_.bytes(count); }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState*) const override {
    const PhiloxKey key = form_.stochastic ? rounding_key(msg) : PhiloxKey{};
    return encode_groups(layout_, name_, msg, in, out,
                         [&, encode = TW_PICK_KERNELS(block_int_kernels).encode](
                             const float* x, [[maybe_unused]] int64_t first, int64_t count, uint8_t* to) {
                           const BlockIntNoise noise{key.k0, key.k1, static_cast<uint64_t>(msg.first + first)};
                           return encode(form_, noise, x, count, to);
                         });
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    decode_groups(
        layout_, name_, msg, in, out,
        [&, decode = TW_PICK_KERNELS(block_int_kernels).decode](const uint8_t* from, int64_t count, float* y) {
          return decode(form_, from, count, y, accumulate);
        });
  }

 private:
  // Nearest, symmetric: 0 is a level, so no element's error exceeds the element, and the largest one's is at most half
  // of it. Else an error of half a step (nearest; stochastic: a step) in every element must stay below the energy that
  // a block with that step has at least.
  bool contractive() const {
    if (!form_.asymmetric && !form_.stochastic) return true;
    const double levels = static_cast<double>((int64_t{1} << form_.bits) - 1);
    const double error = form_.stochastic ? 1.0 : 0.25;  // in steps squared, per element
    const double energy = form_.asymmetric ? levels * levels / 2.0 : (levels - 1.0) * (levels - 1.0) / 4.0;
    return static_cast<double>(form_.block) * error < 0.9 * energy;
  }

  BlockIntForm form_;
  BlockLayout layout_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Codec> make_block_int(const CodecSpec& spec) {
  BlockIntForm form;
  if (spec.bits != 8 && spec.bits != 6 && spec.bits != 4 && spec.bits != 2)
    throw_bad_config("codec block_int: bits is " + std::to_string(spec.bits) + "; it may be 8, 6, 4 or 2");
  form.bits = static_cast<int>(spec.bits);
  form.block = spec.block == 0 ? kDefaultBlock : spec.block;
  if (form.block < 2 || form.block > kLargestBlock)
    throw_bad_config("codec block_int: block is " + std::to_string(spec.block) + "; it may be 2 to " +
                     std::to_string(kLargestBlock) + ", or 0 for " + std::to_string(kDefaultBlock));
  if (spec.scale == "fp32")
    form.scale = BlockScale::kFp32;
  else if (spec.scale == "fp16")
    form.scale = BlockScale::kFp16;
  else if (spec.scale == "bf16")
    form.scale = BlockScale::kBf16;
  else if (spec.scale == "e8m0")
    form.scale = BlockScale::kE8m0;
  else
    throw_bad_config("codec block_int: scale is '" + spec.scale + "'; it may be fp32, fp16, bf16 or e8m0");
  if (spec.rounding != "nearest" && spec.rounding != "stochastic")
    throw_bad_config("codec block_int: rounding is '" + spec.rounding + "'; it may be nearest or stochastic");
  form.stochastic = spec.rounding == "stochastic";
  form.asymmetric = spec.asymmetric;
  if (form.asymmetric && form.scale == BlockScale::kE8m0)
    throw_bad_config(
        "codec block_int: asymmetric needs an offset, which e8m0 cannot hold; scale may be fp32, fp16 or bf16");
  return std::make_shared<BlockInt>(form, spec.scale);
}

namespace {

// Integers of each width with blocks of several lengths, each type of scale, each rounding.
std::vector<CodecSpec> block_int_cases() {
  std::vector<CodecSpec> cases;
  const auto add = [&](int64_t bits, int64_t block, const char* scale) -> CodecSpec& {
    return cases.emplace_back(CodecSpec{.codec = "block_int", .bits = bits, .block = block, .scale = scale});
  };
  for (int64_t block : {32, 128, 256, 2048}) add(8, block, "fp16");
  for (const char* scale : {"fp32", "bf16", "e8m0"}) add(8, 128, scale);
  add(6, 128, "fp16");
  for (int64_t block : {32, 128, 2048}) add(4, block, "fp16");
  add(4, 128, "bf16");
  for (int64_t block : {32, 128}) add(2, block, "fp16");
  for (int64_t bits : {8, 4}) {
    add(bits, 128, "fp16").asymmetric = true;
    add(bits, 128, "fp16").rounding = "stochastic";
  }
  return cases;
}

}  // namespace

CodecRow block_int_row() {
  return {.defaults = {.codec = "block_int"},
          .parameters = {codec_parameter(
                             &CodecSpec::bits,
                             {.name = "bits", .bounds = {2, 8}, .unit = "bits", .doc = "bits per value, 8, 6, 4 or 2"}),
                         block_parameter("elements that share a scale, 0 for 128"),
                         codec_parameter(&CodecSpec::scale, {.name = "scale",
                                                             .allowed = {"fp32", "fp16", "bf16", "e8m0"},
                                                             .doc = "how a block's scale travels. fp16 has no small "
                                                                    "numbers: bf16 for gradients"}),
                         codec_parameter(&CodecSpec::asymmetric,
                                         {.name = "asymmetric",
                                          .doc = "smallest and largest value of a block instead of the largest "
                                                 "magnitude"}),
                         codec_parameter(&CodecSpec::rounding,
                                         {.name = "rounding",
                                          .allowed = {"nearest", "stochastic"},
                                          .doc = "to the nearest level, or up or down by chance so that the mean is "
                                                 "right"})},
          .make =
              [](const CodecSpec& spec) {
                return MadeCodec{make_block_int(spec), nullptr};
              },
          .cases = block_int_cases()};
}

}  // namespace thinwire
