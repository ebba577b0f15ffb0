// The CPU table: every op of ops.h by name.
#include "engine/base/ops/activation_cpu.h"
#include "engine/base/ops/attention_cpu.h"
#include "engine/base/ops/cpu_state.h"
#include "engine/base/ops/cross_entropy_cpu.h"
#include "engine/base/ops/elementwise_cpu.h"
#include "engine/base/ops/embedding_cpu.h"
#include "engine/base/ops/isa.h"
#include "engine/base/ops/matmul_cpu.h"
#include "engine/base/ops/norm_cpu.h"
#include "engine/base/ops/ops.h"
#include "engine/base/ops/optimizer_cpu.h"
#include "engine/base/ops/random_cpu.h"
#include "engine/base/ops/reduce_cpu.h"
#include "engine/base/ops/rotary_cpu.h"

namespace thinwire {
namespace {

std::string active_isa_name() {
  return isa_name(active_isa());
}

std::unique_ptr<OpState> make_cpu_state(Device& device) {
  TW_CHECK(device.kind() == DeviceKind::kCpu, "the CPU table runs on the CPU device");
  return std::make_unique<CpuOpState>();
}

constexpr OpTable kCpuOps = {
    .backend = "cpu",
    .isa = active_isa_name,
    .make_state = make_cpu_state,
    .matmul = matmul_cpu,
    .norm_forward = norm_forward_cpu,
    .norm_backward = norm_backward_cpu,
    .residual_add = residual_add_cpu,
    .dropout_apply = dropout_apply_cpu,
    .rotary = rotary_cpu,
    .attention_forward = attention_forward_cpu,
    .attention_backward = attention_backward_cpu,
    .gelu_forward = gelu_forward_cpu,
    .gelu_backward = gelu_backward_cpu,
    .swiglu_forward = swiglu_forward_cpu,
    .swiglu_backward = swiglu_backward_cpu,
    .embedding_forward = embedding_forward_cpu,
    .embedding_backward = embedding_backward_cpu,
    .cross_entropy = cross_entropy_cpu,
    .vocab_statistics = vocab_statistics_cpu,
    .vocab_loss = vocab_loss_cpu,
    .weighted_sum = weighted_sum_cpu,
    .sum_squares = sum_squares_cpu,
    .bias_gradient = bias_gradient_cpu,
    .cast = cast_cpu,
    .axpy = axpy_cpu,
    .fill_normal = fill_normal_cpu,
    .fill_constant = fill_constant_cpu,
    .adamw = adamw_cpu,
    .momentum_share = momentum_share_cpu,
    .sgd = sgd_cpu,
};

}  // namespace

const OpTable& cpu_ops() {
  active_isa();  // throws on a machine that is too old, before anything runs
  return kCpuOps;
}

Exec make_exec(const OpTable& ops, Device& device, Stream& stream, int threads) {
  TW_CHECK(threads >= 1, "an Exec needs a thread, got ", threads);
  return Exec{ops, stream, threads, ops.make_state(device)};
}

}  // namespace thinwire
