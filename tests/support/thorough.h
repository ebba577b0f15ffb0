// How many of their cases tests go through: all of them in `scripts/test.sh full`, a fixed part otherwise.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace thinwire::test {

inline bool thorough() {
  return std::getenv("THINWIRE_TEST_FULL") != nullptr;
}

// Of two lists that multiply: whether case `a` of the one is tried with case `b` of the other, which has `variants`
// ones. Every `a` is tried with one of them, in turn; with all of them where THINWIRE_TEST_FULL is set.
inline bool in_turn(uint64_t a, uint64_t b, uint64_t variants) {
  return thorough() || a % variants == b % variants;
}

}  // namespace thinwire::test
