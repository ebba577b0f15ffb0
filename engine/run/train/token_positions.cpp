// Sums over the tokens of a batch, on the host.
#include "engine/run/train/token_positions.h"

#include <algorithm>
#include <limits>

#include "engine/base/core/check.h"
#include "engine/base/ops/ops.h"

namespace thinwire {
namespace {

// Calls body(index in the batch, token of its sequence) for a rank's tokens, in the order in which it has them.
template <typename Body>
void for_own_tokens(const Batch& batch, const SequenceCut& cut, const Body& body) {
  for (int64_t row = 0; row < batch.rows; ++row)
    for (const SequenceCut::Run& run : {cut.front(), cut.back()})
      for (int64_t t = run.first; t < run.first + run.count; ++t) body(static_cast<size_t>(row * cut.length + t), t);
}

// Tokens in front of token t that it may see, windows aside.
int64_t in_front(const Batch& batch, size_t index, int64_t t) {
  return batch.first_keys.empty() ? t : t - batch.first_keys[index];
}

}  // namespace

void PositionLosses::add(const Batch& batch, const SequenceCut& cut, std::span<const float> losses) {
  TW_CHECK(losses.size() == static_cast<size_t>(batch.rows * cut.count()), losses.size(), " losses");
  auto loss = losses.begin();
  for_own_tokens(batch, cut, [&](size_t index, int64_t t) {
    const auto bucket = static_cast<size_t>(in_front(batch, index, t) * kPositionBuckets / cut.length);
    const double counts = batch.loss_mask[index];
    sums[bucket] += counts * static_cast<double>(*loss++);
    sums[kPositionBuckets + bucket] += counts;
  });
}

std::vector<double> PositionLosses::means() const {
  std::vector<double> means(kPositionBuckets, std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < means.size(); ++i)
    if (const double tokens = sums[kPositionBuckets + i]; tokens > 0.0) means[i] = sums[i] / tokens;
  return means;
}

AttentionPairs attention_pairs(const Batch& batch, const SequenceCut& cut, int64_t window, bool by_heads) {
  AttentionPairs work;
  for (int rank = 0; rank < cut.size; ++rank) {
    double pairs = 0.0;
    for_own_tokens(batch, cut.of(rank), [&](size_t index, int64_t t) {
      const int64_t seen = in_front(batch, index, t);
      pairs += static_cast<double>((window == kNoWindow ? seen : std::min(seen, window)) + 1);
    });
    work.busiest = std::max(work.busiest, pairs);
    work.total += pairs;
  }
  if (by_heads) work.busiest = work.total / cut.size;
  return work;
}

}  // namespace thinwire
