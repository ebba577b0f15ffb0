// numpy's shuffle on top of the standard MT19937.
#include "data/mt19937.h"

#include <bit>
#include <utility>

namespace thinwire {

uint64_t RandomState::interval(uint64_t largest) {
  if (largest == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(largest);
  uint64_t value;
  if (largest <= 0xffffffffu) {
    do value = next() & mask;
    while (value > largest);
    return value;
  }
  do {
    const uint64_t high = next();  // two words, the high one first
    value = (high << 32 | next()) & mask;
  } while (value > largest);
  return value;
}

namespace {
template <typename T>
void shuffle(std::span<T> values, RandomState& random) {
  for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[random.interval(i)]);
}
}  // namespace

void numpy_shuffle(std::span<uint32_t> values, RandomState& random) {
  shuffle(values, random);
}
void numpy_shuffle(std::span<int64_t> values, RandomState& random) {
  shuffle(values, random);
}

}  // namespace thinwire
