// The random order of numpy's RandomState: MT19937 with one-word seeding and its masked-rejection shuffle, bit for bit.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace thinwire {

// One stream of 32-bit words. The generator and its seeding (Knuth's 1812433253 recurrence) are those of std::mt19937,
// whose output the C++ standard fixes; only the shuffle is numpy's own.
class RandomState {
 public:
  explicit RandomState(uint32_t seed) : engine_(seed) {}
  uint32_t next() { return static_cast<uint32_t>(engine_()); }
  // Uniform in [0, largest], as numpy's legacy generator draws it: words masked to the bit length of `largest` until
  // one fits.
  uint64_t interval(uint64_t largest);

 private:
  std::mt19937 engine_;
};

// numpy.random.RandomState.shuffle of a one-dimensional array: for i = n-1 .. 1 swaps a[i] with a[interval(i)].
void numpy_shuffle(std::span<uint32_t> values, RandomState& random);
void numpy_shuffle(std::span<int64_t> values, RandomState& random);

}  // namespace thinwire
