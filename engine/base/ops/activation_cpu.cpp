// Cuts the tensors of activation functions into blocks.

#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kBlock = 1 << 14;

const ActivationKernels& kernels() {
  return TW_PICK_KERNELS(activation_kernels);
}

}  // namespace

void gelu_forward_cpu(Exec& exec, const GeluForward& op) {
  const int64_t n = op.x.count();
  const auto kernel = kernels().gelu_forward[static_cast<int>(op.kind)][storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, n, kBlock,
                  [&](int64_t first, int64_t last) { kernel(op.x.data, op.y.data, first, last); });
}

void gelu_backward_cpu(Exec& exec, const GeluBackward& op) {
  const int64_t n = op.x.count();
  const auto kernel = kernels().gelu_backward[static_cast<int>(op.kind)][storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, n, kBlock,
                  [&](int64_t first, int64_t last) { kernel(op.x.data, op.dy.data, op.dx.data, first, last); });
}

void swiglu_forward_cpu(Exec& exec, const SwigluForward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols() / 2;
  const auto kernel = kernels().swiglu_forward[storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, rows, std::max<int64_t>(1, kBlock / cols),
                  [&](int64_t first, int64_t last) { kernel(op.x.data, op.y.data, cols, first, last); });
}

void swiglu_backward_cpu(Exec& exec, const SwigluBackward& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols() / 2;
  const auto kernel = kernels().swiglu_backward[storage_index(op.x.dtype)];
  parallel_blocks(exec.threads, rows, std::max<int64_t>(1, kBlock / cols),
                  [&](int64_t first, int64_t last) { kernel(op.x.data, op.dy.data, op.dx.data, cols, first, last); });
}

}  // namespace thinwire
