// The configuration of a run that takes milliseconds, for tests that train in one process.
#pragma once

#include <string>
#include <vector>

#include "engine/run/config/load_config.h"

namespace thinwire {

// own, then more: "key=value"; the layers, the batch and the rest of the optimizer are theirs to say.
inline RunConfig small_run(std::vector<std::string> own, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"hidden_size=32",
                                  "num_attention_heads=4",
                                  "seq_length=12",
                                  "max_position_embeddings=12",
                                  "vocab_size=61",
                                  "make_vocab_size_divisible_by=1",
                                  "threads_per_rank=1",
                                  "train_micro_batch_size_per_gpu=2",
                                  "optimizer.params.lr=1e-2",
                                  "train_iters=8"};
  all.insert(all.end(), own.begin(), own.end());
  all.insert(all.end(), more.begin(), more.end());
  ConfigOptions options;
  options.data_required = false;
  return load_config({}, all, options).run;
}

}  // namespace thinwire
