// The payload geometry that all block codecs share: groups of [scales of its blocks][codes of its elements].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "compression/codec.h"
#include "compression/rule.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

// A group is block * max(1, 4096 / block) elements: scales and codes of a tile that fits the L1 cache travel together,
// and a message may be cut at any multiple of a group. A last group that is not full has the scales of ceil(n / block)
// blocks and ceil(n * bits / 8) bytes of codes; bits behind the last code are zero.
struct BlockLayout {
  int64_t block = 0;
  int bits = 0;
  size_t scale_bytes = 0;  // per block
  size_t head_bytes = 0;   // per group, in front of the scales

  static constexpr int64_t kGroup = 4096;
  int64_t group() const { return block * std::max<int64_t>(1, kGroup / block); }
  size_t group_bytes(int64_t n) const {
    if (n == 0) return 0;
    return head_bytes + static_cast<size_t>((n + block - 1) / block) * scale_bytes +
           (static_cast<size_t>(n) * static_cast<size_t>(bits) + 7) / 8;
  }
  size_t bytes(int64_t n) const {
    return static_cast<size_t>(n / group()) * group_bytes(group()) + group_bytes(n % group());
  }

  // body(first element, elements, bytes in front of them) for each group; returns whether all calls returned true. On
  // up to `threads` threads; what is computed does not depend on them. `body` must not throw.
  template <typename Body>
  bool for_groups(int threads, int64_t n, const Body& body) const {
    const int64_t run = group() * std::max<int64_t>(1, (int64_t{1} << 16) / group());
    const size_t full = group_bytes(group());
    bool good = true;
    parallel_blocks(threads, n, run, [&](int64_t first, int64_t last) {
      bool all = true;
      for (int64_t i = first; i < last; i += group())
        all &= body(i, std::min(group(), last - i), static_cast<size_t>(i / group()) * full);
      // relaxed: only ever set to false, and read behind the loop's barrier
      if (!all) __atomic_store_n(&good, false, __ATOMIC_RELAXED);
    });
    return good;
  }
};

// A payload must be exactly as long as the layout says.
inline void check_payload(const std::string& codec, std::span<const std::byte> in, size_t expected, int64_t n) {
  if (in.size() == expected) return;
  throw_bad_data(codec + ": a payload of " + std::to_string(in.size()) + " bytes for " + std::to_string(n) +
                 " elements, which take " + std::to_string(expected) +
                 "; sender and receiver disagree about the codec or the message was damaged");
}
// Whole pieces by way of group(x, first element, elements, bytes out) -> whether all were finite.
template <typename Group>
Encoded encode_groups(const BlockLayout& layout, const std::string& codec, const Msg& msg, View in,
                      std::span<std::byte> out, const Group& group) {
  const float* x = in.as<float>();
  const int64_t n = in.count();
  const size_t bytes = layout.bytes(n);
  TW_CHECK(out.size() >= bytes, codec, ": room for ", out.size(), " bytes, needs ", bytes);
  uint8_t* to = reinterpret_cast<uint8_t*>(out.data());
  const bool finite = layout.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
    return group(x + first, first, count, to + offset);
  });
  return {bytes, !finite};
}
// group(bytes, elements, y) -> whether an encoder may have written it.
template <typename Group>
void decode_groups(const BlockLayout& layout, const std::string& codec, const Msg& msg, std::span<const std::byte> in,
                   View out, const Group& group) {
  float* y = out.as<float>();
  const int64_t n = out.count();
  check_payload(codec, in, layout.bytes(n), n);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
  const bool good = layout.for_groups(msg.threads, n, [&](int64_t first, int64_t count, size_t offset) {
    return group(from + offset, count, y + first);
  });
  if (!good)
    throw_bad_data(codec + ": an infinite scale, or another that no encoder writes, in a payload; it was damaged");
}

// Parameters that a codec does not have must not be set: they would be ignored in silence.
inline void refuse_rounding_parameters(const CodecSpec& spec) {
  if (spec.rounding != "nearest")
    throw_bad_config("codec " + spec.codec + ": rounding is '" + spec.rounding +
                     "', but only block_int has another one than nearest; remove the key");
  if (spec.asymmetric)
    throw_bad_config("codec " + spec.codec + ": asymmetric is a parameter of block_int; remove the key");
}

}  // namespace thinwire
