// The embedding table on CUDA: rows by token, and a backward without atomics.
//
// Backward: (row, token number) pairs are sorted by row, stable. The tokens of one row then stand together, in token
// order: a segment. A segment of up to kPiece tokens is added to its row by one block, in token order, as on CPU. A
// longer one is cut into pieces of kPiece tokens, each summed by a block of its own; a second kernel adds the pieces to
// the row in order. Which kernel threads do what depends on the tokens alone, and nothing is counted on the host.
#include <algorithm>
#include <bit>

#include "engine/base/ops/cuda_flat.h"
#include "engine/base/ops/cuda_kernel.h"
#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

constexpr int kPiece = kEmbeddingPiece;
constexpr int kThreads = 256;

// Tokens [first, first + count) of the vocabulary are rows of the table at hand.
struct TokenRows {
  int64_t first, count, vocabulary;
};

// The row of a token, or -1 outside of the table. A token outside of the vocabulary is reported.
TW_DEVICE int64_t row_of(const TokenRows& rows, int32_t token, unsigned* faults) {
  if (token < 0 || token >= rows.vocabulary) {
    atomic_or(faults, kFaultToken);
    return -1;
  }
  const int64_t row = token - rows.first;
  return row >= 0 && row < rows.count ? row : -1;
}

template <typename T>
struct ForwardBody {
  static constexpr int kWidth = kVector<T>;
  const int32_t* tokens;
  TokenRows rows;
  const T *table, *positions;
  const int32_t* at;  // of positions; nullptr: first_position + n % length
  T* x;
  int64_t cols, length, first_position;
  unsigned* faults;
  template <int W>
  struct Data {
    T row[W], position[W];
    bool inside;
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    const int64_t n = quotient(i, cols), c = i - n * cols;
    const int64_t row = row_of(rows, tokens[n], faults);
    d.inside = row >= 0;
    TW_UNROLL
    for (int k = 0; k < W; ++k) narrow(0.0f, d.row[k]);
    if (d.inside) load_values<W>(table + row * cols + c, d.row);
    if (positions != nullptr) {
      const int64_t place = at != nullptr ? at[n] : first_position + n - quotient(n, length) * length;
      load_values<W>(positions + place * cols + c, d.position);
    }
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    if (positions == nullptr) return store_values<W>(x + i, d.row);
    if (!d.inside) return store_values<W>(x + i, d.position);
    float out[W];
    TW_UNROLL
    for (int k = 0; k < W; ++k) out[k] = widen(d.row[k]) + widen(d.position[k]);
    store_floats<W>(x + i, out);
  }
};

// Keys: rows of the table, or rows.count where a token has none; values: token numbers.
TW_KERNEL void __launch_bounds__(kThreads)
    keys_kernel(const int32_t* tokens, TokenRows rows, int count, uint32_t* keys, int32_t* values, unsigned* faults) {
  const int n = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (n >= count) return;
  const int64_t row = row_of(rows, tokens[n], faults);
  keys[n] = static_cast<uint32_t>(row >= 0 ? row : rows.count);
  values[n] = n;
}

// The first of the places [low, high) whose key is not below `key` (with kBehind: above it), or high.
template <bool kBehind>
TW_DEVICE int bound(const uint32_t* keys, int low, int high, uint32_t key) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (kBehind ? keys[middle] <= key : keys[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Where the sum of the piece that starts at place i lies. In any kPiece neighbouring places at most one long segment
// begins and at most one that began before has a piece start: two slots are enough.
TW_DEVICE int64_t slot_of(int i, bool first_piece) {
  return 2 * static_cast<int64_t>(i / kPiece) + (first_piece ? 1 : 0);
}

struct Sorted {
  const uint32_t* keys;
  const int32_t* values;
  int count;
  uint32_t none;  // key of tokens without a row
};

// Block i works if a piece starts at place i; W columns per thread.
template <typename T, int W>
TW_KERNEL void __launch_bounds__(kThreads)
    pieces_kernel(Sorted sorted, const T* dx, float* dtable, float* partials, int64_t cols) {
  TW_SHARED_ARRAY(int32_t, order, kPiece);
  const int i = static_cast<int>(blockIdx.x);
  const uint32_t key = sorted.keys[i];
  if (key == sorted.none) return;
  const bool first_piece = i == 0 || sorted.keys[i - 1] != key;
  if (!first_piece) {
    if (i < kPiece || sorted.keys[i - kPiece] != key) return;  // within the first piece of its segment
    if ((i - bound<false>(sorted.keys, 0, i, key)) % kPiece != 0) return;
  }
  const int reach = i + kPiece < sorted.count ? i + kPiece : sorted.count;
  const int n = bound<true>(sorted.keys, i, reach, key) - i;
  const bool is_long = !first_piece || (reach < sorted.count && sorted.keys[reach] == key);
  for (int k = static_cast<int>(threadIdx.x); k < n; k += static_cast<int>(blockDim.x)) order[k] = sorted.values[i + k];
  __syncthreads();
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= cols) return;
  float* to = is_long ? partials + slot_of(i, first_piece) * cols + c : dtable + static_cast<int64_t>(key) * cols + c;
  float sum[W] = {};
  if (!is_long) load_values<W>(to, sum);
  TW_UNROLL_BY(4)
  for (int k = 0; k < n; ++k) {
    float v[W];
    load_floats<W>(dx + order[k] * cols + c, v);
    TW_UNROLL
    for (int e = 0; e < W; ++e) sum[e] += v[e];
  }
  store_values<W>(to, sum);
}

// Adds the pieces of the long segment that begins among places [kPiece * block, + kPiece), if one does.
template <int W>
TW_KERNEL void __launch_bounds__(kThreads)
    long_rows_kernel(Sorted sorted, float* dtable, const float* partials, int64_t cols) {
  static_assert(kThreads == kPiece);
  TW_SHARED_ARRAY(int, found, 1);
  if (threadIdx.x == 0) found[0] = -1;
  __syncthreads();
  const int i = static_cast<int>(blockIdx.x) * kPiece + static_cast<int>(threadIdx.x);
  if (i + kPiece < sorted.count) {
    const uint32_t key = sorted.keys[i];
    if (key != sorted.none && (i == 0 || sorted.keys[i - 1] != key) && sorted.keys[i + kPiece] == key) found[0] = i;
  }
  __syncthreads();
  const int start = found[0];
  if (start < 0) return;
  const uint32_t key = sorted.keys[start];
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < cols; c += static_cast<int64_t>(kThreads) * W) {
    float sum[W];
    load_values<W>(dtable + static_cast<int64_t>(key) * cols + c, sum);
    for (int64_t at = start; at < sorted.count && sorted.keys[at] == key; at += kPiece) {
      float v[W];
      load_values<W>(partials + slot_of(static_cast<int>(at), at == start) * cols + c, v);
      TW_UNROLL
      for (int e = 0; e < W; ++e) sum[e] += v[e];
    }
    store_values<W>(dtable + static_cast<int64_t>(key) * cols + c, sum);
  }
}

// dpositions[p] += dx of all tokens at p, in order: p, p + length ...; element i is column i % cols of position i /
// cols.
template <typename T>
struct PositionsBody {
  static constexpr int kWidth = 4;
  const T* dx;
  float* dpositions;
  int64_t count, cols, length;
  template <int W>
  struct Data {
    float sum[W];
  };
  template <int W>
  TW_DEVICE void load(int64_t i, Data<W>& d) const {
    load_values<W>(dpositions + i, d.sum);
    const int64_t p = quotient(i, cols), c = i - p * cols;
    TW_UNROLL_BY(4)
    for (int64_t n = p; n < count; n += length) {
      float v[W];
      load_floats<W>(dx + n * cols + c, v);
      TW_UNROLL
      for (int k = 0; k < W; ++k) d.sum[k] += v[k];
    }
  }
  template <int W>
  TW_DEVICE void finish(int64_t i, const Data<W>& d) const {
    store_values<W>(dpositions + i, d.sum);
  }
};

TokenRows rows_of(const View& table, int64_t first_token, int64_t vocabulary) {
  return {first_token, table.rows(), vocabulary > 0 ? vocabulary : table.rows()};
}

// Cuts one buffer into pieces that start on 256 bytes.
struct Cutter {
  size_t used = 0;
  size_t take(int64_t bytes) {
    const size_t at = used;
    used += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    return at;
  }
};

// dtable[tokens[n]] += dx[n], sorted by row.
template <typename T>
void add_rows(CudaQueue& queue, const View& tokens, const T* dx, const View& table, const TokenRows& rows,
              int64_t count, int64_t cols) {
  TW_CHECK(count < int64_t{1} << 31 && rows.count < int64_t{1} << 31, count, " tokens, ", rows.count, " rows");
  const int bits = std::bit_width(static_cast<uint64_t>(rows.count));
  const size_t sort_bytes = sort_pairs_bytes_cuda(count, bits);
  Cutter cut;
  const size_t keys = cut.take(count * 4), sorted_keys = cut.take(count * 4), values = cut.take(count * 4),
               sorted_values = cut.take(count * 4), sorting = cut.take(static_cast<int64_t>(sort_bytes)),
               partials = cut.take(2 * ceil_div(count, kPiece) * cols * 4);
  std::byte* scratch = queue.scratch(cut.used);
  const auto at = [&](auto* type, size_t offset) { return reinterpret_cast<decltype(type)>(scratch + offset); };
  uint32_t* const no_key = nullptr;
  int32_t* const no_value = nullptr;
  float* dtable = table.as<float>();
  auto* sums = reinterpret_cast<float*>(scratch + partials);
  queue.launch("embedding_keys", keys_kernel, {ceil_div(count, kThreads)}, kThreads, 0, tokens.as<int32_t>(), rows,
               count, at(no_key, keys), at(no_value, values), queue.fault_word());
  sort_pairs_cuda(queue, scratch + sorting, sort_bytes, at(no_key, keys), at(no_key, sorted_keys), at(no_value, values),
                  at(no_value, sorted_values), count, bits);
  const Sorted sorted = {at(no_key, sorted_keys), at(no_value, sorted_values), static_cast<int>(count),
                         static_cast<uint32_t>(rows.count)};
  const bool vectors = aligned16(dx, dtable) && cols % 4 == 0;
  const int64_t groups = vectors ? cols / 4 : cols;
  const int threads = static_cast<int>(std::min<int64_t>(ceil_div(groups, kWarp) * kWarp, kThreads));
  queue.launch("embedding_pieces", vectors ? pieces_kernel<T, 4> : pieces_kernel<T, 1>,
               {count, ceil_div(groups, threads)}, threads, 0, sorted, dx, dtable, sums, cols);
  queue.launch("embedding_long_rows", vectors ? long_rows_kernel<4> : long_rows_kernel<1>, {ceil_div(count, kPiece)},
               kThreads, 0, sorted, dtable, sums, cols);
}

}  // namespace

void embedding_forward_cuda(Exec& exec, const EmbeddingForward& op) {
  const int64_t count = op.x.rows(), cols = op.x.cols();
  const DType t = op.x.dtype;
  const TokenRows rows = rows_of(op.table, op.first_token, op.vocabulary);
  const int64_t length = op.length > 0 ? op.length : count;
  CudaQueue queue(exec);
  with_storage(t, [&](auto type) {
    using T = decltype(type);
    const ForwardBody<T> body = {op.tokens.as<int32_t>(),
                                 rows,
                                 op.table.as<T>(),
                                 static_cast<const T*>(op.positions.data),
                                 static_cast<const int32_t*>(op.at.data),
                                 op.x.as<T>(),
                                 cols,
                                 length,
                                 op.first_position,
                                 queue.fault_word()};
    launch_flat<2>(queue, "embedding_forward", body, count * cols,
                   cols % kVector<T> == 0 && aligned16(body.table, body.positions, body.x));
  });
}

void embedding_backward_cuda(Exec& exec, const EmbeddingBackward& op) {
  const int64_t count = op.dx.rows(), cols = op.dx.cols();
  CudaQueue queue(exec);
  with_storage(op.dx.dtype, [&](auto type) {
    const auto* dx = op.dx.as<decltype(type)>();
    if (op.dtable)
      add_rows(queue, op.tokens, dx, op.dtable, rows_of(op.dtable, op.first_token, op.vocabulary), count, cols);
    if (op.dpositions && op.at) {
      add_rows(queue, op.at, dx, op.dpositions, rows_of(op.dpositions, 0, 0), count, cols);
    } else if (op.dpositions) {
      const PositionsBody<decltype(type)> body = {dx, op.dpositions.as<float>(), count, cols, op.length};
      launch_flat<1>(queue, "embedding_positions", body, std::min(op.length, count) * cols,
                     cols % 4 == 0 && aligned16(body.dx, body.dpositions));
    }
  });
}

}  // namespace thinwire
