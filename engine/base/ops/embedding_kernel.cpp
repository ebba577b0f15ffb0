// Embedding rows, a vector at a time; compiled once per instruction set.
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/simd.h"

namespace thinwire::TW_ISA {
namespace {

TW_INLINE bool inside(TokenRows rows, int64_t row) {
  return (uint64_t)row < (uint64_t)rows.count;
}

template <typename T>
void forward(const int32_t* tokens, TokenRows rows, const void* table_start, const void* positions_start,
             const int32_t* at, void* x_start, int64_t cols, int64_t length, int64_t first_position, int64_t first,
             int64_t last) {
  for (int64_t n = first; n < last; ++n) {
    const int64_t index = tokens[n] - rows.first;
    const T* row = (const T*)table_start + (inside(rows, index) ? index : 0) * cols;
    T* x = (T*)x_start + n * cols;
    if (positions_start == nullptr) {
      if (inside(rows, index)) {
        __builtin_memcpy(x, row, (size_t)cols * sizeof(T));
      } else {
        __builtin_memset(x, 0, (size_t)cols * sizeof(T));
      }
      continue;
    }
    const T* position = (const T*)positions_start + (at != nullptr ? at[n] : first_position + n % length) * cols;
    if (!inside(rows, index)) {
      __builtin_memcpy(x, position, (size_t)cols * sizeof(T));
      continue;
    }
    for_vectors(cols, [&](auto part, int64_t i, int64_t k) TW_INLINE_LAMBDA {
      store_at(part, x + i, load_at(part, row + i, k) + load_at(part, position + i, k), k);
    });
  }
}

template <typename T>
TW_INLINE void add_row(float* to, const T* from, int64_t count) {
  for_vectors(count, [&](auto part, int64_t i, int64_t k) TW_INLINE_LAMBDA {
    store_at(part, to + i, load_at(part, to + i, k) + load_at(part, from + i, k), k);
  });
}

template <typename T>
void backward(const int32_t* tokens, TokenRows rows, int64_t count, const void* dx_start, float* dtable, int64_t cols,
              int64_t shares, int64_t share, int64_t first, int64_t last) {
  const T* dx = (const T*)dx_start + first;
  for (int64_t n = 0; n < count; ++n) {
    if (shares > 1 && tokens[n] % shares != share) continue;
    const int64_t row = tokens[n] - rows.first;
    if (!inside(rows, row)) continue;
    // Rows of a large table are cold: ask for the one after next while this one is added.
    if (n + 2 < count) __builtin_prefetch(dtable + (tokens[n + 2] - rows.first) * cols + first, 1);
    add_row(dtable + row * cols + first, dx + n * cols, last - first);
  }
}

template <typename T>
void positions_backward(int64_t count, const void* dx_start, const int32_t* at, float* dpositions, int64_t cols,
                        int64_t length, int64_t first, int64_t last) {
  const T* dx = (const T*)dx_start;
  if (at != nullptr) {
    for (int64_t n = 0; n < count; ++n)
      if (at[n] >= first && at[n] < last) add_row(dpositions + at[n] * cols, dx + n * cols, cols);
    return;
  }
  for (int64_t p = first; p < last; ++p) {
    for (int64_t n = p; n < count; n += length) add_row(dpositions + p * cols, dx + n * cols, cols);
  }
}

}  // namespace

constinit const EmbeddingKernels embedding_kernels = {
    {forward<float>, forward<Bf16>, forward<Fp16>},
    {backward<float>, backward<Bf16>, backward<Fp16>},
    {positions_backward<float>, positions_backward<Bf16>, positions_backward<Fp16>},
};

}  // namespace thinwire::TW_ISA
