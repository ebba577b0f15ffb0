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
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// Reads format: mxfp8_e4m3 | mxfp8_e5m2 | mxfp6_e2m3 | mxfp6_e3m2 | mxfp4 | nvfp4; anything else, and a block that is
// neither 0 nor the format's, throws Error(kBadConfig). fp32 in and out, fixed size (BlockLayout; nvfp4 has g in front
// of the scales of every group), nearest rounding.
std::shared_ptr<const Codec> make_mx(const CodecSpec& spec);

CodecRow mx_row();

}  // namespace thinwire
