// What the kernels of block codecs on a GPU share, as in block_simd.h: keys of largest magnitudes, scales that are
// powers of two.
#pragma once

#include "compression/device_kernels.h"
#include "engine/base/core/philox.h"

namespace thinwire {

constexpr uint32_t kBadKey = 0xff000000u;  // keys from here on are of NaN or infinity
constexpr auto kRounding = static_cast<uint32_t>(RandomPurpose::kRounding);

// Keys order floats by magnitude and, among equals, - behind +: the bits turned left by one.
TW_DEVICE uint32_t key_of(float v) {
  const uint32_t bits = bits_of(v);
  return bits << 1 | bits >> 31;
}
TW_DEVICE float value_of_key(uint32_t key) {
  return float_of_bits(key >> 1 | key << 31);
}
TW_DEVICE bool is_infinite(float v) {
  return (bits_of(v) & 0x7fffffffu) == 0x7f800000u;
}
// An E8M0 scale.
TW_DEVICE float power_of_byte(uint32_t e) {
  return float_of_bits(e == 255u ? 0x7fc00000u : e == 0u ? 0x00400000u : e << 23);
}

// keys[b] = largest key of block b of the tile, behind a barrier. All threads call.
TW_DEVICE void largest_keys(unsigned* keys, const TileValues& v, int n, int block, int lanes) {
  for (int b = static_cast<int>(threadIdx.x); b < (n + block - 1) / block; b += kTileThreads) keys[b] = 0;
  __syncthreads();
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) {
    if (!step_has_any(s, n)) continue;
    uint32_t key[4];
    TW_UNROLL
    for (int k = 0; k < 4; ++k) key[k] = key_of(v[s][k]);
    raise_maxima(keys, key, tile_element(s), n, block, lanes);
  }
  __syncthreads();
}

// ---- whole tiles ---------------------------------------------------------------------------------------------------
// Blocks of 16, 32, ... 512 = 2^shift elements: a warp holds whole ones, and four neighbouring threads elements of the
// same block in each step. Each of the four finds the scale of one step's block, which the others then ask it for.
static_assert(kTileSteps == 4 && kWarpElements == 512);

// 0 for other blocks. On the host.
inline int whole_shift(int64_t block) {
  for (int shift = 4; shift <= 9; ++shift)
    if (block == int64_t{1} << shift) return shift;
  return 0;
}
// keys[s], the largest of this thread's at step s, becomes that of its block.
TW_DEVICE void block_maxima(uint32_t (&keys)[kTileSteps], int shift) {
  const auto larger = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
  if (shift < 7) {
    for (int lanes = 1; lanes < 1 << (shift - 2); lanes *= 2) {
      TW_UNROLL
      for (int s = 0; s < kTileSteps; ++s) keys[s] = larger(keys[s], shuffle_xor(keys[s], lanes));
    }
    return;
  }
  TW_UNROLL
  for (int s = 0; s < kTileSteps; ++s) keys[s] = warp_max(keys[s]);
  if (shift >= 8) keys[0] = keys[1] = larger(keys[0], keys[1]), keys[2] = keys[3] = larger(keys[2], keys[3]);
  if (shift == 9) keys[0] = keys[1] = keys[2] = keys[3] = larger(keys[0], keys[2]);
}
TW_DEVICE uint32_t largest_key(const float (&v)[4]) {
  uint32_t most = 0;
  TW_UNROLL
  for (int k = 0; k < 4; ++k) most = key_of(v[k]) > most ? key_of(v[k]) : most;
  return most;
}
// The step whose block this thread answers for, that block, what keys are known of it, whether it writes its scale (one
// thread of each block does), and what the thread that answers for step s has found.
TW_DEVICE int own_step() {
  return static_cast<int>(threadIdx.x % kTileSteps);
}
TW_DEVICE int own_block(int shift) {
  return tile_element(own_step()) >> shift;
}
TW_DEVICE uint32_t own_key(const uint32_t (&keys)[kTileSteps]) {
  const uint32_t low = own_step() == 0 ? keys[0] : keys[1], high = own_step() == 2 ? keys[2] : keys[3];
  return own_step() < 2 ? low : high;
}
TW_DEVICE bool writes_scale(int shift) {
  return (tile_element(own_step()) & ((1 << shift) - 1)) == 4 * own_step();
}
TW_DEVICE float found_for(int s, float found) {
  return shuffle_from(found, static_cast<int>(threadIdx.x % kWarp / kTileSteps * kTileSteps) + s);
}

}  // namespace thinwire
