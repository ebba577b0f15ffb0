// What compression remembers between messages (residuals, warm starts): provisional until the step commits, restored
// when it is skipped, and part of every checkpoint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/core/aligned_vector.h"
#include "engine/base/core/check.h"
#include "engine/base/core/state_visitor.h"

namespace thinwire {

// What becomes of writes of a step that is skipped: the values before it come back (costs a second copy), or zeros.
enum class OnSkip : uint8_t { kRestore, kZero };

class CompressionState {
 public:
  virtual ~CompressionState() = default;
  virtual void commit() = 0;     // the step that wrote was applied
  virtual void roll_back() = 0;  // the step that wrote was skipped
  // Names are `prefix` (which brings its own separator) + what; between steps only.
  virtual void visit(StateVisitor& visitor, const std::string& prefix) = 0;
  virtual int64_t bytes() const = 0;  // of memory, for the plan
};

// Disjoint ranges of indices, in order, neighbours joined.
class RangeSet {
 public:
  bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }
  bool covers(int64_t first, int64_t last) const {
    if (first >= last) return true;
    for (const auto& r : ranges_)
      if (r.first <= first && last <= r.second) return true;
    return false;
  }
  // Calls gap(a, b) for the parts of [first, last) that are in no range.
  template <typename Gap>
  void gaps(int64_t first, int64_t last, const Gap& gap) const {
    for (const auto& r : ranges_) {
      if (r.second <= first) continue;
      if (r.first >= last) break;
      if (first < r.first) gap(first, r.first);
      first = r.second;
    }
    if (first < last) gap(first, last);
  }
  // Calls part(a, b) for the parts of [first, last) that are in one.
  template <typename Part>
  void parts(int64_t first, int64_t last, const Part& part) const {
    for (const auto& r : ranges_) {
      const int64_t a = std::max(first, r.first), b = std::min(last, r.second);
      if (a < b) part(a, b);
    }
  }
  void add(int64_t first, int64_t last) {
    if (first >= last) return;
    auto at = ranges_.begin();
    while (at != ranges_.end() && at->second < first) ++at;
    auto end = at;
    while (end != ranges_.end() && end->first <= last) {
      first = std::min(first, end->first);
      last = std::max(last, end->second);
      ++end;
    }
    at = ranges_.erase(at, end);
    ranges_.insert(at, {first, last});
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

// A vector with a provisional copy. Two ways to use it within a step, from one thread:
//   whole:   read() is what to compute from (provisional values once written in this step); write() is where to write,
//            and holds the same values as read() (the first write of a step copies).
//   ranges:  open() a range that will be overwritten wholly: nothing is copied unless parts of it were written before.
template <typename T>
class StateVector {
 public:
  struct Range {
    const T* read = nullptr;  // the values before
    T* write = nullptr;       // every element must be written; == read where in place
  };

  StateVector() = default;
  StateVector(int64_t count, OnSkip on_skip, T initial = T{})
      : committed_(static_cast<size_t>(count), initial), on_skip_(on_skip), initial_(initial) {
    if (on_skip == OnSkip::kRestore) provisional_ = committed_;
  }
  int64_t count() const { return static_cast<int64_t>(committed_.size()); }

  const T* read() const {
    if (on_skip_ == OnSkip::kZero || written_.empty()) return committed_.data();
    TW_CHECK(written_.covers(0, count()), "a coding state is read as a whole while a part of it is being written");
    return provisional_.data();
  }
  T* write() {
    const Range range = open(0, count());
    if (range.read != range.write && count() > 0) std::memcpy(range.write, range.read, committed_.size() * sizeof(T));
    return range.write;
  }
  // Elements [first, first + n); the pointers are those of element `first`.
  Range open(int64_t first, int64_t n) {
    TW_CHECK(first >= 0 && n >= 0 && first + n <= count(), "elements ", first, "+", n, " of a state of ", count());
    T* old = committed_.data() + first;
    if (on_skip_ == OnSkip::kZero) {
      dirty_ = true;
      return {old, old};
    }
    int64_t fresh = 0;
    written_.gaps(first, first + n, [&](int64_t a, int64_t b) { fresh += b - a; });
    if (fresh < n) fill_gaps(first, first + n);
    written_.add(first, first + n);
    dirty_ = true;
    T* now = provisional_.data() + first;
    return {fresh < n ? now : old, now};
  }
  void commit() {
    if (dirty_ && on_skip_ == OnSkip::kRestore) {
      fill_gaps(0, count());
      committed_.swap(provisional_);
      std::swap(differ_, written_);
    }
    written_.clear();
    dirty_ = false;
  }
  void roll_back() {
    written_.parts(0, count(), [&](int64_t a, int64_t b) { differ_.add(a, b); });
    if (dirty_ && on_skip_ == OnSkip::kZero) committed_.assign(committed_.size(), initial_);
    written_.clear();
    dirty_ = false;
  }
  // Between steps. May be written through (a checkpoint that is loaded) until the next open().
  T* settled() {
    TW_CHECK(!dirty_, "a coding state is read in the middle of a step");
    if (on_skip_ == OnSkip::kRestore) differ_.add(0, count());
    return committed_.data();
  }
  int64_t bytes() const { return static_cast<int64_t>((committed_.size() + provisional_.size()) * sizeof(T)); }

 private:
  void fill_gaps(int64_t first, int64_t last) {
    written_.gaps(first, last, [&](int64_t from, int64_t to) {
      differ_.parts(from, to, [&](int64_t a, int64_t b) {
        std::memcpy(provisional_.data() + a, committed_.data() + a, static_cast<size_t>(b - a) * sizeof(T));
      });
    });
  }

  AlignedVector<T> committed_, provisional_;
  RangeSet written_;  // of provisional_, in this step
  // The only ranges in which the copies may differ: commits copy there alone. Of a scattered sum every step writes the
  // same slices, those of other ranks, and nothing is copied.
  RangeSet differ_;
  OnSkip on_skip_ = OnSkip::kRestore;
  T initial_{};
  bool dirty_ = false;
};

}  // namespace thinwire
