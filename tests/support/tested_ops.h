// Lets the tests of the CPU ops test another backend: included in front of a test by the compiler's command line, it
// gives the names of the CPU ops to ops that go through the Exec's table, and its own table to whoever asks for the
// CPU's.
#pragma once

#include "engine/base/ops/op_list.h"

namespace thinwire {

// The table under test; it runs on the CPU device, whose memory the tests read and write.
const OpTable& tested_ops();

namespace detail {
template <typename F>
struct OpOf;
template <typename Op>
struct OpOf<void (*)(Exec&, const Op&)> {
  using Type = Op;
};
}  // namespace detail

#define TW_TESTED(name)                                                                          \
  inline void name##_tested(Exec& exec, const detail::OpOf<decltype(OpTable::name)>::Type& op) { \
    exec.ops.name(exec, op);                                                                     \
  }
TW_FOR_EACH_OP(TW_TESTED)
#undef TW_TESTED

}  // namespace thinwire

#define cpu_ops tested_ops
#define matmul_cpu matmul_tested
#define norm_forward_cpu norm_forward_tested
#define norm_backward_cpu norm_backward_tested
#define residual_add_cpu residual_add_tested
#define dropout_apply_cpu dropout_apply_tested
#define rotary_cpu rotary_tested
#define attention_forward_cpu attention_forward_tested
#define attention_backward_cpu attention_backward_tested
#define gelu_forward_cpu gelu_forward_tested
#define gelu_backward_cpu gelu_backward_tested
#define swiglu_forward_cpu swiglu_forward_tested
#define swiglu_backward_cpu swiglu_backward_tested
#define embedding_forward_cpu embedding_forward_tested
#define embedding_backward_cpu embedding_backward_tested
#define cross_entropy_cpu cross_entropy_tested
#define vocab_statistics_cpu vocab_statistics_tested
#define vocab_loss_cpu vocab_loss_tested
#define weighted_sum_cpu weighted_sum_tested
#define sum_squares_cpu sum_squares_tested
#define bias_gradient_cpu bias_gradient_tested
#define cast_cpu cast_tested
#define axpy_cpu axpy_tested
#define fill_normal_cpu fill_normal_tested
#define fill_constant_cpu fill_constant_tested
#define adamw_cpu adamw_tested
#define momentum_share_cpu momentum_share_tested
#define sgd_cpu sgd_tested
