// Norms on the CPU: threads take blocks of rows; parameter gradients are summed from one partial sum per block.
#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

// Elements in a block of rows: enough work to be worth waking a thread.
constexpr int64_t kBlockElements = 1 << 14;

}  // namespace

void norm_forward_cpu(Exec& exec, const NormForward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const DropoutPlan dropout = op.branch ? make_dropout_plan(op.dropout, rows, cols) : DropoutPlan{};
  const auto kernel = TW_PICK_KERNELS(norm_kernels).forward[static_cast<int>(op.kind)][storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, rows, std::max<int64_t>(1, kBlockElements / cols),
                  [&](int64_t first, int64_t last) { kernel(op, dropout, cols, first, last); });
}

void norm_backward_cpu(Exec& exec, const NormBackward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const auto kernel = TW_PICK_KERNELS(norm_kernels).backward[static_cast<int>(op.kind)][storage_index(op.x.dtype)];
  const int64_t step = rows_per_partial(rows), parts = (rows + step - 1) / step;
  const auto scratch = cpu_state(exec).scratch(static_cast<size_t>(2 * parts * cols) * sizeof(float));
  float* partials = reinterpret_cast<float*>(scratch.data());  // [parts][2][cols]
  parallel_blocks(exec.threads, rows, step, [&](int64_t first, int64_t last) {
    float* dweight = partials + first / step * 2 * cols;
    kernel(op, cols, first, last, dweight, op.dbias ? dweight + cols : nullptr);
  });
  const auto add_partials = TW_PICK_KERNELS(elementwise_kernels).add_partials;
  const int64_t column_block = std::max<int64_t>(64, kBlockElements / parts / 64 * 64);
  parallel_blocks(exec.threads, cols, column_block, [&](int64_t first, int64_t last) {
    if (op.dweight) add_partials(op.dweight.as<float>(), partials, 2 * cols, parts, first, last);
    if (op.dbias) add_partials(op.dbias.as<float>(), partials + cols, 2 * cols, parts, first, last);
  });
}

}  // namespace thinwire
