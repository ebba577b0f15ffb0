// Packing: takes each tile of a piece through residual, transform and codec, and keeps the new residual.
#include <cstring>
#include <vector>

#include "compression/coder_parts.h"
#include "compression/message_key.h"

namespace thinwire {
// The residual of before in fp32.
const float* Coder::Parts::residual_before(const Piece& piece, const Tile& t, int64_t a, int64_t count) const {
  const int64_t first = t.at + a;
  if (in_fp32()) return piece.open.values.read + first;
  if (in_8_bits())  // tiles and runs begin at multiples of kResidualBlock
    kernels.unpack8(piece.open.codes.read + first, piece.open.scales.read + first / kResidualBlock, t.old + a, count);
  else
    kernels.load[index_of(DType::bf16)](piece.open.halves.read + first, t.old + a, count);
  return t.old + a;
}

// x = input + residual - reference; work = its transform.
void Coder::Parts::load(const Piece& piece, const Tile& t, int64_t a, int64_t count) const {
  const char* in = at_element(piece.in, t.at + a);
  const size_t type = index_of(piece.in.dtype);
  if (piece.remember)
    kernels.load_add[type](in, residual_before(piece, t, a, count), piece.msg.loss_scale, t.x + a, count);
  else
    kernels.load[type](in, t.x + a, count);
  if (differences())
    kernels.subtract[index_of(piece.reference.dtype)](at_element(piece.reference, t.at + a), t.x + a, count);
  if (spec.hadamard) kernels.hadamard(t.x + a, t.work + a, count);
}

Msg Coder::Parts::message_of(const Piece& piece, const Tile& t) const {
  Msg msg = piece.msg;
  msg.first += t.at;
  msg.threads = t.threads;
  if (spec.hadamard) msg.padding = {};  // the transform mixes it with data
  return msg;
}

// Where the tile's payload goes, within the piece's.
std::span<std::byte> Coder::Parts::room_of(const Piece& piece, const Tile& t) const {
  const size_t start = t.at == 0 ? 0 : codec->wire_bytes(t.at, DType::f32);
  return piece.out.subspan(start, codec->wire_bytes(t.n, DType::f32));
}

// The payload; with `decoded` also work = what it decodes to, unless something is not finite.
Encoded Coder::Parts::encode(const Piece& piece, const Tile& t, bool decoded) const {
  const Msg msg = message_of(piece, t);
  const std::span<std::byte> room = room_of(piece, t);
  CompressionState* state = piece.state ? piece.state->codec() : nullptr;
  const View given(spec.hadamard ? t.work : t.x, DType::f32, {t.n});
  if (!decoded) return codec->encode(msg, given, room, state);
  return codec->round_trip(msg, given, room, state, View(t.work, DType::f32, {t.n}));
}

// The copy of what others decode, from work behind the transform.
void Coder::Parts::keep_own(const Piece& piece, const Tile& t, int64_t a, int64_t count) const {
  if (!piece.own) return;
  const auto& finish = differences() ? kernels.add_store : kernels.store;
  finish[index_of(piece.own.dtype)](t.work + a, at_element(piece.own, t.at + a), count);
}

// The residual from x and what it decodes to, and the squares of both.
void Coder::Parts::keep_residual(const Piece& piece, const Tile& t, int64_t a, int64_t count, TileSums& sums) const {
  const int64_t first = t.at + a;
  float *x = t.x + a, *work = t.work + a;
  if (!piece.remember) return kernels.squares(x, work, count, sums);
  const float unscale = 1.0f / piece.msg.loss_scale;
  if (residual.kind == ResidualKind::kEma) {
    kernels.ema(x, work, t.old + a, static_cast<float>(residual.beta), unscale, work, count, sums);
    kernels.pack8(work, piece.open.codes.write + first, piece.open.scales.write + first / kResidualBlock, count);
    return;
  }
  if (!in_fp32()) {
    kernels.error_feedback(x, work, unscale, work, count, sums, reinterpret_cast<const char*>(x),
                           reinterpret_cast<const char*>(x));
    return store_residual(piece, first, work, count);
  }
  // Fetches the tile behind this one, if there is a whole one.
  const bool more = t.threads == 1 && t.at + 2 * t.n <= piece.in.count();
  const float* before = piece.open.values.read + first;
  kernels.error_feedback(x, work, unscale, piece.open.values.write + first, count, sums,
                         at_element(piece.in, t.at + (more ? t.n : 0)),
                         reinterpret_cast<const char*>(more ? before + t.n : before));
}

// By chances that count from the message's first element: cutting it into pieces does not change them. The residual may
// be overwritten.
void Coder::Parts::store_residual(const Piece& piece, int64_t first, const float* residual, int64_t count) const {
  const uint64_t at = static_cast<uint64_t>(piece.msg.first + first);
  const PhiloxKey key = piece.chances;
  if (in_8_bits())
    kernels.dither8(residual, key.k0, key.k1, at, piece.open.codes.write + first,
                    piece.open.scales.write + first / kResidualBlock, count);
  else
    kernels.dither16(residual, key.k0, key.k1, at, piece.open.halves.write + first, count);
}

// Something was not finite, so the step will be skipped. Should it not be: the residual of before, and no NaN in it for
// ever.
void Coder::Parts::give_up(const Piece& piece, const Tile& t, size_t bytes) const {
  if (piece.own) {
    codec->decode(message_of(piece, t), room_of(piece, t).first(bytes), View(t.work, DType::f32, {t.n}), false);
    if (spec.hadamard) kernels.hadamard(t.work, t.work, t.n);
    keep_own(piece, t, 0, t.n);
  }
  const size_t n = static_cast<size_t>(t.n);
  const CoderState::Open& open = piece.open;
  if (!piece.remember) return;
  if (open.values.read != open.values.write)
    std::memcpy(open.values.write + t.at, open.values.read + t.at, n * sizeof(float));
  if (open.halves.read != open.halves.write)
    std::memcpy(open.halves.write + t.at, open.halves.read + t.at, n * sizeof(uint16_t));
  if (open.codes.read != open.codes.write) {
    const int64_t block = t.at / kResidualBlock, blocks = (t.n + kResidualBlock - 1) / kResidualBlock;
    std::memcpy(open.codes.write + t.at, open.codes.read + t.at, n);
    std::memcpy(open.scales.write + block, open.scales.read + block, static_cast<size_t>(blocks) * sizeof(float));
  }
}

Encoded Coder::Parts::pack_tile(const Piece& piece, const Tile& t, CompressionStats& sums) const {
  for_runs(t.threads, t.n, kResidualBlock, [&](int64_t, int64_t a, int64_t b) { load(piece, t, a, b - a); });
  const bool decoded = piece.remember || t.sample || piece.own;
  const Encoded encoded = encode(piece, t, decoded);
  if (encoded.non_finite) {
    ++sums.non_finite;
    give_up(piece, t, encoded.bytes);
  }
  if (encoded.non_finite || !decoded) return encoded;
  TileSums run_sums[kRuns];
  for_runs(t.threads, t.n, kResidualBlock, [&](int64_t run, int64_t a, int64_t b) {
    if (spec.hadamard) kernels.hadamard(t.work + a, t.work + a, b - a);
    keep_own(piece, t, a, b - a);
    keep_residual(piece, t, a, b - a, run_sums[run]);
  });
  for (const TileSums& s : run_sums) add_squares(sums, s);
  return encoded;
}

size_t Coder::Parts::pack_tiled(const Piece& piece, CompressionStats& sums) const {
  const int64_t n = piece.in.count();
  CompressionStats run_sums[kRuns];
  FirstError error;
  for_runs(piece.msg.threads, n, tile, [&](int64_t run, int64_t first, int64_t last) {
    alignas(64) float x[kLargestTile], work[kLargestTile], old[kLargestTile];
    error.guard(run, [&] {
      for (int64_t at = first; at < last; at += tile) {
        const bool sample = sampled(piece.msg, (piece.msg.first + at) / tile);
        pack_tile(piece, {at, std::min(tile, last - at), x, work, old, sample, 1}, run_sums[run]);
      }
    });
  });
  error.rethrow();
  for (const CompressionStats& s : run_sums) sums.add(s);
  return codec->wire_bytes(n, DType::f32);
}

size_t Coder::Parts::pack_whole(const Piece& piece, CompressionStats& sums) const {
  const int64_t n = piece.in.count();
  const int64_t need = 3 * n;
  std::vector<float> own;
  float* x = nullptr;
  if (piece.state && piece.state->scratch_count() >= scratch(n) && scratch(n) > 0)
    x = piece.state->scratch();
  else
    own.resize(static_cast<size_t>(need)), x = own.data();
  const bool sample = sampled(piece.msg, 0);
  return pack_tile(piece, {0, n, x, x + n, x + 2 * n, sample, piece.msg.threads}, sums).bytes;
}

// Nothing to do to the elements before the codec sees them.
size_t Coder::Parts::pack_direct(const Piece& piece, CompressionStats& sums) const {
  const Msg& msg = piece.msg;
  const int64_t n = piece.in.count();
  const Encoded encoded = codec->encode(msg, piece.in, piece.out, piece.state ? piece.state->codec() : nullptr);
  sums.non_finite = encoded.non_finite ? 1 : 0;
  if (encoded.non_finite || inner.lossless) return encoded.bytes;
  const auto measure = [&](int64_t at, int64_t count, std::span<const std::byte> payload, float* x, float* decoded) {
    Msg part = msg;
    part.first += at;
    codec->decode(part, payload, View(decoded, DType::f32, {count}), false);
    kernels.load[index_of(piece.in.dtype)](at_element(piece.in, at), x, count);
    TileSums s;
    kernels.squares(x, decoded, count, s);
    add_squares(sums, s);
  };
  if (!tiled) {
    if (!sampled(msg, 0)) return encoded.bytes;
    std::vector<float> scratch(static_cast<size_t>(2 * n));
    measure(0, n, piece.out.first(encoded.bytes), scratch.data(), scratch.data() + n);
    return encoded.bytes;
  }
  alignas(64) float x[kLargestTile], decoded[kLargestTile];
  for (int64_t at = 0; at < n; at += tile) {
    if (!sampled(msg, (msg.first + at) / tile)) continue;
    const int64_t count = std::min(tile, n - at);
    const size_t start = at == 0 ? 0 : codec->wire_bytes(at, piece.in.dtype);
    measure(at, count, piece.out.subspan(start, codec->wire_bytes(count, piece.in.dtype)), x, decoded);
  }
  return encoded.bytes;
}

void Coder::Parts::check_pack(const Msg& msg, const View& in, const View& reference, const View& own) const {
  const int64_t n = in.count();
  // Slices start anywhere, and pieces of a slice at multiples of the granule from there; only a residual that is itself
  // kept in blocks must not see its blocks cut.
  TW_CHECK(!in_8_bits() || msg.first % kResidualBlock == 0, name(), ": a piece at ", msg.first);
  TW_CHECK(!differences() || (reference && reference.count() == n), name(), ": differences to what?");
  TW_CHECK(!own || (keeps_decoded(msg) && own.count() == n), name(), ": a copy of what others decode");
}

size_t Coder::pack(const Msg& msg, View in, View reference, std::span<std::byte> out, CompressionState* state,
                   CompressionStats& stats, View own_copy) const {
  const Parts& p = *parts_;
  const int64_t n = in.count();
  if (n == 0) return 0;
  const Stopwatch watch(stats.encode_ns);
  const size_t bound = p.codec->wire_bytes(n, p.handed(in.dtype));
  TW_CHECK(out.size() >= bound, name(), ": room for ", out.size(), " bytes");
  p.check_pack(msg, in, reference, own_copy);
  auto* own = dynamic_cast<CoderState*>(state);
  TW_CHECK(!p.outer.stateful || own, name(), ": packs without a state of its own");

  // Evaluation neither adds residuals nor changes them: they belong to other data.
  const bool remember = keeps_residual(p.residual.kind) && msg.train;
  Parts::Piece piece{msg, in, reference, own_copy, out.first(bound), own, {}, remember, {}};
  if (remember && !p.in_fp32()) piece.chances = message_key(msg, RandomPurpose::kResidual);
  if (remember) {
    TW_CHECK(msg.first + n <= own->count(), "a piece at ", msg.first, "+", n, " of a state of ", own->count());
    piece.open = own->open(msg.first, n, msg.step);
  }
  CompressionStats sums;
  const bool direct = p.handed(in.dtype) == in.dtype && !p.spec.hadamard && !remember && !p.differences();
  const size_t bytes = direct    ? p.pack_direct(piece, sums)
                       : p.tiled ? p.pack_tiled(piece, sums)
                                 : p.pack_whole(piece, sums);
  if (remember)
    for_padding(msg, msg.first, n, [&](int64_t from, int64_t to) { own->forget(msg.first + from, to - from); });
  sums.non_finite = std::min<int64_t>(sums.non_finite, 1);  // of the piece, not of its tiles
  stats.add(sums);
  return bytes;
}

}  // namespace thinwire
