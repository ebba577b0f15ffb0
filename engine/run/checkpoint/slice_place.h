// Where a slice lies in its tensor: a rectangle, and a range of its row-major elements. Whether slices cover a tensor
// exactly, and which runs of memory two slices of one tensor share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace thinwire {

// Elements [first, first + count) of rows [row, row + part_rows) x columns [col, col + part_cols), flattened row by
// row, of a tensor of rows x cols.
struct SlicePlace {
  int64_t rows = 0, cols = 0;
  int64_t row = 0, part_rows = 0, col = 0, part_cols = 0;
  int64_t first = 0, count = 0;

  static SlicePlace whole(int64_t rows, int64_t cols) { return {rows, cols, 0, rows, 0, cols, 0, rows * cols}; }
  // Nothing negative, nothing outside, no product that overflows.
  bool is_possible() const;
  bool is_full_rectangle() const { return row == 0 && col == 0 && part_rows == rows && part_cols == cols; }
  bool is_whole_rectangle() const { return first == 0 && count == part_rows * part_cols; }
  bool is_whole_tensor() const { return is_full_rectangle() && is_whole_rectangle(); }
  // Rows of the tensor that it touches.
  int64_t begin_row() const { return part_cols == 0 ? row : row + first / part_cols; }
  int64_t end_row() const { return count == 0 ? begin_row() : row + (first + count - 1) / part_cols + 1; }
  // Its columns in a row that it touches: [begin, end).
  int64_t begin_col(int64_t r) const { return col + std::max<int64_t>(0, first - (r - row) * part_cols); }
  int64_t end_col(int64_t r) const { return col + std::min(part_cols, first + count - (r - row) * part_cols); }
  // Where column c of row r lies among its elements.
  int64_t offset_of(int64_t r, int64_t c) const { return (r - row) * part_cols + (c - col) - first; }

  bool operator==(const SlicePlace&) const = default;
};

// "rows 0 to 4, columns 8 to 16", or "elements 3 to 9 of ..." where it is only a part of its rectangle; "all".
std::string describe(const SlicePlace& place);

// Elements [first, end) of the tensor, row-major, that more than one slice holds, or that none does.
struct CoverFault {
  bool twice = false;
  int64_t first = 0, end = 0;
};
// The first fault from the top of the tensor down. `places` are possible and of one tensor of rows x cols. n log n in
// the number of slices.
std::optional<CoverFault> find_cover_fault(int64_t rows, int64_t cols, std::span<const SlicePlace* const> places);

// Elements that the two have in common.
int64_t shared_count(const SlicePlace& a, const SlicePlace& b);

// Calls run(a_offset, b_offset, count) for the longest runs that are contiguous in both, in increasing order of either.
template <typename F>
void for_each_shared_run(const SlicePlace& a, const SlicePlace& b, F&& run) {
  if (a.col == b.col && a.part_cols == b.part_cols) {  // row follows row in both
    const int64_t at_a = a.row * a.part_cols + a.first, at_b = b.row * b.part_cols + b.first;
    const int64_t begin = std::max(at_a, at_b), stop = std::min(at_a + a.count, at_b + b.count);
    if (begin < stop) run(begin - at_a, begin - at_b, stop - begin);
    return;
  }
  int64_t at_a = 0, at_b = 0, length = 0;
  const int64_t end = std::min(a.end_row(), b.end_row());
  for (int64_t r = std::max(a.begin_row(), b.begin_row()); r < end; ++r) {
    const int64_t begin_col = std::max(a.begin_col(r), b.begin_col(r));
    const int64_t columns = std::min(a.end_col(r), b.end_col(r)) - begin_col;
    if (columns <= 0) continue;
    const int64_t next_a = a.offset_of(r, begin_col), next_b = b.offset_of(r, begin_col);
    if (length > 0 && next_a == at_a + length && next_b == at_b + length) {
      length += columns;
      continue;
    }
    if (length > 0) run(at_a, at_b, length);
    at_a = next_a, at_b = next_b, length = columns;
  }
  if (length > 0) run(at_a, at_b, length);
}

}  // namespace thinwire
