// Codec low_rank on a GPU, point to point: factors, payloads and warm starts of low_rank.cpp, bit by bit.
//
// A message is gathered in fp32 with its residual, multiplied and orthonormalised; then the kernel of all coders takes
// it tile by tile for what its payload decodes to. Whether something is not finite is known on the device alone: a warm
// factor is written in any case, as it was if so.
#include "compression/codecs/device_makers.h"
#include "compression/codecs/low_rank.h"
#include "compression/codecs/low_rank_cuda.h"
#include "compression/device_kernels.h"
#include "compression/device_state.h"

namespace thinwire {
namespace {

constexpr int kTeam = 16;                       // threads that hold the partial sums of an element of p
constexpr int kTeamRows = 2, kTeamVectors = 8;  // of p at a time: 16 sums each
constexpr int kBlockRows = kTileThreads / kTeam * kTeamRows;
constexpr int kRightThreads = 64, kRightVectors = 8;
constexpr int kPlacesAtOnce = 32;
constexpr int64_t kMostDeviceRank = 4096;

TW_DEVICE bool is_finite_float(float v) {
  return (bits_of(v) & 0x7fffffffu) < 0x7f800000u;
}

// A factor's element that meets many of the other's, as splat() of simd.h hands it on: -0 has become 0.
TW_DEVICE float splat_of(float v) {
  return 0.0f + v;
}

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
    write_places_kernel(const TW_GRID_CONSTANT PlacesToWrite from, LowRankPlace* to, unsigned* bad) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < from.count) to[from.first + i] = from.list[i];
  if (i == 0 && from.first == 0 && bad != nullptr) *bad = 0;
}

// x = what should arrive, in fp32.
TW_KERNEL void __launch_bounds__(kTileThreads, 2) gather_message_kernel(const TW_GRID_CONSTANT PackJob job, float* x) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMostDeviceTile, left = job.count - at;
  const int n = static_cast<int>(left < kMostDeviceTile ? left : kMostDeviceTile);
  TileValues values, work;
  load_input<false>(job, at, n, job.vectors, values, work);
  store_tile({x, 0}, at, n, true, values);
}

// Elements that no factor stands for. Block (b, i): of place i.
TW_KERNEL void __launch_bounds__(kTileThreads)
    gather_raw_kernel(LowRankPlaces places, const float* x, float* raw, unsigned* bad) {
  const LowRankPlace& place = places.list[blockIdx.y];
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (place.rank != 0 || e >= place.cols) return;
  const float value = x[place.first + e];
  raw[place.p + e] = value;
  if (!is_finite_float(value)) atomic_or(bad, 1u);
}

// ---- factors -------------------------------------------------------------------------------------------------------
// q = what the message before left or, before the first one, random numbers. Block (b, i): of place i.
TW_KERNEL void __launch_bounds__(kTileThreads)
    begin_factor_kernel(LowRankPlaces places, const int64_t* messages, const float* warm, float* q, uint32_t key0,
                        uint32_t key1, uint32_t slot) {
  const LowRankPlace place = places.list[blockIdx.y];
  const int64_t count = place.cols * place.rank;
  const int64_t e = 4 * (static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x);
  if (e >= count) return;
  const bool is_first = messages[0] == 0;
  Words words = {};
  if (is_first)
    words =
        philox_words(key0, key1, static_cast<uint32_t>(e / 4), static_cast<uint32_t>(place.matrix), slot, kFirstFactor);
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    if (e + k >= count) continue;
    const float uniform = static_cast<float>(words.w[k] >> 8) * 0x1p-24f;
    q[place.q + e + k] = is_first ? 2.0f * uniform + (0x1p-24f - 1.0f) : warm[place.q + e + k];
  }
}

// p = x q, kTeamRows rows and kTeamVectors vectors for each team. Block (b, i): of place i, those of the same rows one
// behind the other.
TW_KERNEL void __launch_bounds__(kTileThreads)
    left_kernel(LowRankPlaces places, const float* x, const float* q, float* p, unsigned* bad) {
  const LowRankPlace place = places.list[blockIdx.y];
  if (place.rank == 0) return;
  const unsigned groups = static_cast<unsigned>((place.rank + kTeamVectors - 1) / kTeamVectors);
  const int64_t row = static_cast<int64_t>(blockIdx.x / groups) * kBlockRows + threadIdx.x / kTeam * kTeamRows;
  if (row - threadIdx.x / kTeam * kTeamRows >= place.rows) return;
  const int vector = static_cast<int>(blockIdx.x % groups) * kTeamVectors;
  const int lane = static_cast<int>(threadIdx.x % kTeam);
  const float* const from = x + place.first + row * place.cols;
  const float* const basis = q + place.q + vector * place.cols;
  float sum[kTeamRows][kTeamVectors] = {};
  TW_UNROLL_BY(2)
  for (int64_t k = lane; k < place.cols; k += kTeam) {
    float a[kTeamRows];
    TW_UNROLL
    for (int i = 0; i < kTeamRows; ++i) a[i] = row + i < place.rows ? from[i * place.cols + k] : 0.0f;
    TW_UNROLL
    for (int c = 0; c < kTeamVectors; ++c) {
      const float b = vector + c < place.rank ? basis[c * place.cols + k] : 0.0f;
      TW_UNROLL
      for (int i = 0; i < kTeamRows; ++i) sum[i][c] = fmaf(a[i], b, sum[i][c]);
    }
  }
  bool finite = true;
  TW_UNROLL
  for (int i = 0; i < kTeamRows; ++i) {
    TW_UNROLL
    for (int c = 0; c < kTeamVectors; ++c) {
      float s = sum[i][c];
      TW_UNROLL
      for (int lanes = kTeam / 2; lanes > 0; lanes /= 2) s = s + shuffle_xor(s, lanes);
      if (lane != 0 || row + i >= place.rows || vector + c >= place.rank) continue;
      p[place.p + (vector + c) * place.rows + row + i] = s;
      finite = finite && is_finite_float(s);
    }
  }
  if (!finite) atomic_or(bad, 1u);
}

// q = x^T p over the rows of each chunk. Block (b, i): of place i, kRightThreads columns of a chunk and of
// kRightVectors vectors, those of the same columns one behind the other. sums: [chunks][q_count].
TW_KERNEL void __launch_bounds__(kRightThreads)
    right_kernel(LowRankPlaces places, const float* x, const float* p, float* sums, int64_t q_count) {
  const LowRankPlace place = places.list[blockIdx.y];
  if (place.rank == 0) return;
  const unsigned groups = static_cast<unsigned>((place.rank + kRightVectors - 1) / kRightVectors);
  const unsigned strips = static_cast<unsigned>((place.cols + kRightThreads - 1) / kRightThreads);
  const int vector = static_cast<int>(blockIdx.x % groups) * kRightVectors;
  const int64_t column = static_cast<int64_t>(blockIdx.x / groups % strips) * kRightThreads + threadIdx.x;
  const int64_t chunk = blockIdx.x / groups / strips, first = chunk * kRightRows;
  if (first >= place.rows || column >= place.cols) return;
  const int64_t last = first + kRightRows < place.rows ? first + kRightRows : place.rows;
  const float* const from = x + place.first + column;
  const float* const basis = p + place.p + vector * place.rows;
  float sum[kRightVectors] = {};
  TW_UNROLL_BY(4)
  for (int64_t i = first; i < last; ++i) {
    const float a = from[i * place.cols];
    TW_UNROLL
    for (int c = 0; c < kRightVectors; ++c)
      sum[c] = fmaf(a, vector + c < place.rank ? splat_of(basis[c * place.rows + i]) : 0.0f, sum[c]);
  }
  TW_UNROLL
  for (int c = 0; c < kRightVectors; ++c) {
    if (vector + c < place.rank) sums[chunk * q_count + place.q + (vector + c) * place.cols + column] = sum[c];
  }
}

// The chunks one behind the other. Block (b, i): of place i.
TW_KERNEL void __launch_bounds__(kTileThreads)
    add_chunks_kernel(LowRankPlaces places, const float* sums, int64_t q_count, float* q, unsigned* bad) {
  const LowRankPlace place = places.list[blockIdx.y];
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (e >= place.cols * place.rank) return;
  float sum = sums[place.q + e];
  for (int64_t chunk = 1; chunk * kRightRows < place.rows; ++chunk) sum = sum + sums[chunk * q_count + place.q + e];
  q[place.q + e] = sum;
  if (!is_finite_float(sum)) atomic_or(bad, 1u);
}

// What the next message starts from.
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
// The codec of the kernels of all coders. Payloads have been written; tiles are numbered from the message's first one.
struct LowRankTiles {
  LowRankPlaces places;
  int64_t p_count, raw_count;
  const unsigned* bad;  // of the message that is packed

  TW_DEVICE float element(const float* payload, int64_t e) const {
    const LowRankPlace& place = places.list[place_of(places, e)];
    const int64_t inside = e - place.first;
    if (place.rank == 0) return payload[p_count + place.p + inside];
    const int64_t row = inside / place.cols, column = inside - row * place.cols;
    const float *p = payload + place.p + row, *q = payload + p_count + raw_count + place.q + column;
    float sum = 0.0f;
    for (int c = 0; c < place.rank; ++c) sum = fmaf(splat_of(p[c * place.rows]), q[c * place.cols], sum);
    return sum;
  }
  // Four elements of one row.
  TW_DEVICE void four(const float* payload, const LowRankPlace& place, int64_t row, int64_t column,
                      float (&sum)[4]) const {
    const float *p = payload + place.p + row, *q = payload + p_count + raw_count + place.q + column;
    TW_UNROLL_BY(2)
    for (int c = 0; c < place.rank; ++c) {
      const float a = splat_of(p[c * place.rows]);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) sum[k] = fmaf(a, q[c * place.cols + k], sum[k]);
    }
  }
  TW_DEVICE void expand(const void* from, int64_t at, int n, TileValues& v) const {
    const float* const payload = static_cast<const float*>(from);
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      const int i = tile_element(s);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = 0.0f;
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
        const float value = element(payload, at + i + k);
        TW_UNROLL
        for (int j = 0; j < 4; ++j) v[s][j] = j == k ? value : v[s][j];  // an index that is not known has no register
      }
    }
  }

  TW_DEVICE bool encode(unsigned char*, TileValues& v, int n, uint64_t first, uint8_t* out, bool decoded) const {
    if (decoded) expand(out, static_cast<int64_t>(first), n, v);
    return *bad != 0;
  }
  TW_DEVICE bool decode(const uint8_t* in, int n, TileValues& v) const {
    expand(in, static_cast<int64_t>(blockIdx.x) * kMostDeviceTile, n, v);
    return true;
  }
};

// ---- what queues them ----------------------------------------------------------------------------------------------
std::vector<LowRankPlace> places_of(const LowRankLayout& layout) {
  std::vector<LowRankPlace> places;
  LowRankPlace next;  // with the sums so far
  auto raw = layout.raw.begin();
  const auto add_raw = [&](int64_t before) {
    for (; raw != layout.raw.end() && raw->first < before; ++raw) {
      LowRankPlace place;
      place.first = raw->first, place.rows = 1, place.cols = raw->count, place.p = raw->at;
      places.push_back(place);
    }
  };
  for (const LowRankMatrix& m : layout.matrices) {
    add_raw(m.first);
    next.first = m.first, next.rows = m.rows, next.cols = m.cols, next.p = m.p, next.q = m.q;
    next.rank = static_cast<int>(m.rank);
    places.push_back(next);
    next.rows_before += m.rows, next.cols_before += m.cols;
    next.squares += m.rank * m.rank, next.vectors += m.rank;
    ++next.matrix;
  }
  add_raw(layout.count);
  return places;
}

// bad: becomes 0; or nullptr.
LowRankPlaces queue_places(CudaQueue& queue, std::span<const LowRankPlace> places, LowRankPlace* to, unsigned* bad) {
  const auto count = static_cast<int>(places.size());
  for (int first = 0; first < count; first += kPlacesAtOnce) {
    PlacesToWrite from;
    from.first = first, from.count = std::min(kPlacesAtOnce, count - first);
    std::copy_n(places.begin() + first, from.count, from.list);
    queue.launch("places of low_rank", write_places_kernel, {1}, kWarp, 0, from, to, bad);
  }
  return {to, count};
}

// Of all matrices of a message: sums of their sizes, and the largest of each.
struct Extents {
  LowRankPlace sums, most;
  int64_t most_raw = 0;
  explicit Extents(std::span<const LowRankPlace> places) {
    for (const LowRankPlace& m : places) {
      if (m.rank == 0) most_raw = std::max(most_raw, m.cols);
      if (m.rank == 0) continue;
      sums.rows_before += m.rows, sums.cols_before += m.cols;
      sums.squares += int64_t{m.rank} * m.rank, sums.vectors += m.rank;
      most.rows = std::max(most.rows, m.rows), most.cols = std::max(most.cols, m.cols);
      most.rank = std::max(most.rank, m.rank);
    }
  }
};

// The scratch of one message, cut up.
class PackSpace {
 public:
  PackSpace(CudaQueue& queue, const LowRankLayout& layout, int64_t place_count, const Extents& extents) {
    const LowRankPlace& sums = extents.sums;
    const auto plan = [&] {
      bytes_ = 0;
      take(places, place_count);
      take(bad, 1);
      take(x, layout.count);
      take(basis, layout.q_count);
      take(chunks, ceil_div(extents.most.rows, kRightRows) * layout.q_count);
      take(tiles, static_cast<int64_t>(tile_squares_bytes(ceil_div(layout.count, kMostDeviceTile)) / sizeof(float)));
      take(orthonormal.squares, 2 * sums.squares);
      take(orthonormal.vectors, 2 * sums.vectors);
      take(orthonormal.tall, std::max(layout.p_count + sums.rows_before, layout.q_count + sums.cols_before));
      take(orthonormal.dependent, sums.vectors);
      take(orthonormal.states, place_count);
    };
    plan();
    memory_ = queue.scratch(bytes_);
    plan();
  }
  LowRankPlace* places = nullptr;
  unsigned* bad = nullptr;                                                    // something is not finite
  float *x = nullptr, *basis = nullptr, *chunks = nullptr, *tiles = nullptr;  // basis: q in front of the products
  OrthonormalSpace orthonormal;

 private:
  template <typename T>
  void take(T*& to, int64_t count) {
    if (memory_ != nullptr) to = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

class DeviceLowRankState final : public CompressionState {
 public:
  DeviceLowRankState(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices,
                     const DevicePlace& place)
      : layout(spec, count, matrices),
        warm_(layout.q_count, OnSkip::kRestore, place),
        messages_(1, OnSkip::kRestore, place) {}
  void commit() override { warm_.commit(), messages_.commit(); }
  void roll_back() override { warm_.roll_back(), messages_.roll_back(); }
  // As LowRankState's: its number of messages is a tensor in checkpoints, too (Mesh::visit_states).
  void visit(StateVisitor& visitor, const std::string& prefix) override {
    visitor.tensor(GlobalSlice::whole(prefix + "messages", 1, 1, View(messages_.settled(), DType::i64, {1})));
    const int64_t n = warm_.count();
    if (n > 0) visitor.tensor(GlobalSlice::whole(prefix + "warm", 1, n, View(warm_.settled(), DType::f32, {n})));
  }
  int64_t bytes() const override { return warm_.bytes() + messages_.bytes(); }

  Warm open(bool train) {
    if (!train) return {warm_.read(), nullptr, messages_.read(), nullptr};
    const auto factor = warm_.open(0, warm_.count());
    const auto number = messages_.open(0, 1);
    return {factor.read, factor.write, number.read, number.write};
  }
  const LowRankLayout layout;

 private:
  DeviceStateVector<float> warm_;
  DeviceStateVector<int64_t> messages_;
};

class LowRankCuda final : public DeviceCodec {
 public:
  explicit LowRankCuda(const CodecSpec& spec) : spec_(spec) {}

  size_t whole_bytes(const Msg& msg, int64_t count) const override {
    const LowRankLayout layout(spec_, count, msg.matrices);
    return static_cast<size_t>(layout.p_count + layout.raw_count + layout.q_count) * sizeof(float);
  }
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices,
                                               const DevicePlace& place) const override {
    return std::make_unique<DeviceLowRankState>(spec_, count, matrices, place);
  }

  void queue_pack(Exec& exec, const Msg& msg, const PackJob& job, CompressionState* state) const override {
    auto* const kept = dynamic_cast<DeviceLowRankState*>(state);
    TW_CHECK(kept != nullptr, "low_rank encodes whole messages with a state of its own");
    const LowRankLayout& layout = kept->layout;
    layout.check(job.count, msg.matrices);
    float* const p = payload_at(job.out);
    float *const raw = p + layout.p_count, *const q = raw + layout.raw_count;
    const Warm warm = kept->open(msg.train);
    const std::vector<LowRankPlace> places = places_of(layout);
    const Extents extents(places);
    const LowRankPlace& most = extents.most;
    CudaQueue queue(exec);
    const PackSpace space(queue, layout, static_cast<int64_t>(places.size()), extents);
    const LowRankPlaces there = queue_places(queue, places, space.places, space.bad);
    const auto blocks = [&](int64_t elements) {
      return Grid{ceil_div(elements, kTileThreads), static_cast<int64_t>(places.size())};
    };

    queue.launch(kPack, gather_message_kernel, {ceil_div(job.count, kMostDeviceTile)}, kTileThreads, 0, job, space.x);
    queue.launch(kPack, gather_raw_kernel, blocks(extents.most_raw), kTileThreads, 0, there, space.x, raw, space.bad);
    if (most.rank > 0) {
      const PhiloxKey key = seed_key(msg.seed);
      queue.launch(kPack, begin_factor_kernel, blocks(ceil_div(most.cols * most.rank, 4)), kTileThreads, 0, there,
                   warm.old_messages, warm.old, space.basis, key.k0, key.k1, msg.slot);
      queue_orthonormalize(queue, there, false, space.basis, space.orthonormal, most, kOrthonormalPasses);
      const int64_t left = ceil_div(most.rows, kBlockRows) * ceil_div(most.rank, kTeamVectors);
      queue.launch(kPack, left_kernel, {left, there.count}, kTileThreads, 0, there, space.x, space.basis, p, space.bad);
      queue_orthonormalize(queue, there, true, p, space.orthonormal, most, kOrthonormalPasses);
      const int64_t right =
          ceil_div(most.rows, kRightRows) * ceil_div(most.cols, kRightThreads) * ceil_div(most.rank, kRightVectors);
      queue.launch(kPack, right_kernel, {right, there.count}, kRightThreads, 0, there, space.x, p, space.chunks,
                   layout.q_count);
      queue.launch(kPack, add_chunks_kernel, blocks(most.cols * most.rank), kTileThreads, 0, there, space.chunks,
                   layout.q_count, q, space.bad);
    }
    queue.launch(kPack, keep_factor_kernel, {std::max<int64_t>(1, ceil_div(layout.q_count, kTileThreads))},
                 kTileThreads, 0, warm, q, layout.q_count, space.bad, job.tally);
    const bool decodes = job.residual != DeviceResidual::kNone || job.own.data != nullptr || job.sample_every != 0;
    const LowRankTiles tiles = {there, layout.p_count, layout.raw_count, space.bad};
    if (decodes) queue_pack_tiles(queue, space.tiles, kPack, tiles, 0, job);
  }

  void queue_absorb(Exec& exec, const Msg& msg, const AbsorbJob& job) const override {
    TW_CHECK(job.shares.size() <= kSharesAtOnce, "low_rank travels point to point");
    for (const DeviceShare& share : job.shares)
      if (share.type == kPayload) payload_at(share.data);
    const LowRankLayout layout(spec_, job.count, msg.matrices);
    const std::vector<LowRankPlace> places = places_of(layout);
    CudaQueue queue(exec);
    auto* const memory = reinterpret_cast<LowRankPlace*>(queue.scratch(places.size() * sizeof(LowRankPlace)));
    const LowRankPlaces there = queue_places(queue, places, memory, nullptr);
    const LowRankTiles tiles = {there, layout.p_count, layout.raw_count, nullptr};
    queue_absorb_tiles(queue, nullptr, "absorb low_rank", tiles, job);
  }

 private:
  static constexpr const char* kPack = "pack low_rank";
  static float* payload_at(const void* data) {
    TW_CHECK(reinterpret_cast<uintptr_t>(data) % alignof(float) == 0, "a payload of low_rank at ", data);
    return static_cast<float*>(const_cast<void*>(data));
  }
  CodecSpec spec_;
};

}  // namespace

std::unique_ptr<DeviceCodec> make_low_rank_cuda(const CodecSpec& spec) {
  const bool covers = spec.integer("sides") == 2 && spec.integer("rank") <= kMostDeviceRank;
  return covers ? std::make_unique<LowRankCuda>(spec) : nullptr;
}

}  // namespace thinwire
