// Codec one_bit: the sign of every element and one scale, as in 1-bit Adam and signSGD with error feedback.
//
// x ~ s * sgn(x) with sgn(0) = +1 and s fp32, of the whole message or of every block. Two scales:
//   mean   s = mean |x|, the one nearest to x in the l2 norm: |x - decoded|^2 = (1 - r^2) |x|^2 with
//          r = |x|_1 / (sqrt(n) |x|_2), so error feedback contracts whatever x is
//   rms    s = |x|_2 / sqrt(n), the published 1-bit Adam's: |x - decoded|^2 = 2 (1 - r) |x|^2, which is larger than
//          |x|^2 where r < 1/2 (outliers, sparse gradients): not contractive
// Sums are in double, in an order that depends on the number of elements alone. A message (or block) that holds NaN or
// infinity raises Encoded::non_finite and has a NaN scale: all of it decodes to NaN.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// Reads block: 0 (one scale for the whole message, which then cannot be cut: granule 0) or a multiple of 64 up to 2^20;
// format: mean (the default) | rms. Anything else throws Error(kBadConfig). fp32 in and out, fixed size: whole messages
// 4 + ceil(n / 8) bytes, else BlockLayout with 4 bytes a scale. Bit i of a byte, from the low end, is set where element
// i is below 0.
std::shared_ptr<const Codec> make_one_bit(const CodecSpec& spec);

CodecRow one_bit_row();

}  // namespace thinwire
