// Vocabulary of parameters: what a layer says about each of its tensors. Init, sharding, optimizer, checkpoint and
// import / export all iterate lists of these and keep no list of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

enum class TensorClass : uint8_t { kEmbedding, kAttention, kMlp, kNorm, kBias, kHead };
enum class InitKind : uint8_t { kZero, kOne, kNormal };
// How tensor parallelism cuts the tensor: not at all, by rows (output features), by columns (input features), by rows
// within each KV group (q..q|k|v), by rows within each of the halves gate | up, by vocabulary rows.
enum class TpAxis : uint8_t { kNone, kRows, kCols, kKvGroups, kGateUp, kVocab };

// A rectangle of a global tensor: rows [row, row + rows) x columns [col, col + cols).
struct ParamRect {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
  int64_t count() const { return rows * cols; }
};

struct ParamSpec {
  std::string name;  // global name, e.g. "layers.3.attention.qkv.weight"; unique in the model
  int64_t rows = 0;  // 1-D tensors have rows = 1
  int64_t cols = 0;
  bool is_vector = false;  // 1-D tensor (bias or norm)
  TensorClass tensor_class = TensorClass::kMlp;
  InitKind init = InitKind::kZero;
  float init_std = 0.0f;  // for kNormal
  TpAxis tp_axis = TpAxis::kNone;
  int unit = 0;            // model_units.h
  bool decay = false;      // takes weight decay
  int64_t valid_rows = 0;  // rows that are not vocabulary padding (== rows elsewhere)
  std::string tied_to;     // name of the tensor that owns the storage, empty if its own
  uint32_t id = 0;         // stable number of the tensor in the whole model; keys its random numbers

  // What a rank holds of the tensor: these rectangles, stacked (gate | up are two, queries apart two per KV group, all
  // else is one). Local element e lies in them row by row. Vectors are one row, sharded by columns.
  std::vector<ParamRect> local;
  // Elements of the largest share of it that a tensor-parallel rank holds. 0: as `local`.
  int64_t largest_local = 0;
  // The gradient of this rank is only its part of a sum over the tensor-parallel ranks (norms under sequence
  // parallelism and in parallel-residual blocks).
  bool tp_partial = false;

  int64_t count() const { return rows * cols; }
  int64_t local_rows() const {
    int64_t n = 0;
    for (const ParamRect& r : local) n += r.rows;
    return n;
  }
  int64_t local_cols() const { return local.empty() ? 0 : local.front().cols; }
  int64_t local_count() const {
    int64_t n = 0;
    for (const ParamRect& r : local) n += r.count();
    return n;
  }
  // The same on all tensor-parallel ranks: how many elements of memory the tensor takes, and whether that is less than
  // the whole tensor.
  int64_t room() const { return std::max(largest_local, local_count()); }
  bool is_sharded() const { return room() < count(); }
};

// Calls run(local_first, global_first, count) for the longest runs of local elements [first, first + count) that are
// contiguous in the global tensor, too.
template <typename F>
void for_each_run(const ParamSpec& p, int64_t first, int64_t count, F&& run) {
  int64_t start = 0;  // of the rectangle, in local elements
  const int64_t end = first + count;
  for (const ParamRect& r : p.local) {
    const int64_t whole_rows = r.cols == p.cols ? r.rows : 1;  // rows that follow each other without a gap
    const int64_t length = whole_rows * r.cols;
    for (int64_t row = 0; length > 0 && row < r.rows; row += whole_rows) {
      const int64_t at = start + row * r.cols;
      const int64_t a = at > first ? at : first, b = at + length < end ? at + length : end;
      if (a < b) run(a, (r.row + row) * p.cols + r.col + (a - at), b - a);
    }
    start += r.count();
  }
}

using ParamList = std::vector<ParamSpec>;

}  // namespace thinwire
