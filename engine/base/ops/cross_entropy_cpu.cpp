// Checks that targets lie in the vocabulary and cuts the loss by rows.

#include <algorithm>

#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

template <typename Op>
void check_targets(const Op& op, int64_t vocabulary) {
  const auto* targets = op.targets.template as<int32_t>();
  for (int64_t r = 0; r < op.logits.rows(); ++r) {
    TW_CHECK(op.row_weight.template as<float>()[r] == 0.0f || (targets[r] >= 0 && targets[r] < vocabulary), "target ",
             targets[r], " of row ", r, ", ", vocabulary, " valid columns");
  }
}

// Calls kernel(columns, columns of them that count, first, last) for blocks of rows.
template <typename Op, typename Kernel>
void for_rows(Exec& exec, const Op& op, int64_t vocabulary, int64_t first_col, const Kernel& kernel) {
  check_targets(op, vocabulary);
  const int64_t cols = op.logits.cols(), valid = std::clamp<int64_t>(vocabulary - first_col, 0, cols);
  parallel_blocks(exec.threads, op.logits.rows(), std::max<int64_t>(1, (1 << 14) / cols),
                  [&](int64_t first, int64_t last) { kernel(cols, valid, first, last); });
}

const CrossEntropyKernels& kernels() {
  return TW_PICK_KERNELS(cross_entropy_kernels);
}

}  // namespace

void cross_entropy_cpu(Exec& exec, const CrossEntropy& op) {
  const auto kernel = kernels().rows[storage_index(op.logits.dtype)];
  for_rows(exec, op, op.valid_cols, 0,
           [&](int64_t cols, int64_t, int64_t first, int64_t last) { kernel(op, cols, first, last); });
}

void vocab_statistics_cpu(Exec& exec, const VocabStatistics& op) {
  const auto kernel = kernels().statistics[storage_index(op.logits.dtype)];
  for_rows(exec, op, op.vocabulary, op.first_col,
           [&](int64_t cols, int64_t valid, int64_t first, int64_t last) { kernel(op, cols, valid, first, last); });
}

void vocab_loss_cpu(Exec& exec, const VocabLoss& op) {
  const auto kernel = kernels().vocab_rows[storage_index(op.logits.dtype)];
  const int64_t n = op.logits.rows(), ranks = op.all.count() / (n * 3);
  for_rows(exec, op, op.vocabulary, op.first_col, [&](int64_t cols, int64_t valid, int64_t first, int64_t last) {
    kernel(op, cols, valid, n, ranks, first, last);
  });
}

}  // namespace thinwire
