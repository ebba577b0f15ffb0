// Checks that targets lie in the vocabulary and cuts the loss by rows.

#include <algorithm>

#include "engine/base/ops/cross_entropy_kernel.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

void check_targets(const CrossEntropyBlock& block, int64_t rows, int64_t vocabulary) {
  for (int64_t r = 0; r < rows; ++r) {
    TW_CHECK(block.row_weight[r] == 0.0f || (block.targets[r] >= 0 && block.targets[r] < vocabulary), "target ",
             block.targets[r], " of row ", r, ", ", vocabulary, " valid columns");
  }
}

int64_t rows_at_a_time(int64_t cols) {
  return std::max<int64_t>(1, (1 << 14) / cols);
}

// What the two halves of the vocabulary-parallel loss share.
template <typename Op>
VocabBlock vocab_block(const Op& op) {
  const int64_t rows = op.logits.rows(), cols = op.logits.cols();
  VocabBlock b = {};
  b.block.logits = op.logits.data;
  b.block.targets = op.targets.template as<int32_t>();
  b.block.row_weight = op.row_weight.template as<float>();
  b.block.cols = cols;
  b.block.valid_cols = std::clamp<int64_t>(op.vocabulary - op.first_col, 0, cols);
  b.first_col = op.first_col;
  b.n = rows;
  check_targets(b.block, rows, op.vocabulary);
  return b;
}

}  // namespace

void cross_entropy_cpu(Exec& exec, const CrossEntropy& op) {
  const int64_t rows = op.logits.rows(), cols = op.logits.cols();
  const CrossEntropyBlock block = {op.logits.data,
                                   op.targets.as<int32_t>(),
                                   op.row_weight.as<float>(),
                                   op.loss.as<float>(),
                                   static_cast<const float*>(op.dlogits_scale.data),
                                   cols,
                                   op.valid_cols};
  check_targets(block, rows, op.valid_cols);
  const auto kernel = TW_PICK_KERNELS(cross_entropy_kernels).rows[storage_index(op.logits.dtype)];
  parallel_blocks(exec.threads, rows, rows_at_a_time(cols),
                  [&](int64_t first, int64_t last) { kernel(block, first, last); });
}

void vocab_statistics_cpu(Exec& exec, const VocabStatistics& op) {
  const int64_t rows = op.logits.rows(), cols = op.logits.cols();
  VocabBlock block = vocab_block(op);
  block.statistics = op.statistics.as<float>();
  const auto kernel = TW_PICK_KERNELS(cross_entropy_kernels).statistics[storage_index(op.logits.dtype)];
  parallel_blocks(exec.threads, rows, rows_at_a_time(cols),
                  [&](int64_t first, int64_t last) { kernel(block, first, last); });
}

void vocab_loss_cpu(Exec& exec, const VocabLoss& op) {
  const int64_t rows = op.logits.rows(), cols = op.logits.cols();
  VocabBlock block = vocab_block(op);
  block.all = op.all.as<float>();
  block.ranks = op.all.count() / (rows * 3);
  block.block.loss = op.loss.as<float>();
  block.block.scale = static_cast<const float*>(op.dlogits_scale.data);
  const auto kernel = TW_PICK_KERNELS(cross_entropy_kernels).vocab_rows[storage_index(op.logits.dtype)];
  parallel_blocks(exec.threads, rows, rows_at_a_time(cols),
                  [&](int64_t first, int64_t last) { kernel(block, first, last); });
}

}  // namespace thinwire
