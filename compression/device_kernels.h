// The two kernels of every device codec: a tile through residual, transform and codec; shares to their sum.
//
// Codec: a plain struct with
//   bool encode(unsigned char* shared, TileValues& v, int n, uint64_t first, uint8_t* out, bool decoded)
//     writes the payload of a tile of n elements, the first of which has this index in the message; with `decoded` v
//     becomes what it decodes to. Returns whether this thread saw something that is not finite. All threads call, and
//     none reads `shared` afterwards.
//   bool decode(const uint8_t* in, int n, TileValues& v): returns false for what no encoder writes.
// and, where whole tiles in memory that allows vectors have a shorter way:
//   bool takes_whole(): on the host, whether they have with these parameters
//   bool encode_whole(TileValues& v, uint64_t first, uint8_t* out, bool decoded)
//   struct Part: what a thread loads of a tile's payload; PartPlace part_place(): where, in the tile;
//   load_part(const uint8_t* payload, const PartPlace& place, Part&): place in the payload
//   bool decode_part(const Part&, TileValues& v).
// What they compute is what the CPU's kernels do, bit by bit; the order of every sum is fixed.
#pragma once

#include <algorithm>

#include "compression/device_tile.h"
#include "compression/tile_kernel.h"
#include "engine/base/ops/cuda_reduce.h"

namespace thinwire {

constexpr int kEightBitBlocks = static_cast<int>(kMostDeviceTile / kResidualBlock);
constexpr float kSmallestKept = 1.5e-36f;  // below it residuals in 8 bit are nothing

// ---- residuals -----------------------------------------------------------------------------------------------------
TW_DEVICE bool is_in_8_bits(const PackJob& job) {
  return job.residual == DeviceResidual::kInt8 || job.residual == DeviceResidual::kEma;
}
// What was kept before, in fp32; of four elements in 8 bit.
TW_DEVICE void bytes_before(const PackJob& job, int64_t at, int i, int n, float (&e)[4]) {
  const int8_t* codes = static_cast<const int8_t*>(job.old) + at + i;
  const float scale = tile_has(i, n) ? job.old_scales[(at + i) / kResidualBlock] : 0.0f;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) e[k] = tile_has(i + k, n) ? static_cast<float>(codes[k]) * scale : 0.0f;
}
TW_DEVICE void residual_before(const PackJob& job, int64_t at, int n, bool vectors, TileValues& e) {
  if (!is_in_8_bits(job)) {
    load_tile({const_cast<void*>(job.old), job.residual == DeviceResidual::kFp32 ? 0 : 1}, at, n, vectors, e);
    return;
  }
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) bytes_before(job, at, tile_element(s), n, e[s]);
}

// What was kept stays.
TW_DEVICE void keep_old(const PackJob& job, int64_t at, int n) {
  if (job.old == job.now) return;
  const int size = job.residual == DeviceResidual::kFp32 ? 4 : job.residual == DeviceResidual::kBf16 ? 2 : 1;
  const uint8_t* from = static_cast<const uint8_t*>(job.old) + at * size;
  uint8_t* to = static_cast<uint8_t*>(job.now) + at * size;
  for (int b = static_cast<int>(threadIdx.x); b < n * size; b += kTileThreads) to[b] = from[b];
  if (!is_in_8_bits(job)) return;
  const int blocks = (n + static_cast<int>(kResidualBlock) - 1) / static_cast<int>(kResidualBlock);
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kTileThreads)
    job.now_scales[at / kResidualBlock + b] = job.old_scales[at / kResidualBlock + b];
}

// bf16, up or down by chance, never out of the finite numbers.
TW_DEVICE void keep_halves(const PackJob& job, int64_t at, int i, int n, bool vectors, const float (&r)[4]) {
  uint32_t chance[4] = {};
  float kept[4];
  draw_four(job.chance0, job.chance1, job.first + static_cast<uint64_t>(at + i), 0, chance);
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    const uint32_t v = bits_of(r[k]), rounded = v + chance[k];
    const bool grows = (rounded & 0x7f800000u) == 0x7f800000u || is_nan(r[k]);  // (a NaN of all ones would end as -0)
    kept[k] = float_of_bits((grows ? v : rounded) & 0xffff0000u);
  }
  store_four(job.now, 1, at, i, n, vectors, kept);
}

// Eight bits; `largest`: per block of kResidualBlock the bits of the largest magnitude.
TW_DEVICE void keep_bytes(const PackJob& job, int64_t at, int i, int n, const float (&r)[4], const unsigned* largest) {
  if (!tile_has(i, n)) return;
  const int block = i / static_cast<int>(kResidualBlock);
  const uint32_t bits = largest[block];
  const float most = float_of_bits(bits);
  const bool keep = bits < 0x7f800000u && most > kSmallestKept;
  const float inverse = keep ? 127.0f / most : 0.0f;
  if (i % static_cast<int>(kResidualBlock) == 0)
    job.now_scales[at / kResidualBlock + block] = keep ? most / 127.0f : 0.0f;
  uint32_t chance[4] = {}, code[4];
  if (job.residual == DeviceResidual::kInt8)
    draw_four(job.chance0, job.chance1, job.first + static_cast<uint64_t>(at + i), 0, chance);
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    const float v = keep ? r[k] * inverse : 0.0f;
    float q = rintf(v);
    if (job.residual == DeviceResidual::kInt8) {
      const float down = floorf(v);
      q = down + ((v - down) * 65536.0f > static_cast<float>(chance[k]) + 0.5f ? 1.0f : 0.0f);
      q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
    }
    code[k] = static_cast<uint32_t>(static_cast<int>(q));
  }
  store_codes<8>(static_cast<uint8_t*>(job.now) + at, i, n, code);
}

// ---- packing -------------------------------------------------------------------------------------------------------
// x: what should arrive, the input with its residual. v: anything. kBare: there is no residual and no reference.
template <bool kBare>
TW_DEVICE void load_input(const PackJob& job, int64_t at, int n, bool vectors, TileValues& x, TileValues& v) {
  load_tile(job.in, at, n, vectors, x);
  if (!kBare && job.residual != DeviceResidual::kNone) {
    residual_before(job, at, n, vectors, v);
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) x[s][k] = fmaf(v[s][k], job.loss_scale, x[s][k]);
    }
  }
  if (!kBare && job.reference.data != nullptr) {
    load_tile(job.reference, at, n, vectors, v);
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) x[s][k] = x[s][k] - v[s][k];
    }
  }
}

struct TileSquares {
  float error = 0.0f, signal = 0.0f, residual = 0.0f;
};
// Writes the sums over all threads to `to` [3]. slots: [3 kTileWarps] in shared memory. All threads call.
TW_DEVICE void write_squares(const TileSquares& squares, float* slots, float* to) {
  const float sum[3] = {warp_sum(squares.error), warp_sum(squares.signal), warp_sum(squares.residual)};
  if (threadIdx.x % kWarp == 0) {
    TW_UNROLL
    for (int j = 0; j < 3; ++j) slots[j * kTileWarps + threadIdx.x / kWarp] = sum[j];
  }
  __syncthreads();
  if (threadIdx.x >= 3) return;
  float all = 0.0f;
  for (int w = 0; w < kTileWarps; ++w) all += slots[static_cast<int>(threadIdx.x) * kTileWarps + w];
  to[threadIdx.x] = all;
}

// x: what should arrive; d: what does. largest: kEightBitBlocks zeros in shared memory. kBare: nothing is kept, only
// measured. All threads call.
template <bool kBare>
TW_DEVICE TileSquares keep_residual(const PackJob& job, int64_t at, int n, bool vectors, const TileValues& x,
                                    TileValues& d, unsigned* largest) {
  TileSquares sums;
  const bool ema = !kBare && job.residual == DeviceResidual::kEma;
  const float fresh = (1.0f - job.beta) * job.unscale;
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    if (!step_has_any(s, n)) continue;
    float old[4] = {};
    if (ema) bytes_before(job, at, tile_element(s), n, old);
    uint32_t size[4];
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      const bool there = tile_has(tile_element(s) + k, n);
      const float e = there ? x[s][k] - d[s][k] : 0.0f;
      const float r = ema ? fmaf(e, fresh, old[k] * job.beta) : e * job.unscale;
      d[s][k] = r;
      size[k] = bits_of(r) & 0x7fffffffu;
      sums.error = fmaf(e, e, sums.error);
      sums.signal = fmaf(x[s][k], x[s][k], sums.signal);
      if (there) sums.residual = fmaf(r, r, sums.residual);
    }
    if constexpr (kBare) continue;
    if (is_in_8_bits(job))
      raise_maxima(largest, size, tile_element(s), n, static_cast<int>(kResidualBlock), kWarp);
    else if (job.residual == DeviceResidual::kFp32)
      store_four(job.now, 0, at, tile_element(s), n, vectors, d[s]);
    else if (job.residual == DeviceResidual::kBf16)
      keep_halves(job, at, tile_element(s), n, vectors, d[s]);
  }
  if (kBare || !is_in_8_bits(job)) return sums;
  __syncthreads();
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) keep_bytes(job, at, tile_element(s), n, d[s], largest);
  return sums;
}

// A codec with a shorter way for whole tiles.
template <typename Codec>
concept CodesWholeTiles = requires {
  typename Codec::Part;
};

// kWhole: tiles of kMostDeviceTile elements that vectors reach; kBare: and no residual, no reference and no own copy.
enum class PackWay { kAny, kWhole, kBare };
constexpr int blocks_at_once(PackWay way) {
  return way == PackWay::kAny ? 2 : way == PackWay::kWhole ? 3 : 4;
}

// Block b takes tile `before` + b. sums: [3] per tile.
template <typename Codec, PackWay kWay>
TW_KERNEL void __launch_bounds__(kTileThreads, blocks_at_once(kWay))
    pack_tiles_kernel(const TW_GRID_CONSTANT Codec codec, const TW_GRID_CONSTANT PackJob job, int64_t before,
                      float* sums) {
  TW_SHARED_ARRAY(unsigned, words, 1 + kEightBitBlocks);  // something is not finite; largest residuals
  TW_SHARED_ARRAY(float, slots, 3 * kTileWarps);
  constexpr bool kWhole = kWay != PackWay::kAny, kBare = kWay == PackWay::kBare;
  const int64_t tile = before + blockIdx.x, at = tile * (kWhole ? kMostDeviceTile : job.tile), left = job.count - at;
  const int n = static_cast<int>(kWhole ? kMostDeviceTile : left < job.tile ? left : job.tile);
  const bool vectors = kWhole || job.vectors;
  if (threadIdx.x < 1 + kEightBitBlocks) words[threadIdx.x] = 0;

  TileValues x, v;
  load_input<kBare>(job, at, n, vectors, x, v);
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) v[s][k] = x[s][k];
  }
  if (job.hadamard) hadamard_tile(v, n);
  const uint64_t place = static_cast<uint64_t>(tile) + job.sample_phase;
  const bool sample = job.sample_every != 0 && (place & (job.sample_every - 1)) == 0;
  const bool decoded = sample || (!kBare && (job.own.data != nullptr || job.residual != DeviceResidual::kNone));
  const uint64_t first = job.first + static_cast<uint64_t>(at);
  uint8_t* out = job.out + tile * job.tile_bytes;
  float* squares_to = sums + tile * 3;
  bool strange;
  if constexpr (kWhole) {
    strange = codec.encode_whole(v, first, out, decoded);
  } else {
    TW_DYNAMIC_SHARED(shared);
    __syncthreads();
    strange = codec.encode(shared, v, n, first, out, decoded);
  }
  if (strange) atomic_or(&job.tally->flags, kDeviceNonFinite);
  if (!decoded) {
    if (threadIdx.x < 3) squares_to[threadIdx.x] = 0.0f;
    return;
  }
  __syncthreads();
  if (strange) atomic_or(words, 1u);
  __syncthreads();
  const bool bad = words[0] != 0;

  if (job.hadamard) hadamard_tile(v, n);
  if (!kBare && job.own.data != nullptr) {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      float y[4];
      TW_UNROLL
      for (int k = 0; k < 4; ++k) y[k] = v[s][k];
      if (job.own_adds) {
        float old[4];
        load_four(job.own.data, job.own.type, at, tile_element(s), n, vectors, old);
        TW_UNROLL
        for (int k = 0; k < 4; ++k) y[k] = old[k] + y[k];
      }
      store_four(job.own.data, job.own.type, at, tile_element(s), n, vectors, y);
    }
  }
  if constexpr (kBare) load_tile(job.in, at, n, vectors, x);  // few tiles come here: x was not kept
  TileSquares squares;
  if (!bad)
    squares = keep_residual<kBare>(job, at, n, vectors, x, v, words + 1);
  else if (!kBare && job.residual != DeviceResidual::kNone)
    keep_old(job, at, n);
  if (job.residual == DeviceResidual::kNone) squares.residual = 0.0f;
  write_squares(squares, slots, squares_to);
}

// ---- absorbing -----------------------------------------------------------------------------------------------------
constexpr int kSharesAtOnce = 64;

struct AbsorbLaunch {
  int64_t count, tile, tile_bytes;
  int shares, transform_at;
  DeviceVector out;
  bool accumulate, vectors;
  const float* partial_in;  // what the sum begins with, and where it goes on in the next launch; nullptr: at nothing,
  float* partial_out;       // nowhere
  DeviceTally* tally;
  DeviceShare share[kSharesAtOnce];
};

// The sum begins with what an addition leaves as it is, be it -0.
TW_DEVICE void begin_sum(const AbsorbLaunch& job, int64_t at, int n, bool vectors, TileValues& sum) {
  if (job.partial_in != nullptr) {
    load_tile({const_cast<float*>(job.partial_in), 0}, at, n, vectors, sum);
    return;
  }
  const float nothing = job.shares > 0 ? -0.0f : 0.0f;
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) sum[s][k] = nothing;
  }
}
TW_DEVICE void add_to_sum(TileValues& sum, const TileValues& v) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) sum[s][k] = sum[s][k] + v[s][k];
  }
}
TW_DEVICE void end_sum(const AbsorbLaunch& job, int64_t at, int n, bool vectors, TileValues& sum) {
  if (job.shares == job.transform_at) hadamard_tile(sum, n);
  if (job.partial_out != nullptr) {
    store_tile({job.partial_out, 0}, at, n, vectors, sum);
    return;
  }
  if (job.accumulate) {
    TileValues old;
    load_tile(job.out, at, n, vectors, old);
    add_to_sum(sum, old);
  }
  store_tile(job.out, at, n, vectors, sum);
}

// Block b takes tile `before` + b.
template <typename Codec>
TW_KERNEL void __launch_bounds__(kTileThreads, 2)
    absorb_tiles_kernel(const TW_GRID_CONSTANT Codec codec, const TW_GRID_CONSTANT AbsorbLaunch job, int64_t before) {
  const int64_t tile = before + blockIdx.x, at = tile * job.tile;
  const int n = static_cast<int>(job.count - at < job.tile ? job.count - at : job.tile);
  TileValues sum;
  begin_sum(job, at, n, job.vectors, sum);
  for (int s = 0; s < job.shares; ++s) {
    if (s == job.transform_at) hadamard_tile(sum, n);
    TileValues v;
    const DeviceShare share = job.share[s];
    if (share.type == kPayload) {
      const uint8_t* payload = static_cast<const uint8_t*>(share.data);
      if (!codec.decode(payload + tile * job.tile_bytes, n, v)) atomic_or(&job.tally->flags, kDeviceBadPayload);
    } else {
      load_tile({const_cast<void*>(share.data), share.type}, at, n, job.vectors, v);
    }
    add_to_sum(sum, v);
  }
  end_sum(job, at, n, job.vectors, sum);
}

// kShares payloads from share s on, all loaded in front of the first sum. Whether an encoder may have written them.
template <int kShares, typename Codec>
TW_DEVICE bool add_payloads(const Codec& codec, const AbsorbLaunch& job, int s, const PartPlace& place,
                            TileValues& sum) {
  typename Codec::Part parts[kShares];
  TW_UNROLL
  for (int j = 0; j < kShares; ++j)
    codec.load_part(static_cast<const uint8_t*>(job.share[s + j].data), place, parts[j]);
  bool good = true;
  TW_UNROLL
  for (int j = 0; j < kShares; ++j) {
    TileValues v;
    good = codec.decode_part(parts[j], v) && good;
    add_to_sum(sum, v);
  }
  return good;
}

// The same of tiles of kMostDeviceTile elements that vectors reach. (A transform stands in front of no payload.)
template <typename Codec>
TW_KERNEL void __launch_bounds__(kTileThreads, 3)
    absorb_whole_kernel(const TW_GRID_CONSTANT Codec codec, const TW_GRID_CONSTANT AbsorbLaunch job) {
  constexpr int n = static_cast<int>(kMostDeviceTile);
  const int64_t tile = blockIdx.x, at = tile * n;
  PartPlace place = codec.part_place();
  place.codes += tile * job.tile_bytes, place.scale += tile * job.tile_bytes;
  TileValues sum;
  begin_sum(job, at, n, true, sum);
  bool good = true;
  int payloads = 0;  // how many follow, 4 at most
  for (int s = 0; s < job.shares; s += payloads == 0 ? 1 : payloads) {
    for (payloads = 0; payloads < 4 && s + payloads < job.shares; ++payloads)
      if (job.share[s + payloads].type != kPayload) break;
    if (payloads == 4) {
      good = add_payloads<4>(codec, job, s, place, sum) && good;
    } else if (payloads >= 2) {
      payloads = 2;
      good = add_payloads<2>(codec, job, s, place, sum) && good;
    } else if (payloads == 1) {
      good = add_payloads<1>(codec, job, s, place, sum) && good;
    } else {
      if (s == job.transform_at) hadamard_tile(sum, n);
      TileValues v;
      load_tile({const_cast<void*>(job.share[s].data), job.share[s].type}, at, n, true, v);
      add_to_sum(sum, v);
    }
  }
  if (!good) atomic_or(&job.tally->flags, kDeviceBadPayload);
  end_sum(job, at, n, true, sum);
}

// ---- what queues them ----------------------------------------------------------------------------------------------
// Adds the squares of all tiles to the tally, in an order that depends on their number alone (device_tally_cuda.cu).
// sums: [3] per tile, at the begin of scratch of so many bytes.
size_t tile_squares_bytes(int64_t tiles);
void queue_tile_squares(CudaQueue& queue, float* sums, int64_t tiles, DeviceTally* tally);

// How many tiles, from the first one on, go the shorter way.
template <typename Codec>
int64_t whole_tiles(const Codec& codec, int64_t count, int64_t tile, bool vectors) {
  if constexpr (CodesWholeTiles<Codec>)
    return codec.takes_whole() && tile == kMostDeviceTile && vectors ? count / tile : 0;
  else
    return 0;
}
// Whether codes of tiles at these strides can be loaded and stored as words.
inline bool words(const void* payload, int64_t tile_bytes) {
  return reinterpret_cast<uintptr_t>(payload) % 8 == 0 && tile_bytes % 8 == 0;
}

// shared: bytes that encode() works in. sums: scratch of tile_squares_bytes().
template <typename Codec>
void queue_pack_tiles(CudaQueue& queue, float* sums, const char* what, const Codec& codec, size_t shared,
                      const PackJob& job) {
  const int64_t tiles = ceil_div(job.count, job.tile);
  const int64_t whole = whole_tiles(codec, job.count, job.tile, job.vectors && words(job.out, job.tile_bytes));
  if constexpr (CodesWholeTiles<Codec>) {
    const bool bare = job.residual == DeviceResidual::kNone && job.reference.data == nullptr && job.own.data == nullptr;
    const auto kernel = bare ? pack_tiles_kernel<Codec, PackWay::kBare> : pack_tiles_kernel<Codec, PackWay::kWhole>;
    queue.launch(what, kernel, {whole}, kTileThreads, 0, codec, job, 0, sums);
  }
  const auto kernel = pack_tiles_kernel<Codec, PackWay::kAny>;
  queue.launch(what, kernel, {tiles - whole}, kTileThreads, shared, codec, job, whole, sums);
  if (job.sample_every != 0) queue_tile_squares(queue, sums, tiles, job.tally);
}

template <typename Codec>
void queue_pack_tiles(Exec& exec, const char* what, const Codec& codec, size_t shared, const PackJob& job) {
  CudaQueue queue(exec);
  auto* sums = reinterpret_cast<float*>(queue.scratch(tile_squares_bytes(ceil_div(job.count, job.tile))));
  queue_pack_tiles(queue, sums, what, codec, shared, job);
}

// partial: scratch of `count` elements where there are more than kSharesAtOnce shares.
template <typename Codec>
void queue_absorb_tiles(CudaQueue& queue, float* partial, const char* what, const Codec& codec, const AbsorbJob& job) {
  const int64_t tiles = ceil_div(job.count, job.tile);
  const auto all = static_cast<int64_t>(job.shares.size());
  bool vectors = job.vectors;
  for (const DeviceShare& share : job.shares)
    vectors = vectors && (share.type != kPayload || words(share.data, job.tile_bytes));
  const int64_t whole = whole_tiles(codec, job.count, job.tile, vectors);
  for (int64_t first = 0; first == 0 || first < all; first += kSharesAtOnce) {
    const bool last = first + kSharesAtOnce >= all;
    AbsorbLaunch launch = {job.count,
                           job.tile,
                           job.tile_bytes,
                           0,
                           -1,
                           job.out,
                           job.accumulate,
                           job.vectors,
                           first == 0 ? nullptr : partial,
                           last ? nullptr : partial,
                           job.tally,
                           {}};
    launch.shares = static_cast<int>(std::min<int64_t>(kSharesAtOnce, all - first));
    std::copy_n(job.shares.begin() + first, launch.shares, launch.share);
    const int64_t turn = job.transform_at - first;
    if (job.transform_at >= 0 && turn >= (first == 0 ? 0 : 1) && turn <= launch.shares)
      launch.transform_at = static_cast<int>(turn);
    if constexpr (CodesWholeTiles<Codec>)
      queue.launch(what, absorb_whole_kernel<Codec>, {whole}, kTileThreads, 0, codec, launch);
    queue.launch(what, absorb_tiles_kernel<Codec>, {tiles - whole}, kTileThreads, 0, codec, launch, whole);
  }
}

template <typename Codec>
void queue_absorb_tiles(Exec& exec, const char* what, const Codec& codec, const AbsorbJob& job) {
  CudaQueue queue(exec);
  float* partial = nullptr;
  if (job.shares.size() > kSharesAtOnce)
    partial = reinterpret_cast<float*>(queue.scratch(static_cast<size_t>(job.count) * sizeof(float)));
  queue_absorb_tiles(queue, partial, what, codec, job);
}

// A codec whose kernels are those above. Codec has `static constexpr const char *kPack, *kAbsorb` for errors,
// `size_t shared_bytes(int64_t tile) const` and `Codec for_message(const Msg&) const` on the host.
template <typename Codec>
class TileCodec final : public DeviceCodec {
 public:
  explicit TileCodec(const Codec& codec) : codec_(codec) {}
  void queue_pack(Exec& exec, const Msg& msg, const PackJob& job, CompressionState*) const override {
    queue_pack_tiles(exec, Codec::kPack, codec_.for_message(msg), codec_.shared_bytes(job.tile), job);
  }
  void queue_absorb(Exec& exec, const Msg&, const AbsorbJob& job) const override {
    queue_absorb_tiles(exec, Codec::kAbsorb, codec_, job);
  }

 private:
  Codec codec_;
};

}  // namespace thinwire
