// What the lossless codecs share whose payloads are chains of frames with lengths that depend on the values: frames are
// coded on several threads and laid end to end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

// Frames of `frame` elements, the last one shorter; decoded to the dtype encoded, or to fp32.
class FrameChain : public Codec {
 public:
  explicit FrameChain(int64_t frame) : frame_(frame) {}
  Traits traits() const override {
    return {.lossless = true, .unbiased = true, .framed = true, .native = true, .contractive = true, .granule = frame_};
  }
  size_t wire_bytes(int64_t count, DType dtype) const override {
    const int64_t rest = count % frame_;
    return static_cast<size_t>(count / frame_) * frame_bound(frame_, dtype) + (rest > 0 ? frame_bound(rest, dtype) : 0);
  }
  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CompressionState*) const override {
    const int64_t count = in.count(), frames = (count + frame_ - 1) / frame_;
    TW_CHECK(out.size() >= wire_bytes(count, in.dtype), name(), ": too little room: ", out.size(), " bytes");
    const std::byte* x = static_cast<const std::byte*>(in.data);
    bool all_finite = true;
    const auto one = [&](int64_t f, std::byte* to) {
      bool finite = true;
      const size_t bytes = encode_frame(x + static_cast<size_t>(f * frame_) * size_of(in.dtype), in.dtype,
                                        std::min(frame_, count - f * frame_), to, finite);
      if (!finite) __atomic_store_n(&all_finite, false, __ATOMIC_RELAXED);
      return bytes;
    };
    size_t length = 0;
    if (msg.threads <= 1 || frames <= 1) {
      for (int64_t f = 0; f < frames; ++f) length += one(f, out.data() + length);
      return {length, !all_finite};
    }
    const size_t slot = frame_bound(frame_, in.dtype);
    std::vector<size_t> lengths(static_cast<size_t>(frames));
    parallel_blocks(msg.threads, frames, 1, [&](int64_t f, int64_t) {
      lengths[static_cast<size_t>(f)] = one(f, out.data() + static_cast<size_t>(f) * slot);
    });
    for (size_t f = 0; f < lengths.size(); ++f) {
      std::memmove(out.data() + length, out.data() + f * slot, lengths[f]);
      length += lengths[f];
    }
    return {length, !all_finite};
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    const int64_t count = out.count(), frames = (count + frame_ - 1) / frame_;
    TW_CHECK(!accumulate || out.dtype == DType::f32, name(), ": sums are fp32, not ", name_of(out.dtype));
    const auto size_at = [&](int64_t f) { return std::min(frame_, count - f * frame_); };
    const auto refuse = [&](int64_t frame, const char* what) {
      throw_bad_data(name() + " into " + std::string(name_of(out.dtype)) + ": frame " + std::to_string(frame) + " of " +
                     std::to_string(frames) + " " + what + "; the payload was damaged or written by another codec");
    };
    std::vector<size_t> starts(static_cast<size_t>(frames) + 1);
    size_t at = 0;
    for (int64_t f = 0; f < frames; ++f) {
      starts[static_cast<size_t>(f)] = at;
      const size_t length = frame_length(in.subspan(at), size_at(f), out.dtype);
      if (length == 0 || length > in.size() - at) refuse(f, "has no valid header or is cut short");
      at += length;
    }
    if (at != in.size()) refuse(frames, "is none, yet bytes follow the last one");
    starts.back() = at;
    int64_t bad = -1;
    parallel_blocks(msg.threads, frames, 1, [&](int64_t f, int64_t) {
      const size_t start = starts[static_cast<size_t>(f)], end = starts[static_cast<size_t>(f) + 1];
      if (!decode_frame(in.subspan(start, end - start), out.element_range(f * frame_, size_at(f)), accumulate))
        __atomic_store_n(&bad, f, __ATOMIC_RELAXED);
    });
    if (bad >= 0) refuse(bad, "does not decode");
  }

 protected:
  // Bytes of a frame of n elements, at most.
  virtual size_t frame_bound(int64_t n, DType dtype) const = 0;
  // Returns the frame's length; `finite` becomes false where an element is not.
  virtual size_t encode_frame(const std::byte* in, DType dtype, int64_t n, std::byte* out, bool& finite) const = 0;
  // Of the frame of n elements that `payload` begins with; 0 if it can be none that decodes to `out`.
  virtual size_t frame_length(std::span<const std::byte> payload, int64_t n, DType out) const = 0;
  // Whether an encoder may have written it.
  virtual bool decode_frame(std::span<const std::byte> frame, View out, bool accumulate) const = 0;
  // Whether elements of the kind (kElementTypes) that a header names decode to `out`.
  static bool decodes(uint32_t kind, DType out) {
    return kind <= 2 && (out == DType::f32 || out == kElementTypes[kind]);
  }

 private:
  int64_t frame_;
};

}  // namespace thinwire
