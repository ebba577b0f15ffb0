// How slices are cut into pieces, and the bytes of a piece and of a slice.
//
// A slice (what one rank packs for one other) is cut into pieces of `chunk` elements, multiples of the granule, from
// its own start, so that all ranks know every piece and, unless the codec is framed, its bytes from the bounds alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/collective/coded.h"
#include "parallel/collective/route.h"

namespace thinwire {

inline constexpr size_t kLengthBytes = 8;  // the length that precedes a framed payload, little endian
inline constexpr int64_t kVector = 16;     // elements; slices and pieces are multiples of it, but for the last

inline Slice slice_of(const Bounds& bounds, int member) {
  return {bounds[member], bounds[member + 1] - bounds[member]};
}
inline View part_of(View all, const Slice& slice) {
  return all.element_range(slice.first, slice.count);
}

// The multiple at which slices and pieces are cut: a common one of kVector and every coder's cut_unit().
int64_t common_unit(const Coder* a, const Coder* b = nullptr, const Coder* c = nullptr);
// Where part `i` of `count` elements begins, in `parts` about equal ones cut at multiples of `unit`.
inline int64_t part_bound(int64_t count, int parts, int i, int64_t unit = kVector) {
  return std::min(count, (count * i / parts + unit - 1) / unit * unit);
}
Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit = kVector);

// Elements of a piece of a coded slice: about tuning.chunk_bytes of `dtype`, a multiple of every coder's granule;
// kUncut where a coder takes only uncut slices.
int64_t coded_chunk_elements(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second = nullptr);

// The dtype of sums before they are coded again: fp32; with a lossless coder or none the dtype that travels.
DType sum_dtype(const Coder* coder, DType dtype);

// Bytes of one payload, exactly (framed: at most, without the length); coder == nullptr: of the plain elements.
size_t payload_bytes(const Coder* coder, int64_t count, DType dtype);
// Bytes on the wire of a slice, length messages included.
int64_t slice_bytes(const Coder* coder, int64_t chunk, int64_t count, DType dtype);
// The same as sent: exact, not a bound, where msg.matrices determine the length of a framed payload.
int64_t sent_bytes(const Coder* coder, const Msg& msg, int64_t chunk, int64_t count, DType dtype);
// Messages that the slice travels in (framed: at most).
int64_t slice_messages(const Coder* coder, int64_t chunk, int64_t count, DType dtype);
bool is_framed(const Coder* coder);

// to = from, converted: from fp32 or to it.
void convert(View from, View to);

}  // namespace thinwire
