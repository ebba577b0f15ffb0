// The plain mapping from final key values to the structs that the modules read.
#include "engine/run/config/run_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/core/check.h"
#include "engine/base/core/shipped.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/config/resolver.h"

namespace thinwire {
namespace {

using Values = std::map<std::string, nlohmann::json>;

// Kernels read these as fp32, in which a number next to an open bound of its key would be the bound.
double above_zero(double x) {
  return std::max(x, static_cast<double>(std::numeric_limits<float>::denorm_min()));
}
double below_one(double x) {
  return static_cast<float>(x) < 1.0f ? x : 0x1.fffffep-1;
}

class Reader {
 public:
  explicit Reader(const Values& values) : values_(values) {}
  const nlohmann::json& at(const std::string& key) const {
    const auto it = values_.find(key);
    TW_CHECK(it != values_.end(), "configuration key ", key, " was not resolved");
    return it->second;
  }
  int64_t integer(const std::string& key) const { return at(key).get<int64_t>(); }
  double real(const std::string& key) const { return at(key).get<double>(); }
  bool flag(const std::string& key) const { return at(key).get<bool>(); }
  std::string text(const std::string& key) const {
    return at(key).is_null() ? std::string() : at(key).get<std::string>();
  }

  // The table has already refused other words.
  template <typename E>
  E pick(const std::string& key) const {
    return from_word<E>(text(key));
  }

 private:
  const Values& values_;
};

ModelConfig model_config(const Reader& r) {
  ModelConfig m;
  m.layers = r.integer("num_layers");
  m.hidden = r.integer("hidden_size");
  m.heads = r.integer("num_attention_heads");
  m.kv_heads = r.integer("num_kv_heads");
  m.head_dim = r.integer("head_dim");
  m.ffn = r.integer("ffn_hidden_size");
  m.vocab = r.integer("vocab_size");
  const int64_t multiple = r.integer("make_vocab_size_divisible_by");
  m.padded_vocab = (m.vocab + multiple - 1) / multiple * multiple;
  m.seq_length = r.integer("seq_length");
  m.max_positions = r.integer("max_position_embeddings");
  m.positions = r.pick<PositionKind>("pos_emb");
  m.rotary_fraction = static_cast<float>(r.real("rotary_pct"));
  m.rotary_base = static_cast<float>(r.real("rotary_emb_base"));
  if (r.flag("use_rope_scaling")) {
    m.rope_scaling = {
        static_cast<float>(r.real("rope_scaling_factor")), static_cast<float>(r.real("rope_low_freq_factor")),
        static_cast<float>(r.real("rope_high_freq_factor")), r.integer("rope_original_max_position_embeddings")};
  }
  if (!r.at("sliding_window_width").is_null()) m.window = r.integer("sliding_window_width");
  m.gain_norm = r.text("norm") != "non_parametric_layernorm";
  m.norm = m.gain_norm ? r.pick<NormKind>("norm") : NormKind::kLayerNorm;
  const bool rms = m.norm == NormKind::kRmsNorm;
  m.norm_eps = static_cast<float>(above_zero(r.real(rms ? "rms_norm_epsilon" : "layernorm_epsilon")));
  m.activation = r.text("activation") == "swiglu" ? ActivationKind::kSwiglu
                 : r.flag("bias_gelu_fusion")     ? ActivationKind::kGeluTanh
                                                  : ActivationKind::kGeluExact;
  m.parallel_residual = r.flag("gpt_j_residual");
  m.tied_head = !r.flag("no_weight_tying");
  m.bias_attention = r.flag("use_bias_in_attn_linear");
  m.bias_mlp = r.flag("use_bias_in_mlp");
  m.bias_norm = !rms && m.gain_norm && r.flag("use_bias_in_norms");
  m.init = r.pick<InitMethod>("init_method");
  m.output_init = r.pick<InitMethod>("output_layer_init_method");
  m.init_std = static_cast<float>(r.real("init_method_std"));
  m.hidden_dropout = static_cast<float>(below_one(r.real("hidden_dropout")));
  m.attention_dropout = static_cast<float>(below_one(r.real("attention_dropout")));
  m.recompute = r.pick<Recompute>("recompute_granularity");
  m.sequence_chunk = r.integer("sequence_chunk_size");
  // (A CPU has its activations in the host's memory.)
  m.offload = r.text("activation_offload") == "disk"                                 ? Offload::kDisk
              : r.text("activation_offload") == "host" && r.text("device") == "cuda" ? Offload::kHost
                                                                                     : Offload::kNone;
  m.dtype = r.pick<DType>("precision");
  m.fp8 = r.text("fp8_format") == "hybrid";
  m.decay_all_matrices = r.flag("weight_decay_embeddings");
  return m;
}

OptimConfig optim_config(const Reader& r) {
  OptimConfig o;
  o.kind = r.pick<OptimizerKind>("optimizer.type");
  o.lr = r.real("optimizer.params.lr");
  o.min_lr = r.real("min_lr");
  o.beta1 = r.at("optimizer.params.betas").at(0).get<double>();
  o.beta2 = r.at("optimizer.params.betas").at(1).get<double>();
  o.eps = above_zero(r.real("optimizer.params.eps"));
  o.momentum = below_one(r.real("optimizer.params.momentum"));
  if (static_cast<float>(o.momentum) == 0.0f) o.momentum = 0.0;
  o.weight_decay = r.real("weight_decay");
  o.clip = r.real("gradient_clipping");
  o.decay = r.pick<LrDecay>("lr_decay_style");
  o.by_samples = r.text("lr_schedule_unit") == "samples";
  o.decay_iters = r.integer("lr_decay_iters");
  o.warmup_iters = r.integer("lr_warmup_iters");
  o.warmup_init = r.real("lr_warmup_init");
  o.warmup_convention = r.pick<WarmupConvention>("lr_warmup_convention");
  o.wsd_decay = r.pick<WsdDecay>("lr_wsd_decay_style");
  o.wsd_decay_iters = r.at("lr_wsd_decay_iters").is_null() ? 0 : r.integer("lr_wsd_decay_iters");
  const double fixed = r.real("fp16.loss_scale");
  o.dynamic_loss_scale = fixed == 0.0;
  o.loss_scale =
      o.dynamic_loss_scale ? std::ldexp(1.0, static_cast<int>(r.integer("fp16.initial_scale_power"))) : fixed;
  o.loss_scale_window = r.integer("fp16.loss_scale_window");
  o.hysteresis = r.integer("fp16.hysteresis");
  o.min_loss_scale = r.real("fp16.min_loss_scale");
  o.non_finite_budget = r.integer("non_finite_budget");
  return o;
}

std::vector<WeightedPrefix> prefixes(const Reader& r, const std::string& paths, const std::string& weights) {
  if (r.at(paths).is_null()) return {};
  std::vector<WeightedPrefix> result = parse_prefixes(r.at(paths));
  for (WeightedPrefix& p : result)
    if (const std::string shipped = shipped_file(p.prefix, ".idx"); !shipped.empty()) p.prefix = shipped;
  if (weights.empty() || r.at(weights).is_null()) return result;
  for (size_t i = 0; i < result.size(); ++i) result[i].weight = r.at(weights).at(i).get<double>();
  return result;
}

DataConfig data_config(const Reader& r) {
  DataConfig d;
  d.data = prefixes(r, "data_path", "");
  d.train = prefixes(r, "train_data_paths", "train_data_weights");
  d.valid = prefixes(r, "valid_data_paths", "valid_data_weights");
  d.test = prefixes(r, "test_data_paths", "test_data_weights");
  d.split = r.text("split");
  d.blend_surplus = r.real("mid_level_dataset_surplus");
  d.seq_length = r.integer("seq_length");
  d.seed = static_cast<uint64_t>(r.integer("seed"));
  d.documents.mask_loss = r.flag("eod_mask_loss");
  d.documents.reset_attention = r.flag("reset_attention_mask");
  d.documents.reset_positions = r.flag("reset_position_ids");
  d.documents.eod_token = r.integer("eod_token");
  d.per_token_loss = r.flag("calculate_per_token_loss");
  d.vocab = r.integer("vocab_size");
  d.micro_batch = r.integer("train_micro_batch_size_per_gpu");
  d.global_batch = r.integer("train_batch_size");
  if (const nlohmann::json& ramp = r.at("rampup_batch_size"); !ramp.is_null()) {
    d.ramp_start = ramp.at(0).get<int64_t>();
    d.ramp_increment = ramp.at(1).get<int64_t>();
    d.ramp_samples = ramp.at(2).get<int64_t>();
  }
  d.train_iters = r.integer("train_iters");
  d.eval_interval = r.integer("eval_interval");
  d.eval_iters = std::max<int64_t>(0, r.integer("eval_iters"));
  d.prefetch_batches = static_cast<int>(r.integer("prefetch_batches"));
  return d;
}

LayoutConfig layout_config(const Reader& r) {
  LayoutConfig l;
  l.pipeline = r.integer("pipe_parallel_size");
  l.tensor = r.integer("model_parallel_size");
  l.data = r.integer("global_num_gpus") / (l.pipeline * l.tensor);
  l.context = r.integer("context_parallel_size");
  l.sequence_way = r.pick<SequenceWay>("cp_comm_type");
  l.sequence_parallel = r.flag("sequence_parallel");
  l.scatter_in_pipeline = r.flag("scatter_gather_tensors_in_pipeline");
  l.schedule_kind = r.pick<ScheduleKind>("schedule");
  l.virtual_chunks = r.integer("virtual_chunks");
  l.partition = r.pick<PartitionMethod>("pipe_partition_method");
  if (const nlohmann::json& costs = r.at("pipe_partition_costs"); !costs.is_null()) {
    l.costs_given = true;
    l.layer_ms = costs.at(0).get<double>();
    l.embedding_ms = costs.at(1).get<double>();
    l.head_ms = costs.at(2).get<double>();
  }
  l.placement.weights = r.pick<Level>("placement.weights");
  l.placement.gradients = r.pick<Level>("placement.gradients");
  l.placement.optimizer = r.pick<Level>("placement.optimizer");
  if (!r.at("placement.secondary").is_null()) l.placement.secondary = r.pick<Level>("placement.secondary");
  l.hold_given = r.text("hold") != "auto";
  if (l.hold_given) l.hold = r.pick<Hold>("hold");
  l.embedding_sync = r.pick<EmbeddingSyncKind>("embedding_sync");
  l.overlap_communication = r.flag("zero_optimization.overlap_comm");
  l.ranks_per_node = r.integer("ranks_per_node");
  l.watchdog_seconds = r.real("watchdog_seconds");
  l.start_timeout_s = r.real("start_timeout_s");
  l.link_gbps = r.real("link_gbps");
  l.tuning.all_reduce = r.pick<Algorithm>("communication.all_reduce");
  l.tuning.reduce_scatter = r.pick<Algorithm>("communication.reduce_scatter");
  l.tuning.all_gather = r.pick<Algorithm>("communication.all_gather");
  l.tuning.chunk_bytes = r.integer("communication.chunk_bytes");
  l.tuning.small_bytes = r.integer("communication.small_bytes");
  const nlohmann::json& checksum = r.at("checksum");
  l.tuning.checksums = checksum == true              ? Checksums::kAll
                       : checksum == "between_nodes" ? Checksums::kBetweenNodes
                                                     : Checksums::kNone;
  l.trace = r.flag("trace");
  if (const nlohmann::json& range = r.at("trace_steps"); range.is_array()) {
    l.trace_first = range.at(0).get<int64_t>();
    l.trace_steps = range.at(1).get<int64_t>() - l.trace_first + 1;
  } else {
    l.trace_steps = range.get<int64_t>();
  }
  return l;
}

}  // namespace

RunConfig to_run_config(const Values& values) {
  const Reader r(values);
  RunConfig c;
  c.model = model_config(r);
  c.optim = optim_config(r);
  c.data = data_config(r);
  c.layout = layout_config(r);
  c.run_dir = r.text("run_dir");
  c.device = r.text("device");
  // A GPU wants products of thousands of rows: at a vocabulary of 128 Ki this is 4096 of them in 16 bits.
  if (c.device == "cuda") c.model.head_chunk_bytes = int64_t{1} << 30;
  c.threads_per_rank = r.integer("threads_per_rank");
  c.seed = static_cast<uint64_t>(r.integer("seed"));
  c.deterministic = r.flag("deterministic");
  c.product_table = r.text("product_table");
  c.cuda_graphs = r.flag("cuda_graphs");
  c.gradient_dtype = r.pick<DType>("grad_dtype");
  c.train_iters = r.integer("train_iters");
  c.spike.action = r.pick<SpikeAction>("spike");
  c.spike.window = r.integer("spike_window");
  c.spike.threshold = r.real("spike_threshold");
  c.spike.budget = r.integer("spike_budget");
  for (const double step : r.at("iterations_to_skip")) c.iterations_to_skip.insert(static_cast<int64_t>(step));
  c.straggler_interval = r.integer("straggler_interval");
  c.straggler_ratio = r.real("straggler_ratio");
  c.accumulation = r.integer("gradient_accumulation_steps");
  c.eval_interval = r.integer("eval_interval");
  c.eval_iters = std::max<int64_t>(0, r.integer("eval_iters"));
  c.log_interval = r.integer("log_interval");
  c.weight_hash_interval = r.integer("check_weight_hash_across_dp_replicas_interval");
  c.save_interval = r.integer("save_interval");
  c.save_interval_minutes = r.real("save_interval_minutes");
  for (const double step : r.at("extra_save_iters")) c.extra_save_iters.push_back(static_cast<int64_t>(step));
  c.keep_last = r.integer("keep_last_n_checkpoints");
  c.async_save = r.flag("async_save");
  c.save_dir = r.text("save");
  c.load = r.text("load");
  c.finetune = r.flag("finetune");
  c.no_load_optim = r.flag("no_load_optim");
  c.init_from_hf = r.text("init_from_hf");
  c.exit_interval = r.integer("exit_interval");
  c.exit_duration_in_mins = r.real("exit_duration_in_mins");
  c.peak_tflops = r.real("peak_theoretical_tflops");
  c.tokenizer = r.text("tokenizer");
  c.compression.preset = r.text("compression.preset");
  c.compression.adapt = r.flag("compression.adapt");
  if (!r.at("compression.adapt_interval").is_null()) c.adapt_interval = r.integer("compression.adapt_interval");
  c.compression.revisions = r.text("compression.revisions");
  if (const nlohmann::json& table = r.at("compression.sensitivities"); !table.is_null())
    table.get_to(c.compression.sensitivities);
  c.compression.sends_momentum = r.text("compression.sends") == "momentum";
  if (!r.at("faults").empty()) c.faults_json = r.at("faults").dump();
  return c;
}

}  // namespace thinwire
