// Prices a configuration: rehearsed steps for memory and bytes, pipeline plans for the bubble, published formulas for
// FLOPs.
#include "engine/run/train/dry_run.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "data/batch_ramp.h"
#include "data/sample_stream.h"
#include "engine/base/core/text.h"
#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/fp8_weights.h"
#include "engine/base/ops/op_list.h"
#include "engine/base/ops/product_key.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/config/layout_text.h"
#include "engine/run/trace/flops.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/train/compression_setup.h"
#include "engine/run/train/gradient_bits.h"
#include "engine/run/train/rank_layout.h"
#include "engine/run/train/step_rehearsal.h"
#include "parallel/device/device_traffic.h"

namespace thinwire {
namespace {

double mib(double bytes) {
  return bytes / 1048576.0;
}

long long ll(int64_t n) {
  return static_cast<long long>(n);
}

// A stage's first rank.
struct StagePrice {
  MemoryPlan memory;
  SitePrices sites;
  std::vector<GradientBits> gradients;              // empty unless a rule is for critical gradients alone
  size_t copied = 0;                                // by a save, without residuals
  int64_t spilled = 0, written = 0, read_back = 0;  // activation_offload, in bytes: the room, and those of a step
  int64_t layers = 0;
};

// What a save copies of weights and optimizer state, and of what a coded parameter all-gather has made of the weights.
size_t copy_bytes(const Replica& replica) {
  const OptimConfig& optim = replica.config().optim;
  const size_t vectors = optim.kind == OptimizerKind::kAdamW ? 3 : optim.momentum != 0.0 ? 2 : 1;
  size_t bytes = 0;
  for (const OwnedPiece& piece : replica.store().owned()) {
    bytes += sizeof(float) * vectors * static_cast<size_t>(piece.range.count);
    if (piece.coded_sync) bytes += piece.working.bytes();
  }
  return bytes;
}

StagePrice price_stage(const RunConfig& config, int stage) {
  StepRehearsal rehearsal(config, layout_of(config, first_rank_of_stage(config, stage)));
  const Replica& replica = rehearsal.replica();
  StagePrice price;
  price.memory = replica.memory();
  price.gradients = gradient_bits(config, replica.layout(), replica.store());
  price.sites = rehearsal.take_step(static_cast<int>(config.accumulation));
  if (const TokenStore* tokens = replica.token_store(); tokens != nullptr && tokens->spills())
    price.spilled = tokens->room(), price.written = tokens->written(), price.read_back = tokens->read_back();
  for (const LayerRange& chunk : replica.layout().shard.chunks) price.layers += chunk.count;
  price.copied = copy_bytes(replica);
  return price;
}

std::string name_of_compression(const SiteCompression& compression) {
  std::string name = compression.rounds != nullptr ? compression.rounds->name() : "";
  if (name.empty()) name = compression.first != nullptr ? compression.first->name() : "as it is";
  if (compression.rule.has_sum_codec)
    name += ", sums " + (compression.sums != nullptr ? compression.sums->name() : "as they are");
  return name;
}

// How a site's rules code, as in "block_int(bits=4,...) + error_feedback"; empty where none does.
std::string compression_name(const RunConfig& c, Site site) {
  std::string name;
  for (const SiteRule& rule : c.compression.at(site)) {
    const std::shared_ptr<SiteCompression> compression = make_site_compression(site, rule);
    if (compression == nullptr) continue;
    name += (name.empty() ? "" : "; ") + name_of_compression(*compression) + (compression->checks ? " + crc32c" : "");
    for (const auto& [place, later] : compression->later)
      name += ", from step " + std::to_string(place + 1) + " " + name_of_compression(*later);
    if (!compression->later.empty()) name += ", which is counted";
    for (const auto& [word, other] : {std::pair("light ", compression->light), std::pair("", compression->bf16)})
      if (c.compression.adapt && other != nullptr) name += std::string(", or ") + word + name_of_compression(*other);
  }
  return name;
}

void print_sites(std::string& out, const RunConfig& c, const std::vector<StagePrice>& stages) {
  const double rate = c.layout.link_gbps * 1e9 / 8.0;  // bytes per second
  const bool coded = !c.compression.rules.empty();
  out += printed("bytes that a rank sends per step (%s)%s:\n", coded ? "as coded" : "uncoded",
                 stages.size() > 1 ? ", of each stage's first rank" : "");
  for (size_t s = 0; s < kSiteNames.size(); ++s) {
    int64_t least = INT64_MAX, most = 0, operations = 0, plain = 0;
    bool exact = true;
    for (const StagePrice& stage : stages) {
      const SitePrice& price = stage.sites[s];
      least = std::min(least, price.bytes);
      if (price.bytes >= most) most = price.bytes, plain = price.plain_bytes;
      exact = exact && price.exact;
      operations = std::max(operations, price.operations);
    }
    const auto site = static_cast<Site>(s);
    const bool rare = site == Site::kSequenceForward || site == Site::kSequenceBackward || site == Site::kOuter;
    if (most == 0 && rare) continue;  // the others are listed in any case
    std::string line = std::to_string(most) + " bytes";
    if (least != most) line = std::to_string(least) + " to " + line;
    line += " in " + std::to_string(operations) + (operations == 1 ? " operation" : " operations");
    if (site != Site::kControl) line += ", " + std::string(name_of(wire_dtype(c, site)));
    if (!exact) line = "at most " + line;
    if (const std::string name = compression_name(c, site); !name.empty() && most > 0)
      line += plain == most  // what is not made smaller goes as it is
                  ? ", none of it by " + name
                  : printed(", 1/%.2f of it by ", static_cast<double>(plain) / static_cast<double>(most)) + name;
    const std::string number = printed("%12.3f MiB", mib(static_cast<double>(most)));
    const std::string ms = rate > 0.0 ? printed(" %10.2f ms", 1e3 * static_cast<double>(most) / rate) : "";
    out += printed("  %-15s%s%s  (%s)\n", std::string(kSiteNames[s]).c_str(), number.c_str(), ms.c_str(), line.c_str());
  }
  double largest = 0.0;  // bytes of the stage that sends most
  for (const StagePrice& stage : stages) {
    double sum = 0.0;
    for (const SitePrice& price : stage.sites) sum += static_cast<double>(price.bytes);
    largest = std::max(largest, sum);
  }
  if (largest == 0.0) return;
  if (rate > 0.0)
    out += printed("  %-15s%12.3f MiB %10.2f ms at %g Gbit/s, before any of it is hidden under compute\n", "all sites",
                   mib(largest), 1e3 * largest / rate, c.layout.link_gbps);
  else
    out += printed("  %-15s%12.3f MiB  (link_gbps gives milliseconds)\n", "all sites", mib(largest));
}

// Bytes that a late rank may have to hold because they arrived before it asked for them: at most what others send it in
// one step, since nobody begins a step before all ranks have received everything of the one before. Where every
// operation is waited for at once (tensor and context parallelism, control), only the end of one and the start of the
// next can be early.
double early_bytes(const std::vector<StagePrice>& stages) {
  double most = 0.0;
  for (size_t s = 0; s < stages.size(); ++s) {
    double bytes = 0.0;
    for (size_t i = 0; i < kSiteNames.size(); ++i) {
      const auto site = static_cast<Site>(i);
      const size_t from = site == Site::kPpForward    ? (s + stages.size() - 1) % stages.size()
                          : site == Site::kPpBackward ? (s + 1) % stages.size()
                                                      : s;
      const SitePrice& price = stages[from].sites[i];
      const bool ahead = site == Site::kPpForward || site == Site::kPpBackward || site == Site::kDpGradient ||
                         site == Site::kZeroParameter || site == Site::kEmbedding || site == Site::kOuter;
      bytes += static_cast<double>(ahead ? price.bytes : 2 * price.largest);
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::string join_layers(const std::vector<StagePrice>& stages) {
  std::string text;
  for (const StagePrice& s : stages) text += (text.empty() ? "" : ", ") + std::to_string(s.layers);
  return text;
}

// The slack of messages at sites whose rules code only critical ones.
void print_slack(std::string& out, const RunConfig& c, const std::vector<StagePrice>& stages) {
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    struct Range {
      double least = 0.0, most = 0.0;
      int messages = 0;
    };
    std::map<double, Range> by_bits;
    for (const GradientBits& g : stages[stage].gradients) {
      Range& r = by_bits[std::round(g.bits * 100.0) / 100.0];  // as printed
      r = {r.messages > 0 ? std::min(r.least, g.slack_ms) : g.slack_ms, std::max(r.most, g.slack_ms), r.messages + 1};
    }
    for (const auto& [bits, r] : by_bits)
      out += printed("slack: dp.gradient, stage %zu: %d %s of %.2f bits an element, hidden by %.2f to %.2f ms\n", stage,
                     r.messages, r.messages == 1 ? "message" : "messages", bits, r.least, r.most);
  }
  const PipelineShape shape = layout_of(c, 0).pipeline;
  if (shape.stages == 1) return;
  const std::vector<Plan> plans = make_plans(shape);
  const NodeCosts costs = pipeline_costs(c);
  const bool timed = c.layout.costs_given;
  const double unit = timed ? c.layout.layer_ms / 3.0 : 1.0;
  const PipelineCompression coded = pipeline_compression(c, shape);
  for (const bool forward : {true, false}) {
    const Site site = forward ? Site::kPpForward : Site::kPpBackward;
    const auto& rules = c.compression.at(site);
    for (size_t r = 0; r < rules.size(); ++r) {
      if (rules[r].select.micro_batches == MicroBatches::kAll) continue;
      const std::vector<double> slack = message_slack(plans, shape, costs, forward);
      const auto [least, most] = std::ranges::minmax(slack);
      int64_t count = 0;  // messages under this rule, which no earlier one takes
      for (size_t i = 0; i < slack.size(); ++i)
        count += coded
                     .key({.forward = forward,
                           .edge = static_cast<int>(i) / shape.micro_batches,
                           .micro = static_cast<int>(i) % shape.micro_batches})
                     .rule == static_cast<int>(r);
      out += printed("slack: %s: %lld of %zu messages are %s; %.2f to %.2f %s, a message takes %.2f\n",
                     name_of(site).data(), ll(count), slack.size(), word_of(rules[r].select.micro_batches).c_str(),
                     unit * least, unit * most, timed ? "ms" : "forward passes of a layer", unit * costs.transfer);
    }
  }
}

void print_pipeline(std::string& out, const RunConfig& c, const std::vector<StagePrice>& stages) {
  if (c.layout.pipeline == 1) {
    out += "pipeline bubble: none, one stage\n";
    return;
  }
  const RankLayout layout = layout_of(c, 0);
  const PipelineShape& shape = layout.pipeline;
  const std::vector<Plan> plans = make_plans(shape);
  NodeCosts equal;  // in forward passes of a chunk
  const size_t depth = static_cast<size_t>(shape.stages * shape.chunks);
  equal.forward.assign(depth, 1.0);
  const double recomputed = c.model.recompute == Recompute::kFull ? 1.0 : 0.0;
  equal.backward_input.assign(depth, 1.0 + recomputed);
  equal.backward_weight.assign(depth, 1.0);
  const auto mean_idle = [](const PlanTimes& times) {
    double sum = 0.0;
    for (double idle : times.idle) sum += idle;
    return 100.0 * sum / static_cast<double>(times.idle.size());
  };
  out += printed("pipeline: %s, layers per stage %s (%s), %d micro-batches\n", word_of(shape.kind).c_str(),
                 join_layers(stages).c_str(), word_of(c.layout.partition).c_str(), shape.micro_batches);
  out += printed(
      "pipeline bubble: %.1f %% of the step by the schedule's formula, %.1f %% by its plan with equal stages, %.1f %% "
      "with the layers and the head where they are\n",
      100.0 * bubble_formula(shape, 1.0, 1.0 + recomputed, 1.0), mean_idle(simulate(plans, shape, equal)),
      mean_idle(simulate(plans, shape, node_costs(c))));
}

// The largest attention that a layer of this rank asks for: of whole sequences, or of a part of one.
AttentionBackward largest_attention(const RunConfig& config) {
  const ModelShard shard = layout_of(config, 0).shard;
  const ModelConfig local = shard.local();
  const auto of = [&](int64_t batch, int64_t length) {
    return packed_attention(config.model.dtype, batch, length, local.kv_heads, local.heads_per_group(), local.head_dim,
                            shard.queries_apart());
  };
  const auto part_of = [&](int64_t queries, int64_t keys) {
    AttentionBackward part = of(1, queries);
    take_part(part, keys, keys - queries);
    return part;
  };
  AttentionBackward op;
  const BatchShape shape{config.data.micro_batch, config.data.seq_length};
  if (config.model.sequence_chunk > 0) {
    const int64_t chunk = work_rows(shard, shape);
    op = part_of(chunk, chunk);
  } else if (shard.cut.whole() || shard.exchanges_heads()) {
    op = of(shape.batch, shape.length);
  } else {  // the last run of the first rank: with a ring against another run, else against all keys
    const int64_t run = shard.cut.of(0).back().count;
    op = part_of(run, shard.sequence_way == SequenceWay::kRing ? run : shard.cut.length);
  }
  op.dropout.p = config.model.attention_dropout, op.window = config.model.window;
  return op;
}

// Sets the calls of cuDNN that make it (attention_calls.h); false: it runs on our own kernels.
bool fused_attention(const RunConfig& config, AttentionCalls& calls) {
  const AttentionBackward op = largest_attention(config);
  return !config.data.documents.reset_attention && (!op.shape.part() || attention_takes_parts()) &&
         attention_calls(op, config.deterministic, kAttentionWorkspace, calls);
}

// Bytes of a cuDNN call: the workspace of its backward pass, its dropout mask, and what it writes of a part
// (attention_calls.h).
size_t attention_scratch(const AttentionCall& call) {
  return attention_workspace(call) + attention_mask_bytes(call) + attention_part(call).bytes;
}

// Bytes of linear layers in fp8 on the stage with most of them: the copies of their weights, but for those that are
// gathered for each use and so have no memory of their own, and the operands of their largest product.
size_t fp8_bytes(const RunConfig& config) {
  size_t most = 0;
  for (int stage = 0; config.model.fp8 && stage < config.layout.pipeline; ++stage) {
    const RankLayout layout = layout_of(config, first_rank_of_stage(config, stage));
    const bool keeps = layout.where.placement.weights <= 1 || layout.where.placement.hold == Hold::kStep;
    const int64_t tokens = work_rows(layout.shard, {config.data.micro_batch, layout.shard.cut.count()});
    size_t copies = 0, scratch = 0;
    for (const ParamSpec& p : list_local_parameters(layout.shard)) {
      if (p.is_vector || p.name.rfind("layers.", 0) != 0) continue;
      if (keeps) copies += Fp8Weights::bytes_of(p.local_count());
      const int64_t out = p.local_rows(), in = p.local_cols();
      scratch = std::max({scratch, fp8_scratch(tokens, out, in, keeps).bytes, fp8_scratch(tokens, in, out, keeps).bytes,
                          fp8_scratch(out, in, tokens, false).bytes});
    }
    most = std::max(most, copies + scratch);
  }
  return most;
}

// Bytes of the scratch that other ops than products and attention share, for the one that needs most: partial sums of
// the gradients of norms and biases, or the sorted tokens of the embedding's (of which CUB's sort takes some 8 bytes).
size_t op_scratch(const RunConfig& config) {
  const ModelShard shard = layout_of(config, 0).shard;
  const ModelConfig local = shard.local();
  const int64_t tokens = config.data.micro_batch * shard.cut.count();
  const auto parts = [tokens](int64_t rows) { return (tokens + rows - 1) / rows; };
  const int64_t norms = parts(norm_rows_per_partial(tokens)) * (local.bias_norm ? 2 : 1) * local.hidden;
  const int64_t biases =
      parts(rows_per_partial(tokens)) * std::max({local.ffn_in_width(), local.qkv_width(), local.hidden});
  constexpr int64_t kWord = 4, kTokens = 24;
  const int64_t embedding = kTokens * tokens + kWord * 2 * parts(kEmbeddingPiece) * local.hidden;
  return static_cast<size_t>(std::max({kWord * norms, kWord * biases, embedding}));
}

// Bytes on a GPU beside the arenas: the context with all kernels, cuBLASLt's workspace, what fp8 takes, attention's
// scratch (our own kernels need some only for dropout), that of other ops, and, with several ranks, the scratch of
// their traffic and a second workspace, for the products on its stream. NCCL's own buffers are not counted, nor what
// coded messages take of the traffic beyond its scratch.
size_t gpu_overhead(const RunConfig& config) {
  constexpr size_t kContext = size_t{512} << 20, kProducts = size_t{32} << 20;
  AttentionCalls calls;
  const bool fused = attention_choice() != AttentionChoice::kOwn && fused_attention(config, calls);
  const size_t own = config.model.attention_dropout > 0.0f ? attention_bit_bytes(largest_attention(config).shape) : 0;
  const size_t traffic =
      mesh_shape(config).ranks() > 1 ? static_cast<size_t>(DeviceTraffic::Options().scratch_bytes) + kProducts : 0;
  return kContext + kProducts + fp8_bytes(config) + (fused ? attention_scratch(calls.call) : own) + op_scratch(config) +
         traffic;
}

// Every rank holds that of the whole run (gpt_dataset.h); what it takes per sequence of the files is not known here.
size_t order_of_samples(const DataConfig& data) {
  constexpr int64_t kBytes = 12, kMost = int64_t{1} << 48;  // more is refused where the files are opened
  const SplitSizes samples = split_sizes(data);
  return static_cast<size_t>(
      kBytes * (std::min(samples.train, kMost) + std::min(samples.valid, kMost) + std::min(samples.test, kMost)));
}

// Bytes of micro-batches on the host: those read ahead, and where tokens are counted first all of the step at hand.
size_t batch_bytes(const RunConfig& config) {
  const DataConfig& data = config.data;
  size_t token = 12;  // input, target and loss mask
  if (data.documents.reset_attention) token += sizeof(int32_t);
  if (data.documents.reset_positions) token += sizeof(int32_t);
  const int64_t batches = data.prefetch_batches + 1 + (data.counts_tokens() ? config.accumulation : 0);
  return static_cast<size_t>(batches * data.micro_batch * data.seq_length) * token;
}

void print_memory(std::string& out, const RunConfig& c, const std::vector<StagePrice>& stages) {
  size_t largest = 0;
  for (size_t s = 1; s < stages.size(); ++s)
    if (stages[s].memory.total() > stages[largest].memory.total()) largest = s;
  const MemoryPlan& plan = stages[largest].memory;
  const size_t overhead = process_overhead(c);
  out += printed(stages.size() > 1 ? "memory per rank: (stage %zu, which needs most)" : "memory per rank:", largest) +
         "\n";
  for (size_t i = 0; i < plan.bytes.size(); ++i) {
    out += printed("  %-15s %12.1f MiB\n", std::string(name_of(static_cast<MemoryCategory>(i))).c_str(),
                   mib(static_cast<double>(plan.bytes[i])));
  }
  out += printed("  %-15s %12.1f MiB\n", "process", mib(static_cast<double>(overhead)));
  out += printed("  %-15s %12.1f MiB (%zu bytes)\n", "total", mib(static_cast<double>(plan.total() + overhead)),
                 plan.total() + overhead);

  if (const StagePrice& s = stages[largest]; s.spilled > 0)
    out += printed("  activations %s: %.1f MiB of room, %.1f MiB written and %.1f MiB read back per step\n",
                   plan.host > 0 ? "in page-locked host memory" : "on disk", mib(static_cast<double>(s.spilled)),
                   mib(static_cast<double>(s.written)), mib(static_cast<double>(s.read_back)));

  size_t copied = 0;
  for (const StagePrice& stage : stages)
    copied = std::max(copied, stage.copied + stage.memory[MemoryCategory::kResiduals]);
  out += printed("  while a checkpoint is being written: %.1f MiB more\n", mib(static_cast<double>(copied)));
  if (const double early = early_bytes(stages); early > 0.0)
    out += printed("  while it is late: at most %.1f MiB more (%.0f bytes), what others send it in a step\n",
                   mib(early), early);

  const MemoryLimit here = memory_limit();
  out += printed("  this node has %.1f MiB (%s)\n", mib(static_cast<double>(here.bytes)), here.source.c_str());
}

}  // namespace

std::string why_own_attention(const RunConfig& config) {
  AttentionCalls calls;
  if (config.device != "cuda" || config.model.dtype == DType::f32 || fused_attention(config, calls)) return {};
  if (config.model.window != kNoWindow) return "sliding_window_width is set";
  if (config.data.documents.reset_attention) return "reset_attention_mask is set";
  const bool cut = largest_attention(config).shape.part(), dropout = config.model.attention_dropout > 0.0f;
  if (cut && !attention_takes_parts())
    return "parts of sequences take cuDNN's only where THINWIRE_ATTENTION=fused asks for it: not yet checked on a GPU";
  if (cut && dropout) return "attention_dropout in sequences that sequence_chunk_size or context_parallel_size cuts";
  if (dropout && config.data.seq_length % 8 != 0) return "attention_dropout with a seq_length that is no multiple of 8";
  return "the head size is no multiple of 8, or heads x tokens at a time none of 4";
}

size_t process_overhead(const RunConfig& config) {
  if (config.device == "cuda") return gpu_overhead(config);
  // Program and libraries; oneDNN's kernels and its copies of a product's operands; batches; the order of samples.
  // oneDNN generates its large kernels only for products too wide to read in place.
  constexpr size_t kProgram = size_t{22} << 20, kKernels = size_t{6} << 20;
  constexpr int64_t kInPlace = 378;  // its threshold, in elements
  const ModelConfig local = layout_of(config, 0).shard.local();
  const int64_t widest = std::max({local.ffn_in_width(), local.qkv_width(), local.hidden, local.padded_vocab});
  const size_t operands =
      static_cast<size_t>(std::max({local.ffn_in_width(), local.qkv_width(), local.hidden}) * local.hidden) *
      size_of(config.model.dtype);
  return kProgram + (widest >= kInPlace ? kKernels : 0) + operands + batch_bytes(config) +
         order_of_samples(config.data);
}

MemoryPlan plan_memory(const RunConfig& config) {
  MemoryPlan largest;
  size_t host = 0;
  for (int stage = 0; stage < config.layout.pipeline; ++stage) {
    const StepRehearsal rehearsal(config, layout_of(config, first_rank_of_stage(config, stage)));
    const MemoryPlan& plan = rehearsal.replica().memory();
    host = std::max(host, plan.host);
    if (plan.total() > largest.total()) largest = plan;
  }
  largest.host = host;
  return largest;
}

size_t save_bytes(const RunConfig& config, int ranks) {
  size_t most = 0;
  for (int stage = 0; stage < config.layout.pipeline; ++stage) {
    const RankLayout layout = layout_of(config, first_rank_of_stage(config, stage));
    const StepRehearsal rehearsal(config, layout);
    const Replica& replica = rehearsal.replica();
    const Placement& placement = layout.where.placement;
    const int writers = std::min(ranks, layout.mesh.ranks() / (placement.replicas / placement.optimizer));
    most = std::max(most, static_cast<size_t>(writers) * copy_bytes(replica) +
                              static_cast<size_t>(ranks) * replica.memory()[MemoryCategory::kResiduals]);
  }
  return most;
}

Hold choose_hold(const RunConfig& config, int ranks_here, double memory_here) {
  const LayoutConfig& l = config.layout;
  if (l.hold_given) return l.hold;
  if (l.pipeline == 1 || l.data == 1 || l.placement.weights == Level::kReplicated) return Hold::kUnit;
  RunConfig held = config;
  held.layout.hold = Hold::kStep;
  const double needed = static_cast<double>(plan_memory(held).total()) * ranks_here;
  return needed < memory_here / 2.0 ? Hold::kStep : Hold::kUnit;
}

std::string dry_run_text(const RunConfig& config) {
  RunConfig c = config;
  std::string out;
  const ModelConfig& m = c.model;
  const ParamList params = list_parameters(m);
  const int64_t ranks = c.layout.pipeline * c.layout.tensor * c.layout.data;
  const std::string context = c.layout.context > 1 ? " x context " + std::to_string(c.layout.context) : std::string();
  out +=
      printed("ranks: %lld = pipeline %lld x data %lld%s x tensor %lld, device %s\n", ll(ranks), ll(c.layout.pipeline),
              ll(c.layout.data / c.layout.context), context.c_str(), ll(c.layout.tensor), c.device.c_str());
  const bool gathers = c.layout.data > 1 && c.layout.placement.weights != Level::kReplicated;
  if (gathers) {
    const int ranks_here = static_cast<int>(c.layout.ranks_on_node() > 0 ? c.layout.ranks_on_node() : ranks);
    c.layout.hold = choose_hold(c, ranks_here, static_cast<double>(memory_limit().bytes));
  }
  out += printed("layout: %s\n", layout_text(c).c_str());
  if (gathers)
    out += printed("hold: %s (%s)\n", word_of(c.layout.hold).c_str(),
                   config.layout.hold_given ? "as configured" : "chosen by this machine's memory; key hold fixes it");
  out +=
      printed("parameters: %lld with padding, %lld without (vocabulary %lld, rows %lld)\n",
              ll(count_parameters(params, true)), ll(count_parameters(params, false)), ll(m.vocab), ll(m.padded_vocab));
  out +=
      printed(c.gradient_dtype == DType::bf16
                  ? "precision: %s compute, fp32 master weights and optimizer state, bf16 gradients (summed in fp32)\n"
                  : "precision: %s compute, fp32 master weights, gradients and optimizer state\n",
              std::string(name_of(m.dtype)).c_str());
  if (AttentionCalls calls; c.device == "cuda" && fused_attention(c, calls))
    out += printed("attention: cuDNN's, %zu calls a pass and %s, %.1f MiB of scratch\n", calls.starts.size(),
                   calls.call.part ? "part" : "layer", mib(static_cast<double>(attention_scratch(calls.call))));
  else if (const std::string why = why_own_attention(c); !why.empty())
    out += printed("attention: our own kernels, which are slower than cuDNN's: %s\n", why.c_str());
  out += printed("batch: %lld sequences of %lld tokens = %lld micro-batches of %lld per rank and step\n",
                 ll(c.data.global_batch), ll(c.data.seq_length), ll(c.accumulation), ll(c.data.micro_batch));
  std::vector<StagePrice> stages;
  for (int stage = 0; stage < c.layout.pipeline; ++stage) stages.push_back(price_stage(c, stage));
  print_memory(out, c, stages);
  out += "FLOPs per token, forward and backward:\n";
  out += printed("  model (causal half)      %.6g\n", model_flops_per_token(m));
  out += printed("  model (full attention)   %.6g\n", full_attention_flops_per_token(m));
  out += printed("  hardware (recompute)     %.6g\n", hardware_flops_per_token(m));
  out += printed("tokens per step: %lld, steps: %lld, tokens in all: %.6g\n",
                 ll(c.data.global_batch * c.data.seq_length), ll(c.train_iters),
                 static_cast<double>(samples_after(c.data, c.train_iters)) * static_cast<double>(c.data.seq_length));
  print_sites(out, c, stages);
  print_slack(out, c, stages);
  print_pipeline(out, c, stages);
  return out;
}

}  // namespace thinwire
