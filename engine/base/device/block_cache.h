// The bookkeeping of a memory pool: which free block serves a request, and which free blocks go back to the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace thinwire {

// Sizes are rounded up to multiples of 4 KiB, or of 1/8 of the power of two below them where that is more: requests
// that differ by little share blocks, and large ones waste at most an eighth. A block is known by its address. Not
// thread-safe.
class BlockCache {
 public:
  static size_t rounded(size_t bytes);

  // The smallest free block of rounded(bytes) to twice that, now in use. nullptr: there is none; the caller takes
  // rounded(bytes) from the system and add()s them as a block in use.
  void* take(size_t bytes);
  void add(void* memory, size_t bytes);
  void give_back(void* memory);
  // Removes the free blocks that none of the last `age` requests got (0: all free ones), for the caller to free.
  std::vector<void*> remove_unused(uint64_t age);

  bool owns(const void* memory, size_t bytes) const;  // whether the range lies in one block
  std::vector<void*> all() const;                     // free or in use
  size_t bytes() const { return bytes_; }             // of all blocks

 private:
  struct Block {
    size_t bytes = 0;
    uint64_t used = 0;  // number of the last request that got it
  };
  std::map<const char*, Block> blocks_;
  std::set<std::pair<size_t, const char*>> free_;  // by size
  uint64_t requests_ = 0;
  size_t bytes_ = 0;
};

}  // namespace thinwire
