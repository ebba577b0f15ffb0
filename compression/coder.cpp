// The tile engine: cuts a piece into tiles that stay in cache, and takes each through transform, codec and residual.
#include "compression/coder.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <vector>

#include "compression/crc32c.h"
#include "compression/hadamard_kernel.h"
#include "compression/residual.h"
#include "engine/base/core/error.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kTile = 4096;          // elements, rounded down to the granule
constexpr int64_t kLargestTile = 32768;  // granules beyond it are coded as whole messages, with scratch on the heap
constexpr int64_t kSampleEvery = 64;     // tiles (or whole messages): how often an error that is not free is measured
constexpr size_t kChecksumBytes = 4;

size_t index_of(DType dtype) {
  TW_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "coding of ", name_of(dtype));
  return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2;
}
char* at_element(const View& v, int64_t i) {
  return static_cast<char*>(v.data) + static_cast<size_t>(i) * size_of(v.dtype);
}

class Stopwatch {
 public:
  explicit Stopwatch(int64_t& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    total_ += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  int64_t& total_;
  std::chrono::steady_clock::time_point start_;
};

// Exceptions must not leave a parallel loop. Keeps the one of the lowest place, so that the message does not depend on
// threads.
class FirstError {
 public:
  template <typename Body>
  void guard(int64_t place, const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_ || place < place_) error_ = std::current_exception(), place_ = place;
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  int64_t place_ = 0;
};

// Cuts [0, n) into at most 64 runs of whole units and calls body(run, first, last); the cuts depend on n and unit
// alone.
constexpr int64_t kRuns = 64;
template <typename Body>
void for_runs(int threads, int64_t n, int64_t unit, const Body& body) {
  if (n <= std::max(unit, kTile)) {
    body(0, 0, n);
    return;
  }
  const int64_t units = (n + unit - 1) / unit;
  const int64_t block = (units + kRuns - 1) / kRuns * unit;
  parallel_blocks(threads, n, block, [&](int64_t first, int64_t last) { body(first / block, first, last); });
}

// Sums of many tiles, in double.
struct PieceSums {
  double error = 0.0, signal = 0.0, residual = 0.0;
  bool non_finite = false;
  void add(const TileSums& t) {
    error += t.error;
    signal += t.signal;
    residual += t.residual;
  }
  void add(const PieceSums& t) {
    error += t.error;
    signal += t.signal;
    residual += t.residual;
    non_finite |= t.non_finite;
  }
};

bool keeps_residual(ResidualKind kind) {
  return kind == ResidualKind::kErrorFeedback || kind == ResidualKind::kLazy || kind == ResidualKind::kEma;
}

}  // namespace

void hadamard32(float* x, int64_t n) {
  TW_PICK_KERNELS(hadamard_kernels).hadamard(x, x, n);
}

struct Coder::Parts {
  std::shared_ptr<const Codec> codec;
  CodecSpec spec;
  ResidualSpec residual;
  Traits inner, outer;
  bool tiled = false;  // else a piece is coded whole
  int64_t tile = 0;
  const HadamardKernels& kernels = TW_PICK_KERNELS(hadamard_kernels);

  bool differences() const { return residual.kind == ResidualKind::kValueDifference; }
  size_t checksum_bytes() const { return spec.checksum ? kChecksumBytes : 0; }
  // The type that the codec is handed elements of `dtype` in.
  DType handed(DType dtype) const {
    const bool plain = inner.native && !spec.hadamard && residual.kind == ResidualKind::kNone;
    return plain ? dtype : DType::f32;
  }
  // Floats of scratch that pack() needs for a piece of n elements that is not tiled.
  int64_t scratch(int64_t n) const {
    if (tiled) return 0;
    return residual.kind == ResidualKind::kEma ? 3 * n : residual.kind != ResidualKind::kNone ? 2 * n : 0;
  }
  bool sampled(const Msg& msg, int64_t place) const {
    return !inner.lossless && (place + msg.step + msg.slot + msg.sequence) % kSampleEvery == 0;
  }

  struct Piece {
    const Msg& msg;
    View in, reference, own;
    std::span<std::byte> out;
    CoderState* state;
    CoderState::Open open;  // of the whole piece; unused unless `remember`
    bool remember;          // residuals are read and written
  };
  size_t pack_direct(const Piece& piece, PieceSums& sums) const;
  size_t pack_tiled(const Piece& piece, PieceSums& sums) const;
  size_t pack_whole(const Piece& piece, PieceSums& sums) const;
  Encoded pack_tile(const Piece& piece, int64_t at, int64_t n, float* x, float* work, float* old, bool sample,
                    int threads, PieceSums& sums) const;

  std::span<const std::byte> payload_of(const Share& share) const {
    return share.payload.empty() ? share.payload : share.payload.first(share.payload.size() - checksum_bytes());
  }
  void verify(std::span<const Share> shares, int64_t n) const;
  void decode(const Msg& msg, const Share& share, int64_t at, int64_t n, int64_t total, int threads, View out,
              bool accumulate) const;
  static bool overwrites_share(std::span<const Share> shares, const View& out);
  bool sums_in_place(std::span<const Share> shares, const View& out, bool accumulate) const;
  void absorb_tile(const Msg& msg, std::span<const Share> shares, int64_t at, int64_t n, int threads, float* work,
                   View out, bool accumulate) const;
};

// Refused, because it makes no sense:
//   any residual around a lossless codec     there is no error to keep, and a difference sent exactly says no more than
//                                            the value sent exactly
//   any residual around a codec that is not contractive   what is left grows instead of shrinking
//   hadamard around a lossless codec         the transform rounds, so nothing would be lossless any more
//   hadamard around a codec that is not linear   (the codec says so: its numbers mean something only untransformed)
//   hadamard around selectors (top_k and its kin) and whole-message codecs (low_rank)   they look for the few large
//                                            elements or the rows and columns of a matrix, which is what it spreads;
//                                            random_k gains nothing
//   ema with beta outside [0, 1), or reset_every < 0
Coder::Coder(std::shared_ptr<const Codec> codec, const CodecSpec& spec, const ResidualSpec& residual, int64_t cut) {
  const Traits traits = codec->traits();
  const std::string name = codec->name();
  const bool any_residual = residual.kind != ResidualKind::kNone;
  if (any_residual && traits.lossless)
    throw_bad_config("a residual around codec " + name +
                     ": it is lossless, there is nothing to keep; remove \"residual\"");
  if (any_residual && !traits.contractive)
    throw_bad_config("a residual around codec " + name +
                     ": what it loses can be more than what it was given, so the residual would grow; remove "
                     "\"residual\" or take a codec that rounds to nearest");
  if (spec.hadamard && traits.lossless)
    throw_bad_config("hadamard in front of codec " + name +
                     ": the transform rounds, and the codec is there to lose "
                     "nothing; remove \"hadamard\"");
  const bool selects = traits.granule == 0 || spec.codec.find("_k") != std::string::npos;
  if (spec.hadamard && (!traits.linear || selects))
    throw_bad_config("hadamard in front of codec " + name +
                     ": it depends on what the transform would spread; remove \"hadamard\"");
  if (residual.kind == ResidualKind::kEma && (residual.beta < 0.0 || residual.beta >= 1.0))
    throw_bad_config("residual ema: beta is " + std::to_string(residual.beta) +
                     "; it may be 0 or more, and less than 1");
  if (residual.reset_every < 0)
    throw_bad_config("residual ema: reset_every is " + std::to_string(residual.reset_every) +
                     "; it may be 0 (never) or more");

  auto parts = std::make_shared<Parts>();
  parts->codec = std::move(codec);
  parts->spec = spec;
  parts->residual = residual;
  parts->inner = traits;
  parts->outer = traits;
  parts->outer.alias = traits.alias && !spec.checksum;
  parts->outer.native = true;
  parts->outer.unbiased = traits.unbiased && !any_residual;
  parts->outer.stateful = traits.stateful || keeps_residual(residual.kind);
  int64_t granule = traits.granule;
  if (granule > 0 && spec.hadamard) granule = std::lcm(granule, int64_t{32});
  if (granule > 0 && residual.kind == ResidualKind::kEma) granule = std::lcm(granule, kEmaBlock);
  parts->outer.granule = granule == 0 ? 0 : std::lcm(granule, std::max<int64_t>(1, cut));
  parts->tile = granule == 0 ? 0 : granule < kTile ? kTile / granule * granule : granule;
  // Tiles of a payload are found by arithmetic, and by sender and receiver alike whatever the element type was.
  parts->tiled = granule > 0 && parts->tile <= kLargestTile && !traits.framed && !traits.stateful &&
                 parts->codec->wire_bytes(granule, DType::f32) == parts->codec->wire_bytes(granule, DType::bf16);
  parts_ = std::move(parts);
}

std::string Coder::name() const {
  std::string name = parts_->codec->name();
  if (parts_->spec.hadamard) name = "hadamard + " + name;
  switch (parts_->residual.kind) {
    case ResidualKind::kNone:
      break;
    case ResidualKind::kErrorFeedback:
      name += " + error_feedback";
      break;
    case ResidualKind::kLazy:
      name += " + lazy";
      break;
    case ResidualKind::kEma:
      name += " + ema";
      break;
    case ResidualKind::kValueDifference:
      name += " + value_difference";
      break;
  }
  return parts_->spec.checksum ? name + " + crc32c" : name;
}

Traits Coder::traits() const {
  return parts_->outer;
}
int64_t Coder::cut_unit() const {
  if (granule() > 0) return granule();
  return parts_->residual.kind == ResidualKind::kEma ? kEmaBlock : 1;  // its scales are of whole blocks
}
bool Coder::value_difference() const {
  return parts_->differences();
}

size_t Coder::wire_bytes(int64_t count, DType dtype) const {
  return count == 0 ? 0 : parts_->codec->wire_bytes(count, parts_->handed(dtype)) + parts_->checksum_bytes();
}

bool Coder::shrinks(int64_t count, DType dtype) const {
  const size_t plain = static_cast<size_t>(count) * size_of(dtype);
  // Nobody knows a framed payload's length before packing; below a kilobyte its header alone may eat the gain.
  if (parts_->inner.framed) return plain >= 1024;
  return wire_bytes(count, dtype) < plain;
}

std::unique_ptr<CodingState> Coder::make_state(int64_t count, std::span<const MatrixShape> matrices) const {
  if (!parts_->outer.stateful) return nullptr;
  return std::make_unique<CoderState>(parts_->residual, count, parts_->scratch(count),
                                      parts_->codec->make_state(count, matrices));
}

int64_t Coder::state_bytes(int64_t count, std::span<const MatrixShape> matrices) const {
  if (!parts_->outer.stateful) return 0;
  const auto own = parts_->codec->make_state(count, matrices);
  return (own ? own->bytes() : 0) + residual_bytes(parts_->residual, count) +
         parts_->scratch(count) * static_cast<int64_t>(sizeof(float));
}

// One tile (or, with threads, a whole piece): x [n] and work [n] are scratch, old [n] too where the residual is ema.
Encoded Coder::Parts::pack_tile(const Piece& piece, int64_t at, int64_t n, float* x, float* work, float* old,
                                bool sample, int threads, PieceSums& sums) const {
  const bool ema = piece.remember && residual.kind == ResidualKind::kEma;
  const float scale = piece.msg.loss_scale;
  const int64_t block = at / kEmaBlock;  // with ema, `at` is a multiple of it
  for_runs(threads, n, kEmaBlock, [&](int64_t, int64_t a, int64_t b) {
    const int64_t count = b - a;
    const char* in = at_element(piece.in, at + a);
    const size_t type = index_of(piece.in.dtype);
    const float* e = piece.remember && !ema ? piece.open.values.read + at + a : old + a;
    if (ema)
      kernels.unpack8(piece.open.codes.read + at + a, piece.open.scales.read + block + a / kEmaBlock, old + a, count);
    if (piece.remember)
      kernels.load_add[type](in, e, scale, x + a, count);
    else
      kernels.load[type](in, x + a, count);
    if (differences())
      kernels.subtract[index_of(piece.reference.dtype)](at_element(piece.reference, at + a), x + a, count);
    if (spec.hadamard) kernels.hadamard(x + a, work + a, count);
  });

  Msg msg = piece.msg;
  msg.first += at;
  msg.threads = threads;
  const size_t start = at == 0 ? 0 : codec->wire_bytes(at, DType::f32);
  const std::span<std::byte> room = piece.out.subspan(start, codec->wire_bytes(n, DType::f32));
  CodingState* codec_state = piece.state ? piece.state->codec() : nullptr;
  const View given(spec.hadamard ? work : x, DType::f32, {n});
  const bool both = piece.remember || sample || piece.own;
  const auto keep = [&](int64_t a, int64_t count) {
    if (!piece.own) return;
    const auto& finish = differences() ? kernels.add_store : kernels.store;
    finish[index_of(piece.own.dtype)](work + a, at_element(piece.own, at + a), count);
  };
  const Encoded encoded = both ? codec->round_trip(msg, given, room, codec_state, View(work, DType::f32, {n}))
                               : codec->encode(msg, given, room, codec_state);
  if (encoded.non_finite) {
    // The step will be skipped. Should it not be: the old residual, and no NaN in it for ever.
    sums.non_finite = true;
    if (piece.own) {
      codec->decode(msg, room.first(encoded.bytes), View(work, DType::f32, {n}), false);
      if (spec.hadamard) kernels.hadamard(work, work, n);
      keep(0, n);
    }
    if (piece.remember && !ema && piece.open.values.read != piece.open.values.write)
      std::memcpy(piece.open.values.write + at, piece.open.values.read + at, static_cast<size_t>(n) * sizeof(float));
    if (ema && piece.open.codes.read != piece.open.codes.write) {
      std::memcpy(piece.open.codes.write + at, piece.open.codes.read + at, static_cast<size_t>(n));
      std::memcpy(piece.open.scales.write + block, piece.open.scales.read + block,
                  static_cast<size_t>((n + kEmaBlock - 1) / kEmaBlock) * sizeof(float));
    }
    return encoded;
  }
  if (!both) return encoded;

  TileSums run_sums[kRuns];
  for_runs(threads, n, kEmaBlock, [&](int64_t run, int64_t a, int64_t b) {
    const int64_t count = b - a;
    TileSums& s = run_sums[run];
    if (spec.hadamard) kernels.hadamard(work + a, work + a, count);
    keep(a, count);
    if (ema) {
      kernels.ema(x + a, work + a, old + a, static_cast<float>(residual.beta), 1.0f / scale, work + a, count, s);
      kernels.pack8(work + a, piece.open.codes.write + at + a, piece.open.scales.write + block + a / kEmaBlock, count);
    } else if (piece.remember) {
      const bool more = threads == 1 && at + 2 * n <= piece.in.count();
      const float* e = piece.open.values.read + at + a;
      kernels.error_feedback(x + a, work + a, 1.0f / scale, piece.open.values.write + at + a, count, s,
                             at_element(piece.in, at + (more ? n : 0)),
                             reinterpret_cast<const char*>(more ? e + n : e));
    } else {
      kernels.squares(x + a, work + a, count, s);
    }
  });
  for (const TileSums& s : run_sums) sums.add(s);
  return encoded;
}

size_t Coder::Parts::pack_tiled(const Piece& piece, PieceSums& sums) const {
  const int64_t n = piece.in.count();
  PieceSums run_sums[kRuns];
  FirstError error;
  for_runs(piece.msg.threads, n, tile, [&](int64_t run, int64_t first, int64_t last) {
    alignas(64) float x[kLargestTile], work[kLargestTile], old[kLargestTile];
    error.guard(run, [&] {
      for (int64_t at = first; at < last; at += tile) {
        const bool sample = sampled(piece.msg, (piece.msg.first + at) / tile);
        pack_tile(piece, at, std::min(tile, last - at), x, work, old, sample, 1, run_sums[run]);
      }
    });
  });
  error.rethrow();
  for (const PieceSums& s : run_sums) sums.add(s);
  return codec->wire_bytes(n, DType::f32);
}

size_t Coder::Parts::pack_whole(const Piece& piece, PieceSums& sums) const {
  const int64_t n = piece.in.count();
  const int64_t need = 3 * n;
  std::vector<float> own;
  float* x = nullptr;
  if (piece.state && piece.state->scratch_count() >= scratch(n) && scratch(n) > 0)
    x = piece.state->scratch();
  else
    own.resize(static_cast<size_t>(need)), x = own.data();
  const bool sample = sampled(piece.msg, 0);
  return pack_tile(piece, 0, n, x, x + n, x + 2 * n, sample, piece.msg.threads, sums).bytes;
}

// Nothing to do to the elements before the codec sees them.
size_t Coder::Parts::pack_direct(const Piece& piece, PieceSums& sums) const {
  const Msg& msg = piece.msg;
  const int64_t n = piece.in.count();
  const Encoded encoded = codec->encode(msg, piece.in, piece.out, piece.state ? piece.state->codec() : nullptr);
  sums.non_finite = encoded.non_finite;
  if (encoded.non_finite || inner.lossless) return encoded.bytes;
  const auto measure = [&](int64_t at, int64_t count, std::span<const std::byte> payload, float* x, float* decoded) {
    Msg part = msg;
    part.first += at;
    codec->decode(part, payload, View(decoded, DType::f32, {count}), false);
    kernels.load[index_of(piece.in.dtype)](at_element(piece.in, at), x, count);
    TileSums s;
    kernels.squares(x, decoded, count, s);
    sums.add(s);
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

size_t Coder::pack(const Msg& msg, View in, View reference, std::span<std::byte> out, CodingState* state,
                   CodingStats& stats, View own_copy) const {
  const Parts& p = *parts_;
  const int64_t n = in.count();
  if (n == 0) return 0;
  const Stopwatch watch(stats.encode_ns);
  const size_t bound = p.codec->wire_bytes(n, p.handed(in.dtype));
  TW_CHECK(out.size() >= bound + p.checksum_bytes(), name(), ": room for ", out.size(), " bytes");
  // Slices start anywhere, and pieces of a slice at multiples of the granule from there; only a residual that is itself
  // kept in blocks must not see its blocks cut.
  TW_CHECK(p.residual.kind != ResidualKind::kEma || msg.first % kEmaBlock == 0, name(), ": a piece at ", msg.first);
  TW_CHECK(!p.differences() || (reference && reference.count() == n), name(), ": differences to what?");
  auto* own = dynamic_cast<CoderState*>(state);
  TW_CHECK(!p.outer.stateful || own, name(), ": packs without a state of its own");

  // Evaluation neither adds residuals nor changes them: they belong to other data.
  const bool remember = keeps_residual(p.residual.kind) && msg.train;
  TW_CHECK(!own_copy || (keeps_decoded(msg) && own_copy.count() == n), name(), ": a copy of what others decode");
  Parts::Piece piece{msg, in, reference, own_copy, out.first(bound), own, {}, remember};
  if (remember) {
    TW_CHECK(msg.first + n <= own->count(), "a piece at ", msg.first, "+", n, " of a state of ", own->count());
    piece.open = own->open(msg.first, n, msg.step);
  }
  PieceSums sums;
  const bool direct = p.handed(in.dtype) == in.dtype && !p.spec.hadamard && !remember && !p.differences();
  size_t bytes = direct ? p.pack_direct(piece, sums) : p.tiled ? p.pack_tiled(piece, sums) : p.pack_whole(piece, sums);
  if (p.spec.checksum) {
    const uint32_t crc = crc32c(out.first(bytes));
    for (size_t i = 0; i < kChecksumBytes; ++i) out[bytes + i] = static_cast<std::byte>(crc >> (8 * i));
    bytes += kChecksumBytes;
  }
  stats.error_square += sums.error;
  stats.signal_square += sums.signal;
  stats.residual_square += sums.residual;
  stats.non_finite += sums.non_finite ? 1 : 0;
  return bytes;
}

bool Coder::keeps_decoded(const Msg& msg) const {
  return parts_->differences() || (keeps_residual(parts_->residual.kind) && msg.train);
}

// Lengths and checksums, before anything is written.
void Coder::Parts::verify(std::span<const Share> shares, int64_t n) const {
  const size_t rest = checksum_bytes();
  for (const Share& share : shares) {
    if (share.raw) TW_CHECK(share.raw.count() == n && share.payload.empty(), "a raw share of ", share.raw.count());
    if (share.payload.empty()) continue;
    const auto whose = [&] { return "a payload of rank " + std::to_string(share.rank) + " in its group"; };
    if (share.payload.size() <= rest)
      throw_bad_data(whose() + " has " + std::to_string(share.payload.size()) + " bytes, less than its checksum");
    const std::span<const std::byte> body = payload_of(share);
    if (!inner.framed && !inner.alias && body.size() != codec->wire_bytes(n, DType::f32) &&
        body.size() != codec->wire_bytes(n, DType::bf16))
      throw_bad_data(whose() + " has " + std::to_string(share.payload.size()) + " bytes where " + codec->name() +
                     " of " + std::to_string(n) + " elements has " +
                     std::to_string(codec->wire_bytes(n, DType::f32) + rest));
    if (!spec.checksum) continue;
    uint32_t sent = 0;
    for (size_t i = 0; i < kChecksumBytes; ++i)
      sent |= static_cast<uint32_t>(share.payload[body.size() + i]) << (8 * i);
    if (sent != crc32c(body))
      throw_bad_data(whose() + " was damaged on its way: its checksum does not match (" + codec->name() + ", " +
                     std::to_string(share.payload.size()) + " bytes)");
  }
}

// Elements [at, at + n) of a piece of `total` from the share's payload.
void Coder::Parts::decode(const Msg& msg, const Share& share, int64_t at, int64_t n, int64_t total, int threads,
                          View out, bool accumulate) const {
  Msg part = msg;
  part.first += at;
  part.rank = share.rank;
  part.threads = threads;
  std::span<const std::byte> payload = payload_of(share);
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

// Whether `out` can hold the sum while it grows: fp32, not accumulated to. A share in its place has to be where the sum
// begins, or one of two, whose order does not matter.
bool Coder::Parts::sums_in_place(std::span<const Share> shares, const View& out, bool accumulate) const {
  if (out.dtype != DType::f32 || accumulate) return false;
  return !overwrites_share(shares, out) || (!spec.hadamard && (shares[0].raw.data == out.data || shares.size() == 2));
}

// Sum of the shares' elements [at, at + n) into `out` (the whole piece). work [n] may be nullptr where the sum is taken
// in place.
void Coder::Parts::absorb_tile(const Msg& msg, std::span<const Share> shares, int64_t at, int64_t n, int threads,
                               float* work, View out, bool accumulate) const {
  const bool in_place = sums_in_place(shares, out, accumulate);
  const bool begun = in_place && overwrites_share(shares, out);
  float* sum = in_place ? reinterpret_cast<float*>(at_element(out, at)) : work;
  bool empty = !begun;
  const auto add = [&](const View& raw) {
    const size_t type = index_of(raw.dtype);
    for_runs(threads, n, kEmaBlock, [&](int64_t, int64_t a, int64_t b) {
      (empty ? kernels.load[type] : kernels.add_raw[type])(at_element(raw, at + a), sum + a, b - a);
    });
    empty = false;
  };
  const auto raw_of = [&](const Share& share) {
    if (share.raw || !inner.alias || share.payload.empty()) return share.raw;
    // identity with a checksum: the payload is the elements themselves, fp32 or of the type of `out`.
    const std::span<const std::byte> body = payload_of(share);
    const int64_t total = out.count();
    const DType type = body.size() == static_cast<size_t>(total) * 4 ? DType::f32 : out.dtype;
    if (body.size() != static_cast<size_t>(total) * size_of(type))
      throw_bad_data("a payload of rank " + std::to_string(share.rank) + " in its group has " +
                     std::to_string(body.size()) + " bytes for " + std::to_string(total) + " elements");
    return View(const_cast<std::byte*>(body.data()), type, {total});
  };
  for (const Share& share : shares) {
    const View raw = raw_of(share);
    if (begun && raw && raw.data == out.data) continue;
    if (raw && !spec.hadamard) add(raw);
    if (raw || share.payload.empty()) continue;
    decode(msg, share, at, n, out.count(), threads, View(sum, DType::f32, {n}), !empty);
    empty = false;
  }
  if (spec.hadamard) {
    if (!empty)
      for_runs(threads, n, kEmaBlock,
               [&](int64_t, int64_t a, int64_t b) { kernels.hadamard(sum + a, sum + a, b - a); });
    for (const Share& share : shares)
      if (share.raw) add(share.raw);
  }
  if (empty && accumulate) return;
  if (empty) std::memset(sum, 0, static_cast<size_t>(n) * sizeof(float));
  if (in_place) return;
  const auto finish = accumulate ? kernels.add_store[index_of(out.dtype)] : kernels.store[index_of(out.dtype)];
  for_runs(threads, n, kEmaBlock,
           [&](int64_t, int64_t a, int64_t b) { finish(sum + a, at_element(out, at + a), b - a); });
}

void Coder::absorb(const Msg& msg, std::span<const Share> shares, View out, bool accumulate, CodingStats& stats) const {
  const Parts& p = *parts_;
  const int64_t n = out.count();
  if (n == 0) return;
  const Stopwatch watch(stats.decode_ns);
  p.verify(shares, n);
  TW_CHECK(!accumulate || !Parts::overwrites_share(shares, out), name(), ": a share in the place of what it adds to");
  if (p.differences()) {
    TW_CHECK(shares.size() == 1 && !shares[0].raw, name(), ": one difference at a time, not ", shares.size(),
             " shares");
    accumulate = true;
  }
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
