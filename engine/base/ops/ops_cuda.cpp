// The CUDA table: every op of ops.h by name.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "engine/base/device/cuda_check.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/attention_parts.h"
#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/ops.h"

namespace thinwire {
namespace {

std::string built_for() {
  return "sm " + built_architectures() + ", cuBLASLt " + std::to_string(cublasLtGetVersion()) + ", " +
         fused_attention_name();
}

std::unique_ptr<OpState> make_cuda_state(Device& device) {
  TW_CHECK(device.kind() == DeviceKind::kCuda, "the CUDA table runs on a CUDA device");
  return std::make_unique<CudaState>(device);
}

// Which attention runs: the fused one where it takes the shape, else our own kernels; of keys_at_once part by part.
void attention_forward_picked(Exec& exec, const AttentionForward& op) {
  FusedAttention* fused = state_of(exec).fused_attention();
  if (fused == nullptr) return attention_forward_cuda(exec, op);
  for_key_parts(op, [&](const AttentionForward& part) {
    if (!fused->forward(exec, part)) attention_forward_cuda(exec, part);
  });
}

void attention_backward_picked(Exec& exec, const AttentionBackward& op) {
  FusedAttention* fused = state_of(exec).fused_attention();
  if (fused == nullptr) return attention_backward_cuda(exec, op);
  for_key_parts(op, [&](const AttentionBackward& part) {
    if (!fused->backward(exec, part)) attention_backward_cuda(exec, part);
  });
}

constexpr OpTable make_table() {
#define TW_ENTRY(name, Op) .name = checked<name##_cuda>,
  OpTable table = {
      .backend = "cuda",
      .isa = built_for,
      .make_state = make_cuda_state,
      .fused_products = true,
      TW_FOR_EACH_OP(TW_ENTRY)  //
  };
#undef TW_ENTRY
  table.attention_forward = checked<attention_forward_picked>;
  table.attention_backward = checked<attention_backward_picked>;
  return table;
}

constexpr OpTable kCudaOps = make_table();

}  // namespace

const OpTable& cuda_ops() {
  return kCudaOps;
}

}  // namespace thinwire
