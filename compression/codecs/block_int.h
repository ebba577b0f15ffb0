// Codec block_int: integers of 8, 6, 4 or 2 bits with a scale per block of consecutive elements.
//
// Symmetric, nearest (the default): x ~ code * step, code in [-2^(b-1), 2^(b-1) - 1], step = -m / 2^(b-1) where m is
// the element of largest magnitude of its block, with its sign. So m has the code -2^(b-1) and all levels are in use;
// the published form (ZeRO++: step = |m| / 2^(b-1)) clips +m to 7/8 of it in int4, and |m| / 7 wastes a level.
// Measured: docs/codecs.md. Stochastic: step = |m| / (2^(b-1) - 1), so that nothing clips and the mean is x.
// Asymmetric: x ~ offset + code * step with offset and step such that the levels span [min, max] of the block.
// Steps are rounded away from zero to the scale's type, so that rounding clips nothing, and the stored step is what
// both ends use. Blocks whose step the type cannot hold take the nearest that it can: fp16 clips magnitudes above
// 2^(b-1) * 65504 and is coarse below 2^(b-1) * 2^-14; bf16 and fp32 have neither problem. e8m0 steps are powers of two
// without a sign: the smallest >= |m| / 2^(b-1) (nearest; +m may saturate).
// A block that holds NaN or infinity raises Encoded::non_finite and has a NaN scale: all of it decodes to NaN.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// Reads bits (8 | 6 | 4 | 2), block (2 to 2^20; 0: 128), scale (fp32 | fp16 | bf16 | e8m0), asymmetric (not with e8m0),
// rounding (nearest, ties to even | stochastic). Throws Error(kBadConfig) naming the key otherwise. fp32 in and out,
// fixed size (BlockLayout). Stochastic rounding draws Philox numbers keyed by seed, slot, sequence, step and rank and
// counted by the element's index in the message.
std::shared_ptr<const Codec> make_block_int(const CodecSpec& spec);

CodecRow block_int_row();

}  // namespace thinwire
