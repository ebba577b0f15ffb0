// Absorbing: decodes and adds the shares of several ranks in rank order, and undoes the transform once, behind the sum.
#include <cstring>
#include <string>
#include <vector>

#include "compression/coder_parts.h"
#include "engine/base/core/error.h"

namespace thinwire {

bool Coder::Parts::check_absorb(std::span<const Share> shares, const View& out, bool accumulate) const {
  const int64_t n = out.count();
  for (const Share& share : shares) {
    if (share.raw) TW_CHECK(share.raw.count() == n && share.payload.empty(), "a raw share of ", share.raw.count());
    const size_t bytes = share.payload.size();
    if (bytes > 0 && !inner.framed && !inner.alias && bytes != codec->wire_bytes(n, DType::f32) &&
        bytes != codec->wire_bytes(n, DType::bf16))
      throw_bad_data("a payload of rank " + std::to_string(share.rank) + " in its group has " + std::to_string(bytes) +
                     " bytes where " + codec->name() + " of " + std::to_string(n) + " elements has " +
                     std::to_string(codec->wire_bytes(n, DType::f32)));
  }
  TW_CHECK(!accumulate || !overwrites_share(shares, out), name(), ": a share in the place of what it adds to");
  TW_CHECK(!differences() || (shares.size() == 1 && !shares[0].raw), name(), ": one difference at a time, not ",
           shares.size(), " shares");
  return accumulate || differences();
}

View Coder::Parts::raw_of(const Share& share, const View& out) const {
  if (share.raw || !inner.alias || share.payload.empty()) return share.raw;
  // identity: the payload is the elements themselves, fp32 or of the type of `out`.
  const size_t bytes = share.payload.size();
  const int64_t n = out.count();
  const DType type = bytes == static_cast<size_t>(n) * 4 ? DType::f32 : out.dtype;
  if (bytes != static_cast<size_t>(n) * size_of(type))
    throw_bad_data("a payload of rank " + std::to_string(share.rank) + " in its group has " + std::to_string(bytes) +
                   " bytes for " + std::to_string(n) + " elements");
  return View(const_cast<std::byte*>(share.payload.data()), type, {n});
}

// Decodes elements [at, at + n) of a piece of `total` from the share's payload.
void Coder::Parts::decode(const Msg& msg, const Share& share, int64_t at, int64_t n, int64_t total, int threads,
                          View out, bool accumulate) const {
  Msg part = msg;
  part.first += at;
  part.rank = share.rank;
  part.threads = threads;
  if (spec.hadamard) part.padding = {};  // as message_of() in packing
  std::span<const std::byte> payload = share.payload;
  if (n < total) {
    const size_t start = at == 0 ? 0 : codec->wire_bytes(at, DType::f32);
    payload = payload.subspan(start, codec->wire_bytes(n, DType::f32));
  }
  try {
    codec->decode(part, payload, out, accumulate);
  } catch (const Error& e) {
    if (e.code() != ExitCode::kBadData) throw;
    throw_bad_data("a payload of rank " + std::to_string(share.rank) + " in its group: " + e.what());
  }
}

// Whether a raw share is `out` itself.
bool Coder::Parts::overwrites_share(std::span<const Share> shares, const View& out) {
  return std::any_of(shares.begin(), shares.end(), [&](const Share& s) { return s.raw && s.raw.data == out.data; });
}

// Whether shares can be added up in `out` itself: fp32, not accumulated to. A raw share that is `out` has to be the
// first, or one of two, whose order does not matter; with hadamard none may be, since raw shares are added last.
bool Coder::Parts::sums_in_place(std::span<const Share> shares, const View& out, bool accumulate) const {
  if (out.dtype != DType::f32 || accumulate) return false;
  return !overwrites_share(shares, out) || (!spec.hadamard && (shares[0].raw.data == out.data || shares.size() == 2));
}

// Writes the sum of the shares' elements [at, at + n) to `out` (the whole piece). work [n] may be nullptr where the sum
// is taken in place.
void Coder::Parts::absorb_tile(const Msg& msg, std::span<const Share> shares, int64_t at, int64_t n, int threads,
                               float* work, View out, bool accumulate) const {
  const bool in_place = sums_in_place(shares, out, accumulate);
  const bool begun = in_place && overwrites_share(shares, out);
  float* sum = in_place ? reinterpret_cast<float*>(at_element(out, at)) : work;
  bool empty = !begun;  // `sum` holds nothing yet
  const auto add = [&](const View& raw) {
    const size_t type = index_of(raw.dtype);
    for_runs(threads, n, kResidualBlock, [&](int64_t, int64_t a, int64_t b) {
      (empty ? kernels.load[type] : kernels.add_raw[type])(at_element(raw, at + a), sum + a, b - a);
    });
    empty = false;
  };
  for (const Share& share : shares) {
    const View raw = raw_of(share, out);
    if (begun && raw && raw.data == out.data) continue;
    if (raw && !spec.hadamard) add(raw);
    if (raw || share.payload.empty()) continue;
    decode(msg, share, at, n, out.count(), threads, View(sum, DType::f32, {n}), !empty);
    empty = false;
  }
  if (spec.hadamard) {
    if (!empty)
      for_runs(threads, n, kResidualBlock,
               [&](int64_t, int64_t a, int64_t b) { kernels.hadamard(sum + a, sum + a, b - a); });
    for (const Share& share : shares)
      if (share.raw) add(share.raw);
  }
  if (empty && accumulate) return;
  if (empty) std::memset(sum, 0, static_cast<size_t>(n) * sizeof(float));
  if (in_place) return;
  const auto finish = accumulate ? kernels.add_store[index_of(out.dtype)] : kernels.store[index_of(out.dtype)];
  for_runs(threads, n, kResidualBlock,
           [&](int64_t, int64_t a, int64_t b) { finish(sum + a, at_element(out, at + a), b - a); });
}

void Coder::absorb(const Msg& msg, std::span<const Share> shares, View out, bool accumulate,
                   CompressionStats& stats) const {
  const Parts& p = *parts_;
  const int64_t n = out.count();
  if (n == 0) return;
  const Stopwatch watch(stats.decode_ns);
  accumulate = p.check_absorb(shares, out, accumulate);
  const bool one = shares.size() == 1 && !shares[0].payload.empty() && !p.spec.hadamard && !p.inner.alias;
  if (one && (out.dtype == DType::f32 || (p.inner.native && !accumulate))) {
    p.decode(msg, shares[0], 0, n, n, msg.threads, out, accumulate);
    return;
  }
  if (!p.tiled) {
    std::vector<float> work(p.sums_in_place(shares, out, accumulate) ? 0 : static_cast<size_t>(n));
    p.absorb_tile(msg, shares, 0, n, msg.threads, work.data(), out, accumulate);
    return;
  }
  FirstError error;
  for_runs(msg.threads, n, p.tile, [&](int64_t run, int64_t first, int64_t last) {
    alignas(64) float work[kLargestTile];
    error.guard(run, [&] {
      for (int64_t at = first; at < last; at += p.tile)
        p.absorb_tile(msg, shares, at, std::min(p.tile, last - at), 1, work, out, accumulate);
    });
  });
  error.rethrow();
}

}  // namespace thinwire
