// The CUDA kernel of NcclCalls::sum_in_rank_order.
#pragma once

#include "engine/base/ops/ops.h"
#include "parallel/device/nccl_calls.h"

namespace thinwire {

// Queues the sum on exec.stream. exec: made with cuda_ops() (in tests: with the emulated table).
void rank_sum_cuda(Exec& exec, const RankSum& sum);

}  // namespace thinwire
