// How many of its cases a test runs: all of them in `scripts/test.sh full`, a fixed part otherwise.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace thinwire::test {

inline bool thorough() {
  return std::getenv("THINWIRE_TEST_FULL") != nullptr;
}

// Thins the product of two lists of cases: whether number `a` of one runs with number `b` of the other. One pair in
// `variants` does, so that each case of either list still has its turn; all pairs where thorough().
inline bool in_turn(uint64_t a, uint64_t b, uint64_t variants) {
  return thorough() || a % variants == b % variants;
}

}  // namespace thinwire::test
