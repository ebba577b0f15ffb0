// Checks the tensors of the loss and cuts them by rows.
#include "engine/base/ops/cross_entropy_cpu.h"

#include <algorithm>

#include "engine/base/ops/cross_entropy_kernel.h"
#include "engine/base/ops/op_checks.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

void cross_entropy_cpu(Exec& exec, const CrossEntropy& op) {
  const int64_t rows = op.logits.rows(), cols = op.logits.cols();
  if (op.logits.count() == 0) return;
  TW_CHECK(op.valid_cols > 0 && op.valid_cols <= cols, op.valid_cols, " valid of ", cols, " columns");
  check_vector(op.targets, rows, DType::i32, "targets");
  check_vector(op.row_weight, rows, DType::f32, "weights of rows");
  check_vector(op.loss, rows, DType::f32, "loss");
  check_optional(op.dlogits_scale, 1, DType::f32, "scale of the gradient");
  const CrossEntropyBlock block = {op.logits.data,
                                   op.targets.as<int32_t>(),
                                   op.row_weight.as<float>(),
                                   op.loss.as<float>(),
                                   static_cast<const float*>(op.dlogits_scale.data),
                                   cols,
                                   op.valid_cols};
  for (int64_t r = 0; r < rows; ++r) {
    TW_CHECK(block.row_weight[r] == 0.0f || (block.targets[r] >= 0 && block.targets[r] < op.valid_cols), "target ",
             block.targets[r], " of row ", r, ", ", op.valid_cols, " valid columns");
  }
  const auto kernel = TW_PICK_KERNELS(cross_entropy_kernels).rows[storage_index(op.logits.dtype)];
  parallel_blocks(exec.threads, rows, std::max<int64_t>(1, (1 << 14) / cols),
                  [&](int64_t first, int64_t last) { kernel(block, first, last); });
}

}  // namespace thinwire
