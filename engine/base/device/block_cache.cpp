// Best fit: the smallest free block that is large enough.
#include "engine/base/device/block_cache.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "engine/base/core/check.h"

namespace thinwire {

size_t BlockCache::rounded(size_t bytes) {
  const size_t step = std::max<size_t>(4096, std::bit_floor(std::max<size_t>(bytes, 1)) / 8);
  return std::max<size_t>((bytes + step - 1) / step * step, 4096);
}

void* BlockCache::take(size_t bytes) {
  ++requests_;
  const size_t size = rounded(bytes);
  const auto fit = free_.lower_bound({size, nullptr});
  if (fit == free_.end() || fit->first > 2 * size) return nullptr;
  const char* memory = fit->second;
  free_.erase(fit);
  blocks_.at(memory).used = requests_;
  return const_cast<char*>(memory);
}

void BlockCache::add(void* memory, size_t bytes) {
  const bool fresh = blocks_.emplace(static_cast<const char*>(memory), Block{rounded(bytes), requests_}).second;
  TW_CHECK(fresh, "a block that is known already");
  bytes_ += rounded(bytes);
}

void BlockCache::give_back(void* memory) {
  const auto block = blocks_.find(static_cast<const char*>(memory));
  TW_CHECK(block != blocks_.end(), "no block of this pool");
  const bool fresh = free_.emplace(block->second.bytes, block->first).second;
  TW_CHECK(fresh, "a block that is free already");
}

std::vector<void*> BlockCache::remove_unused(uint64_t age) {
  std::vector<void*> removed;
  std::erase_if(free_, [&](const std::pair<size_t, const char*>& entry) {
    const auto block = blocks_.find(entry.second);
    if (block->second.used + age > requests_) return false;
    removed.push_back(const_cast<char*>(entry.second));
    bytes_ -= entry.first;
    blocks_.erase(block);
    return true;
  });
  return removed;
}

bool BlockCache::owns(const void* memory, size_t bytes) const {
  const char* at = static_cast<const char*>(memory);
  const auto behind = blocks_.upper_bound(at);
  if (behind == blocks_.begin()) return false;
  const auto block = std::prev(behind);
  return at + bytes <= block->first + block->second.bytes;
}

std::vector<void*> BlockCache::all() const {
  std::vector<void*> out;
  for (const auto& [memory, block] : blocks_) out.push_back(const_cast<char*>(memory));
  return out;
}

}  // namespace thinwire
