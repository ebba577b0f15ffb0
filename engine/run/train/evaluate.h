// Evaluation: the mean token loss over a run of global batches of a split, without touching any training state.
#pragma once

#include "data/batch_loader.h"
#include "engine/run/train/replica.h"

namespace thinwire {

struct Evaluation {
  double loss = 0.0;        // mean over batches of the mean token loss
  double perplexity = 0.0;  // exp(loss)
  int64_t tokens = 0;
  double ms = 0.0;
};

// Reads `iters` global batches of `split` from sample `first` on.
Evaluation evaluate(Replica& replica, const SampleStream& stream, Split split, int64_t first, int64_t iters);

}  // namespace thinwire
