// The CUDA table over emulated kernels: the same op functions as on the GPU, built by the C++ compiler.
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/ops/activation_cuda.h"
#include "engine/base/ops/attention_cuda.h"
#include "engine/base/ops/cross_entropy_cuda.h"
#include "engine/base/ops/cuda_emulation.h"
#include "engine/base/ops/elementwise_cuda.h"
#include "engine/base/ops/embedding_cuda.h"
#include "engine/base/ops/embedding_sort_cuda.h"
#include "engine/base/ops/norm_cuda.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/optimizer_cuda.h"
#include "engine/base/ops/random_cuda.h"
#include "engine/base/ops/reduce_cuda.h"
#include "engine/base/ops/rotary_cuda.h"

namespace thinwire {

size_t sort_pairs_bytes_cuda(int64_t count, int) {
  return static_cast<size_t>(count);
}

void sort_pairs_cuda(CudaQueue& queue, void* scratch, size_t scratch_bytes, const uint32_t* keys, uint32_t* sorted_keys,
                     const int32_t* values, int32_t* sorted_values, int64_t count, int key_bits) {
  queue.add([=] {
    std::memset(scratch, 0xee, scratch_bytes);  // it is the sort's to write
    const uint32_t mask = key_bits >= 32 ? ~0u : (1u << key_bits) - 1;
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return (keys[a] & mask) < (keys[b] & mask); });
    for (int64_t i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[static_cast<size_t>(i)]];
      sorted_values[i] = values[order[static_cast<size_t>(i)]];
    }
  });
}

namespace {

void matmul_emulated(Exec& exec, const Matmul& op) {
  Exec& cpu = dynamic_cast<EmulatedState&>(*exec.state).cpu();
  Matmul own = op;
  own.b_version = -1;  // as on a GPU: nothing is kept from one product to the next
  CudaQueue(exec).add([&cpu, own] { cpu.ops.matmul(cpu, own); });
}

// The op, then what check_faults of the CUDA state would say.
template <auto kOp, typename Op>
void checked(Exec& exec, const Op& op) {
  kOp(exec, op);
  if (dynamic_cast<DeferredStream*>(&exec.stream) == nullptr) exec.state->check_faults(exec.stream);
}

std::string name_of_emulation() {
  return "cuda kernels on one thread";
}
std::unique_ptr<OpState> make_emulated_state(Device& device) {
  return std::make_unique<EmulatedState>(device);
}

constexpr OpTable kEmulatedOps = {
    .backend = "cuda emulated",
    .isa = name_of_emulation,
    .make_state = make_emulated_state,
    .matmul = matmul_emulated,
    .norm_forward = checked<norm_forward_cuda>,
    .norm_backward = checked<norm_backward_cuda>,
    .residual_add = checked<residual_add_cuda>,
    .dropout_apply = checked<dropout_apply_cuda>,
    .rotary = checked<rotary_cuda>,
    .attention_forward = checked<attention_forward_cuda>,
    .attention_backward = checked<attention_backward_cuda>,
    .gelu_forward = checked<gelu_forward_cuda>,
    .gelu_backward = checked<gelu_backward_cuda>,
    .swiglu_forward = checked<swiglu_forward_cuda>,
    .swiglu_backward = checked<swiglu_backward_cuda>,
    .embedding_forward = checked<embedding_forward_cuda>,
    .embedding_backward = checked<embedding_backward_cuda>,
    .cross_entropy = checked<cross_entropy_cuda>,
    .vocab_statistics = checked<vocab_statistics_cuda>,
    .vocab_loss = checked<vocab_loss_cuda>,
    .weighted_sum = checked<weighted_sum_cuda>,
    .sum_squares = checked<sum_squares_cuda>,
    .bias_gradient = checked<bias_gradient_cuda>,
    .cast = checked<cast_cuda>,
    .axpy = checked<axpy_cuda>,
    .fill_normal = checked<fill_normal_cuda>,
    .fill_constant = checked<fill_constant_cuda>,
    .adamw = checked<adamw_cuda>,
    .momentum_share = checked<momentum_share_cuda>,
    .sgd = checked<sgd_cuda>,
};

}  // namespace

const OpTable& emulated_cuda_ops() {
  cpu_ops();  // throws on a machine that is too old
  return kEmulatedOps;
}

}  // namespace thinwire
