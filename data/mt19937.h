// The random order of numpy's RandomState: MT19937 with one-word seeding and its masked-rejection shuffle, bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace thinwire {

// One stream of 32-bit words. The generator and its seeding (Knuth's 1812433253 recurrence) are those of std::mt19937,
// whose output the C++ standard fixes; only the shuffle is numpy's own.
class RandomState {
 public:
  explicit RandomState(uint32_t seed) : engine_(seed) {}
  uint32_t next() { return static_cast<uint32_t>(engine_()); }
  // Uniform in [0, largest], as numpy's legacy generator draws it: words masked to the bit length of `largest` until
  // one fits. Above 32 bits a draw takes two words, the high one first.
  uint64_t interval(uint64_t largest) {
    if (largest == 0) return 0;
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(largest);
    for (;;) {
      const uint64_t high = largest > 0xffffffffu ? uint64_t{next()} << 32 : 0;
      if (const uint64_t value = (high | next()) & mask; value <= largest) return value;
    }
  }

 private:
  std::mt19937 engine_;
};

// numpy.random.RandomState.shuffle of a one-dimensional array: for i = n-1 .. 1 swaps a[i] with a[interval(i)].
template <typename T>
void numpy_shuffle(std::span<T> values, RandomState& random) {
  for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[random.interval(i)]);
}

}  // namespace thinwire
