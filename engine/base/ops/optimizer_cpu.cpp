// Walks the buffers of an optimizer step in blocks, each cut where the weight decay changes.
#include <algorithm>
#include <cstring>

#include "engine/base/ops/op_list.h"
#include "engine/base/ops/optimizer_kernel.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

// Large enough that waking a thread is cheap against it, small enough to balance.
constexpr int64_t kBlock = 1 << 16;

StepState read_state(const View& state) {
  StepState value;
  std::memcpy(&value, state.data, sizeof(value));
  return value;
}

template <typename Block>
void set_working(Block& block, const View& working) {
  if (!working) return;
  if (working.dtype == DType::bf16)
    block.working_bf16 = working.as<Bf16>();
  else
    block.working_fp16 = working.as<Fp16>();
}

// Calls kernel for every piece of [0, n) that lies in one block and in one span.
template <typename Block>
void walk(Exec& exec, const Block& whole, std::span<const DecaySpan> spans, float weight_decay, int64_t n,
          void (*kernel)(const Block&)) {
  parallel_blocks(exec.threads, n, kBlock, [&](int64_t first, int64_t last) {
    auto span = std::upper_bound(spans.begin(), spans.end(), first,
                                 [](int64_t at, const DecaySpan& s) { return at < s.first + s.count; });
    Block piece = whole;
    for (; span != spans.end() && span->first < last; ++span) {
      piece.first = std::max(first, span->first);
      piece.last = std::min(last, span->first + span->count);
      piece.decay = weight_decay * span->decay;
      if (piece.first < piece.last) kernel(piece);
    }
  });
}

}  // namespace

void adamw_cpu(Exec& exec, const AdamW& op) {
  const int64_t n = op.master.count();
  const StepState state = read_state(op.state);
  AdamWBlock block{};
  block.master = op.master.as<float>();
  block.m = op.m.as<float>();
  block.v = op.v.as<float>();
  block.gradient = op.gradient.as<float>();
  set_working(block, op.working);
  block.lr = state.lr;
  block.grad_scale = state.grad_scale;
  block.beta1 = static_cast<float>(op.beta1);
  block.beta2 = static_cast<float>(op.beta2);
  // 1 - beta from the double: 1 - 0.999f is off by 1.3e-5 of itself.
  block.one_minus_beta1 = static_cast<float>(1.0 - op.beta1);
  block.one_minus_beta2 = static_cast<float>(1.0 - op.beta2);
  block.eps = static_cast<float>(op.eps);
  block.inverse_correction1 = 1.0f / state.bias_correction1;
  block.inverse_correction2 = 1.0f / state.bias_correction2;
  block.zero_gradient = op.zero_gradient;
  block.takes_momentum = op.takes_momentum;
  block.momentum_limit = kMomentumLimit;
  walk(exec, block, op.spans, state.weight_decay, n, TW_PICK_KERNELS(optimizer_kernels).adamw_block);
}

void momentum_share_cpu(Exec& exec, const MomentumShare& op) {
  const int64_t n = op.m.count();
  const float* m = op.m.as<float>();
  auto* gradient = op.gradient.as<float>();
  const auto kernel = TW_PICK_KERNELS(optimizer_kernels).momentum_share;
  parallel_blocks(exec.threads, n, kBlock, [&](int64_t first, int64_t last) {
    kernel(m + first, gradient + first, last - first, static_cast<float>(op.momentum_factor),
           static_cast<float>(op.gradient_factor));
  });
}

void sgd_cpu(Exec& exec, const Sgd& op) {
  const int64_t n = op.master.count();
  const StepState state = read_state(op.state);
  SgdBlock block{};
  block.master = op.master.as<float>();
  if (op.momentum_buffer) block.buffer = op.momentum_buffer.as<float>();
  block.gradient = op.gradient.as<float>();
  set_working(block, op.working);
  block.lr = state.lr;
  block.grad_scale = state.grad_scale;
  block.momentum = op.momentum;
  block.zero_gradient = op.zero_gradient;
  walk(exec, block, op.spans, state.weight_decay, n, TW_PICK_KERNELS(optimizer_kernels).sgd_block);
}

}  // namespace thinwire
