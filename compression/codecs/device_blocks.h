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

}  // namespace thinwire
