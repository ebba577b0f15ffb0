// Parameter counts and FLOPs against published numbers and a closed form.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <string>

#include "engine/base/core/error.h"
#include "engine/run/trace/flops.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/trace/run_files.h"
#include "model/params.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_flops {
namespace {

ModelConfig neox_20b() {
  ModelConfig c;
  c.layers = 44;
  c.hidden = 6144;
  c.heads = c.kv_heads = 64;
  c.head_dim = 96;
  c.ffn = 24576;
  c.vocab = 50257;
  c.padded_vocab = 50432;
  c.seq_length = c.max_positions = 2048;
  c.positions = PositionKind::kRotary;
  c.rotary_fraction = 0.25f;
  c.parallel_residual = true;
  c.tied_head = false;
  return c;
}

ModelConfig gpt2_124m() {
  ModelConfig c;
  c.layers = 12;
  c.hidden = 768;
  c.heads = c.kv_heads = 12;
  c.head_dim = 64;
  c.ffn = 3072;
  c.vocab = 50257;
  c.padded_vocab = 50304;
  c.seq_length = c.max_positions = 1024;
  return c;
}

// Llama-3-8B's shape: grouped queries, gated feed-forward, no bias, RMSNorm, untied head.
ModelConfig llama_8b() {
  ModelConfig c;
  c.layers = 32;
  c.hidden = 4096;
  c.heads = 32;
  c.kv_heads = 8;
  c.head_dim = 128;
  c.ffn = 14336;
  c.vocab = c.padded_vocab = 128256;
  c.seq_length = c.max_positions = 8192;
  c.positions = PositionKind::kRotary;
  c.norm = NormKind::kRmsNorm;
  c.activation = ActivationKind::kSwiglu;
  c.tied_head = false;
  c.bias_attention = c.bias_mlp = c.bias_norm = false;
  return c;
}

TEST(Flops, ParameterCountsOfPublishedModels) {
  EXPECT_EQ(count_parameters(list_parameters(neox_20b()), true), 20'554'567'680);
  EXPECT_EQ(count_parameters(list_parameters(neox_20b()), false), 20'552'417'280);
  EXPECT_EQ(count_parameters(list_parameters(gpt2_124m()), false), 124'439'808);
  EXPECT_EQ(count_parameters(list_parameters(llama_8b()), false), 8'030'261'248);
}

// The figures of the GPT-NeoX-20B recipe, given to four digits: 128.1 (full), 124.8 (causal half), 170.2 (full
// recompute) GFLOP.
TEST(Flops, Neox20bPerToken) {
  ModelConfig c = neox_20b();
  EXPECT_NEAR(full_attention_flops_per_token(c) / 1e9, 128.1, 0.05);
  EXPECT_NEAR(model_flops_per_token(c) / 1e9, 124.8, 0.05);
  EXPECT_EQ(hardware_flops_per_token(c), full_attention_flops_per_token(c));
  c.recompute = Recompute::kFull;
  EXPECT_NEAR(hardware_flops_per_token(c) / 1e9, 170.2, 0.05);
}

// Closed form 12 L h^2 ((1 + g/n + s/h) + f/h (1.5 if gated) + V/2Lh), s/2h with the causal half.
double closed_form(const ModelConfig& c, bool causal) {
  const double h = static_cast<double>(c.hidden), layers = static_cast<double>(c.layers);
  const double attention = 1.0 + static_cast<double>(c.kv_heads) / static_cast<double>(c.heads) +
                           static_cast<double>(c.seq_length) / h * (causal ? 0.5 : 1.0);
  const double mlp = static_cast<double>(c.ffn) / h * (c.activation == ActivationKind::kSwiglu ? 1.5 : 1.0);
  return 12.0 * layers * h * h * (attention + mlp + static_cast<double>(c.padded_vocab) / (2.0 * layers * h));
}

TEST(Flops, AgreesWithTheClosedForm) {
  for (const ModelConfig& c : {neox_20b(), gpt2_124m(), llama_8b()}) {
    // A dozen operations in double: 1e-14 is over forty epsilons.
    EXPECT_NEAR(full_attention_flops_per_token(c) / closed_form(c, false), 1.0, 1e-14);
    EXPECT_NEAR(model_flops_per_token(c) / closed_form(c, true), 1.0, 1e-14);
  }
}

TEST(Flops, SelectiveRecomputeRepeatsTheAttentionProducts) {
  ModelConfig c = gpt2_124m();
  c.recompute = Recompute::kSelective;
  const double products = 2.0 * 2.0 * 12 * 1024 * 768;  // scores and weighted values, multiply and add
  EXPECT_EQ(hardware_flops_per_token(c) - full_attention_flops_per_token(c), products);
}

TEST(Flops, HeadDimMayDifferFromHiddenOverHeads) {
  ModelConfig c = gpt2_124m();
  const int64_t before = count_parameters(list_parameters(c), false);
  c.head_dim =
      128;  // attention twice as wide as the model: qkv rows, their bias, and columns of the output projection double
  EXPECT_EQ(count_parameters(list_parameters(c), false) - before, 12 * (3 * 768 * 768 + 3 * 768 + 768 * 768));
}

TEST(MemoryProbe, RemembersAnAllocation) {
  constexpr size_t kBytes = 64u << 20;
  const int64_t before = peak_rss_bytes();
  ASSERT_GT(before, 0);
  // Pages straight from the kernel: an allocator may keep what is freed.
  void* block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  ::munmap(block, kBytes);
  EXPECT_GE(peak_rss_bytes(), static_cast<int64_t>(kBytes) * 9 / 10);
  EXPECT_LE(peak_rss_bytes(), before + 2 * static_cast<int64_t>(kBytes));
}

TEST(RunFiles, NamesAreTheDocumentedOnes) {
  EXPECT_EQ(resolved_config_path("r"), "r/config.resolved.json");
  EXPECT_EQ(metrics_path("r/"), "r/metrics.jsonl");
  EXPECT_EQ(tensorboard_dir("r"), "r/tensorboard");
  EXPECT_EQ(checkpoints_dir("r"), "r/checkpoints");
  EXPECT_EQ(status_path("r"), "r/status.json");
  EXPECT_EQ(log_path("r"), "r/log.txt");
  EXPECT_EQ(report_path("r"), "r/report.html");
  EXPECT_EQ(trace_path("r", 3), "r/trace.rank3.json");
  EXPECT_EQ(run_name("runs/a/"), "a");
  EXPECT_EQ(run_name("runs/a"), "a");
  EXPECT_EQ(run_name("/"), "/");
}

TEST(RunFiles, CreatesAndKeepsAndRefuses) {
  const test::Scratch scratch;
  create_run_directory(scratch / "a/b");
  test::spill(scratch / "a/b/checkpoints/keep", "x");
  create_run_directory(scratch / "a/b");
  EXPECT_EQ(test::slurp(scratch / "a/b/checkpoints/keep"), "x");
  test::spill(scratch / "file", "x");
  try {
    create_run_directory(scratch / "file/run");
    FAIL() << "a file was taken for a directory";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBusy);
  }
}

}  // namespace
}  // namespace thinwire::test_flops
