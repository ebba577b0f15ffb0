// What follows from where a batch's tokens lie in their sequences: evaluation losses by position, and how evenly
// attention's work falls on the ranks that share sequences.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "data/batch_loader.h"
#include "engine/base/core/sequence_cut.h"
#include "engine/run/config/run_config.h"

namespace thinwire {

inline constexpr int kPositionBuckets = 16;

// Losses by how many tokens of its sequence, or of its document where attention ends there, a token has in front of it:
// bucket i is of those with i/16 to (i+1)/16 of seq_length. Masked tokens count nowhere.
struct PositionLosses {
  std::array<double, 2 * kPositionBuckets> sums{};  // of losses, then of tokens: what ranks add up

  // losses: of this rank's tokens of the batch, in the order in which it has them.
  void add(const Batch& batch, const SequenceCut& cut, std::span<const float> losses);
  // [16], NaN where there was no token.
  std::vector<double> means() const;
};

// Pairs of a query and a key that it sees, which is what attention costs a rank: of the rank of a context-parallel
// group that has most of them, and of all of it. Both add up over batches, since ranks wait for the busiest in each.
struct AttentionPairs {
  double busiest = 0.0, total = 0.0;
};
// by_heads: every rank has all tokens of a share of the heads. window: kNoWindow or keys in front of its own that a
// token sees.
AttentionPairs attention_pairs(const Batch& batch, const SequenceCut& cut, int64_t window, bool by_heads);

}  // namespace thinwire
