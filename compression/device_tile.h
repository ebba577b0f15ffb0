// Elements of a tile in the registers of a block of threads: how they are loaded and stored, transformed and rounded,
// bit for bit as the CPU does it. For files with kernels, which are compiled without contraction of products and sums.
#pragma once

#include "compression/device_codec.h"
#include "engine/base/ops/cuda_dropout.h"
#include "engine/base/ops/cuda_vector.h"

namespace thinwire {

constexpr int kTileThreads = 256, kTileWarps = kTileThreads / kWarp;
constexpr int kTileSteps = static_cast<int>(kMostDeviceTile) / (4 * kTileThreads);

// Thread t holds elements tile_element(s) + k, k = 0 ... 3, of the tile; those behind its end are 0. A warp holds
// kWarpElements neighbours, 128 of them each step.
using TileValues = float[kTileSteps][4];
constexpr int kWarpElements = kTileSteps * kWarp * 4;
TW_DEVICE int tile_element(int step) {
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return static_cast<int>(warp * kWarpElements + lane * 4) + step * kWarp * 4;
}

// Whether a tile of n has element i. (Tiles of kMostDeviceTile have all that threads hold: where n is a constant, so is
// this.)
TW_DEVICE bool tile_has(int i, int n) {
  return n == kMostDeviceTile || i < n;
}
// Whether any thread of the warp holds elements of this step: the same in all of them.
TW_DEVICE bool step_has_any(int step, int n) {
  return n == kMostDeviceTile || static_cast<int>(threadIdx.x / kWarp * kWarpElements) + step * kWarp * 4 < n;
}

// ---- conversions, NaN payloads included ----------------------------------------------------------------------------
TW_DEVICE uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
TW_DEVICE bool is_nan(float v) {
  return (bits_of(v) & 0x7fffffffu) > 0x7f800000u;
}
TW_DEVICE float exact_half(uint16_t h) {
  if ((h & 0x7fffu) > 0x7c00u) return float_of_bits((h & 0x8000u) << 16 | 0x7fc00000u | (h & 0x3ffu) << 13);
  return half_to_float(h);
}
TW_DEVICE uint16_t exact_to_half(float v) {
  const uint32_t u = bits_of(v);
  if (is_nan(v)) return static_cast<uint16_t>((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu));
  return float_to_half(v);
}
TW_DEVICE uint16_t exact_to_bf16(float v) {
  const uint32_t u = bits_of(v);
  return static_cast<uint16_t>(is_nan(v) ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
TW_DEVICE float widen_bits(uint16_t bits, int type) {
  return type == 1 ? float_of_bits(static_cast<uint32_t>(bits) << 16) : exact_half(bits);
}
TW_DEVICE uint16_t narrow_bits(float v, int type) {
  return type == 1 ? exact_to_bf16(v) : exact_to_half(v);
}

// ---- tiles to and from memory --------------------------------------------------------------------------------------
// Elements [at + i, at + i + 4) of a vector that has n more from `at` on; 0 behind them.
TW_DEVICE void load_four(const void* data, int type, int64_t at, int i, int n, bool vectors, float (&x)[4]) {
  if (type == 0) {
    const float* p = static_cast<const float*>(data) + at + i;
    if (vectors && tile_has(i + 3, n)) {
      load_values<4>(p, x);
      return;
    }
    TW_UNROLL
    for (int k = 0; k < 4; ++k) x[k] = tile_has(i + k, n) ? p[k] : 0.0f;
    return;
  }
  const uint16_t* p = static_cast<const uint16_t*>(data) + at + i;
  uint16_t bits[4] = {};
  if (vectors && tile_has(i + 3, n)) {
    load_values<4>(p, bits);
  } else {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) bits[k] = tile_has(i + k, n) ? p[k] : uint16_t{0};
  }
  TW_UNROLL
  for (int k = 0; k < 4; ++k) x[k] = widen_bits(bits[k], type);
}
TW_DEVICE void store_four(void* data, int type, int64_t at, int i, int n, bool vectors, const float (&x)[4]) {
  if (type == 0) {
    float* p = static_cast<float*>(data) + at + i;
    if (vectors && tile_has(i + 3, n)) {
      store_values<4>(p, x);
      return;
    }
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (tile_has(i + k, n)) p[k] = x[k];
    }
    return;
  }
  uint16_t* p = static_cast<uint16_t*>(data) + at + i;
  uint16_t bits[4];
  TW_UNROLL
  for (int k = 0; k < 4; ++k) bits[k] = narrow_bits(x[k], type);
  if (vectors && tile_has(i + 3, n)) {
    store_values<4>(p, bits);
    return;
  }
  TW_UNROLL
  for (int k = 0; k < 4; ++k) {
    if (tile_has(i + k, n)) p[k] = bits[k];
  }
}
// (One branch by type around all loads, so that they are on their way together.)
template <int kType>
TW_DEVICE void load_steps(const void* data, int64_t at, int n, bool vectors, TileValues& x) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) load_four(data, kType, at, tile_element(s), n, vectors, x[s]);
}
TW_DEVICE void load_tile(const DeviceVector& from, int64_t at, int n, bool vectors, TileValues& x) {
  if (from.type == 0)
    load_steps<0>(from.data, at, n, vectors, x);
  else if (from.type == 1)
    load_steps<1>(from.data, at, n, vectors, x);
  else
    load_steps<2>(from.data, at, n, vectors, x);
}
template <int kType>
TW_DEVICE void store_steps(void* data, int64_t at, int n, bool vectors, const TileValues& x) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) store_four(data, kType, at, tile_element(s), n, vectors, x[s]);
}
TW_DEVICE void store_tile(const DeviceVector& to, int64_t at, int n, bool vectors, const TileValues& x) {
  if (to.type == 0)
    store_steps<0>(to.data, at, n, vectors, x);
  else if (to.type == 1)
    store_steps<1>(to.data, at, n, vectors, x);
  else
    store_steps<2>(to.data, at, n, vectors, x);
}

// kBytes bytes of payload, lowest first, at any address; the last `left` of them where there are fewer.
template <int kBytes>
TW_DEVICE void store_payload(uint8_t* p, uint32_t word, int left) {
  if constexpr (kBytes == 2 || kBytes == 4) {
    if (left >= kBytes && reinterpret_cast<uintptr_t>(p) % kBytes == 0) {
      Raw<kBytes> raw;
      memcpy(&raw, &word, kBytes);
      store_raw<kBytes>(p, raw);
      return;
    }
  }
  TW_UNROLL
  for (int b = 0; b < kBytes; ++b) {
    if (b < left) p[b] = static_cast<uint8_t>(word >> 8 * b);
  }
}
template <int kBytes>
TW_DEVICE uint32_t load_payload(const uint8_t* p, int left) {
  uint32_t word = 0;
  if constexpr (kBytes == 2 || kBytes == 4) {
    if (left >= kBytes && reinterpret_cast<uintptr_t>(p) % kBytes == 0) {
      const Raw<kBytes> raw = load_raw<kBytes>(p);
      memcpy(&word, &raw, kBytes);
      return word;
    }
  }
  TW_UNROLL
  for (int b = 0; b < kBytes; ++b) {
    if (b < left) word |= static_cast<uint32_t>(p[b]) << 8 * b;
  }
  return word;
}
// Four codes of kBits at element i (a multiple of four) of a tile of n.
template <int kBits>
TW_DEVICE void store_codes(uint8_t* codes, int i, int n, const uint32_t (&q)[4]) {
  if (i >= n) return;
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  const int used = n - i < 4 ? n - i : 4;
  uint32_t word = 0;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) word |= k < used ? (q[k] & kMask) << k * kBits : 0u;
  store_payload<kBits / 2>(codes + i / 2 * kBits / 4, word, (used * kBits + 7) / 8);
}
template <int kBits>
TW_DEVICE void load_codes(const uint8_t* codes, int i, int n, uint32_t (&q)[4]) {
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  const int used = n - i < 4 ? n - i : 4;
  const uint32_t word = load_payload<kBits / 2>(codes + i / 2 * kBits / 4, (used * kBits + 7) / 8);
  TW_UNROLL
  for (int k = 0; k < 4; ++k) q[k] = word >> k * kBits & kMask;
}

// The same of a whole tile whose codes begin at a multiple of four bytes.
template <int kBytes>
TW_DEVICE void store_whole(uint8_t* p, uint32_t word) {
  if constexpr (kBytes == 2 || kBytes == 4) {
    Raw<kBytes> raw;
    memcpy(&raw, &word, kBytes);
    store_raw<kBytes>(p, raw);
  } else {
    store_payload<kBytes>(p, word, kBytes);
  }
}
template <int kBytes>
TW_DEVICE uint32_t load_whole(const uint8_t* p) {
  if constexpr (kBytes == 2) {
    return *reinterpret_cast<const uint16_t*>(p);  // widened by the load itself: nothing waits for it here
  } else if constexpr (kBytes == 4) {
    return *reinterpret_cast<const uint32_t*>(p);
  } else {
    return load_payload<kBytes>(p, kBytes);
  }
}
// Where in the tile's codes those of this thread begin, and how far the next step's are.
template <int kBits>
TW_DEVICE unsigned own_codes() {
  return (threadIdx.x / kWarp * (kWarpElements / 4) + threadIdx.x % kWarp) * (kBits / 2);
}
template <int kBits>
constexpr int kStepCodes = kWarp* kBits / 2;
// own: codes + own_codes().
template <int kBits>
TW_DEVICE void store_whole_codes(uint8_t* own, int s, const uint32_t (&q)[4]) {
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  store_whole<kBits / 2>(own + s * kStepCodes<kBits>, (q[0] & kMask) | (q[1] & kMask) << kBits |
                                                          (q[2] & kMask) << 2 * kBits | (q[3] & kMask) << 3 * kBits);
}
template <int kBits>
TW_DEVICE void load_whole_codes(const uint8_t* own, uint32_t (&words)[kTileSteps]) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) words[s] = load_whole<kBits / 2>(own + s * kStepCodes<kBits>);
}

// What a thread reads of a payload, in bytes from its begin: its codes, and the scale that it answers for.
struct PartPlace {
  int64_t codes = 0, scale = 0;
};

// ---- the transform -------------------------------------------------------------------------------------------------
// TileKernels::hadamard of the tile: eight neighbouring threads hold a block. All threads call.
TW_DEVICE void hadamard_tile(TileValues& v, int n) {
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    if (!step_has_any(s, n)) continue;
    float t[4];
    TW_UNROLL
    for (int k = 0; k < 4; ++k) t[k] = v[s][k];
    TW_UNROLL
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      const float sign = (threadIdx.x & static_cast<unsigned>(lanes)) != 0 ? -1.0f : 1.0f;
      TW_UNROLL
      for (int k = 0; k < 4; ++k) t[k] = fmaf(t[k], sign, shuffle_xor(t[k], lanes));  // one rounding: +-t + other
    }
    const float a = t[0] + t[2], b = t[1] + t[3], c = t[0] - t[2], d = t[1] - t[3];
    t[0] = a + b, t[1] = a - b, t[2] = c + d, t[3] = c - d;
    if (tile_has(tile_element(s) | 31, n)) {
      TW_UNROLL
      for (int k = 0; k < 4; ++k) v[s][k] = t[k] * 0.17677669529663687f;  // 1 / sqrt(32)
    }
  }
}

// ---- largest keys of blocks ----------------------------------------------------------------------------------------
// How many neighbouring threads share a block of elements: a power of two, or 0 where a thread's four elements may lie
// in two blocks. On the host.
inline int lanes_of_block(int64_t block) {
  if (block % 4 != 0) return 0;
  if (block % 128 == 0) return kWarp;
  const int64_t lanes = block / 4;
  return lanes < kWarp && (lanes & (lanes - 1)) == 0 ? static_cast<int>(lanes) : 1;
}
// slots[b] = largest key of block b and what was there, in shared memory. All threads call; a barrier in front of
// reading is the caller's.
TW_DEVICE void raise_maxima(unsigned* slots, const uint32_t (&keys)[4], int i, int n, int block, int lanes) {
  if (lanes == 0) {
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (i + k < n) atomic_max(slots + (i + k) / block, keys[k]);
    }
    return;
  }
  uint32_t most = 0;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) most = tile_has(i + k, n) && keys[k] > most ? keys[k] : most;
  for (int l = 1; l < lanes; l *= 2) {
    const uint32_t other = shuffle_xor(most, l);
    most = other > most ? other : most;
  }
  if (static_cast<int>(threadIdx.x) % lanes == 0 && tile_has(i, n)) atomic_max(slots + i / block, most);
}

// ---- random numbers ------------------------------------------------------------------------------------------------
// 16 bits for each of elements e, ..., e + 3: halves of the words of Philox blocks e / 8.
TW_DEVICE void draw_four(uint32_t key0, uint32_t key1, uint64_t e, uint32_t purpose, uint32_t (&bits)[4]) {
  TW_UNROLL_BY(1)  // one copy of the rounds in every place that draws
  for (uint64_t block = e >> 3; block <= (e + 3) >> 3; ++block) {
    const Words words =
        philox_words(key0, key1, static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), purpose, 0);
    TW_UNROLL
    for (int k = 0; k < 4; ++k) {
      const uint64_t at = e + static_cast<uint64_t>(k);
      const unsigned place = static_cast<unsigned>(at & 7);
      const uint32_t low = place & 2u ? words.w[1] : words.w[0], high = place & 2u ? words.w[3] : words.w[2];
      const uint32_t word = place & 4u ? high : low;
      if (at >> 3 == block) bits[k] = place & 1u ? word >> 16 : word & 0xffffu;
    }
  }
}

}  // namespace thinwire
