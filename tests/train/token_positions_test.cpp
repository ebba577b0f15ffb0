// Losses by position and attention's work by rank against loops over all pairs, for random documents, windows and cuts.
#include "engine/run/train/token_positions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/base/ops/ops.h"

namespace thinwire::token_positions_test {
namespace {

constexpr int32_t kEnd = 3;

Batch random_batch(std::mt19937_64& random, int64_t rows, int64_t length, bool resets, bool masks) {
  Batch b;
  b.rows = rows;
  for (int64_t i = 0; i < rows * length; ++i) b.inputs.push_back(static_cast<int32_t>(random() % 12));
  DocumentRules rules;
  rules.eod_token = kEnd, rules.reset_attention = resets, rules.mask_loss = masks;
  apply_document_rules(rules, length, b);
  return b;
}

// Whether query q of a row sees key k, from the tokens alone.
bool sees(const Batch& b, int64_t row, int64_t length, int64_t q, int64_t k, int64_t window, bool resets) {
  if (k > q || (window != kNoWindow && q - k > window)) return false;
  for (int64_t t = k; resets && t < q; ++t)
    if (b.inputs[static_cast<size_t>(row * length + t)] == kEnd) return false;
  return true;
}

// The rank whose token t is: pieces 0 .. 2 size - 1 of the sequence, the front ones to ranks in order, then back.
int owner(int64_t t, int64_t length, int size) {
  for (int piece = 0; piece < 2 * size; ++piece)
    if (t < length * (piece + 1) / (2 * size)) return piece < size ? piece : 2 * size - 1 - piece;
  return -1;
}

TEST(TokenPositions, WorkOfRanksIsThatOfAllPairs) {
  std::mt19937_64 random(1);
  int uneven = 0;
  for (int round = 0; round < 200; ++round) {
    const int size = 2 + static_cast<int>(random() % 3);
    const int64_t length = 2 * size + static_cast<int64_t>(random() % 40),
                  rows = 1 + static_cast<int64_t>(random() % 3);
    const int64_t window = random() % 2 == 0 ? kNoWindow : static_cast<int64_t>(random() % 9);
    const bool resets = random() % 2 == 0;
    const Batch b = random_batch(random, rows, length, resets, false);
    std::vector<double> pairs(static_cast<size_t>(size));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t q = 0; q < length; ++q)
        for (int64_t k = 0; k < length; ++k)
          pairs[static_cast<size_t>(owner(q, length, size))] += sees(b, row, length, q, k, window, resets);
    double sum = 0.0, busiest = 0.0;
    for (double p : pairs) sum += p, busiest = std::max(busiest, p);
    const AttentionPairs work = attention_pairs(b, {length, 0, size}, window, false);
    EXPECT_EQ(work.busiest, busiest);
    EXPECT_EQ(work.total, sum);
    const AttentionPairs heads = attention_pairs(b, {length, 1, size}, window, true);
    EXPECT_NEAR(heads.busiest, sum / size, 1e-9 * sum);
    EXPECT_EQ(heads.total, sum);
    uneven += busiest > 1.05 * sum / size;
  }
  EXPECT_GT(uneven, 50);  // or the cases say nothing
}

TEST(TokenPositions, LossesOfAllRanksTogetherAreThoseOfTheSequence) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const int size = 1 + static_cast<int>(random() % 4);
    const int64_t length = 2 * size + static_cast<int64_t>(random() % 60),
                  rows = 1 + static_cast<int64_t>(random() % 3);
    const bool resets = random() % 2 == 0, masks = random() % 2 == 0;
    const Batch b = random_batch(random, rows, length, resets, masks);
    std::vector<float> losses;
    for (int64_t i = 0; i < rows * length; ++i) losses.push_back(static_cast<float>(random() % 1000) / 64.0f);
    std::vector<double> sum(kPositionBuckets), count(kPositionBuckets);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t q = 0; q < length; ++q) {
        int64_t seen = -1;
        for (int64_t k = 0; k < length; ++k) seen += sees(b, row, length, q, k, kNoWindow, resets);
        if (masks && b.inputs[static_cast<size_t>(row * length + q)] == kEnd) continue;
        size_t bucket = 0;
        while (seen * kPositionBuckets >= static_cast<int64_t>(bucket + 1) * length) ++bucket;
        sum[bucket] += static_cast<double>(losses[static_cast<size_t>(row * length + q)]), ++count[bucket];
      }
    PositionLosses all;
    for (int rank = 0; rank < size; ++rank) {
      std::vector<float> mine;  // sample by sample, in the order of the sequence
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t t = 0; t < length; ++t)
          if (owner(t, length, size) == rank) mine.push_back(losses[static_cast<size_t>(row * length + t)]);
      all.add(b, {length, rank, size}, mine);
    }
    const std::vector<double> means = all.means();
    for (size_t i = 0; i < kPositionBuckets; ++i) {
      EXPECT_EQ(all.sums[kPositionBuckets + i], count[i]);
      EXPECT_NEAR(all.sums[i], sum[i], 1e-9 * (1.0 + sum[i]));
      EXPECT_EQ(std::isnan(means[i]), count[i] == 0.0);
    }
  }
}

}  // namespace
}  // namespace thinwire::token_positions_test
