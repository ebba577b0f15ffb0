// Hostile bytes to decoders: what an input of the fuzzer means, and the one call that plays it.
//
// An input is a header of kFuzzHeader bytes and a payload. The target (a family of codecs) has a fixed list of specs;
// the header chooses among them and says how the payload is handed over:
//   byte 0     which of the target's specs, modulo their number
//   byte 1, 2  elements, little endian, modulo the target's limit + 1
//   byte 3     bit 0: the payload is cut or zero padded to the length that the codec expects (fixed-size codecs)
//              bit 1: accumulate; bits 2, 3: element type (fp32, bf16, fp16); bits 4, 5: misalignment of the payload
//   byte 4     low_rank: columns of the matrix; sketch: ranks; coder: shares, residual; others: first element
// Payloads lie in memory of exactly their size, outputs too, so that a sanitizer sees the first byte outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compression/rule.h"

namespace thinwire::fuzz {

inline constexpr size_t kFuzzHeader = 5;
inline constexpr uint8_t kFit = 1, kAccumulate = 2;

struct Target {
  std::string name;  // of its corpus directory too
  std::vector<CodecSpec> specs;
  int64_t most = 0;     // elements
  bool rounds = false;  // payloads are taken for sums over ranks, round by round
};

// All targets. A codec of the table that no hand-written target has becomes one with the cases of its row.
const std::vector<Target>& targets();
const Target& target(const std::string& name);

struct Header {
  uint8_t spec = 0;
  uint16_t count = 0;
  uint8_t flags = 0, extra = 0;
};

// Plays one input. Returns true where decoding succeeded, false where it threw Error(kBadData); inputs shorter than a
// header are rejected likewise. Anything else that is thrown leaves it: a finding.
bool play(const Target& target, std::span<const uint8_t> input);

// A well-formed input of this target: an encoder's payload behind the header. For corpora.
std::vector<uint8_t> make_input(const Target& target, const Header& header, uint64_t seed);

}  // namespace thinwire::fuzz
