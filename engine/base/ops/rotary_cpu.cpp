// Cuts rotary position embedding by tokens.

#include "engine/base/ops/kernels.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {

void rotary_cpu(Exec& exec, const Rotary& op) {
  const int64_t heads = op.groups * op.heads_per_group, tokens = op.batch * op.length;
  const auto kernel = TW_PICK_KERNELS(rotary_kernels).tokens[storage_index(op.data.dtype)];
  parallel_blocks(exec.threads, tokens, std::max<int64_t>(1, (1 << 14) / (heads * op.rot_dim)),
                  [&](int64_t first, int64_t last) { kernel(op, first, last); });
}

}  // namespace thinwire
