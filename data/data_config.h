// What the data side needs to know: files, weights, split, sample order and batch sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace thinwire {

struct WeightedPrefix {
  std::string prefix;            // path without .bin / .idx
  std::optional<double> weight;  // as given; sets without one come equally often
};

// What the end of a document does, as in Megatron: an end-of-document token belongs to the document before it.
struct DocumentRules {
  int64_t eod_token = -1;        // id of the end-of-document token, -1: none
  bool mask_loss = false;        // what is predicted from an end-of-document token does not count in the loss
  bool reset_attention = false;  // tokens see their own document alone
  bool reset_positions = false;  // positions count from 0 in every document
};

struct DataConfig {
  // Either one list divided by `split`, or a list per split (then `split` is unused). Several sets are a blend; in the
  // list that is divided, as in Megatron, a weight makes a blend of a single one, too.
  std::vector<WeightedPrefix> data;
  std::vector<WeightedPrefix> train, valid, test;
  std::string split = "969, 30, 1";
  double blend_surplus = 0.005;  // mid_level_dataset_surplus
  int64_t seq_length = 0;
  uint64_t seed = 1234;
  DocumentRules documents;
  bool per_token_loss = true;  // calculate_per_token_loss: false: the mean of micro-batches' means
  // Whether losses are sums over all tokens that count, which then have to be counted first.
  bool counts_tokens() const { return documents.mask_loss && per_token_loss; }
  int64_t vocab = 0;  // ids >= vocab are corrupt data

  int64_t micro_batch = 1;   // sequences per micro step and rank
  int64_t global_batch = 1;  // sequences per step over all ranks
  // Ramp: the batch grows from `ramp_start` by `ramp_increment` over `ramp_samples` samples (0: no ramp).
  int64_t ramp_start = 0, ramp_increment = 0, ramp_samples = 0;

  // Steps behind which these batches begin, and the samples that they took under others. 0: all steps have these.
  int64_t done_iters = 0, done_samples = 0;

  int64_t train_iters = 0, eval_interval = 0, eval_iters = 0;  // sizes the splits as Megatron does
  int prefetch_batches = 2;
};

}  // namespace thinwire
