// Codec block_int: integers of 8, 6, 4 or 2 bits with a scale per block of consecutive elements.
//
// Symmetric, nearest (the default): x ~ code * step, code in [-2^(b-1), 2^(b-1) - 1], step = -m / 2^(b-1) where m is
// the element of largest magnitude of its block, with its sign. So m has the code -2^(b-1) and all levels are in use;
// the published form (ZeRO++: step = |m| / 2^(b-1)) clips +m to 7/8 of it in int4, and |m| / 7 wastes a level.
// Measured: docs/wire_formats.md. Stochastic: step = |m| / (2^(b-1) - 1), so that nothing clips and the mean is x.
// Asymmetric: x ~ offset + code * step with offset and step such that the levels span [min, max] of the block.
// Steps are rounded away from zero to the scale's type, so that rounding clips nothing, and the stored step is what
// both ends use. Blocks whose step the type cannot hold take the nearest that it can: fp16 clips magnitudes above
// 2^(b-1) * 65504 and is coarse below 2^(b-1) * 2^-14; bf16 and fp32 have neither problem. e8m0 steps are powers of two
// without a sign: the smallest >= |m| / 2^(b-1) (nearest; +m may saturate).
// A block that holds NaN or infinity raises Encoded::non_finite and has a NaN scale: all of it decodes to NaN.
// Stochastic rounding draws Philox numbers keyed by seed, slot, sequence, step and rank and counted by the element's
// index in the message.
#include <algorithm>
#include <iterator>

#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

// Nearest, symmetric: 0 is a level, so no element's error exceeds the element, and the largest one's is at most half
// of it. Else an error of half a step (nearest; stochastic: a step) in every element must stay below the energy that
// a block with that step has at least.
bool block_int_contracts(const BlockForm& form) {
  if (!form.asymmetric && !form.stochastic) return true;
  const double levels = static_cast<double>((int64_t{1} << form.bits) - 1);
  const double error = form.stochastic ? 1.0 : 0.25;  // in steps squared, per element
  const double energy = form.asymmetric ? levels * levels / 2.0 : (levels - 1.0) * (levels - 1.0) / 4.0;
  return static_cast<double>(form.block) * error < 0.9 * energy;
}

constexpr const char* kScales[] = {"fp32", "fp16", "bf16", "e8m0"};  // in the order of BlockScale

MadeCodec make_block_int(const CodecSpec& spec) {
  const BlockForm form = block_int_form(spec);
  const size_t size = form.scale == BlockScale::kFp32 ? 4 : form.scale == BlockScale::kE8m0 ? 1 : 2;
  const std::string name = "block_int(bits=" + std::to_string(form.bits) + ",block=" + std::to_string(form.block) +
                           ",scale=" + spec.text("scale") + (form.asymmetric ? ",asymmetric" : "") +
                           (form.stochastic ? ",stochastic" : "") + ")";
  return {std::make_shared<KernelCodec>(name, form, form.asymmetric ? 2 * size : size, 0,
                                        TW_PICK_KERNELS(block_int_kernels), block_int_contracts(form))};
}

// Integers of each width with blocks of several lengths, each type of scale, each rounding.
std::vector<CodecValues> block_int_cases() {
  std::vector<CodecValues> cases;
  const auto add = [&](int64_t bits, int64_t block, const char* scale) -> CodecValues& {
    return cases.emplace_back(CodecValues{{"bits", bits}, {"block", block}, {"scale", scale}});
  };
  for (int64_t block : {32, 128, 256, 2048}) add(8, block, "fp16");
  for (const char* scale : {"fp32", "bf16", "e8m0"}) add(8, 128, scale);
  add(6, 128, "fp16");
  for (int64_t block : {32, 128, 2048}) add(4, block, "fp16");
  add(4, 128, "bf16");
  for (int64_t block : {32, 128}) add(2, block, "fp16");
  for (int64_t bits : {8, 4}) {
    add(bits, 128, "fp16")["asymmetric"] = true;
    add(bits, 128, "fp16")["rounding"] = "stochastic";
  }
  return cases;
}

}  // namespace

BlockForm block_int_form(const CodecSpec& spec) {
  BlockForm form;
  form.bits = static_cast<int>(spec.integer("bits"));
  if (form.bits % 2 != 0)
    throw_bad_config("codec block_int: bits is " + std::to_string(form.bits) + "; it may be 8, 6, 4 or 2");
  form.block = block_of(spec, 128, 2, BlockLayout::kLargestBlock);
  form.scale = static_cast<BlockScale>(std::find(std::begin(kScales), std::end(kScales), spec.text("scale")) - kScales);
  form.stochastic = spec.text("rounding") == "stochastic";
  form.asymmetric = spec.flag("asymmetric");
  if (form.asymmetric && form.scale == BlockScale::kE8m0)
    throw_bad_config(
        "codec block_int: asymmetric needs an offset, which e8m0 cannot hold; scale may be fp32, fp16 or bf16");
  return form;
}

CodecRow block_int_row() {
  return {.name = "block_int",
          .parameters = {codec_parameter(8, {.name = "bits",
                                             .bounds = {2, 8},
                                             .unit = "bits",
                                             .doc = "bits per value, 8, 6, 4 or 2",
                                             .ramp = true}),
                         block_parameter("elements that share a scale, 0 for 128"),
                         codec_parameter("fp16", {.name = "scale",
                                                  .allowed = {std::begin(kScales), std::end(kScales)},
                                                  .doc = "how a block's scale travels. fp16 has no small numbers: "
                                                         "bf16 for gradients"}),
                         codec_parameter(false, {.name = "asymmetric",
                                                 .doc = "smallest and largest value of a block instead of the largest "
                                                        "magnitude"}),
                         codec_parameter("nearest", {.name = "rounding",
                                                     .allowed = {"nearest", "stochastic"},
                                                     .doc = "to the nearest level, or up or down by chance so that "
                                                            "the mean is right"})},
          .make = make_block_int,
          .cases = block_int_cases(),
          .device = true};
}

}  // namespace thinwire
