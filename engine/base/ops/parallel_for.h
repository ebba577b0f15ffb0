// Splits work by data, never by thread: the one loop over OpenMP threads that the CPU ops share.
#pragma once

#include <cstdint>

#include "engine/base/ops/float_mode.h"

namespace thinwire {

// Calls body(first, last) for [0, block), [block, 2 block), ... of [0, count), the last one ragged, on up to `threads`
// threads. The cuts depend on `block` alone, so whatever is computed per block has the same bits for any number of
// threads. `body` must not throw. One block or one thread runs on the caller without waking anybody. All threads treat
// subnormal numbers as the caller does.
template <typename Body>
void parallel_blocks(int threads, int64_t count, int64_t block, const Body& body) {
  const int64_t blocks = (count + block - 1) / block;
  const auto one = [&](int64_t i) { body(i * block, (i + 1) * block < count ? (i + 1) * block : count); };
  if (threads <= 1 || blocks <= 1) {
    for (int64_t i = 0; i < blocks; ++i) one(i);
    return;
  }
  // Always the same team: libgomp ends and starts threads when its size changes.
  const unsigned mode = float_mode();
#pragma omp parallel num_threads(threads)
  {
    const FloatModeScope as_caller(mode);
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < blocks; ++i) one(i);
  }
}

}  // namespace thinwire
