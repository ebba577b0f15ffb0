// The two merge algorithms against a direct reading of the definition, on random merge tables.
#include "data/tokenizer/bpe_merger.h"

#include <algorithm>
#include <random>

#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::bpe_merger_test {
namespace {

// Take the lowest rank that occurs, merge its leftmost occurrence, start over.
std::vector<int32_t> oracle(std::vector<int32_t> ids, const std::vector<BpeMerge>& merges) {
  for (bool merged = true; merged;) {
    merged = false;
    for (const BpeMerge& m : merges) {
      for (size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
        if (ids[i] != m.left || ids[i + 1] != m.right) continue;
        ids[i] = m.merged;
        ids.erase(ids.begin() + static_cast<ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  return ids;
}

TEST(BpeMerger, AgreesWithTheDefinition) {
  std::mt19937_64 rng(5);
  std::array<int32_t, 256> byte_ids;
  byte_ids.fill(-1);
  for (int i = 0; i < 4; ++i) byte_ids[static_cast<size_t>('a' + i)] = i;
  for (int table = 0; table < 60; ++table) {
    // Random pairs of what exists so far; merges in the table need not be reachable in order.
    std::vector<BpeMerge> merges;
    int32_t next = 4;
    for (int i = 0; i < 25; ++i) {
      const auto left = static_cast<int32_t>(rng() % static_cast<uint64_t>(next)),
                 right = static_cast<int32_t>(rng() % static_cast<uint64_t>(next));
      bool known = false;
      for (const BpeMerge& m : merges) known |= m.left == left && m.right == right;
      if (!known) merges.push_back({left, right, next++});
    }
    std::shuffle(merges.begin(), merges.end(), rng);
    const BpeMerger merger(merges, byte_ids);
    for (int word = 0; word < 60; ++word) {
      // Both sides of kShort, the border itself included.
      const size_t n = word < 3 ? BpeMerger::kShort - 1 + static_cast<size_t>(word) : rng() % 140;
      std::string text(n, 'a');
      const uint64_t letters = 1 + rng() % 4;
      for (char& c : text) c = static_cast<char>('a' + rng() % letters);
      std::vector<int32_t> start, got{-7};
      for (char c : text) start.push_back(c - 'a');
      ASSERT_EQ(merger.append(text, got), -1);
      ASSERT_EQ(got.front(), -7);
      got.erase(got.begin());
      ASSERT_EQ(got, oracle(start, merges)) << text;
    }
  }
}

TEST(BpeMerger, NamesTheByteWithoutToken) {
  std::array<int32_t, 256> byte_ids;
  byte_ids.fill(-1);
  byte_ids['a'] = 0;
  std::vector<int32_t> ids;
  EXPECT_EQ(BpeMerger({}, byte_ids).append("aab", ids), 2);
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace thinwire::test::bpe_merger_test
