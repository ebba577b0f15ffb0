// The merging of byte-level BPE: bytes of one word in, token ids out.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer_json.h"

namespace thinwire {

// Ranked pairs in an open-addressing table; read-only after construction, so safe to share between threads.
class BpeMerger {
 public:
  BpeMerger() = default;
  BpeMerger(const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& byte_ids);

  // Again and again the leftmost pair of the lowest rank becomes one token (Sennrich et al. 2016), until no pair has a
  // rank. Appends the ids of `word`. Returns the position of the first byte that has no token, else -1 (nothing is then
  // appended). Words up to kShort are scanned, O(n^2); longer ones go through a heap, O(n log n).
  int64_t append(std::string_view word, std::vector<int32_t>& ids) const;

  static constexpr size_t kShort = 48;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    int32_t rank = 0, merged = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr int32_t kNoRank = INT32_MAX;

  const Slot* find(int32_t left, int32_t right) const;
  void append_short(std::string_view word, std::vector<int32_t>& ids) const;
  void append_long(std::string_view word, std::vector<int32_t>& ids) const;

  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace thinwire
