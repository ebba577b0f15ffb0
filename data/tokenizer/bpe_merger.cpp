// Two ways to the same merges: a scan for the words of ordinary text, a heap over a linked list for very long ones.
#include "data/tokenizer/bpe_merger.h"

#include <bit>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

namespace thinwire {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;  // Fibonacci hashing; the high half is the well-mixed one
  return pair ^ (pair >> 32);
}

}  // namespace

BpeMerger::BpeMerger(const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& byte_ids)
    : byte_ids_(byte_ids) {
  slots_.resize(std::bit_ceil(2 * merges.size() + 2));
  mask_ = slots_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    uint64_t at = mix(pair) & mask_;
    while (slots_[at].pair != kEmpty) at = (at + 1) & mask_;
    slots_[at] = {pair, static_cast<int32_t>(rank), merges[rank].merged};
  }
}

const BpeMerger::Slot* BpeMerger::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (uint64_t at = mix(pair) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == kEmpty) return nullptr;
  }
}

int64_t BpeMerger::append(std::string_view word, std::vector<int32_t>& ids) const {
  for (size_t i = 0; i < word.size(); ++i) {
    if (byte_ids_[static_cast<uint8_t>(word[i])] < 0) return static_cast<int64_t>(i);
  }
  if (word.size() <= kShort) {
    append_short(word, ids);
  } else {
    append_long(word, ids);
  }
  return -1;
}

void BpeMerger::append_short(std::string_view word, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShort> token;
  std::array<int32_t, kShort> rank;  // rank[i] of the pair (i, i + 1)
  std::array<int32_t, kShort> merged;
  size_t n = word.size();
  const auto look = [&](size_t i) {
    const Slot* slot = i + 1 < n ? find(token[i], token[i + 1]) : nullptr;
    rank[i] = slot != nullptr ? slot->rank : kNoRank;
    merged[i] = slot != nullptr ? slot->merged : -1;
  };
  for (size_t i = 0; i < n; ++i) token[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == kNoRank) break;
    token[best] = merged[best];
    for (size_t i = best + 1; i + 1 < n; ++i) {
      token[i] = token[i + 1];
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  ids.insert(ids.end(), token.begin(), token.begin() + static_cast<ptrdiff_t>(n));
}

void BpeMerger::append_long(std::string_view word, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t token, previous, next;  // token -1: merged into the one before
  };
  struct Candidate {
    int32_t rank, left, left_token, right_token, merged;
    bool operator<(const Candidate& other) const {  // the queue gives the largest: lowest rank, then leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto n = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols[static_cast<size_t>(i)] = {byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < n ? i + 1 : -1};
  }
  const auto symbol = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> heap_storage;
  heap_storage.reserve(word.size());
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(heap_storage));
  const auto offer = [&](int32_t left) {
    if (left < 0 || symbol(left).next < 0) return;
    const int32_t a = symbol(left).token, b = symbol(symbol(left).next).token;
    if (const Slot* slot = find(a, b)) heap.push({slot->rank, left, a, b, slot->merged});
  };
  for (int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Symbol& left = symbol(c.left);
    // Either side may have been merged since the candidate was offered.
    if (left.token != c.left_token || left.next < 0 || symbol(left.next).token != c.right_token) continue;
    Symbol& right = symbol(left.next);
    left.token = c.merged;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = c.left;
    offer(left.previous);
    offer(c.left);
  }
  for (int32_t i = 0; i >= 0; i = symbol(i).next) ids.push_back(symbol(i).token);
}

}  // namespace thinwire
