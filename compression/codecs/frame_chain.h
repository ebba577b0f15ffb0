// Payloads that are chains of frames whose lengths depend on the values: coded on several threads, laid end to end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

// one(frame, std::byte* out) writes frame number `frame` and returns its length, at most `slot` bytes (fewer in a short
// last frame: then it stays inside of the caller's bound). Returns the length of the chain.
template <typename One>
size_t encode_chain(int threads, int64_t frames, size_t slot, std::byte* out, const One& one) {
  size_t length = 0;
  if (threads <= 1 || frames <= 1) {
    for (int64_t f = 0; f < frames; ++f) length += one(f, out + length);
    return length;
  }
  std::vector<size_t> lengths(static_cast<size_t>(frames));
  parallel_blocks(threads, frames, 1, [&](int64_t f, int64_t) {
    lengths[static_cast<size_t>(f)] = one(f, out + static_cast<size_t>(f) * slot);
  });
  for (int64_t f = 0; f < frames; ++f) {
    std::memmove(out + length, out + static_cast<size_t>(f) * slot, lengths[static_cast<size_t>(f)]);
    length += lengths[static_cast<size_t>(f)];
  }
  return length;
}

// length_of(frame, rest of the payload) returns a frame's length, 0 if it cannot be one; one(frame, its bytes) decodes
// it and returns whether it could. Throws Error(kBadData), in the name of `codec`, unless the chain fills `in` exactly.
template <typename LengthOf, typename One>
void decode_chain(int threads, std::span<const std::byte> in, int64_t frames, const std::string& codec,
                  const LengthOf& length_of, const One& one) {
  const auto refuse = [&](int64_t frame, const char* what) {
    throw_bad_data(codec + ": frame " + std::to_string(frame) + " of " + std::to_string(frames) + " " + what +
                   "; the payload was damaged or written by another codec");
  };
  std::vector<size_t> starts(static_cast<size_t>(frames) + 1);
  size_t at = 0;
  for (int64_t f = 0; f < frames; ++f) {
    starts[static_cast<size_t>(f)] = at;
    const size_t length = length_of(f, in.subspan(at));
    if (length == 0 || length > in.size() - at) refuse(f, "has no valid header or is cut short");
    at += length;
  }
  if (at != in.size()) refuse(frames, "is none, yet bytes follow the last one");
  starts.back() = at;
  int64_t bad = -1;
  parallel_blocks(threads, frames, 1, [&](int64_t f, int64_t) {
    const size_t start = starts[static_cast<size_t>(f)];
    if (!one(f, in.subspan(start, starts[static_cast<size_t>(f) + 1] - start)))
      __atomic_store_n(&bad, f, __ATOMIC_RELAXED);
  });
  if (bad >= 0) refuse(bad, "does not decode");
}

}  // namespace thinwire
