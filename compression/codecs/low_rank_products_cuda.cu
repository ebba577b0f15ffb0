// Products of low rank on a GPU: the parts of a message, its factors and what they are multiplied with, as
// LowRankState has them on the host, bit by bit.
#include "compression/codecs/low_rank_cuda.h"
#include "compression/device_kernels.h"

namespace thinwire {
namespace {

constexpr int kTeam = 16;                       // threads that hold the partial sums of an element of p
constexpr int kTeamRows = 2, kTeamVectors = 8;  // of p at a time: 16 sums each
constexpr int kBlockRows = kTileThreads / kTeam * kTeamRows;
constexpr int kRightThreads = 64, kRightVectors = 8;

TW_DEVICE bool is_finite_float(float v) {
  return (bits_of(v) & 0x7fffffffu) < 0x7f800000u;
}

TW_KERNEL void __launch_bounds__(kWarp) clear_flag_kernel(unsigned* bad) {
  if (threadIdx.x == 0) *bad = 0;
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

// to = what the message before left or, before the first one, random numbers. Block (b, i): of place i.
TW_KERNEL void __launch_bounds__(kTileThreads)
    begin_factor_kernel(LowRankPlaces places, bool is_p, const int64_t* messages, const float* warm, float* to,
                        uint32_t key0, uint32_t key1, uint32_t slot) {
  const LowRankPlace place = places.list[blockIdx.y];
  const int64_t count = (is_p ? place.rows : place.cols) * place.rank, at = is_p ? place.p : place.q;
  const int64_t e = 4 * (static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x);
  if (e >= count) return;
  const bool is_first = warm == nullptr || (messages != nullptr && messages[0] == 0);
  Words words = {};
  if (is_first)
    words =
        philox_words(key0, key1, static_cast<uint32_t>(e / 4), static_cast<uint32_t>(place.matrix), slot, kFirstFactor);
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    if (e + k >= count) continue;
    const float uniform = static_cast<float>(words.w[k] >> 8) * 0x1p-24f;
    to[at + e + k] = is_first ? 2.0f * uniform + (0x1p-24f - 1.0f) : warm[at + e + k];
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

}  // namespace

LowRankParts::LowRankParts(const LowRankLayout& layout) {
  LowRankPlace next;  // with the sums so far
  auto raw = layout.raw.begin();
  const auto add_raw = [&](int64_t before) {
    for (; raw != layout.raw.end() && raw->first < before; ++raw) {
      LowRankPlace place;
      place.first = raw->first, place.rows = 1, place.cols = raw->count, place.p = raw->at;
      list.push_back(place);
      most_raw = std::max(most_raw, raw->count);
    }
  };
  for (const LowRankMatrix& m : layout.matrices) {
    add_raw(m.first);
    next.first = m.first, next.rows = m.rows, next.cols = m.cols, next.p = m.p, next.q = m.q;
    next.rank = static_cast<int>(m.rank);
    list.push_back(next);
    next.squares += m.rank * m.rank, next.vectors += m.rank;
    ++next.matrix;
    most.rows = std::max(most.rows, m.rows), most.cols = std::max(most.cols, m.cols);
    most.rank = std::max(most.rank, next.rank);
  }
  add_raw(layout.count);
  sums = next;
}

LowRankOnDevice::LowRankOnDevice(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices,
                                 const DevicePlace& place)
    : layout(spec, count, matrices), parts(layout), memory(*place.device, parts.list.size() * sizeof(LowRankPlace)) {
  if (!parts.list.empty()) place.device->copy_at_rest(memory.data(), parts.list.data(), memory.bytes());
}

LowRankWork::LowRankWork(CudaQueue& queue, const char* what, const LowRankOnDevice& message, Scratch scratch)
    : queue_(queue), what_(what), message_(message) {
  const LowRankLayout& layout = message.layout;
  const LowRankPlace &sums = message.parts.sums, &most = message.parts.most;
  const bool whole = scratch == Scratch::kMessage;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  const auto take = [&](auto*& to, int64_t count) {
    if (memory != nullptr) to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(memory + bytes);
    bytes += (static_cast<size_t>(count) * sizeof(*to) + 63) / 64 * 64;
  };
  const auto plan = [&] {
    bytes = 0;
    take(bad, 1);
    take(x, whole ? layout.count : 0);
    take(basis, whole ? layout.q_count : 0);
    take(tiles,
         whole ? static_cast<int64_t>(tile_squares_bytes(ceil_div(layout.count, kMostDeviceTile)) / sizeof(float)) : 0);
    take(chunks_, ceil_div(most.rows, kRightRows) * layout.q_count);
    take(orthonormal_.squares, 2 * sums.squares);
    take(orthonormal_.vectors, sums.vectors);
    take(orthonormal_.dependent, sums.vectors);
    take(orthonormal_.states, static_cast<int64_t>(message.parts.list.size()));
  };
  plan();
  memory = queue.scratch(bytes);
  plan();
  queue.launch(what, clear_flag_kernel, {1}, kWarp, 0, bad);
}

Grid LowRankWork::blocks(int64_t elements) const {
  return {ceil_div(elements, kTileThreads), message_.places().count};
}

void LowRankWork::begin(const Msg& msg, Factor which, const float* warm, const int64_t* messages, float* to) {
  const LowRankPlace& most = message_.parts.most;
  const bool is_p = which == Factor::kP;
  const PhiloxKey key = seed_key(msg.seed);
  queue_.launch(what_, begin_factor_kernel, blocks(ceil_div((is_p ? most.rows : most.cols) * most.rank, 4)),
                kTileThreads, 0, message_.places(), is_p, messages, warm, to, key.k0, key.k1, msg.slot);
  orthonormalize(which, to);
}

void LowRankWork::orthonormalize(Factor which, float* factor) {
  if (message_.parts.most.rank == 0) return;
  queue_orthonormalize(queue_, message_.places(), which == Factor::kP, factor, orthonormal_, message_.parts.most);
}

void LowRankWork::multiply(const float* x, Factor result, const float* other, float* to) {
  const LowRankPlace& most = message_.parts.most;
  const LowRankPlaces places = message_.places();
  const int64_t q_count = message_.layout.q_count;
  if (result == Factor::kP) {
    const int64_t left = ceil_div(most.rows, kBlockRows) * ceil_div(most.rank, kTeamVectors);
    queue_.launch(what_, left_kernel, {left, places.count}, kTileThreads, 0, places, x, other, to, bad);
    return;
  }
  const int64_t right =
      ceil_div(most.rows, kRightRows) * ceil_div(most.cols, kRightThreads) * ceil_div(most.rank, kRightVectors);
  queue_.launch(what_, right_kernel, {right, places.count}, kRightThreads, 0, places, x, other, chunks_, q_count);
  queue_.launch(what_, add_chunks_kernel, blocks(most.cols * most.rank), kTileThreads, 0, places, chunks_, q_count, to,
                bad);
}

void LowRankWork::gather_raw(const float* x, float* to) {
  queue_.launch(what_, gather_raw_kernel, blocks(message_.parts.most_raw), kTileThreads, 0, message_.places(), x, to,
                bad);
}

}  // namespace thinwire
