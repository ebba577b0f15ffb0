// Codec low_rank on a GPU: factors, payloads and warm starts of low_rank.cpp and low_rank_rounds.cpp, bit by bit.
//
// Point to point a message is gathered in fp32 with its residual, multiplied and orthonormalised; then the kernel that
// all coders share works out, tile by tile, what the payload decodes to. Only the device knows whether something is not
// finite, so the warm factor is always written: the old one once more if so.
#include "compression/codecs/device_makers.h"
#include "compression/codecs/low_rank_cuda.h"
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

constexpr int kPlacesAtOnce = 32;
constexpr int64_t kMostDeviceRank = 4096;

// The part that has element e of the message.
TW_DEVICE int place_of(const LowRankPlaces& places, int64_t e) {
  int low = 0, high = places.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (places.list[middle].first <= e)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// ---- what a message is made of -------------------------------------------------------------------------------------
struct PlacesToWrite {
  LowRankPlace list[kPlacesAtOnce];
  int first = 0, count = 0;
};
static_assert(sizeof(PlacesToWrite) + 64 < 4096);  // parameters of a kernel

TW_KERNEL void __launch_bounds__(kWarp)
    write_places_kernel(const TW_GRID_CONSTANT PlacesToWrite from, LowRankPlace* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < from.count) to[from.first + i] = from.list[i];
}

// x = the input with its residual, in fp32.
TW_KERNEL void __launch_bounds__(kTileThreads, 2) gather_message_kernel(const TW_GRID_CONSTANT PackJob job, float* x) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMostDeviceTile, left = job.count - at;
  const int n = static_cast<int>(left < kMostDeviceTile ? left : kMostDeviceTile);
  TileValues values, work;
  load_input<false>(job, at, n, job.vectors, values, work);
  store_tile({x, 0}, at, n, true, values);
}

// The warm start: the factor q that the message before left, and how many messages there were.
struct Warm {
  const float* old = nullptr;
  float* now = nullptr;
  const int64_t* old_messages = nullptr;
  int64_t* messages = nullptr;  // nullptr: nothing is kept
};

TW_KERNEL void __launch_bounds__(kTileThreads)
    keep_factor_kernel(Warm warm, const float* q, int64_t q_count, const unsigned* bad, DeviceTally* tally) {
  const bool is_bad = *bad != 0;
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (e == 0 && is_bad) atomic_or(&tally->flags, kDeviceNonFinite);
  if (warm.messages == nullptr) return;
  if (e == 0) warm.messages[0] = warm.old_messages[0] + (is_bad ? 0 : 1);
  if (e < q_count) warm.now[e] = is_bad ? warm.old[e] : q[e];
}

// ---- what a payload decodes to -------------------------------------------------------------------------------------
// The codec that the kernels of all coders are given. When they run, the payload has been written.
struct LowRankTiles {
  LowRankPlaces places;
  int64_t p_at, raw_at, q_at;     // where they begin in a payload
  const unsigned* bad = nullptr;  // of the message that is packed
  int64_t first = 0;              // element of the message that the first tile begins with

  TW_DEVICE float element(const float* payload, int64_t e) const {
    const LowRankPlace& place = places.list[place_of(places, e)];
    const int64_t inside = e - place.first;
    if (place.rank == 0) return payload[raw_at + place.p + inside];
    const int64_t row = inside / place.cols, column = inside - row * place.cols;
    const float *p = payload + p_at + place.p + row, *q = payload + q_at + place.q + column;
    float sum = 0.0f;
    for (int c = 0; c < place.rank; ++c) sum = fmaf(splat_of(p[c * place.rows]), q[c * place.cols], sum);
    return sum;
  }
  // Four elements of one row.
  TW_DEVICE void four(const float* payload, const LowRankPlace& place, int64_t row, int64_t column,
                      float (&sum)[4]) const {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) sum[k] = 0.0f;
    const float *p = payload + p_at + place.p + row, *q = payload + q_at + place.q + column;
    TW_UNROLL_BY(2)
    for (int c = 0; c < place.rank; ++c) {
      const float a = splat_of(p[c * place.rows]);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) sum[k] = fmaf(a, q[c * place.cols + k], sum[k]);
    }
  }
  // kRawStays: elements of no matrix stay what they are in v.
  template <bool kRawStays = false>
  TW_DEVICE void expand(const void* from, int64_t at, int n, TileValues& v) const {
    const float* const payload = static_cast<const float*>(from);
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = kRawStays ? v[s][k] : 0.0f;
      if (i >= n) continue;
      const LowRankPlace& place = places.list[place_of(places, at + i)];
      const int64_t inside = at + i - place.first, row = place.rank == 0 ? 0 : inside / place.cols;
      const int64_t column = inside - row * place.cols;
      if (place.rank != 0 && column + 4 <= place.cols) {
        four(payload, place, row, column, v[s]);
        continue;
      }
      TW_UNROLL_BY(1)
      for (int k = 0; k < 4 && i + k < n; ++k) {
        if (kRawStays && places.list[place_of(places, at + i + k)].rank == 0) continue;
        const float value = element(payload, at + i + k);
        TW_UNROLL
        for (int j = 0; j < 4; ++j) v[s][j] = j == k ? value : v[s][j];  // v[s][k] would take v out of registers
      }
    }
  }

  TW_DEVICE bool encode(unsigned char*, TileValues& v, int n, uint64_t at, uint8_t* out, bool decoded) const {
    if (decoded) expand(out, static_cast<int64_t>(at), n, v);
    return *bad != 0;
  }
  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    expand(in, first + static_cast<int64_t>(blockIdx.x) * kMostDeviceTile, n, v);
    return true;
  }
};

// ---- point to point ------------------------------------------------------------------------------------------------
LowRankPlaces queue_places(CudaQueue& queue, const LowRankParts& parts) {
  const auto count = static_cast<int>(parts.list.size());
  auto* const to = reinterpret_cast<LowRankPlace*>(queue.scratch(parts.list.size() * sizeof(LowRankPlace)));
  for (int first = 0; first < count; first += kPlacesAtOnce) {
    PlacesToWrite from;
    from.first = first, from.count = std::min(kPlacesAtOnce, count - first);
    std::copy_n(parts.list.begin() + first, from.count, from.list);
    queue.launch("places of low_rank", write_places_kernel, {1}, kWarp, 0, from, to);
  }
  return {to, count};
}

float* payload_at(const void* data) {
  TW_CHECK(reinterpret_cast<uintptr_t>(data) % alignof(float) == 0, "a payload of low_rank at ", data);
  return static_cast<float*>(const_cast<void*>(data));
}

// Counter: point to point the device, which alone knows whether a message was finite. In sums the host, which needs the
// number to know which factor travels. (One that is not finite counts there, too: its step is skipped, and rolls the
// state back.)
template <typename Counter>
struct LowRankOfSlot final : WarmFactor<DevicePlace, Counter> {
  LowRankOfSlot(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices, const DevicePlace& place,
                const Counter& counter)
      : WarmFactor<DevicePlace, Counter>(spec, LowRankLayout(spec, count, matrices), place, counter),
        message(spec, count, matrices, place) {}
  int64_t bytes() const override {
    return WarmFactor<DevicePlace, Counter>::bytes() + static_cast<int64_t>(message.memory.bytes());
  }
  int64_t count_of(Factor f) const { return f == Factor::kP ? message.layout.p_count : message.layout.q_count; }

  const LowRankOnDevice message;
  Factor travels = Factor::kQ;  // as LowRankState::travels
};
using DeviceLowRankState = LowRankOfSlot<DevicePlace>;
using DeviceRoundsState = LowRankOfSlot<HostPlace>;

Warm open_warm(DeviceLowRankState& state, bool train) {
  if (!train) return {state.warm.read(), nullptr, state.messages.read(), nullptr};
  const auto factor = state.warm.open(0, state.warm.count());
  const auto number = state.messages.open(0, 1);
  return {factor.read, factor.write, number.read, number.write};
}

class LowRankCuda final : public DeviceCodec {
 public:
  explicit LowRankCuda(const CodecSpec& spec) : spec_(spec) {}

  size_t whole_bytes(const Msg& msg, int64_t count) const override {
    const LowRankLayout layout(spec_, count, msg.matrices);
    return static_cast<size_t>(layout.p_count + layout.raw_count + layout.q_count) * sizeof(float);
  }
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices,
                                               const DevicePlace& place) const override {
    return std::make_unique<DeviceLowRankState>(spec_, count, matrices, place, place);
  }

  void queue_pack(Exec& exec, const Msg& msg, const PackJob& job, CompressionState* state) const override {
    auto* const kept = dynamic_cast<DeviceLowRankState*>(state);
    TW_CHECK(kept != nullptr, "low_rank encodes whole messages with a state of its own");
    const LowRankLayout& layout = kept->message.layout;
    layout.check(job.count, msg.matrices);
    float* const p = payload_at(job.out);
    float *const raw = p + layout.p_count, *const q = raw + layout.raw_count;
    const Warm warm = open_warm(*kept, msg.train);
    CudaQueue queue(exec);
    LowRankWork work(queue, kPack, kept->message, LowRankWork::Scratch::kMessage);
    queue.launch(kPack, gather_message_kernel, {ceil_div(job.count, kMostDeviceTile)}, kTileThreads, 0, job, work.x);
    work.gather_raw(work.x, raw);
    work.begin(msg, Factor::kQ, warm.old, warm.old_messages, work.basis);
    work.multiply(work.x, Factor::kP, work.basis, p);
    work.orthonormalize(Factor::kP, p);
    work.multiply(work.x, Factor::kQ, p, q);
    queue.launch(kPack, keep_factor_kernel, {std::max<int64_t>(1, ceil_div(layout.q_count, kTileThreads))},
                 kTileThreads, 0, warm, q, layout.q_count, work.bad, job.tally);
    const bool decodes = job.residual != DeviceResidual::kNone || job.own.data != nullptr || job.sample_every != 0;
    const LowRankTiles tiles = {kept->message.places(), 0, raw - p, q - p, work.bad};
    if (decodes) queue_pack_tiles(queue, work.tiles, kPack, tiles, 0, job);
  }

  void queue_absorb(Exec& exec, const Msg& msg, const AbsorbJob& job) const override {
    TW_CHECK(job.shares.size() <= kSharesAtOnce, "low_rank travels point to point");
    for (const DeviceShare& share : job.shares)
      if (share.type == kPayload) payload_at(share.data);
    const LowRankLayout layout(spec_, job.count, msg.matrices);
    CudaQueue queue(exec);
    const LowRankTiles tiles = {queue_places(queue, LowRankParts(layout)), 0, layout.p_count,
                                layout.p_count + layout.raw_count};
    queue_absorb_tiles(queue, nullptr, "absorb low_rank", tiles, job);
  }

 private:
  static constexpr const char* kPack = "pack low_rank";
  CodecSpec spec_;
};

// ---- sums over ranks -----------------------------------------------------------------------------------------------
// x = in + the residual.
TW_KERNEL void __launch_bounds__(kTileThreads)
    add_residual_kernel(const float* in, const float* residual, float scale, int64_t count, float* x) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (e < count) x[e] = in[e] + residual[e] * scale;
}

TW_KERNEL void __launch_bounds__(kWarp) raise_kernel(const unsigned* bad, DeviceTally* tally) {
  if (threadIdx.x == 0 && *bad != 0) atomic_or(&tally->flags, kDeviceNonFinite);
}

// to [all] = the factor; its elements behind `count` are those of `rest`.
TW_KERNEL void __launch_bounds__(kTileThreads)
    copy_factor_kernel(const float* factor, int64_t count, const float* rest, int64_t all, float* to) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (e < all) to[e] = e < count ? factor[e] : rest[e];
}

// x becomes this rank's own error, without the loss scale. tiles: with its own share of the last factor.
TW_KERNEL void __launch_bounds__(kTileThreads, 2)
    own_error_kernel(const TW_GRID_CONSTANT LowRankTiles tiles, const float* factors, float* x, int64_t count,
                     float unscale, float* squares_to) {
  TW_SHARED_ARRAY(float, slots, 3 * kTileWarps);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMostDeviceTile, left = count - at;
  const int n = static_cast<int>(left < kMostDeviceTile ? left : kMostDeviceTile);
  TileValues values, sent;
  load_tile({x, 0}, at, n, true, values);
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) sent[s][k] = values[s][k];
  }
  tiles.expand<true>(factors, at, n, sent);
  TileSquares squares;
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (!tile_has(tile_element(s) + k, n)) continue;
      const float error = values[s][k] - sent[s][k], kept = error * unscale;
      squares.error += error * error, squares.signal += values[s][k] * values[s][k], squares.residual += kept * kept;
      values[s][k] = kept;
    }
  }
  store_tile({x, 0}, at, n, true, values);
  write_squares(squares, slots, squares_to + static_cast<int64_t>(blockIdx.x) * 3);
}

class LowRankRoundsCuda final : public DeviceRounds {
 public:
  explicit LowRankRoundsCuda(const CodecSpec& spec) : spec_(spec), alternating_(spec.integer("sides") == 1) {}

  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices,
                                               const DevicePlace& place) const override {
    return std::make_unique<DeviceRoundsState>(spec_, count, matrices, place, HostPlace{});
  }
  int rounds() const override { return alternating_ ? 1 : 2; }
  size_t room_bytes(const CompressionState& state) const override {
    const LowRankLayout& layout = mine(state).message.layout;
    const int64_t own = alternating_ ? std::max(layout.p_count, layout.q_count) : layout.q_count;
    return static_cast<size_t>(layout.p_count + layout.raw_count + layout.q_count + own) * sizeof(float);
  }

  View queue_pack(int r, Exec& exec, const Msg& msg, const RoundJob& job, CompressionState& state) const override {
    DeviceRoundsState& s = mine(state);
    const LowRankLayout& layout = s.message.layout;
    layout.check(job.count, msg.matrices);
    if (r == 0) s.travels = !alternating_ || s.messages.read()[0] % 2 != 0 ? Factor::kQ : Factor::kP;
    const Factor sent = sent_in(r, s);
    const Room room = room_of(s, job.room);
    float *const to = room.factor(sent), *const basis = room.factor(other(sent));
    CudaQueue queue(exec);
    LowRankWork work(queue, kPack, s.message, LowRankWork::Scratch::kProducts);
    const Grid all = {ceil_div(job.count, kTileThreads)};
    if (r == 0) {
      if (job.now != nullptr)
        queue.launch(kPack, add_residual_kernel, all, kTileThreads, 0, job.in, job.old, msg.loss_scale, job.count,
                     job.now);
      work.begin(msg, other(sent), s.messages.read()[0] == 0 ? nullptr : s.warm.read(), nullptr, basis);
    }
    const float* const x = job.now != nullptr ? job.now : job.in;
    work.multiply(x, sent, basis, to);
    if (r == 0) work.gather_raw(x, room.raw);
    // Not finite in x is not finite in each of its products.
    if (r == 0) queue.launch(kPack, raise_kernel, {1}, kWarp, 0, work.bad, job.tally);
    const int64_t n = s.count_of(sent);
    if (sent == s.travels)
      queue.launch(kPack, copy_factor_kernel, {ceil_div(n, kTileThreads)}, kTileThreads, 0, to, n, to, n, room.own);
    return View(to, DType::f32, {n + (r == 0 ? layout.raw_count : 0)});
  }

  void queue_absorb(int r, Exec& exec, const Msg& msg, const RoundJob& job, CompressionState& state) const override {
    DeviceRoundsState& s = mine(state);
    const Factor sent = sent_in(r, s);
    float* const factor = room_of(s, job.room).factor(sent);
    CudaQueue queue(exec);
    if (sent != s.travels)
      return LowRankWork(queue, kAbsorb, s.message, LowRankWork::Scratch::kProducts).orthonormalize(sent, factor);
    if (!msg.train) return;
    const int64_t all = s.warm.count();
    const auto warm = s.warm.open(0, all);
    queue.launch(kAbsorb, copy_factor_kernel, {ceil_div(all, kTileThreads)}, kTileThreads, 0, factor, s.count_of(sent),
                 warm.read, all, warm.write);
    ++s.messages.write()[0];
  }

  void queue_result(Exec& exec, const Msg& msg, const RoundJob& job, int64_t first, View out, bool accumulate,
                    CompressionState& state) const override {
    DeviceRoundsState& s = mine(state);
    const Room room = room_of(s, job.room);
    CudaQueue queue(exec);
    LowRankTiles tiles = {s.message.places(), room.p - job.room, room.raw - job.room, room.q - job.room};
    if (job.now != nullptr) {
      LowRankTiles own = tiles;
      (s.travels == Factor::kP ? own.p_at : own.q_at) = room.own - job.room;
      const int64_t blocks = ceil_div(job.count, kMostDeviceTile);
      auto* const squares = reinterpret_cast<float*>(queue.scratch(tile_squares_bytes(blocks)));
      queue.launch(kAbsorb, own_error_kernel, {blocks}, kTileThreads, 0, own, job.room, job.now, job.count,
                   1.0f / msg.loss_scale, squares);
      queue_tile_squares(queue, squares, blocks, job.tally);
    }
    if (out.count() == 0) return;
    tiles.first = first;
    const DeviceShare sum = {job.room, kPayload};
    AbsorbJob absorb;
    absorb.count = out.count(), absorb.tile = kMostDeviceTile;
    absorb.shares = {&sum, 1};
    TW_CHECK(out.dtype == DType::f32, "low_rank: sums in ", name_of(out.dtype));
    absorb.out = {out.data, 0};
    absorb.accumulate = accumulate;
    absorb.vectors = reinterpret_cast<uintptr_t>(out.data) % (4 * sizeof(float)) == 0;
    absorb.tally = job.tally;
    queue_absorb_tiles(queue, nullptr, kAbsorb, tiles, absorb);
  }

 private:
  // Payloads lie side by side: the factor of the first round, then the raw elements.
  struct Room {
    float *p, *q, *raw, *own;
    float* factor(Factor f) const { return f == Factor::kP ? p : q; }
  };
  Room room_of(const DeviceRoundsState& s, float* room) const {
    const LowRankLayout& layout = s.message.layout;
    float* const end = room + layout.p_count + layout.raw_count + layout.q_count;
    if (sent_in(0, s) == Factor::kP) return {room, end - layout.q_count, room + layout.p_count, end};
    return {end - layout.p_count, room, room + layout.q_count, end};
  }
  Factor sent_in(int r, const DeviceRoundsState& s) const { return alternating_ || r == 1 ? s.travels : Factor::kP; }
  static DeviceRoundsState& mine(CompressionState& state) {
    auto* const s = dynamic_cast<DeviceRoundsState*>(&state);
    TW_CHECK(s != nullptr, "low_rank was given the state of another codec");
    return *s;
  }
  static const DeviceRoundsState& mine(const CompressionState& state) {
    return mine(const_cast<CompressionState&>(state));
  }

  static constexpr const char *kPack = "pack low_rank", *kAbsorb = "absorb low_rank";
  CodecSpec spec_;
  bool alternating_;
};

}  // namespace

std::unique_ptr<DeviceCodec> make_low_rank_cuda(const CodecSpec& spec) {
  const bool covers = spec.integer("sides") == 2 && spec.integer("rank") <= kMostDeviceRank;
  return covers ? std::make_unique<LowRankCuda>(spec) : nullptr;
}

std::unique_ptr<DeviceRounds> make_low_rank_rounds_cuda(const CodecSpec& spec) {
  return spec.integer("rank") <= kMostDeviceRank ? std::make_unique<LowRankRoundsCuda>(spec) : nullptr;
}

}  // namespace thinwire
