// The fused attention that is built in, on a GPU: against the float64 oracle, and equal bits on repetition.
#include "engine/base/ops/attention_fused.h"

#include <cstdlib>
#include <fstream>

#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/cuda_state.h"
#include "tests/ops/attention_fused_cases.h"
#include "tests/support/cuda_test_support.h"

namespace thinwire::test::attention_fused_test {
namespace {

// The library itself: our own kernels cannot step in.
FusedAttention& library(CudaExec& exec) {
  FusedAttention* fused = state_of(*exec).fused_attention();
  TW_CHECK(fused != nullptr, "fused attention is not there: ", fused_attention_name());
  return *fused;
}

// The tensors of a case on the GPU, q, k and v in one.
struct OnDevice {
  OnDevice(CudaExec& exec, AttentionTensors& x)
      : q(exec, x.q), out(exec, x.out), lse(exec, x.lse), dout(exec, x.dout), dq(exec, x.dq), ids(exec, ids_of(x)) {}
  static Tensor ids_of(const AttentionTensors& x) {
    Tensor ids(DType::i64, {static_cast<int64_t>(x.sample_ids.size())});
    std::memcpy(ids.view().data, x.sample_ids.data(), ids.view().bytes());
    return ids;
  }
  bool forward(CudaExec& exec, AttentionTensors& x) {
    AttentionForward op = x.forward_op();
    op.q = op.k = op.v = q, op.out = out, op.lse = lse;
    op.dropout.sample_ids = ids.view().as<int64_t>();
    return library(exec).forward(*exec, op);
  }
  bool backward(CudaExec& exec, AttentionTensors& x) {
    AttentionBackward op = x.backward_op();
    op.q = op.k = op.v = q, op.out = out, op.lse = lse, op.dout = dout;
    op.dq = op.dk = op.dv = dq;
    op.dropout.sample_ids = ids.view().as<int64_t>();
    return library(exec).backward(*exec, op);
  }
  OnGpu q, out, lse, dout, dq, ids;
};

TEST(AttentionFused, AgreesWithFloat64) {
  TW_NEEDS_GPU();
  for (bool deterministic : {true, false}) {
    CudaExec exec;
    exec->deterministic = deterministic;
    uint32_t seed = 1;
    const std::vector<int64_t> lengths =
        deterministic ? std::vector<int64_t>{17, sized(63, 20), 72, 128, sized(200, 65), sized(333, 65)}
                      : std::vector<int64_t>{sized(128, 20), sized(333, 65)};
    for (const AttentionCase& c : fused_attention_cases(lengths)) {
      fused_within_bounds(
          c, seed++,
          [&](AttentionTensors& x) {
            OnDevice gpu(exec, x);
            if (!gpu.forward(exec, x) || !gpu.backward(exec, x)) return false;
            x.out = gpu.out.read(), x.lse = gpu.lse.read(), x.dq = gpu.dq.read();
            return true;
          },
          true);
    }
  }
}

// Twenty times the same bits, forward and deterministic backward, at sizes that fill the GPU.
TEST(AttentionFused, SameBitsTwentyTimes) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (int64_t members : {1, 4}) {
    for (int64_t d : {64, 128}) {
      const int64_t length = sized(1000, 100);
      const AttentionCase c{.dtype = DType::bf16,
                            .batch = 4,
                            .q_len = length,
                            .kv_len = length,
                            .groups = 8,
                            .heads_per_group = members,
                            .head_dim = d,
                            .scale = 0.1f};
      std::mt19937 rng(3);
      AttentionTensors x(c, rng);
      OnDevice gpu(exec, x);
      Tensor out, lse, dq;
      for (int64_t i = 0; i < sized(20, 2); ++i) {
        gpu.dq.write(x.dq);
        ASSERT_TRUE(gpu.forward(exec, x) && gpu.backward(exec, x)) << c.name();
        const Tensor out_now = gpu.out.read(), lse_now = gpu.lse.read(), dq_now = gpu.dq.read();
        if (i == 0) out = out_now, lse = lse_now, dq = dq_now;
        EXPECT_TRUE(out_now.same_bits(out) && lse_now.same_bits(lse)) << c.name() << " forward, repetition " << i;
        EXPECT_TRUE(dq_now.same_bits(dq)) << c.name() << " backward, repetition " << i;
      }
    }
  }
}

// The table that training uses takes it, and does what it does.
TEST(AttentionFused, IsWhatTheTablePicks) {
  TW_NEEDS_GPU();
  CudaExec exec;
  const AttentionCase c{.dtype = DType::bf16,
                        .batch = 2,
                        .q_len = 200,
                        .kv_len = 200,
                        .groups = 2,
                        .heads_per_group = 4,
                        .head_dim = 64,
                        .scale = 0.125f};
  std::mt19937 rng(4);
  AttentionTensors x(c, rng);
  OnDevice gpu(exec, x);
  ASSERT_TRUE(gpu.forward(exec, x));
  const Tensor fused = gpu.out.read();
  AttentionForward op = x.forward_op();
  op.q = op.k = op.v = gpu.q, op.out = gpu.out, op.lse = gpu.lse;
  gpu.out.write(x.out);
  exec->ops.attention_forward(*exec, op);
  EXPECT_TRUE(gpu.out.read().same_bits(fused));
}

// The properties by which attention_support_test asks for a GPU that is not there, into the file that is named.
TEST(AttentionFused, SavesTheDevicesProperties) {
  TW_NEEDS_GPU();
  const std::string text = device_properties_json(0);
  EXPECT_NE(text.find("multiProcessorCount"), std::string::npos) << text;
  if (const char* path = std::getenv("THINWIRE_DEVICE_JSON")) std::ofstream(path) << text << "\n";
}

}  // namespace
}  // namespace thinwire::test::attention_fused_test
