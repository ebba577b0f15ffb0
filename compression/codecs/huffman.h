// Canonical Huffman codes of bytes, of at most kHuffmanBits bits: lengths from counts, codes from lengths.
//
// A code travels as its lengths alone. Source: D. Huffman, "A method for the construction of minimum-redundancy codes",
// 1952; canonical order as in RFC 1951, section 3.2.2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "compression/codecs/huffman_kernel.h"

namespace thinwire {

using HuffmanLengths = std::array<uint8_t, 256>;  // bits of each symbol's code; 0: it has none

// For counts of which at least two are not zero: the shortest code, but for the limit on lengths; complete.
HuffmanLengths huffman_lengths(const std::array<uint32_t, 256>& counts);

// Codes of one length are consecutive in the order of symbols, read from the most significant bit on; streams take them
// from the least significant one, so they are turned around. [s] = code | length << 16.
std::array<uint32_t, 256> huffman_codes(const HuffmanLengths& lengths);

// Whether every string of bits begins with exactly one of the codes, of at most kHuffmanBits bits.
bool huffman_complete(const HuffmanLengths& lengths);

// How a frame is coded, from how often each quarter has each symbol (HuffmanKernels::count).
struct HuffmanPlan {
  std::array<uint32_t, 256> counts{};  // of the whole frame
  uint8_t first = 0, last = 0;         // symbols; of one symbol alone there are neither lengths nor streams
  HuffmanLengths lengths{};
  size_t bytes[4] = {};  // of each quarter's stream

  size_t table_bytes() const;
  size_t stream_bytes() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
};
HuffmanPlan plan_huffman(const uint32_t (*quarter)[256]);

// A table: the lengths from the first symbol to the last, four bits each, the even ones in the low bits.
size_t huffman_table_bytes(uint8_t first, uint8_t last);
void write_huffman_table(const HuffmanPlan& plan, std::byte* out);
// Returns whether they are complete: what a decoder needs of lengths from outside.
bool read_huffman_table(const std::byte* in, uint8_t first, uint8_t last, HuffmanLengths& lengths);

}  // namespace thinwire
