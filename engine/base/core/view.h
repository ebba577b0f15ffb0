// A tensor view: pointer, element type and a row-major contiguous shape. It owns nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "engine/base/core/check.h"
#include "engine/base/core/dtype.h"

namespace thinwire {

// Row-major, contiguous, at most four dimensions. `data` may be device memory: only `ops` and `device` look behind it.
// An empty view (data == nullptr) stands for "no such tensor" where an argument is optional.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> shape{};

  View() = default;
  View(void* data_, DType dtype_, std::initializer_list<int64_t> dims) : data(data_), dtype(dtype_) {
    TW_CHECK(dims.size() <= 4);
    for (int64_t d : dims) shape[rank++] = d;
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype); }
  int64_t cols() const { return rank == 0 ? 1 : shape[rank - 1]; }     // extent of the last dimension
  int64_t rows() const { return cols() == 0 ? 0 : count() / cols(); }  // all other dimensions together

  template <typename T>
  T* as() const {
    TW_CHECK(dtype == DTypeOf<T>::value, "tensor holds ", name_of(dtype));
    return static_cast<T*>(data);
  }
  // The same memory as rows x cols.
  View as_2d() const { return View(data, dtype, {rows(), cols()}); }
  // Rows [first, first + n) of the matrix view.
  View row_range(int64_t first, int64_t n) const {
    TW_CHECK(first >= 0 && n >= 0 && first + n <= rows(), "rows ", first, "+", n, " of ", rows());
    return View(static_cast<char*>(data) + static_cast<size_t>(first * cols()) * size_of(dtype), dtype, {n, cols()});
  }
  // Elements [first, first + n) as a vector.
  View element_range(int64_t first, int64_t n) const {
    TW_CHECK(first >= 0 && n >= 0 && first + n <= count(), "elements ", first, "+", n, " of ", count());
    return View(static_cast<char*>(data) + static_cast<size_t>(first) * size_of(dtype), dtype, {n});
  }
};

}  // namespace thinwire
