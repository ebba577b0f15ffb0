// Codec zfp: fixed rate ZFP of one-dimensional fp32 data, in the stream that libzfp writes and reads.
//
// Source: P. Lindstrom, "Fixed-Rate Compressed Floating-Point Arrays" (2014), and the stream as described in
// docs/codecs.md. Every block of four values takes maxbits = floor(4 rate + 0.5) bits, packed without gaps from the
// least significant bit of the first byte on. Bit for bit libzfp's with zfp_stream_set_rate(rate, float, 1, align 0),
// where libzfp's behaviour is defined; where it is not, ours is:
//   max|x| < 2^-98 in a block   the block is written as zeros (libzfp overflows its scale and decodes garbage)
//   NaN or infinity in a block  Encoded::non_finite is raised, and the block is written as the legal one whose four
//                               values every decoder turns into +infinity (maxbits >= 11; zeros below)
//   |x| >= 2^126                coded as libzfp does, but raises non_finite: at low rates such a block can decode to
//                               infinity
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// Reads spec.rate: bits per value, 2.25 to 32; anything else throws Error(kBadConfig). fp32 in and out, lossy, fixed
// size: 8 * ceil(ceil(n / 4) * maxbits / 64) bytes for n elements. The padding to 8 bytes is zero, stands only behind
// the last piece of a message (pieces cut at the granule of 256 elements have none), and is what libzfp built with
// 64-bit stream words appends; Debian's 8-bit words end up to 7 bytes earlier and read ours as well.
// -0 decodes to +0, as in libzfp.
std::shared_ptr<const Codec> make_zfp(const CodecSpec& spec);

CodecRow zfp_row();

}  // namespace thinwire
