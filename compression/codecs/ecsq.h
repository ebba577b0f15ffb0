// Codec ecsq: entropy-coded scalar quantisation; integers on a uniform grid in a Huffman code, at a fixed rate.
//
// Where a fixed number of bits per element buys 2^bits levels, an entropy code buys as many levels as the numbers need
// and pays for the frequent ones with fewer bits: of normal numbers, 1.5 dB more at 3 bits than the best fixed levels
// (lloyd_max), 1.3 dB at 2; of peaked ones, more. The zero is a level. Sources: the rate of such codes is the entropy
// of the integers (Gish and Pierce, "Asymptotically efficient quantizing", 1968), a uniform grid is all but optimal.
//
// Frames of 32768 elements. A block's unit is its mean magnitude, in steps of 2^(1/8) as in lloyd_max; the grid's step,
// in units, is one of 2^(1 - notch / 16), the finest whose codes fit into the rate. So a payload's length does not
// depend on the values. The nearest grid point is taken: |x - decoded| <= |x| element by element, and the step is at
// most 1.7 units, so that something is left of every block: error feedback contracts. What is beyond 127 steps is cut.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// The most bits that lloyd_max has, which takes the place of a `light` codec: higher rates have no light compression.
inline constexpr double kHighestLightRate = 4.0;

// Reads rate (2 to 5 bits an element for the integers) and block (a multiple of 64 up to 4096; 0: 64). light goes with
// rates up to kHighestLightRate. Anything else that is set throws Error(kBadConfig). fp32 in and out, fixed size: rate
// + 8 / block bits an element and 16 bytes a frame. A frame that holds NaN, infinity or a magnitude beyond 2^126 raises
// Encoded::non_finite and decodes to NaN.
std::shared_ptr<const Codec> make_ecsq(const CodecSpec& spec);

CodecRow ecsq_row();

}  // namespace thinwire
