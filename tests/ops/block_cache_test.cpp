// The bookkeeping of a memory pool: random requests never share a block, waste little, and unused blocks are returned.
#include "engine/base/device/block_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "engine/base/core/error.h"

namespace thinwire::block_cache_test {
namespace {

TEST(BlockCache, RoundsUpByAnEighthAtMost) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 10000; ++i) {
    const size_t bytes = 1 + (rng() >> (20 + rng() % 44));
    const size_t size = BlockCache::rounded(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LE(size - bytes, std::max<size_t>(4096, bytes / 8)) << bytes;
    ASSERT_EQ(BlockCache::rounded(size), size);
  }
  EXPECT_EQ(BlockCache::rounded((size_t{1} << 30) + 1), (size_t{1} << 30) + (size_t{1} << 27));  // not 2 GiB
}

// Blocks "of the system" are addresses far apart that are never read.
TEST(BlockCache, RandomRequests) {
  std::mt19937_64 rng(2);
  BlockCache cache;
  uintptr_t next = 1 << 20;
  std::map<char*, size_t> held, known;
  size_t taken = 0;
  for (int i = 0; i < 50000; ++i) {
    if (rng() % 2 == 0 && !held.empty()) {
      const auto one = std::next(held.begin(), static_cast<int64_t>(rng() % held.size()));
      cache.give_back(one->first);
      held.erase(one);
    } else {
      const size_t bytes = 1 + rng() % (size_t{1} << (6 + rng() % 20));
      auto* memory = static_cast<char*>(cache.take(bytes));
      if (memory == nullptr) {
        memory = reinterpret_cast<char*>(next);
        next += BlockCache::rounded(bytes) + 4096;
        cache.add(memory, bytes);
        known[memory] = BlockCache::rounded(bytes);
        ++taken;
      }
      ASSERT_TRUE(held.emplace(memory, bytes).second) << "given out twice";
      ASSERT_GE(known.at(memory), bytes);
      ASSERT_LE(known.at(memory), 2 * BlockCache::rounded(bytes));
      ASSERT_TRUE(cache.owns(memory, bytes) && cache.owns(memory + known.at(memory) - 1, 1));
      ASSERT_FALSE(cache.owns(memory, known.at(memory) + 1));
    }
    if (i % 1000 == 999) {
      for (void* memory : cache.remove_unused(500)) {
        ASSERT_EQ(held.count(static_cast<char*>(memory)), 0u) << "in use";
        ASSERT_FALSE(cache.owns(memory, 1));
        ASSERT_EQ(known.erase(static_cast<char*>(memory)), 1u);
      }
      size_t bytes = 0;
      for (const auto& [memory, size] : known) bytes += size;
      ASSERT_EQ(cache.bytes(), bytes);
    }
  }
  EXPECT_LT(taken, 10000u);
  for (const auto& [memory, bytes] : held) cache.give_back(memory);
  EXPECT_EQ(cache.remove_unused(0).size(), known.size());
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_TRUE(cache.all().empty());
}

// From its second run on a step takes no new block; the block that loading took is returned.
TEST(BlockCache, StepsThatRepeatTakeNothingNew) {
  BlockCache cache;
  uintptr_t next = 1 << 20;
  int taken = 0;
  const auto take = [&](size_t bytes) {
    void* memory = cache.take(bytes);
    if (memory != nullptr) return memory;
    ++taken;
    memory = reinterpret_cast<void*>(next);
    next += 2 * bytes + 4096;
    cache.add(memory, bytes);
    return memory;
  };
  cache.give_back(take(size_t{1} << 30));
  for (int step = 0; step < 10; ++step) {
    std::vector<void*> held;
    for (size_t bytes : {5000, 70000, 5001, 1234567, 70001}) held.push_back(take(bytes));
    EXPECT_TRUE(step == 0 || taken == 6) << taken;
    for (void* memory : held) cache.give_back(memory);
  }
  EXPECT_EQ(cache.remove_unused(20).size(), 1u);
  EXPECT_LT(cache.bytes(), size_t{2} << 20);
}

TEST(BlockCache, WrongUse) {
  BlockCache cache;
  int value = 0;
  EXPECT_THROW(cache.give_back(&value), Error);
  cache.add(&value, 4);
  EXPECT_THROW(cache.add(&value, 4), Error);
  cache.give_back(&value);
  EXPECT_THROW(cache.give_back(&value), Error);
}

}  // namespace
}  // namespace thinwire::block_cache_test
