// What compression remembers between messages (residuals, warm starts): provisional until the step commits, restored
// when it is skipped, and part of every checkpoint.
#pragma once

#include <algorithm>
#include <cstddef>
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

// The bookkeeping of a vector in two copies, committed and provisional: what of the provisional one was written in this
// step, and where the two may differ. Whoever holds the copies swaps them behind commit(). copy(a, b) copies committed
// elements [a, b) to the provisional copy.
class ProvisionalRanges {
 public:
  bool written() const { return !written_.empty(); }
  bool covers(int64_t first, int64_t last) const { return written_.covers(first, last); }
  // Elements [first, first + n) are about to be overwritten, all of them. Returns which copy has the values before: the
  // provisional one (true; what it lacked of the range was copied) or the committed one.
  template <typename Copy>
  bool open(int64_t first, int64_t n, const Copy& copy) {
    int64_t fresh = 0;
    written_.gaps(first, first + n, [&](int64_t a, int64_t b) { fresh += b - a; });
    if (fresh < n) fill_gaps(first, first + n, copy);
    written_.add(first, first + n);
    return fresh < n;
  }
  template <typename Copy>
  void commit(int64_t count, const Copy& copy) {
    fill_gaps(0, count, copy);
    std::swap(differ_, written_);
    written_.clear();
  }
  void roll_back(int64_t count) {
    written_.parts(0, count, [&](int64_t a, int64_t b) { differ_.add(a, b); });
    written_.clear();
  }
  // The committed copy is written from outside.
  void overwrite(int64_t count) { differ_.add(0, count); }

 private:
  template <typename Copy>
  void fill_gaps(int64_t first, int64_t last, const Copy& copy) {
    written_.gaps(first, last, [&](int64_t from, int64_t to) { differ_.parts(from, to, copy); });
  }

  RangeSet written_;  // in this step
  // Elsewhere the copies are equal, so commit() copies only what is in here and was not written. In a reduce-scatter
  // every step writes the same slices, those of other ranks, and nothing is copied.
  RangeSet differ_;
};

// Where the memory of a state lies. DevicePlace (device_state.h): on a device.
struct HostPlace {
  using Memory = AlignedVector<std::byte>;
  Memory allocate(size_t bytes) const { return Memory(bytes); }  // zeroed
  void copy(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
  void clear(void* at, size_t bytes) const { std::memset(at, 0, bytes); }
};

// A vector with a provisional copy. Two ways to use it within a step, from one thread:
//   whole:   read() is what to compute from (provisional values once written in this step); write() is where to write,
//            and holds what read() showed (the first write of a step copies).
//   ranges:  open() a range that will be overwritten wholly: nothing is copied unless parts of it were written before.
// Pointers are the place's. On a device copies are queued, and nobody waits; the books are kept on the host.
template <typename T, typename Place = HostPlace>
class StateVector {
 public:
  struct Range {
    const T* read = nullptr;  // the values before
    T* write = nullptr;       // every element must be written; == read where in place
  };

  StateVector() = default;
  StateVector(int64_t count, OnSkip on_skip, const Place& place = {})
      : place_(place), count_(count), on_skip_(on_skip), committed_(place.allocate(size())) {
    if (on_skip == OnSkip::kRestore) provisional_ = place.allocate(size());
  }
  int64_t count() const { return count_; }

  const T* read() const {
    if (on_skip_ == OnSkip::kZero || !ranges_.written()) return at(committed_, 0);
    TW_CHECK(ranges_.covers(0, count_), "a coding state is read as a whole while a part of it is being written");
    return at(provisional_, 0);
  }
  T* write() {
    const Range range = open(0, count_);
    if (range.read != range.write && count_ > 0) place_.copy(range.write, range.read, size());
    return range.write;
  }
  // Elements [first, first + n); the pointers are those of element `first`.
  Range open(int64_t first, int64_t n) {
    TW_CHECK(first >= 0 && n >= 0 && first + n <= count_, "elements ", first, "+", n, " of a state of ", count_);
    T* old = at(committed_, first);
    dirty_ = true;
    if (on_skip_ == OnSkip::kZero) return {old, old};
    const bool again = ranges_.open(first, n, copy());
    T* now = at(provisional_, first);
    return {again ? now : old, now};
  }
  void zero() {
    if (count_ > 0) place_.clear(open(0, count_).write, size());
  }
  // Zeroes elements [first, first + n) of what open() gave in this step, behind whatever wrote them.
  void clear(int64_t first, int64_t n) {
    if (count_ == 0 || n == 0) return;
    T* const written = at(on_skip_ == OnSkip::kRestore ? provisional_ : committed_, first);
    place_.clear(written, static_cast<size_t>(n) * sizeof(T));
  }
  void commit() {
    if (dirty_ && on_skip_ == OnSkip::kRestore) {
      ranges_.commit(count_, copy());
      std::swap(committed_, provisional_);
    }
    dirty_ = false;
  }
  void roll_back() {
    ranges_.roll_back(count_);
    if (dirty_ && on_skip_ == OnSkip::kZero && count_ > 0) place_.clear(at(committed_, 0), size());
    dirty_ = false;
  }
  // Between steps. May be written (a checkpoint that is loaded; on a device by Device::copy_at_rest()) until the next
  // open().
  T* settled() {
    TW_CHECK(!dirty_, "a coding state is read in the middle of a step");
    if (on_skip_ == OnSkip::kRestore) ranges_.overwrite(count_);
    return at(committed_, 0);
  }
  int64_t bytes() const { return static_cast<int64_t>(size()) * (on_skip_ == OnSkip::kRestore ? 2 : 1); }

 private:
  using Memory = typename Place::Memory;
  size_t size() const { return static_cast<size_t>(count_) * sizeof(T); }
  static T* at(const Memory& memory, int64_t i) {
    const void* const data = memory.data();
    return static_cast<T*>(const_cast<void*>(data)) + i;
  }
  auto copy() {
    return [this](int64_t a, int64_t b) {
      place_.copy(at(provisional_, a), at(committed_, a), static_cast<size_t>(b - a) * sizeof(T));
    };
  }

  Place place_;
  int64_t count_ = 0;
  OnSkip on_skip_ = OnSkip::kRestore;
  Memory committed_, provisional_;
  ProvisionalRanges ranges_;
  bool dirty_ = false;
};

}  // namespace thinwire
