// A vector of non-negative integers that takes 4 bytes each while the largest value allows it, and 8 otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/mt19937.h"
#include "engine/base/core/check.h"

namespace thinwire {

// The index arrays of a large corpus have 10^8 entries and more, nearly always below 2^32.
class NarrowVector {
 public:
  NarrowVector() = default;
  // n zeros; every value stored later must be <= largest.
  NarrowVector(int64_t n, int64_t largest) : size_(n), is_wide_(largest > int64_t{0xffffffff}) {
    TW_CHECK(n >= 0 && largest >= 0, "n ", n, " largest ", largest);
    if (is_wide_)
      wide_.resize(static_cast<size_t>(n));
    else
      narrow_.resize(static_cast<size_t>(n));
  }

  int64_t size() const { return size_; }
  bool is_wide() const { return is_wide_; }
  int64_t operator[](int64_t i) const { return is_wide_ ? wide_[i] : static_cast<int64_t>(narrow_[i]); }
  void set(int64_t i, int64_t value) {
    if (is_wide_)
      wide_[i] = value;
    else
      narrow_[i] = static_cast<uint32_t>(value);
  }
  // numpy's shuffle of the elements [first, last).
  void shuffle(int64_t first, int64_t last, RandomState& random) {
    TW_CHECK(0 <= first && first <= last && last <= size_, "range ", first, "..", last, " of ", size_);
    const size_t n = static_cast<size_t>(last - first);
    if (is_wide_)
      numpy_shuffle(std::span(wide_).subspan(first, n), random);
    else
      numpy_shuffle(std::span(narrow_).subspan(first, n), random);
  }

 private:
  int64_t size_ = 0;
  bool is_wide_ = false;
  std::vector<uint32_t> narrow_;
  std::vector<int64_t> wide_;
};

}  // namespace thinwire
