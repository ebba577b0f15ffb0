// Codec entropy: lossless; the exponents of fp32 and bf16 (the upper halves of fp16) in a Huffman code, the rest as it
// is.
//
// Source: the observation that only exponents of a model's tensors are compressible (DietGPU, Facebook Research, 2021),
// here with canonical codes of at most 11 bits (D. Huffman, 1952) per frame of 32768 elements, in four interleaved
// streams and with several symbols per table look-up. A frame that would grow travels raw.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

// Has no parameters. Native: fp32, bf16 and fp16, decoded to the dtype encoded, or to fp32. Framed; at most
// n * size_of(dtype) + 8 * ceil(n / 32768) bytes. NaN payloads, infinities and -0 come back bit for bit, and NaN and
// infinity raise Encoded::non_finite.
std::shared_ptr<const Codec> make_entropy(const CodecSpec& spec);

CodecRow entropy_row();

}  // namespace thinwire
