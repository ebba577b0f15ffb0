// Codec mpc: the lossless stream of MPC 1.2 (float) for fp32, and the same on packed pairs for bf16 and fp16.
//
// Source: A. Yang, H. Mukka, F. Hesaaraki, M. Burtscher, "MPC: A Massively Parallel Compression Algorithm for
// Scientific Data" (2015), and its stream as described in docs/codecs.md. Units of 1024 words: differences at distance
// `dimension`, 32 x 32 bit transposes, differences of neighbouring planes, and a bitmap with the planes that are not
// zero. Lossless bit for bit, NaN payloads and -0 included.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// Reads spec.dimension, 1 to 32; anything else throws Error(kBadConfig). Native: fp32 one value a word; bf16 and fp16
// two values a word, which beats widening them (docs/codecs.md has the ratios). Framed: one frame per 65536 elements,
// each a complete stream whose second word holds the number of 32-bit words that it decodes to; at most
// 4 * (2 + 33 * ceil(words / 32)) bytes a frame. Decodes to the dtype encoded, or to fp32.
std::shared_ptr<const Codec> make_mpc(const CodecSpec& spec);

CodecRow mpc_row();

}  // namespace thinwire
