// Canonical Huffman codes of bytes, of at most kHuffmanBits bits: lengths from counts, codes from lengths.
//
// A code travels as its lengths alone. Source: D. Huffman, "A method for the construction of minimum-redundancy codes",
// 1952; canonical order as in RFC 1951, section 3.2.2.
#pragma once

#include <array>
#include <cstdint>

#include "compression/codecs/huffman_kernel.h"

namespace thinwire {

using HuffmanLengths = std::array<uint8_t, 256>;  // bits of each symbol's code; 0: it has none

// For counts of which at least two are not zero: the shortest code, but for the limit on lengths; complete.
HuffmanLengths huffman_lengths(const std::array<uint32_t, 256>& counts);

// Codes of one length are consecutive in the order of symbols, read from the most significant bit on; streams take them
// from the least significant one, so they are turned around. [s] = code | length << 16.
std::array<uint32_t, 256> huffman_codes(const HuffmanLengths& lengths);

// Whether every string of bits begins with exactly one of the codes: what a decoder needs of lengths from outside.
bool huffman_complete(const HuffmanLengths& lengths);

}  // namespace thinwire
