// Cuts rotary position embedding by tokens.

#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"
#include "engine/base/ops/rotary_kernel.h"

namespace thinwire {

void rotary_cpu(Exec& exec, const Rotary& op) {
  const int64_t heads = op.groups * op.heads_per_group, tokens = op.batch * op.length;
  const HeadLayout& at = op.layout;
  const int64_t half = op.rot_dim / 2;
  const RotaryBlock block = {static_cast<char*>(op.data.data) + static_cast<size_t>(at.offset) * size_of(op.data.dtype),
                             at.batch,
                             at.token,
                             at.group,
                             at.head,
                             op.length,
                             op.groups,
                             op.heads_per_group,
                             half,
                             op.first_position,
                             op.cos.as<float>(),
                             op.sin.as<float>(),
                             op.inverse};
  const auto kernel = TW_PICK_KERNELS(rotary_kernels).tokens[storage_index(op.data.dtype)];
  parallel_blocks(exec.threads, tokens, std::max<int64_t>(1, (1 << 14) / (heads * op.rot_dim)),
                  [&](int64_t first, int64_t last) { kernel(block, first, last); });
}

}  // namespace thinwire
