// Checks that the CPU ops share, and the order in which kernel tables list the storage types.
#pragma once

#include <cstdint>

#include "engine/base/core/view.h"

namespace thinwire {

// Kernel tables are arrays {fp32, bf16, fp16}; CHECKs that `dtype` is one of them.
inline int storage_index(DType dtype) {
  TW_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "no kernel for ", name_of(dtype));
  return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2;
}

inline void check_shape(const View& v, int64_t rows, int64_t cols, DType dtype, const char* what) {
  TW_CHECK(v && v.dtype == dtype, what, " is ", v ? name_of(v.dtype) : "missing", ", not ", name_of(dtype));
  TW_CHECK(v.rows() == rows && v.cols() == cols, what, " is [", v.rows(), ",", v.cols(), "], not [", rows, ",", cols,
           "]");
}

inline void check_vector(const View& v, int64_t count, DType dtype, const char* what) {
  TW_CHECK(v && v.dtype == dtype, what, " is ", v ? name_of(v.dtype) : "missing", ", not ", name_of(dtype));
  TW_CHECK(v.count() == count, what, " has ", v.count(), " elements, not ", count);
}

inline void check_optional(const View& v, int64_t count, DType dtype, const char* what) {
  if (v) check_vector(v, count, dtype, what);
}

// Column sums are made of blocks of rows, each with a partial sum of its own, added up in order. The cut depends on the
// number of rows alone: at least 32 rows a block, and so many that there are at most 256 partial sums.
inline int64_t rows_per_partial(int64_t rows) {
  const int64_t even = (rows + 255) / 256;
  return even < 32 ? 32 : (even + 3) / 4 * 4;
}

}  // namespace thinwire
