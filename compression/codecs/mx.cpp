// Codec mx: small floating-point numbers with a shared scale per block: OCP Microscaling formats and NVFP4.
//
// MXFP8 / MXFP6 / MXFP4 (OCP MX v1.0): blocks of 32 with an E8M0 scale X = 2^(e - 127) and elements that are nearest
// (ties to even) to x / X, saturated at the format's largest number. e is the format's choice of section 6.3: the
// exponent of the block's max|x| less the exponent of the format's largest number, kept in 0 to 254. So the largest
// elements of a block saturate if their mantissa is above the format's (E4M3 above 1.75: at most 12.5 % off).
// NVFP4: blocks of 16 of E2M1 with an E4M3 scale s, and an fp32 scale g per group of 4096 elements where the published
// format has one per tensor: messages can be cut and encoded in one pass over the cache. g = max|x| / (448 * 6) of the
// group, s nearest to max|x| / (6 g) of the block but not 0 unless the block is; x ~ element * (s * g). Blocks below
// 2^-9 of the group's largest lose precision, groups below 2^-89 become zero.
// A block that holds NaN or infinity raises Encoded::non_finite and has the scale's NaN: all of it decodes to NaN.
// nvfp4 has g in front of the scales of every group.
#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

struct Format {
  const char* name;
  MxFormat format;
  int64_t block;
  int bits;
};
constexpr Format kFormats[] = {{"mxfp8_e4m3", MxFormat::kE4m3, 32, 8}, {"mxfp8_e5m2", MxFormat::kE5m2, 32, 8},
                               {"mxfp6_e2m3", MxFormat::kE2m3, 32, 6}, {"mxfp6_e3m2", MxFormat::kE3m2, 32, 6},
                               {"mxfp4", MxFormat::kE2m1, 32, 4},      {"nvfp4", MxFormat::kNvfp4, 16, 4}};

MadeCodec make_mx(const CodecSpec& spec) {
  const auto* format = std::begin(kFormats);
  while (spec.text("format") != format->name) ++format;
  block_of(spec, format->block, format->block, format->block);
  // 0 is a code and rounding is to the nearest, so no element's error exceeds the element.
  return {
      std::make_shared<KernelCodec>(std::string("mx(format=") + format->name + ")",
                                    BlockForm{.block = format->block, .bits = format->bits, .format = format->format},
                                    1, format->format == MxFormat::kNvfp4 ? 4 : 0, TW_PICK_KERNELS(mx_kernels))};
}

}  // namespace

CodecRow mx_row() {
  CodecRow row = {.name = "mx", .make = make_mx, .cases = {}, .device = true};
  std::vector<std::string> names;
  for (const Format& format : kFormats) {
    names.emplace_back(format.name);
    row.cases.push_back({{"format", names.back()}});
  }
  row.parameters = {format_parameter(names, "mxfp8_e4m3", "what values become"),
                    block_parameter("elements that share a scale, 0 for the format's own number")};
  return row;
}

}  // namespace thinwire
