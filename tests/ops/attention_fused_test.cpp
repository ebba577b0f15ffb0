// cuDNN's fused attention on a GPU: against the float64 oracle, and equal bits on repetition.
#include "engine/base/ops/attention_fused.h"

#include <cstdlib>
#include <fstream>

#include "engine/base/core/log.h"
#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/attention_parts.h"
#include "engine/base/ops/cuda_state.h"
#include "tests/ops/attention_fused_cases.h"
#include "tests/ops/attention_part_cases.h"
#include "tests/support/cuda_test_support.h"
#include "tests/support/worst.h"

namespace thinwire::test::attention_fused_test {
namespace {

// cuDNN itself: our own kernels cannot take its place.
FusedAttention& library(CudaExec& exec) {
  FusedAttention* fused = state_of(*exec).fused_attention();
  TW_CHECK(fused != nullptr, "fused attention is not there: ", fused_attention_name());
  return *fused;
}

// The tensors of a case on the GPU; q, k and v in one tensor.
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

// Forward and deterministic backward give the same bits twenty times, at sizes that fill the GPU.
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

// The op that training calls goes to cuDNN for such a shape: it has the library's bits.
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

// Attention in parts, through the op that layers call. THINWIRE_ATTENTION=fused makes it an error that cuDNN has no
// plan for a part that attention_calls() gives to it; counted are the parts that it gets and those of our own kernels.
class PartsOnGpu {
 public:
  explicit PartsOnGpu(bool deterministic) {
    if (const char* set = std::getenv("THINWIRE_ATTENTION")) before_ = set;
    ::setenv("THINWIRE_ATTENTION", "fused", 1);
    exec_ = std::make_unique<CudaExec>();
    (*exec_)->deterministic = deterministic;
  }
  ~PartsOnGpu() {
    exec_.reset();
    before_.empty() ? ::unsetenv("THINWIRE_ATTENTION") : ::setenv("THINWIRE_ATTENTION", before_.c_str(), 1);
  }
  int64_t taken = 0, refused = 0;

  PartsResult run(const PartsCase& p, AttentionTensors& x) {
    Exec& exec = **exec_;
    const PartsRunner<OnGpu> runner = {[&](const Tensor& t) { return std::make_unique<OnGpu>(*exec_, t); },
                                       [&](const AttentionForward& op) {
                                         count(op, [&](const auto& part, AttentionCalls& calls) {
                                           return attention_calls(part, kAttentionWorkspace, calls);
                                         });
                                         exec.ops.attention_forward(exec, op);
                                       },
                                       [&](const AttentionBackward& op) {
                                         count(op, [&](const auto& part, AttentionCalls& calls) {
                                           return attention_calls(part, exec.deterministic, kAttentionWorkspace, calls);
                                         });
                                         exec.ops.attention_backward(exec, op);
                                       }};
    return runner.run(p, x);
  }
  CudaExec& exec() { return *exec_; }

 private:
  template <typename Op, typename Calls>
  void count(const Op& op, const Calls& calls_of) {
    for_key_parts(op, [&](const Op& part) {
      AttentionCalls calls;
      ++(calls_of(part, calls) ? taken : refused);
    });
  }
  std::string before_;
  std::unique_ptr<CudaExec> exec_;
};

// MHA and GQA, heads of 64 and 128, bf16 and fp16, ragged ends, keys in rows of their own and among the queries, parts
// merged in both orders.
TEST(AttentionFused, PartsAgreeWithFloat64) {
  TW_NEEDS_GPU();
  struct Way {
    bool deterministic;
    int64_t length, part;
  };
  for (const auto& [deterministic, length, part] : {Way{true, sized(300, 90), 80}, {false, sized(200, 90), 72}}) {
    PartsOnGpu gpu(deterministic);
    uint32_t seed = 1;
    int within = 0, cases = 0;
    for (const PartsCase& p : attention_part_cases(length, part)) {
      SCOPED_TRACE(p.name() + (deterministic ? ", deterministic" : ""));
      std::mt19937 rng(seed++);
      AttentionTensors x(p.c, rng);
      const PartsResult got = gpu.run(p, x);
      within += parts_within_bounds(p, x, got, true), cases += 3;
    }
    EXPECT_GT(gpu.taken, gpu.refused);
    log_info(std::string("parts") + (deterministic ? ", deterministic: " : ": ") + std::to_string(within) + " of " +
             std::to_string(cases) + " results within bounds, " + std::to_string(gpu.taken) +
             " calls of the library, " + std::to_string(gpu.refused) + " of our own kernels");
  }
}

// A long sequence in chunks is near to cuDNN's result for the whole, and has the same bits five times.
TEST(AttentionFused, PartsOfALongSequenceAreTheWhole) {
  TW_NEEDS_GPU();
  for (const int64_t members : {1, 4}) {
    for (const int64_t d : {64, 128}) {
      PartsOnGpu gpu(true);
      PartsCase p;
      p.c = {.dtype = DType::bf16, .q_len = sized(4000, 400), .kv_len = sized(4000, 400), .groups = 2};
      p.c.heads_per_group = members, p.c.head_dim = d, p.c.apart = true;
      p.c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
      p.queries = p.keys = sized(1024, 128);
      std::mt19937 rng(5);
      AttentionTensors x(p.c, rng);
      const PartsResult parts = gpu.run(p, x);
      EXPECT_EQ(gpu.refused, 0) << p.name();
      for (int64_t i = 0; i < sized(4, 2); ++i) {
        const PartsResult again = gpu.run(p, x);
        EXPECT_TRUE(again.out.same_bits(parts.out) && again.lse.same_bits(parts.lse)) << p.name() << ", forward " << i;
        EXPECT_TRUE(again.gradients.same_bits(parts.gradients)) << p.name() << ", backward " << i;
      }
      OnDevice whole(gpu.exec(), x);
      ASSERT_TRUE(whole.forward(gpu.exec(), x) && whole.backward(gpu.exec(), x)) << p.name();
      const auto near = [&](const Tensor& got, const Tensor& want, const char* what) {
        double squares = 0.0, worst = 0.0;
        for (int64_t i = 0; i < want.count(); ++i) squares += want.at(i) * want.at(i);
        const double size = std::sqrt(squares / static_cast<double>(want.count()));
        for (int64_t i = 0; i < want.count(); ++i) {
          const double off = std::abs(got.at(i) - want.at(i)) / (size + std::abs(want.at(i)));
          worst = worse(worst, off);
        }
        // Each value is rounded to bf16 a few times.
        EXPECT_LT(worst, 0.03) << what << " of " << p.name();
        log_info(std::string(what) + " of " + p.name() + ": " + std::to_string(worst) + " off at most");
      };
      near(parts.out, whole.out.read(), "out");
      near(parts.lse, whole.lse.read(), "lse");
      near(parts.gradients, whole.dq.read(), "gradients");
    }
  }
}

// Writes the properties that attention_support_test describes GPUs by to the file that THINWIRE_DEVICE_JSON names.
TEST(AttentionFused, SavesTheDevicesProperties) {
  TW_NEEDS_GPU();
  const std::string text = device_properties_json(0);
  EXPECT_NE(text.find("multiProcessorCount"), std::string::npos) << text;
  if (const char* path = std::getenv("THINWIRE_DEVICE_JSON")) std::ofstream(path) << text << "\n";
}

}  // namespace
}  // namespace thinwire::test::attention_fused_test
