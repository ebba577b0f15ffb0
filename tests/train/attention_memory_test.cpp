// What --dry-run says of cuDNN's attention on a GPU is what layers ask for: every attention of a step, whole or part by
// part, is one for the library, and the largest takes the scratch that is priced.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/attention_parts.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/synthetic_batches.h"
#include "tests/emulation/cuda_emulation.h"
#include "tests/support/fake_gpu.h"
#include "tests/train/small_run.h"

namespace thinwire::test::attention_memory_test {
namespace {

struct Asked {
  int64_t taken = 0, parts = 0, refused = 0;
  size_t most = 0;
};
Asked* asked = nullptr;

template <typename Op, typename Calls>
void ask(const Op& op, const Calls& calls_of) {
  for_key_parts(op, [&](const Op& part) {
    AttentionCalls calls;
    if (!calls_of(part, calls)) {
      ++asked->refused;
      return;
    }
    ++asked->taken, asked->parts += calls.call.part;
    const size_t workspace = calls.call.backward ? attention_workspace(calls.call) : 0;
    asked->most =
        std::max(asked->most, workspace + attention_mask_bytes(calls.call) + attention_part(calls.call).bytes);
  });
}

void forward(Exec& exec, const AttentionForward& op) {
  ask(op, [](const auto& part, AttentionCalls& calls) { return attention_calls(part, kAttentionWorkspace, calls); });
  emulated_cuda_ops().attention_forward(exec, op);
}

void backward(Exec& exec, const AttentionBackward& op) {
  ask(op, [&](const auto& part, AttentionCalls& calls) {
    return attention_calls(part, exec.deterministic, kAttentionWorkspace, calls);
  });
  emulated_cuda_ops().attention_backward(exec, op);
}

TEST(AttentionMemory, IsWhatLayersAskFor) {
  const std::vector<std::string> ways[] = {{},
                                           {"sequence_chunk_size=64"},
                                           {"sequence_chunk_size=64", "checkpoint_activations=true"},
                                           {"sequence_chunk_size=64", "num_kv_heads=2", "checkpoint_activations=true"},
                                           {"sequence_chunk_size=64", "num_kv_heads=2"}};
  for (const std::vector<std::string>& way : ways) {
    std::vector<std::string> keys = {"num_layers=1",   "train_batch_size=2", "precision=bf16",
                                     "hidden_size=64", "seq_length=192",     "max_position_embeddings=192",
                                     "pos_emb=rotary"};
    keys.insert(keys.end(), way.begin(), way.end());
    std::string name;
    for (const std::string& key : way) name += key + " ";
    RunConfig config = small_run(keys);
    Asked result;
    asked = &result;
    {
      FakeGpu gpu;
      OpTable ops = emulated_cuda_ops();
      ops.attention_forward = forward, ops.attention_backward = backward;
      Replica replica(config, &gpu, &ops, true);
      replica.set_fresh_weights();
      BareTraining training(replica);
      training.take_step(1, [&] { return synthetic_batch(0, 2, config.data.seq_length, config.model.vocab); });
    }
    EXPECT_TRUE(result.taken > 0 && result.refused == 0) << name << result.taken << " " << result.refused;
    EXPECT_EQ(result.parts, way.empty() ? 0 : result.taken) << name;
    config.device = "cuda";
    EXPECT_EQ(why_own_attention(config).empty(), way.empty()) << name;
    ::setenv("THINWIRE_ATTENTION", "fused", 1);
    EXPECT_EQ(why_own_attention(config), "") << name;
    RunConfig unpriced = config;  // documents, on our own kernels, which need no scratch
    unpriced.data.documents.reset_attention = true;
    EXPECT_EQ(process_overhead(config) - process_overhead(unpriced), result.most) << name;
    ::setenv("THINWIRE_ATTENTION", "own", 1);
    EXPECT_EQ(process_overhead(config), process_overhead(unpriced)) << name;
    ::setenv("THINWIRE_ATTENTION", "fused", 1);
    config.model.attention_dropout = 0.1f;
    EXPECT_EQ(why_own_attention(config).empty(), way.empty()) << name;
    ::unsetenv("THINWIRE_ATTENTION");
  }
}

}  // namespace
}  // namespace thinwire::test::attention_memory_test
