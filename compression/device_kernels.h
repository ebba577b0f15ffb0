// The two kernels of every device codec: a tile through residual, transform and codec; shares to their sum.
//
// Codec: a plain struct with
//   bool encode(unsigned char* shared, TileValues& v, int n, uint64_t first, uint8_t* out, bool decoded)
//     writes the payload of a tile of n elements, the first of which has this index in the message; with `decoded` v
//     becomes what it decodes to. Returns whether this thread saw something that is not finite. All threads call, and
//     none reads `shared` afterwards.
//   bool decode(const uint8_t* in, int n, TileValues& v): returns false for what no encoder writes.
// What they compute is what the CPU's kernels do, bit by bit; the order of every sum is fixed.
#pragma once

#include <algorithm>

#include "compression/device_tile.h"
#include "compression/hadamard_kernel.h"
#include "engine/base/ops/cuda_reduce.h"

namespace thinwire {

constexpr int kEightBitBlocks = static_cast<int>(kMostDeviceTile / kEmaBlock);
constexpr float kSmallestKept = 1.5e-36f;  // below it residuals in 8 bit are nothing

// ---- residuals -----------------------------------------------------------------------------------------------------
TW_DEVICE bool is_in_8_bits(const PackJob& job) {
  return job.residual == DeviceResidual::kInt8 || job.residual == DeviceResidual::kEma;
}
// The four elements before, in fp32.
TW_DEVICE void residual_before(const PackJob& job, int64_t at, int i, int n, float (&e)[4]) {
  if (!is_in_8_bits(job)) {
    load_four(job.old, job.residual == DeviceResidual::kFp32 ? 0 : 1, at, i, n, job.vectors, e);
    return;
  }
  const int8_t* codes = static_cast<const int8_t*>(job.old) + at + i;
  const float scale = i < n ? job.old_scales[(at + i) / kEmaBlock] : 0.0f;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) e[k] = i + k < n ? static_cast<float>(codes[k]) * scale : 0.0f;
}

// What was kept stays.
TW_DEVICE void keep_old(const PackJob& job, int64_t at, int n) {
  if (job.old == job.now) return;
  const int size = job.residual == DeviceResidual::kFp32 ? 4 : job.residual == DeviceResidual::kBf16 ? 2 : 1;
  const uint8_t* from = static_cast<const uint8_t*>(job.old) + at * size;
  uint8_t* to = static_cast<uint8_t*>(job.now) + at * size;
  for (int b = static_cast<int>(threadIdx.x); b < n * size; b += kTileThreads) to[b] = from[b];
  if (!is_in_8_bits(job)) return;
  const int blocks = (n + static_cast<int>(kEmaBlock) - 1) / static_cast<int>(kEmaBlock);
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kTileThreads)
    job.now_scales[at / kEmaBlock + b] = job.old_scales[at / kEmaBlock + b];
}

// bf16, up or down by chance, never out of the finite numbers.
TW_DEVICE void keep_halves(const PackJob& job, int64_t at, int i, int n, const float (&r)[4]) {
  uint16_t* to = static_cast<uint16_t*>(job.now) + at + i;
  uint32_t chance[4] = {};
  draw_four(job.chance0, job.chance1, job.first + static_cast<uint64_t>(at + i), 0, chance);
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    const uint32_t v = bits_of(r[k]), rounded = v + chance[k];
    const bool grows = (rounded & 0x7f800000u) == 0x7f800000u || is_nan(r[k]);  // (a NaN of all ones would end as -0)
    if (i + k < n) to[k] = static_cast<uint16_t>((grows ? v : rounded) >> 16);
  }
}

// Eight bits; `largest`: per block of kEmaBlock the bits of the largest magnitude.
TW_DEVICE void keep_bytes(const PackJob& job, int64_t at, int i, int n, const float (&r)[4], const unsigned* largest) {
  if (i >= n) return;
  const int block = i / static_cast<int>(kEmaBlock);
  const uint32_t bits = largest[block];
  const float most = float_of_bits(bits);
  const bool keep = bits < 0x7f800000u && most > kSmallestKept;
  const float inverse = keep ? 127.0f / most : 0.0f;
  if (i % static_cast<int>(kEmaBlock) == 0) job.now_scales[at / kEmaBlock + block] = keep ? most / 127.0f : 0.0f;
  int8_t* to = static_cast<int8_t*>(job.now) + at + i;
  uint32_t chance[4] = {};
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
    if (i + k < n) to[k] = static_cast<int8_t>(q);
  }
}

// ---- packing -------------------------------------------------------------------------------------------------------
struct TileSquares {
  float error = 0.0f, signal = 0.0f, residual = 0.0f;
};

// x: what should arrive; d: what does. largest: kEightBitBlocks zeros in shared memory. All threads call.
TW_DEVICE TileSquares keep_residual(const PackJob& job, int64_t at, int n, const TileValues& x, TileValues& d,
                                    unsigned* largest) {
  TileSquares sums;
  const bool ema = job.residual == DeviceResidual::kEma;
  const float fresh = (1.0f - job.beta) * job.unscale;
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    if (!step_has_any(s, n)) continue;
    float old[4] = {};
    if (ema) residual_before(job, at, tile_element(s), n, old);
    uint32_t size[4];
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      const bool there = tile_element(s) + k < n;
      const float e = there ? x[s][k] - d[s][k] : 0.0f;
      const float r = ema ? fmaf(e, fresh, old[k] * job.beta) : e * job.unscale;
      d[s][k] = r;
      size[k] = bits_of(r) & 0x7fffffffu;
      sums.error = fmaf(e, e, sums.error);
      sums.signal = fmaf(x[s][k], x[s][k], sums.signal);
      if (there) sums.residual = fmaf(r, r, sums.residual);
    }
    if (is_in_8_bits(job))
      raise_maxima(largest, size, tile_element(s), n, static_cast<int>(kEmaBlock), kWarp);
    else if (job.residual == DeviceResidual::kFp32)
      store_four(job.now, 0, at, tile_element(s), n, job.vectors, d[s]);
    else if (job.residual == DeviceResidual::kBf16)
      keep_halves(job, at, tile_element(s), n, d[s]);
  }
  if (!is_in_8_bits(job)) return sums;
  __syncthreads();
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) keep_bytes(job, at, tile_element(s), n, d[s], largest);
  return sums;
}

// Block b takes tile b. sums: [3] per tile.
template <typename Codec>
TW_KERNEL void __launch_bounds__(kTileThreads, 2)
    pack_tiles_kernel(const TW_GRID_CONSTANT Codec codec, const TW_GRID_CONSTANT PackJob job, float* sums) {
  TW_DYNAMIC_SHARED(shared);
  TW_SHARED_ARRAY(unsigned, words, 1 + kEightBitBlocks);  // something is not finite; largest residuals
  TW_SHARED_ARRAY(float, slots, 3 * kMostWarps);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * job.tile;
  const int n = static_cast<int>(job.count - at < job.tile ? job.count - at : job.tile);
  if (threadIdx.x < 1 + kEightBitBlocks) words[threadIdx.x] = 0;

  TileValues x, v;
  load_tile(job.in, at, n, job.vectors, x);
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    float other[4];
    if (job.residual != DeviceResidual::kNone) {
      residual_before(job, at, tile_element(s), n, other);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) x[s][k] = fmaf(other[k], job.loss_scale, x[s][k]);
    }
    if (job.reference.data != nullptr) {
      load_four(job.reference.data, job.reference.type, at, tile_element(s), n, job.vectors, other);
      TW_UNROLL
      for (int k = 0; k < 4; ++k) x[s][k] = x[s][k] - other[k];
    }
    TW_UNROLL
    for (int k = 0; k < 4; ++k) v[s][k] = x[s][k];
  }
  if (job.hadamard) hadamard_tile(v, n);
  const uint64_t place = (job.first + static_cast<uint64_t>(at)) / static_cast<uint64_t>(job.tile) + job.sample_phase;
  const bool sample = job.sample_every != 0 && place % job.sample_every == 0;
  const bool decoded = sample || job.own.data != nullptr || job.residual != DeviceResidual::kNone;
  __syncthreads();
  const bool strange = codec.encode(shared, v, n, job.first + static_cast<uint64_t>(at),
                                    job.out + static_cast<int64_t>(blockIdx.x) * job.tile_bytes, decoded);
  if (strange) atomic_or(words, 1u);
  __syncthreads();
  const bool bad = words[0] != 0;
  if (bad && threadIdx.x == 0) atomic_or(&job.tally->flags, kDeviceNonFinite);
  if (threadIdx.x < 3 && (bad || !decoded)) sums[static_cast<int64_t>(blockIdx.x) * 3 + threadIdx.x] = 0.0f;
  if (!decoded) return;

  if (job.hadamard) hadamard_tile(v, n);
  if (job.own.data != nullptr) {
    TW_UNROLL
    for (int s = 0; s < kTileSteps; ++s) {
      float y[4];
      TW_UNROLL
      for (int k = 0; k < 4; ++k) y[k] = v[s][k];
      if (job.own_adds) {
        float before[4];
        load_four(job.own.data, job.own.type, at, tile_element(s), n, job.vectors, before);
        TW_UNROLL
        for (int k = 0; k < 4; ++k) y[k] = before[k] + y[k];
      }
      store_four(job.own.data, job.own.type, at, tile_element(s), n, job.vectors, y);
    }
  }
  if (bad) {
    if (job.residual != DeviceResidual::kNone) keep_old(job, at, n);
    return;
  }
  TileSquares squares = keep_residual(job, at, n, x, v, words + 1);
  if (job.residual == DeviceResidual::kNone) squares.residual = 0.0f;
  const float error = block_sum(squares.error, slots);
  const float signal = block_sum(squares.signal, slots + kMostWarps);
  const float residual = block_sum(squares.residual, slots + 2 * kMostWarps);
  if (threadIdx.x == 0) {
    float* to = sums + static_cast<int64_t>(blockIdx.x) * 3;
    to[0] = error, to[1] = signal, to[2] = residual;
  }
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

template <typename Codec>
TW_KERNEL void __launch_bounds__(kTileThreads, 2)
    absorb_tiles_kernel(const TW_GRID_CONSTANT Codec codec, const TW_GRID_CONSTANT AbsorbLaunch job) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * job.tile;
  const int n = static_cast<int>(job.count - at < job.tile ? job.count - at : job.tile);
  TileValues sum = {};
  bool empty = job.partial_in == nullptr;
  if (!empty) load_tile({const_cast<float*>(job.partial_in), 0}, at, n, job.tile % 4 == 0, sum);
  for (int s = 0; s < job.shares; ++s) {
    if (s == job.transform_at) hadamard_tile(sum, n);
    TileValues v;
    const DeviceShare share = job.share[s];
    if (share.type == kPayload) {
      const uint8_t* payload = static_cast<const uint8_t*>(share.data);
      if (!codec.decode(payload + static_cast<int64_t>(blockIdx.x) * job.tile_bytes, n, v))
        atomic_or(&job.tally->flags, kDeviceBadPayload);
    } else {
      load_tile({const_cast<void*>(share.data), share.type}, at, n, job.vectors, v);
    }
    TW_UNROLL
    for (int g = 0; g < kTileSteps; ++g) {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) sum[g][k] = empty ? v[g][k] : sum[g][k] + v[g][k];
    }
    empty = false;
  }
  if (job.shares == job.transform_at) hadamard_tile(sum, n);
  if (job.partial_out != nullptr) {
    store_tile({job.partial_out, 0}, at, n, job.tile % 4 == 0, sum);
    return;
  }
  if (job.accumulate) {
    TileValues before;
    load_tile(job.out, at, n, job.vectors, before);
    TW_UNROLL
    for (int g = 0; g < kTileSteps; ++g) {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) sum[g][k] = before[g][k] + sum[g][k];
    }
  }
  store_tile(job.out, at, n, job.vectors, sum);
}

// ---- what queues them ----------------------------------------------------------------------------------------------
// Adds the squares of all tiles to the tally, in an order that depends on their number alone (device_tally_cuda.cu).
void queue_tile_squares(CudaQueue& queue, const float* sums, int64_t tiles, DeviceTally* tally);

// shared: bytes that encode() works in.
template <typename Codec>
void queue_pack_tiles(Exec& exec, const char* what, const Codec& codec, size_t shared, const PackJob& job) {
  CudaQueue queue(exec);
  const int64_t tiles = ceil_div(job.count, job.tile);
  auto* sums = reinterpret_cast<float*>(queue.scratch(static_cast<size_t>(tiles) * 3 * sizeof(float)));
  queue.launch(what, pack_tiles_kernel<Codec>, {tiles}, kTileThreads, shared, codec, job, sums);
  if (job.sample_every != 0) queue_tile_squares(queue, sums, tiles, job.tally);
}

template <typename Codec>
void queue_absorb_tiles(Exec& exec, const char* what, const Codec& codec, const AbsorbJob& job) {
  CudaQueue queue(exec);
  const int64_t tiles = ceil_div(job.count, job.tile);
  const auto all = static_cast<int64_t>(job.shares.size());
  float* partial = nullptr;
  if (all > kSharesAtOnce)
    partial = reinterpret_cast<float*>(queue.scratch(static_cast<size_t>(job.count) * sizeof(float)));
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
    queue.launch(what, absorb_tiles_kernel<Codec>, {tiles}, kTileThreads, 0, codec, launch);
  }
}

// A codec whose kernels are those above. Codec has `static constexpr const char *kPack, *kAbsorb` for errors,
// `size_t shared_bytes(int64_t tile) const` and `Codec for_message(const Msg&) const` on the host.
template <typename Codec>
class TileCodec final : public DeviceCodec {
 public:
  explicit TileCodec(const Codec& codec) : codec_(codec) {}
  void queue_pack(Exec& exec, const Msg& msg, const PackJob& job) const override {
    queue_pack_tiles(exec, Codec::kPack, codec_.for_message(msg), codec_.shared_bytes(job.tile), job);
  }
  void queue_absorb(Exec& exec, const AbsorbJob& job) const override {
    queue_absorb_tiles(exec, Codec::kAbsorb, codec_, job);
  }

 private:
  Codec codec_;
};

}  // namespace thinwire
