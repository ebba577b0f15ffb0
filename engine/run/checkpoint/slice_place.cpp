// Exact covers by a sweep over rows, see slice_place.h.
#include "engine/run/checkpoint/slice_place.h"

#include <map>
#include <set>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

struct Box {
  int64_t row, end_row, col, end_col;
};

// A range of a rectangle is at most a piece of a row, whole rows, and a piece of a row.
int boxes_of(const SlicePlace& s, Box out[3]) {
  int n = 0;
  if (s.count == 0) return n;
  int64_t row = s.begin_row(), end = s.end_row();
  if (s.begin_col(row) > s.col) {
    out[n++] = {row, row + 1, s.begin_col(row), s.end_col(row)};
    ++row;
  }
  const bool tail = row < end && s.end_col(end - 1) < s.col + s.part_cols;
  if (row < end - tail) out[n++] = {row, end - tail, s.col, s.col + s.part_cols};
  if (tail) out[n++] = {end - 1, end, s.col, s.end_col(end - 1)};
  return n;
}

// The boxes that cross one row, by their first column; they never overlap.
class Strip {
 public:
  explicit Strip(int64_t cols) : cols_(cols) {}

  void remove(const Box& box) {
    active_.erase(box.col);
    covered_ -= box.end_col - box.col;
  }
  // The columns that `box` shares with one that is there already.
  std::optional<std::pair<int64_t, int64_t>> add(const Box& box) {
    const auto next = active_.lower_bound(box.col);
    if (next != active_.end() && next->first < box.end_col)
      return std::pair{next->first, std::min(box.end_col, next->second)};
    if (next != active_.begin()) {
      const auto before = std::prev(next);
      if (before->second > box.col) return std::pair{box.col, std::min(box.end_col, before->second)};
    }
    active_.emplace(box.col, box.end_col);
    covered_ += box.end_col - box.col;
    return std::nullopt;
  }
  bool is_complete() const { return covered_ == cols_; }
  bool is_empty() const { return active_.empty(); }
  std::pair<int64_t, int64_t> first_gap() const {
    int64_t at = 0;
    for (const auto& [col, end_col] : active_) {
      if (col > at) return {at, col};
      at = end_col;
    }
    return {at, cols_};
  }

 private:
  int64_t cols_, covered_ = 0;
  std::map<int64_t, int64_t> active_;
};

}  // namespace

bool SlicePlace::is_possible() const {
  int64_t elements = 0;
  if (rows < 0 || cols < 0 || __builtin_mul_overflow(rows, cols, &elements)) return false;
  if (row < 0 || part_rows < 0 || row > rows || part_rows > rows - row) return false;
  if (col < 0 || part_cols < 0 || col > cols || part_cols > cols - col) return false;
  const int64_t part = part_rows * part_cols;  // not larger than rows * cols
  return first >= 0 && count >= 0 && first <= part && count <= part - first;
}

std::string describe(const SlicePlace& p) {
  if (p.is_whole_tensor()) return "all";
  std::string text;
  if (!p.is_whole_rectangle())
    text = "elements " + std::to_string(p.first) + " to " + std::to_string(p.first + p.count) + " of ";
  if (p.is_full_rectangle()) return text + "all";
  text += "rows " + std::to_string(p.row) + " to " + std::to_string(p.row + p.part_rows);
  if (p.part_cols != p.cols)
    text += ", columns " + std::to_string(p.col) + " to " + std::to_string(p.col + p.part_cols);
  return text;
}

std::optional<CoverFault> find_cover_fault(int64_t rows, int64_t cols, std::span<const SlicePlace* const> places) {
  if (rows == 0 || cols == 0) return std::nullopt;
  std::vector<Box> boxes;
  boxes.reserve(places.size());
  for (const SlicePlace* place : places) {
    Box parts[3];
    const int n = boxes_of(*place, parts);
    boxes.insert(boxes.end(), parts, parts + n);
  }
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return a.row != b.row ? a.row < b.row : a.col < b.col; });
  const auto ends_later = [&](size_t a, size_t b) { return boxes[a].end_row < boxes[b].end_row; };
  std::multiset<size_t, decltype(ends_later)> open(ends_later);  // soonest end first
  Strip strip(cols);
  size_t next = 0;
  for (int64_t row = 0; row < rows;) {
    while (!open.empty() && boxes[*open.begin()].end_row <= row) {
      strip.remove(boxes[*open.begin()]);
      open.erase(open.begin());
    }
    for (; next < boxes.size() && boxes[next].row == row; ++next) {
      if (const auto both = strip.add(boxes[next]))
        return CoverFault{true, row * cols + both->first, row * cols + both->second};
      open.insert(next);
    }
    // Nothing changes before this row.
    int64_t until = rows;
    if (next < boxes.size()) until = std::min(until, boxes[next].row);
    if (!open.empty()) until = std::min(until, boxes[*open.begin()].end_row);
    TW_CHECK(until > row);
    if (!strip.is_complete()) {
      if (strip.is_empty()) return CoverFault{false, row * cols, until * cols};
      const auto [begin, end] = strip.first_gap();
      return CoverFault{false, row * cols + begin, row * cols + end};
    }
    row = until;
  }
  return std::nullopt;
}

int64_t shared_count(const SlicePlace& a, const SlicePlace& b) {
  Box of_a[3], of_b[3];
  const int parts_a = boxes_of(a, of_a), parts_b = boxes_of(b, of_b);
  int64_t n = 0;
  for (int i = 0; i < parts_a; ++i) {
    for (int j = 0; j < parts_b; ++j) {
      const int64_t rows = std::min(of_a[i].end_row, of_b[j].end_row) - std::max(of_a[i].row, of_b[j].row);
      const int64_t cols = std::min(of_a[i].end_col, of_b[j].end_col) - std::max(of_a[i].col, of_b[j].col);
      if (rows > 0 && cols > 0) n += rows * cols;
    }
  }
  return n;
}

}  // namespace thinwire
