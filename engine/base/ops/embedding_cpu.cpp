// Checks that tokens lie in the vocabulary, and cuts the backward so that every element of the table has one owner.

#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kEmbeddingBlock = 1 << 15;
constexpr int64_t kColumnSlice = 64;  // fp32 columns: four cache lines, so that owners do not share lines
constexpr int64_t kSmall = 1 << 15;   // elements: below, one thread does it all

void check_tokens(const View& tokens, int64_t count, int64_t vocabulary) {
  const int32_t* token = tokens.as<int32_t>();
  bool inside = true;
  for (int64_t n = 0; n < count; ++n) inside &= token[n] >= 0 && token[n] < vocabulary;
  if (inside) return;
  for (int64_t n = 0; n < count; ++n) {
    TW_CHECK(token[n] >= 0 && token[n] < vocabulary, "token ", token[n], " at ", n, ", vocabulary ", vocabulary);
  }
}

}  // namespace

void embedding_forward_cpu(Exec& exec, const EmbeddingForward& op) {
  const int64_t count = op.x.rows(), cols = op.x.cols();
  const DType t = op.x.dtype;
  const int64_t vocabulary = op.vocabulary > 0 ? op.vocabulary : op.table.rows();
  const TokenRows rows = {op.first_token, op.table.rows()};
  check_tokens(op.tokens, count, vocabulary);
  const int64_t length = op.length > 0 ? op.length : count;
  const auto kernel = TW_PICK_KERNELS(embedding_kernels).forward[storage_index(t)];
  parallel_blocks(exec.threads, count, std::max<int64_t>(1, kEmbeddingBlock / cols), [&](int64_t first, int64_t last) {
    kernel(op.tokens.as<int32_t>(), rows, op.table.data, op.positions.data, static_cast<const int32_t*>(op.at.data),
           op.x.data, cols, length, op.first_position, first, last);
  });
}

void embedding_backward_cpu(Exec& exec, const EmbeddingBackward& op) {
  const int64_t count = op.dx.rows(), cols = op.dx.cols();
  const EmbeddingKernels& kernels = TW_PICK_KERNELS(embedding_kernels);
  const int index = storage_index(op.dx.dtype);
  const int threads = op.dx.count() < kSmall ? 1 : exec.threads;
  if (op.dtable) {
    const int64_t vocabulary = op.vocabulary > 0 ? op.vocabulary : op.dtable.rows();
    const TokenRows rows = {op.first_token, op.dtable.rows()};
    check_tokens(op.tokens, count, vocabulary);
    // Owners hold a slice of the columns, and where there are more threads than slices a share of the rows too. Whoever
    // owns an element adds to it in token order, so the cut does not show in the result.
    const int64_t wanted = (cols + threads - 1) / threads;
    const int64_t slice = std::max((wanted + kColumnSlice - 1) / kColumnSlice * kColumnSlice, kColumnSlice);
    const int64_t slices = (cols + slice - 1) / slice;
    const int64_t shares = std::max<int64_t>(1, threads / slices);
    parallel_blocks(threads, slices * shares, 1, [&](int64_t task, int64_t) {
      const int64_t first = task / shares * slice, last = std::min(cols, first + slice);
      kernels.backward[index](op.tokens.as<int32_t>(), rows, count, op.dx.data, op.dtable.as<float>(), cols, shares,
                              task % shares, first, last);
    });
  }
  if (op.dpositions) {
    // Given positions may be any: those of a cut sequence, for example.
    const int64_t used = op.at ? op.dpositions.rows() : std::min(op.length, count);
    const int64_t batch = (count + op.length - 1) / op.length;
    parallel_blocks(threads, used, std::max<int64_t>(1, kEmbeddingBlock / (cols * batch)),
                    [&](int64_t first, int64_t last) {
                      kernels.positions_backward[index](count, op.dx.data, static_cast<const int32_t*>(op.at.data),
                                                        op.dpositions.as<float>(), cols, op.length, first, last);
                    });
  }
}

}  // namespace thinwire
