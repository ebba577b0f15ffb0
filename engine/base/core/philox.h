// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): the value depends on key and counter alone, so any
// layout, thread count or resume draws the same numbers.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace thinwire {

struct PhiloxKey {
  uint32_t k0 = 0, k1 = 0;
};

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * counter[0];
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key.k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key.k1, static_cast<uint32_t>(p0)};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return counter;
}

// What a stream of numbers is for: part of the counter, so that no two purposes share numbers.
enum class RandomPurpose : uint32_t {
  kInit = 1,
  kHiddenDropout = 2,
  kAttentionDropout = 3,
  kEmbeddingDropout = 4,
  kRounding = 5,
  kSampling = 6,
  kResidual = 7
};

inline PhiloxKey seed_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

// In [0, 1), 24 bits.
inline float uniform01(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// Two standard normal numbers from two words (Box-Muller in double, rounded once).
inline std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double angle = (static_cast<double>(b) + 0.5) * 0x1p-32 * 6.283185307179586476925286766559;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace thinwire
