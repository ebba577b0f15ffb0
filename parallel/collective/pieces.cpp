// How slices are cut into pieces, and elements converted.
#include "parallel/collective/pieces.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "compression/tile_kernel.h"
#include "engine/base/core/check.h"

namespace thinwire {

Payloads::Payloads(BlockPool& pool, const CommTuning& tuning, const Coder& coder, DType dtype, int64_t count)
    : stride((static_cast<int64_t>(coder.wire_bytes(std::min(count, chunk_of(tuning, dtype, &coder)), dtype)) + 63) /
             64 * 64),
      bytes(pool, stride * pieces_of(count, chunk_of(tuning, dtype, &coder))),
      lengths(pool, pieces_of(count, chunk_of(tuning, dtype, &coder))) {}

int64_t common_unit(const Coder* a, const Coder* b, const Coder* c) {
  int64_t unit = kVector;
  for (const Coder* coder : {a, b, c})
    if (coder != nullptr) unit = std::lcm(unit, coder->cut_unit());
  return unit;
}

Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit) {
  Bounds bounds(pool, parts + 1);
  for (int r = 0; r <= parts; ++r) bounds[r] = part_bound(count, parts, r, unit);
  return bounds;
}

int64_t chunk_of(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second) {
  for (const Coder* coder : {first, second})
    if (coder != nullptr && coder->granule() == 0) return kUncut;
  const int64_t unit = common_unit(first, second);
  return std::max(unit, tuning.chunk_bytes / static_cast<int64_t>(size_of(dtype)) / unit * unit);
}

DType sum_dtype(const Coder* coder, DType dtype) {
  return coder == nullptr || coder->traits().lossless ? dtype : DType::f32;
}

bool is_framed(const Coder* coder) {
  return coder != nullptr && coder->traits().framed;
}

size_t payload_bytes(const Coder* coder, int64_t count, DType dtype) {
  if (count == 0) return 0;
  return coder == nullptr ? static_cast<size_t>(count) * size_of(dtype) : coder->wire_bytes(count, dtype);
}

int64_t slice_bytes(const Coder* coder, int64_t chunk, int64_t count, DType dtype) {
  const int64_t pieces = pieces_of(count, chunk);
  if (pieces == 0) return 0;
  const int64_t last = count - (pieces - 1) * chunk;
  int64_t bytes = static_cast<int64_t>(payload_bytes(coder, last, dtype));
  if (pieces > 1) bytes += (pieces - 1) * static_cast<int64_t>(payload_bytes(coder, chunk, dtype));
  return bytes + (is_framed(coder) ? pieces * static_cast<int64_t>(kLengthBytes) : 0);
}

int64_t sent_bytes(const Coder* coder, const Msg& msg, int64_t chunk, int64_t count, DType dtype) {
  if (count == 0 || !is_framed(coder) || !coder->traits().matrices || msg.matrices.empty())
    return slice_bytes(coder, chunk, count, dtype);
  return static_cast<int64_t>(coder->message_bytes(msg, count, dtype) + kLengthBytes);
}

int64_t slice_messages(const Coder* coder, int64_t chunk, int64_t count, DType dtype) {
  const int64_t pieces = pieces_of(count, chunk);
  const auto of_piece = [&](int64_t elements) {
    const size_t bytes = payload_bytes(coder, elements, dtype);
    return static_cast<int64_t>((bytes + kLargestMessage - 1) / kLargestMessage) + (is_framed(coder) ? 1 : 0);
  };
  return pieces == 0 ? 0 : (pieces > 1 ? (pieces - 1) * of_piece(chunk) : 0) + of_piece(count - (pieces - 1) * chunk);
}

void convert(View from, View to) {
  TW_CHECK(from.count() == to.count());
  if (from.dtype == to.dtype) {
    if (from.data != to.data && from.bytes() > 0) std::memmove(to.data, from.data, from.bytes());
    return;
  }
  const TileKernels& kernels = TW_PICK_KERNELS(tile_kernels);
  if (to.dtype == DType::f32) return kernels.load[index_of(from.dtype)](from.data, to.as<float>(), from.count());
  kernels.store[index_of(to.dtype)](from.as<float>(), to.data, from.count());
}

}  // namespace thinwire
