// How slices are cut into pieces, and the bytes of a piece and of a slice.
//
// A slice (what one rank packs for one other) is cut at multiples of the granule from its own start, so that all ranks
// know every piece and, unless the codec is framed, its bytes from the bounds alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/collective/coded.h"
#include "parallel/collective/route.h"

namespace thinwire {

inline constexpr size_t kLengthBytes = 8;  // in front of a framed payload, little endian
inline constexpr int64_t kVector = 16;     // elements: slices and pieces end on whole vectors

inline Slice slice_of(const Bounds& bounds, int member) {
  return {bounds[member], bounds[member + 1] - bounds[member]};
}
inline View part_of(View whole, const Slice& slice) {
  return whole.element_range(slice.first, slice.count);
}

// Elements that slices and pieces are multiples of: every coder's granule (0: cut anywhere) and whole vectors.
int64_t common_unit(const Coder* a, const Coder* b = nullptr, const Coder* c = nullptr);
// Equal slices of `count` elements, cut at multiples of `unit`.
inline int64_t part_bound(int64_t count, int parts, int r, int64_t unit = kVector) {
  return std::min(count, (count * r / parts + unit - 1) / unit * unit);
}
Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit = kVector);

// Elements of a piece: about tuning.chunk_bytes of `dtype`, at a multiple of every coder's granule; kUncut where a
// coder takes slices whole.
int64_t chunk_of(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second = nullptr);

// Sums that are coded again stay fp32, unless the coder keeps every bit: then they are rounded as they would travel.
DType sum_dtype(const Coder* coder, DType dtype);

// Bytes of one payload, exactly (framed: at most, without the length); coder == nullptr: the elements.
size_t payload_bytes(const Coder* coder, int64_t count, DType dtype);
// Bytes on the wire of a slice, length messages included.
int64_t slice_bytes(const Coder* coder, int64_t chunk, int64_t count, DType dtype);
// The same of what is sent: where the message's matrices say how long a framed payload is, that and no bound.
int64_t sent_bytes(const Coder* coder, const Msg& msg, int64_t chunk, int64_t count, DType dtype);
// Messages that the slice travels in (framed: at most).
int64_t slice_messages(const Coder* coder, int64_t chunk, int64_t count, DType dtype);
bool is_framed(const Coder* coder);

// to = from, converted: from fp32 or to it.
void convert(View from, View to);

}  // namespace thinwire
