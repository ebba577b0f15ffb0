// The inner loops of the embedding table: gathering rows, and adding gradients to rows in token order.
#pragma once

#include <cstdint>

#include "engine/base/ops/kernel_table.h"

namespace thinwire {

// Tokens [first, first + count) are rows of the table at hand.
struct TokenRows {
  int64_t first, count;
};

// void pointers are starts of tensors of the storage type that indexes the array.
struct EmbeddingKernels {
  // x[n] = table[tokens[n] - rows.first], or 0 outside of `rows` (+ positions[first_position + n % length], when given)
  // for tokens [first, last).
  void (*forward[3])(const int32_t* tokens, TokenRows rows, const void* table, const void* positions, void* x,
                     int64_t cols, int64_t length, int64_t first_position, int64_t first, int64_t last);
  // dtable[tokens[n] - rows.first, c] += dx[n, c] for columns [first, last) and the tokens inside `rows` with tokens[n]
  // % shares == share, n ascending.
  void (*backward[3])(const int32_t* tokens, TokenRows rows, int64_t count, const void* dx, float* dtable, int64_t cols,
                      int64_t shares, int64_t share, int64_t first, int64_t last);
  // dpositions[p] += dx[p] + dx[p + length] + ... in order, for positions [first, last) of a batch of `count` tokens.
  void (*positions_backward[3])(int64_t count, const void* dx, float* dpositions, int64_t cols, int64_t length,
                                int64_t first, int64_t last);
};
TW_DECLARE_KERNELS(EmbeddingKernels, embedding_kernels)

}  // namespace thinwire
