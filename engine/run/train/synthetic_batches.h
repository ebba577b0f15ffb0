// Batches of random tokens for benchmarks and memory checks: no files needed, the same tokens each time.
#pragma once

#include "data/batch_loader.h"
#include "engine/base/core/philox.h"

namespace thinwire {

// Micro-batch number `index` of `rows` x `length` tokens below `vocab`.
inline Batch synthetic_batch(int64_t index, int64_t rows, int64_t length, int64_t vocab) {
  Batch batch;
  batch.first_sample = index * rows;
  batch.rows = rows;
  batch.loss_mask.assign(static_cast<size_t>(rows * length), 1.0f);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t sample = index * rows + r;
    batch.sample_ids.push_back(sample);
    for (int64_t t = 0; t <= length; ++t) {
      const PhiloxBlock bits = philox({1, 2}, {static_cast<uint32_t>(t), static_cast<uint32_t>(sample), 0, 0});
      const auto token = static_cast<int32_t>(bits[0] % static_cast<uint64_t>(vocab));
      if (t < length) batch.inputs.push_back(token);
      if (t > 0) batch.targets.push_back(token);
    }
  }
  return batch;
}

}  // namespace thinwire
