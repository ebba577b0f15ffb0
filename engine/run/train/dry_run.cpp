// Prices a configuration with a measuring arena and the published formulas.
#include "engine/run/train/dry_run.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "engine/run/trace/flops.h"
#include "engine/run/trace/console_progress.h"
#include "engine/run/train/replica.h"

namespace thinwire {
namespace {

// The part of the model that one rank of the largest stage holds.
RunConfig rank_share(const RunConfig& config) {
  RunConfig share = config;
  const int64_t tp = config.layout.tensor;
  const int64_t pp = config.layout.pipeline;
  ModelConfig& m = share.model;
  m.layers = (m.layers + pp - 1) / pp;
  m.heads = std::max<int64_t>(1, m.heads / tp);
  m.kv_heads = std::max<int64_t>(1, m.kv_heads / tp);
  m.ffn = (m.ffn + tp - 1) / tp;
  m.padded_vocab = (m.padded_vocab + tp - 1) / tp;
  m.vocab = std::min(m.vocab, m.padded_vocab);
  return share;
}

// Width of a placement level in ranks: what a tensor kind is divided by.
int64_t width_of(const std::string& level, const RunConfig& config) {
  const int64_t dp = config.layout.data;
  if (level == "global") return dp;
  if (level == "pair") return std::min<int64_t>(2, dp);
  return 1;  // replicated; node without a known machine counts as one rank
}

class Text {
 public:
  [[gnu::format(printf, 2, 3)]] void line(const char* format, ...) {
    char buffer[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    text_ += buffer;
    text_ += '\n';
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

double mib(double bytes) {
  return bytes / 1048576.0;
}

void print_sites(Text& out, const RunConfig& c) {
  const double t = static_cast<double>(c.layout.tensor), d = static_cast<double>(c.layout.data);
  const double tokens = static_cast<double>(c.data.micro_batch * c.data.seq_length);
  const double activation = tokens * static_cast<double>(c.model.hidden) * static_cast<double>(size_of(c.model.dtype));
  const double micros = static_cast<double>(c.accumulation);
  const double layers = static_cast<double>((c.model.layers + c.layout.pipeline - 1) / c.layout.pipeline);
  const RunConfig share = rank_share(c);
  const double params = static_cast<double>(count_parameters(list_parameters(share.model), true));
  const double tp_bytes = (c.model.parallel_residual ? 1.0 : 2.0) * layers * micros * activation * 2.0 * (t - 1.0) / t;
  const double pp_bytes = c.layout.pipeline > 1 ? micros * activation : 0.0;
  const bool sharded = c.layout.placement_optimizer != "replicated";
  const double dp_bytes = 4.0 * params * (sharded ? 1.0 : 2.0) * (d - 1.0) / d;
  const double gather_bytes = sharded ? static_cast<double>(size_of(c.model.dtype)) * params * (d - 1.0) / d : 0.0;
  out.line("bytes sent per rank and step (uncoded; ring volumes):");
  out.line("  tp.forward      %12.1f MiB", mib(tp_bytes));
  out.line("  tp.backward     %12.1f MiB", mib(tp_bytes));
  out.line("  pp.forward      %12.1f MiB", mib(pp_bytes));
  out.line("  pp.backward     %12.1f MiB", mib(pp_bytes));
  out.line("  dp.gradient     %12.1f MiB  (fp32)", mib(dp_bytes));
  out.line("  zero.parameter  %12.1f MiB", mib(gather_bytes));
}

}  // namespace

ProcessOverhead process_overhead(const RunConfig& config) {
  // Program and libraries, oneDNN's generated kernels and its copies of a product's operands, the batches
  // read ahead.
  const size_t operands =
      static_cast<size_t>(std::max({config.model.ffn_in_width(), config.model.qkv_width(), config.model.hidden}) *
                          config.model.hidden) *
      size_of(config.model.dtype);
  const size_t queue = static_cast<size_t>(config.data.micro_batch * config.data.seq_length) * 12 *
                       static_cast<size_t>(config.data.prefetch_batches + 1);
  return {(size_t{28} << 20) + operands + queue};
}

MemoryPlan plan_memory(const RunConfig& config) {
  const Replica replica(rank_share(config), nullptr, nullptr, true);
  MemoryPlan plan = replica.memory();
  const LayoutConfig& l = config.layout;
  plan[MemoryCategory::kWeights] /= static_cast<size_t>(width_of(l.placement_weights, config));
  plan[MemoryCategory::kGradients] /= static_cast<size_t>(width_of(l.placement_gradients, config));
  plan[MemoryCategory::kOptimizer] /= static_cast<size_t>(width_of(l.placement_optimizer, config));
  plan[MemoryCategory::kMasterWeights] /= static_cast<size_t>(width_of(l.placement_optimizer, config));
  // A pipeline stage keeps as many micro-batches alive as there are stages behind it.
  if (l.pipeline > 1)
    plan[MemoryCategory::kActivations] *= static_cast<size_t>(std::min<int64_t>(l.pipeline, config.accumulation));
  return plan;
}

std::string dry_run_text(const RunConfig& c) {
  Text out;
  const ModelConfig& m = c.model;
  const ParamList params = list_parameters(m);
  const int64_t ranks = c.layout.pipeline * c.layout.tensor * c.layout.data;
  out.line("ranks: %lld = pipeline %lld x data %lld x tensor %lld, device %s", static_cast<long long>(ranks),
           static_cast<long long>(c.layout.pipeline), static_cast<long long>(c.layout.data),
           static_cast<long long>(c.layout.tensor), c.device.c_str());
  out.line("parameters: %lld with padding, %lld without (vocabulary %lld, rows %lld)",
           static_cast<long long>(count_parameters(params, true)),
           static_cast<long long>(count_parameters(params, false)), static_cast<long long>(m.vocab),
           static_cast<long long>(m.padded_vocab));
  out.line("precision: %s compute, fp32 master weights, gradients and optimizer state",
           std::string(name_of(m.dtype)).c_str());
  out.line("batch: %lld sequences of %lld tokens = %lld micro-batches of %lld per rank and update",
           static_cast<long long>(c.data.global_batch), static_cast<long long>(c.data.seq_length),
           static_cast<long long>(c.accumulation), static_cast<long long>(c.data.micro_batch));

  const MemoryPlan plan = plan_memory(c);
  const size_t overhead = process_overhead(c).bytes;
  out.line("memory per rank:");
  for (size_t i = 0; i < plan.bytes.size(); ++i) {
    out.line("  %-15s %12.1f MiB", std::string(name_of(static_cast<MemoryCategory>(i))).c_str(),
             mib(static_cast<double>(plan.bytes[i])));
  }
  out.line("  %-15s %12.1f MiB", "process", mib(static_cast<double>(overhead)));
  out.line("  %-15s %12.1f MiB (%zu bytes)", "total", mib(static_cast<double>(plan.total() + overhead)),
           plan.total() + overhead);

  // A save copies weights and optimizer state at once and writes the copy behind the steps.
  const size_t staged = 4 * static_cast<size_t>(count_parameters(list_parameters(rank_share(c).model), true)) *
                        (c.optim.kind == OptimizerKind::kAdamW ? 3
                         : c.optim.momentum != 0.0             ? 2
                                                               : 1);
  out.line("  while a checkpoint is being written: %.1f MiB more", mib(static_cast<double>(staged)));

  out.line("FLOPs per token, forward and backward:");
  out.line("  model (causal half)      %.6g", model_flops_per_token(m));
  out.line("  model (full attention)   %.6g", full_attention_flops_per_token(m));
  out.line("  hardware (recompute)     %.6g", hardware_flops_per_token(m));
  out.line("tokens per update: %lld, updates: %lld, tokens in all: %.6g",
           static_cast<long long>(c.data.global_batch * c.data.seq_length), static_cast<long long>(c.train_iters),
           static_cast<double>(c.data.global_batch * c.data.seq_length) * static_cast<double>(c.train_iters));
  print_sites(out, c);
  const double p = static_cast<double>(c.layout.pipeline), micros = static_cast<double>(c.accumulation);
  out.line("pipeline bubble: %.1f %% of the step ((p - 1) / (micro-batches + p - 1))",
           100.0 * (p - 1.0) / (micros + p - 1.0));
  return out.take();
}

}  // namespace thinwire
