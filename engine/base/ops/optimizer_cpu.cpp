// Walks the buffers of an optimizer step in blocks, each cut where the weight decay changes.
#include <algorithm>
#include <cstring>

#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

// Large enough that waking a thread is cheap against it, small enough to balance.
constexpr int64_t kBlock = 1 << 16;

int working_index(const View& working) {
  return working ? storage_index(working.dtype) : 0;
}

// Calls kernel for every piece of the op's elements that lies in one block and in one span.
template <typename Op>
void walk(Exec& exec, const Op& op, void (*kernel)(const Op&, const StepState&, float, int64_t, int64_t)) {
  StepState state;
  std::memcpy(&state, op.state.data, sizeof state);
  parallel_blocks(exec.threads, op.master.count(), kBlock, [&](int64_t first, int64_t last) {
    auto span = std::upper_bound(op.spans.begin(), op.spans.end(), first,
                                 [](int64_t at, const DecaySpan& s) { return at < s.first + s.count; });
    for (; span != op.spans.end() && span->first < last; ++span) {
      const int64_t from = std::max(first, span->first), to = std::min(last, span->first + span->count);
      if (from < to) kernel(op, state, state.weight_decay * span->decay, from, to);
    }
  });
}

const OptimizerKernels& kernels() {
  return TW_PICK_KERNELS(optimizer_kernels);
}

}  // namespace

void adamw_cpu(Exec& exec, const AdamW& op) {
  const bool narrow = op.gradient.dtype == DType::bf16;
  walk(exec, op, narrow ? kernels().narrow_adamw : kernels().adamw[working_index(op.working)]);
}

void sgd_cpu(Exec& exec, const Sgd& op) {
  const bool narrow = op.gradient.dtype == DType::bf16;
  walk(exec, op, narrow ? kernels().narrow_sgd : kernels().sgd[working_index(op.working)]);
}

}  // namespace thinwire
