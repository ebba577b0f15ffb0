// The CUDA table: every op of ops.h by name.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "engine/base/device/cuda_probe.h"
#include "engine/base/ops/activation_cuda.h"
#include "engine/base/ops/attention_cuda.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/cross_entropy_cuda.h"
#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/elementwise_cuda.h"
#include "engine/base/ops/embedding_cuda.h"
#include "engine/base/ops/matmul_cuda.h"
#include "engine/base/ops/norm_cuda.h"
#include "engine/base/ops/ops.h"
#include "engine/base/ops/optimizer_cuda.h"
#include "engine/base/ops/random_cuda.h"
#include "engine/base/ops/reduce_cuda.h"
#include "engine/base/ops/rotary_cuda.h"

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

constexpr OpTable kCudaOps = {
    .backend = "cuda",
    .isa = built_for,
    .make_state = make_cuda_state,
    .fused_products = true,
    .matmul = matmul_cuda,
    .norm_forward = norm_forward_cuda,
    .norm_backward = norm_backward_cuda,
    .residual_add = residual_add_cuda,
    .dropout_apply = dropout_apply_cuda,
    .rotary = rotary_cuda,
    .attention_forward = attention_forward_picked,
    .attention_backward = attention_backward_picked,
    .gelu_forward = gelu_forward_cuda,
    .gelu_backward = gelu_backward_cuda,
    .swiglu_forward = swiglu_forward_cuda,
    .swiglu_backward = swiglu_backward_cuda,
    .embedding_forward = embedding_forward_cuda,
    .embedding_backward = embedding_backward_cuda,
    .cross_entropy = cross_entropy_cuda,
    .vocab_statistics = vocab_statistics_cuda,
    .vocab_loss = vocab_loss_cuda,
    .weighted_sum = weighted_sum_cuda,
    .sum_squares = sum_squares_cuda,
    .bias_gradient = bias_gradient_cuda,
    .cast = cast_cuda,
    .axpy = axpy_cuda,
    .fill_normal = fill_normal_cuda,
    .fill_constant = fill_constant_cuda,
    .adamw = adamw_cuda,
    .momentum_share = momentum_share_cuda,
    .sgd = sgd_cuda,
};

}  // namespace

const OpTable& cuda_ops() {
  return kCudaOps;
}

}  // namespace thinwire
