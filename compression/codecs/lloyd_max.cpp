// Codec lloyd_max: 2, 3 or 4 bits an element, with the levels that lose least of normally distributed numbers.
//
// x ~ s * level[code] with the levels of Lloyd and Max for a normal distribution (Max, "Quantizing for minimum
// distortion", 1960) and a scale per block of consecutive elements. Against integers of the same width, whose step
// follows the largest element: 9.3 against about 4 dB at 2 bits, 14.6 at 3.
// An element's code is found with the block's mean magnitude; s is then the scale that is nearest in the l2 norm,
// s = sum |x| l / sum l^2. So |x - decoded| < |x| for every block, whatever is in it: error feedback contracts always.
// Scales travel in 8 bits: a group (BlockLayout) has a head in bf16, its largest scale rounded up, and each block the
// logarithm of its own below that, code c for head * 2^((c - 255) / 8), nearest; 0 for scales below head * 2^-31, which
// decode to zero (a residual keeps them). Zero is no level: an element that is 0 in a block that is not decodes to +-
// the smallest level, so where zeros mean something (rows of words that did not occur) block_int is the codec to take.
// A group that holds NaN or infinity raises Encoded::non_finite and has a NaN head: all of it decodes to NaN.
// fp32 in and out, fixed size: BlockLayout with a head of 2 bytes and 1 byte a scale, so 2.13 bits an element. A code
// has the sign in its highest bit and the level, ascending, below.
#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

MadeCodec make_lloyd_max(const CodecSpec& spec) {
  const int64_t said = spec.integer("block");
  const int64_t block = said == 16 || said == 32 ? said : block_of(spec, 64, 64, BlockLayout::kLargestBlock, 64);
  const auto bits = static_cast<int>(spec.integer("bits"));
  return {
      std::make_shared<KernelCodec>("lloyd_max(bits=" + std::to_string(bits) + ",block=" + std::to_string(block) + ")",
                                    BlockForm{.block = block, .bits = bits}, 1, 2, TW_PICK_KERNELS(lloyd_max_kernels))};
}

}  // namespace

CodecRow lloyd_max_row() {
  return {
      .name = "lloyd_max",
      .parameters =
          {codec_parameter(
               8, {.name = "bits", .bounds = {2, 4}, .unit = "bits", .doc = "bits per value, 4, 3 or 2", .ramp = true}),
           block_parameter("elements that share a scale, 0 for 64")},
      .make = make_lloyd_max,
      .cases = {{{"bits", 4}}, {{"bits", 3}}, {{"bits", 2}}}};
}

}  // namespace thinwire
