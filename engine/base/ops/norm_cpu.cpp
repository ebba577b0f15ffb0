// Norms on the CPU: threads take blocks of rows; parameter gradients are summed from one partial sum per block.
#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

// Elements in a block of rows: enough work to be worth waking a thread.
constexpr int64_t kBlockElements = 1 << 14;

// What a norm without a weight takes for it: ones, at `place`. Kernels read a weight always.
View gain_of_ones(std::byte* place, DType type, int64_t cols) {
  TW_PICK_KERNELS(elementwise_kernels).fill_constant[storage_index(type)](place, 1.0f, 0, cols);
  return View(place, type, {cols});
}

}  // namespace

void norm_forward_cpu(Exec& exec, const NormForward& asked) {
  const int64_t rows = asked.x.rows(), cols = asked.x.cols();
  const DType type = asked.x.dtype;
  NormForward op = asked;
  if (!op.weight)
    op.weight = gain_of_ones(cpu_state(exec).scratch(static_cast<size_t>(cols) * size_of(type)).data(), type, cols);
  const DropoutPlan dropout = op.branch ? make_dropout_plan(op.dropout, rows, cols) : DropoutPlan{};
  const auto kernel = TW_PICK_KERNELS(norm_kernels).forward[static_cast<int>(op.kind)][storage_index(type)];
  parallel_blocks(exec.threads, rows, std::max<int64_t>(1, kBlockElements / cols),
                  [&](int64_t first, int64_t last) { kernel(op, dropout, cols, first, last); });
}

void norm_backward_cpu(Exec& exec, const NormBackward& asked) {
  const int64_t rows = asked.x.rows(), cols = asked.x.cols();
  const DType type = asked.x.dtype;
  const auto kernel = TW_PICK_KERNELS(norm_kernels).backward[static_cast<int>(asked.kind)][storage_index(type)];
  const int64_t step = rows_per_partial(rows), parts = (rows + step - 1) / step;
  const size_t sums = static_cast<size_t>(2 * parts * cols) * sizeof(float);
  const auto scratch =
      cpu_state(exec).scratch(sums + (asked.weight ? size_t{0} : static_cast<size_t>(cols) * size_of(type)));
  float* partials = reinterpret_cast<float*>(scratch.data());  // [parts][2][cols]
  NormBackward op = asked;
  if (!op.weight) op.weight = gain_of_ones(scratch.data() + sums, type, cols);
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
