// Cuts element-by-element ops into flat blocks.
#include <cstring>

#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kElementwiseBlock = 1 << 15;

const ElementwiseKernels& kernels() {
  return TW_PICK_KERNELS(elementwise_kernels);
}

}  // namespace

void residual_add_cpu(Exec& exec, const ResidualAdd& op) {
  const int64_t n = op.x.count();
  const DropoutPlan plan = make_dropout_plan(op.dropout, op.x.rows(), op.x.cols());
  const auto kernel = kernels().residual_add[storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, n, kElementwiseBlock, [&](int64_t first, int64_t last) {
    kernel(op.x.data, op.branch.data, op.y.data, plan, first, last);
  });
}

void dropout_apply_cpu(Exec& exec, const DropoutApply& op) {
  const int64_t n = op.x.count();
  const DropoutPlan plan = make_dropout_plan(op.dropout, op.x.rows(), op.x.cols());
  const int index = storage_index(op.x.dtype);
  if (!plan.active) {
    if (op.x.data == op.y.data) return;
    cast_cpu(exec, {op.x, op.y});
    return;
  }
  const auto kernel = kernels().dropout_apply[index];
  parallel_blocks(exec.threads, n, kElementwiseBlock,
                  [&](int64_t first, int64_t last) { kernel(op.x.data, op.y.data, plan, first, last); });
}

void cast_cpu(Exec& exec, const Cast& op) {
  const int64_t n = op.src.count();
  const size_t size = size_of(op.src.dtype);
  const int from = storage_index(op.src.dtype), to = storage_index(op.dst.dtype);
  const auto kernel = kernels().cast[from][to];
  parallel_blocks(exec.threads, n, kElementwiseBlock, [&](int64_t first, int64_t last) {
    if (from != to) {
      kernel(op.src.data, op.dst.data, first, last);
    } else {  // bits are kept, those of NaN too
      std::memcpy(static_cast<char*>(op.dst.data) + static_cast<size_t>(first) * size,
                  static_cast<const char*>(op.src.data) + static_cast<size_t>(first) * size,
                  static_cast<size_t>(last - first) * size);
    }
  });
}

void axpy_cpu(Exec& exec, const Axpy& op) {
  const int64_t n = op.x.count();
  const auto kernel = kernels().axpy[storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, n, kElementwiseBlock,
                  [&](int64_t first, int64_t last) { kernel(op.alpha, op.x.data, op.beta, op.y.data, first, last); });
}

void fill_constant_cpu(Exec& exec, const FillConstant& op) {
  const auto kernel = kernels().fill_constant[storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, op.x.count(), kElementwiseBlock,
                  [&](int64_t first, int64_t last) { kernel(op.x.data, op.value, first, last); });
}

void copy_runs_cpu(Exec& exec, const CopyRuns& op) {
  const size_t size = size_of(op.from.dtype);
  const auto at = [&](View view, int64_t element) {
    return static_cast<char*>(view.data) + static_cast<size_t>(element) * size;
  };
  const int64_t runs_per_block = std::max<int64_t>(1, kElementwiseBlock / op.width);
  parallel_blocks(exec.threads, op.counts[0] * op.counts[1], runs_per_block, [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      const int64_t i = run / op.counts[1], j = run % op.counts[1];
      std::memcpy(at(op.to, op.to_first + i * op.to_strides[0] + j * op.to_strides[1]),
                  at(op.from, op.from_first + i * op.from_strides[0] + j * op.from_strides[1]),
                  static_cast<size_t>(op.width) * size);
    }
  });
}

void bias_gradient_cpu(Exec& exec, const BiasGradient& op) {
  const int64_t rows = op.dy.rows(), cols = op.dy.cols();
  const int64_t step = rows_per_partial(rows), parts = (rows + step - 1) / step;
  const auto scratch = cpu_state(exec).scratch(static_cast<size_t>(parts * cols) * sizeof(float));
  float* partials = reinterpret_cast<float*>(scratch.data());
  const auto kernel = kernels().column_sums[storage_index(op.dy.dtype)];
  parallel_blocks(exec.threads, rows, step, [&](int64_t first, int64_t last) {
    kernel(op.dy.data, cols, first, last, partials + first / step * cols);
  });
  const auto add_partials = kernels().add_partials;
  const int64_t column_block = std::max<int64_t>(64, kElementwiseBlock / parts / 64 * 64);
  parallel_blocks(exec.threads, cols, column_block, [&](int64_t first, int64_t last) {
    add_partials(op.dbias.as<float>(), partials, cols, parts, first, last);
  });
}

}  // namespace thinwire
