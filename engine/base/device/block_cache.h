// Which free block of memory serves a request, and which are of no use any more: the books of a pool, without its
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace thinwire {

// Sizes are rounded up by an eighth at most (4 KiB at least), so that requests that differ by little share blocks and
// large ones waste little. A block is known by its address. Not safe to call from several threads.
class BlockCache {
 public:
  static size_t rounded(size_t bytes);

  // The smallest free block of at least `bytes` that is at most twice as large, or nullptr: the caller gets one of
  // rounded(bytes) from the system and adds it, in use.
  void* take(size_t bytes);
  void add(void* memory, size_t bytes);
  void give_back(void* memory);
  // Takes out free blocks that have not been used in the last `age` requests (0: all that are free): for the system.
  std::vector<void*> remove_unused(uint64_t age);

  bool owns(const void* memory, size_t bytes) const;  // whether the range lies in one block
  std::vector<void*> all() const;
  size_t bytes() const { return bytes_; }

 private:
  struct Block {
    size_t bytes = 0;
    uint64_t used = 0;  // the request that got it last
  };
  std::map<const char*, Block> blocks_;
  std::set<std::pair<size_t, const char*>> free_;  // by size
  uint64_t requests_ = 0;
  size_t bytes_ = 0;
};

}  // namespace thinwire
