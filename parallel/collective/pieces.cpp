// Cuts slices into pieces, counts their bytes, and converts elements.
#include "parallel/collective/pieces.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "compression/tile_kernel.h"
#include "engine/base/core/check.h"

namespace thinwire {

Payloads::Payloads(BlockPool& pool, const CommTuning& tuning, const Coder& coder, DType dtype, int64_t count) {
  const int64_t chunk = coded_chunk_elements(tuning, dtype, &coder), pieces = pieces_of(count, chunk);
  const auto most = static_cast<int64_t>(coder.wire_bytes(std::min(count, chunk), dtype));
  stride = (most + 63) / 64 * 64;
  bytes = Scratch<char>(pool, stride * pieces);
  lengths = Scratch<uint64_t>(pool, pieces);
}

int64_t common_unit(const Coder* a, const Coder* b, const Coder* c) {
  int64_t unit = kVector;
  for (const Coder* coder : {a, b, c})
    if (coder != nullptr) unit = std::lcm(unit, coder->cut_unit());
  return unit;
}

Bounds part_bounds(BlockPool& pool, int64_t count, int parts, int64_t unit) {
  Bounds bounds(pool, parts + 1);
  for (int i = 0; i <= parts; ++i) bounds[i] = part_bound(count, parts, i, unit);
  return bounds;
}

int64_t coded_chunk_elements(const CommTuning& tuning, DType dtype, const Coder* first, const Coder* second) {
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
  const bool known_by_matrices = is_framed(coder) && coder->traits().matrices && !msg.matrices.empty();
  if (count == 0 || !known_by_matrices) return slice_bytes(coder, chunk, count, dtype);
  return static_cast<int64_t>(coder->message_bytes(msg, count, dtype) + kLengthBytes);
}

int64_t slice_messages(const Coder* coder, int64_t chunk, int64_t count, DType dtype) {
  const int64_t pieces = pieces_of(count, chunk);
  if (pieces == 0) return 0;
  const auto of_piece = [&](int64_t elements) {
    const size_t bytes = payload_bytes(coder, elements, dtype);
    return static_cast<int64_t>((bytes + kLargestMessage - 1) / kLargestMessage) + (is_framed(coder) ? 1 : 0);
  };
  const int64_t last = of_piece(count - (pieces - 1) * chunk);
  return pieces > 1 ? (pieces - 1) * of_piece(chunk) + last : last;
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
