// What a run leaves behind, and how it finds its way back in.
#include "engine/run/train/run_session.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"
#include "engine/run/checkpoint/hf_names.h"
#include "engine/run/checkpoint/model_config_json.h"
#include "engine/run/config/resolved_json.h"
#include "engine/run/trace/flops.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"
#include "engine/run/train/memory_check.h"
#include "engine/run/train/process_setup.h"
#include "model/params.h"
#include "parallel/collective/tuning.h"

namespace thinwire {
namespace {

// The tokenizer takes no part in training; what comes of it, vocab_size and eod_token, is compared by itself.
constexpr const char* kPathKeys[] = {"data_path", "train_data_paths", "valid_data_paths", "test_data_paths",
                                     "tokenizer"};

// As many prefixes in both, with the same weights between them ("0.3 a 0.7 b", or a list of such).
bool same_but_names(const nlohmann::json& a, const nlohmann::json& b) {
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_but_names);
  if (!a.is_string() || !b.is_string()) return a == b;
  const auto weights = [](const std::string& text) {
    std::istringstream words(text);
    std::vector<std::optional<double>> list;
    for (std::string word; words >> word;) {
      char* end = nullptr;
      const double number = std::strtod(word.c_str(), &end);
      list.push_back(*end == '\0' ? std::optional(number) : std::nullopt);
    }
    return list;
  };
  return weights(a) == weights(b);
}

std::vector<SiteRecord> site_records(const RunConfig& run, const TrafficCounts& counts) {
  std::vector<SiteRecord> records;
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    const SiteCounters& c = counts.sites[site];
    if (c.operations == 0 && counts.wire_total[site] == 0.0) continue;
    SiteRecord r;
    r.site = std::string(kSiteNames[site]);
    r.logical_bytes = c.logical_bytes, r.wire_bytes = c.wire_bytes;
    r.logical_bytes_total = static_cast<int64_t>(counts.logical_total[site]);
    r.wire_bytes_total = static_cast<int64_t>(counts.wire_total[site]);
    r.baseline_dtype = std::string(name_of(wire_dtype(run, static_cast<Site>(site))));
    r.encode_ms = static_cast<double>(c.compression.encode_ns) * 1e-6,
    r.decode_ms = static_cast<double>(c.compression.decode_ns) * 1e-6;
    if (c.compression.signal_square > 0.0)
      r.rel_error = std::sqrt(c.compression.error_square / c.compression.signal_square);
    if (c.compression.residual_square > 0.0) r.residual_norm = std::sqrt(c.compression.residual_square);
    r.dense_messages = c.compression.dense;
    r.busy_ms = static_cast<double>(c.busy_ns) * 1e-6, r.exposed_ms = static_cast<double>(c.exposed_ns) * 1e-6;
    records.push_back(std::move(r));
  }
  return records;
}

}  // namespace

RunSession::RunSession(const ResolvedConfig& config, FaultPlan& faults, Job& job) : config_(config), job_(job) {
  const RunConfig& run = config.run;
  job.agree([&] {
    if (!job.first()) return log_set_console_level(LogLevel::kError);  // rank 0 speaks for all
    create_run_directory(run.run_dir);
    make_directories(run.save_dir);
    // Runs that save to different places may still have the run directory in common. The same directory is locked once.
    if (!std::filesystem::equivalent(run.run_dir, run.save_dir)) run_lock_.emplace(run.run_dir);
    status_ = std::make_unique<StatusFile>(status_path(run.run_dir), run.train_iters);
  });
  StoreOptions options;
  options.async = run.async_save;
  options.keep_last = run.keep_last;
  options.failed_saves_allowed = 2;
  if (!faults.empty()) options.fault = [&faults](std::string_view point) { faults.reach(point); };
  options.copy = copy_state();
  store_ = std::make_unique<CheckpointStore>(run.save_dir, std::move(options),
                                             job.control());  // locks, too: everything else is ours now
  token_ = job.control().share(job.first() ? lock_of_run().token() : "");
  if (!job.first()) return;
  log_open_file(log_path(run.run_dir));
  log_info("run directory " + run.run_dir);
  if (status_->last()) {
    if (const std::string why = last_killed_for_memory(*status_->last()); !why.empty()) log_warning("warning: " + why);
  }
  step_ = status_->last() ? status_->last()->step : 0;  // until start() says where the run goes on
  status_->running(step_);
  for (const std::string& line : note_lines(config)) log_info("config: " + line);
}

// State may lie in device memory; before start() there is none.
CopyBytes RunSession::copy_state() {
  return [this](std::byte* to, const std::byte* from, size_t bytes) {
    TW_CHECK(device_ != nullptr, "state without a device");
    device_->copy_at_rest(to, from, bytes);
  };
}

std::pair<int64_t, int64_t> RunSession::find_checkpoint() {
  const RunConfig& run = config_.run;
  found_ = store_->newest();
  resumes_ = found_.has_value();
  if (!found_ && !run.load.empty()) {
    try {
      found_ = find_newest_valid(run.load, job_.control());
    } catch (const Error& e) {
      if (e.code() != ExitCode::kBadData) throw;
      throw AgreedError(e.code(), std::string("load: ") + e.what());  // which of all paths it was
    }
  }
  if (!found_ || (!resumes_ && run.finetune)) return {0, 0};
  const auto count = [&](const char* name) {
    const auto there = found_->manifest.integers.find(name);
    return there == found_->manifest.integers.end() ? 0 : there->second;
  };
  return {count("progress/step"), count("progress/consumed_samples")};
}

bool RunSession::taken_over() {
  const auto now = std::chrono::steady_clock::now();
  if (taken_over_ || (looked_ && now - *looked_ < std::chrono::seconds(1))) return taken_over_;
  looked_ = now;
  taken_over_ = is_taken_from(config_.run.run_dir, token_);  // false where it cannot be told now; a save asks, too
  if (taken_over_)
    log_warning("warning: another job has taken over " + config_.run.run_dir +
                ": this one adds no step, status or report there any more, and its next save ends it");
  return taken_over_;
}

bool RunSession::is_of_another_job() {
  looked_.reset();
  if (taken_over()) return true;
  try {
    return !lease_has_token(config_.run.run_dir, token_) && status_->others_wrote();
  } catch (const Error&) {
    return false;
  }
}

void RunSession::plans_steps() {
  if (status_) status_->plans_steps(config_.run.train_iters);
}

double RunSession::minutes() const {
  return std::chrono::duration<double, std::ratio<60>>(std::chrono::steady_clock::now() - started_).count();
}

namespace {

nlohmann::json cut_of(const Replica& replica, const ResolvedConfig& config) {
  nlohmann::json layers = nlohmann::json::array();
  for (int stage = 0; stage < replica.layout().mesh.pipeline; ++stage) {
    const RankLayout layout =
        layout_of(replica.config(), first_rank_of_stage(replica.config(), stage), replica.layout().nodes);
    for (const LayerRange& chunk : layout.shard.chunks) layers.push_back({chunk.first, chunk.count});
  }
  nlohmann::json cut = {{"layers", std::move(layers)}, {"placement", resolved_json(config).at("placement")}};
  if (replica.layout().sends_parts) cut["pipeline_parts"] = replica.layout().mesh.tensor;
  // A GPU has the rows of qkv in another order, unless heads are exchanged: a residual's elements are others then.
  if (replica.layout().shard.queries_apart()) cut["queries_apart"] = true;
  // Of a sum in two levels a rank codes other elements on another grid of nodes; of an all-gather its own on any.
  const MeshShape& mesh = replica.layout().mesh;
  const auto ranks_of_node = [&](std::initializer_list<int> stages) {
    std::vector<int> nodes;
    for (const int stage : stages)
      for (const int rank : data_ranks(mesh, {stage, 0, 0}))
        nodes.push_back(replica.layout().nodes[static_cast<size_t>(rank)]);
    const NodeGrid of_stages = node_grid(nodes, static_cast<int>(nodes.size()));
    return of_stages.two_level() ? of_stages.local : 0;
  };
  const auto in_two_levels = [&](Site site) {
    return std::ranges::any_of(replica.config().compression.at(site),
                               [](const SiteRule& rule) { return rule.algorithm == RuleAlgorithm::kTwoLevel; });
  };
  // Gradients take two levels where the groups of all tensor ranks lie alike (Mesh::channel).
  const NodeGrid grid = common_grid(mesh, replica.layout().nodes, data_ranks(mesh, {0, 0, 0}));
  if (grid.two_level() && in_two_levels(Site::kDpGradient)) cut["ranks_of_node"] = grid.local;
  // An embedding that two stages share is summed in a group of both, or of each and then in pairs (two_step).
  const int last = mesh.pipeline - 1;
  if (last > 0 && replica.config().model.tied_head && in_two_levels(Site::kEmbedding)) {
    const std::vector<int> local = {ranks_of_node({0}), ranks_of_node({last}), ranks_of_node({0, last})};
    if (local != std::vector<int>{0, 0, 0}) cut["embedding_ranks_of_node"] = local;
  }
  return cut;
}

}  // namespace

nlohmann::json RunSession::checkpoint_info() const {
  nlohmann::json info = {{"model", model_config_to_json(config_.run.model)},
                         {"config", resolved_json(config_)},
                         {"tokenizer", config_.run.tokenizer},
                         {"data", fingerprint_},
                         {"data_order", order_},
                         {"layout",
                          {{"pipeline", config_.run.layout.pipeline},
                           {"tensor", config_.run.layout.tensor},
                           {"data", config_.run.layout.data}}},
                         {"cut", cut_}};
  if (!costs_.is_null()) info["measured_costs"] = costs_;
  if (owes_evaluation_) info["owes_evaluation"] = true;
  return info;
}

std::optional<std::array<double, 3>> RunSession::measured_costs(const std::string& origin) const {
  if (!resumes_) return std::nullopt;
  const nlohmann::json stored = found_->manifest.info.value("measured_costs", nlohmann::json());
  if (stored.is_null() || stored.at("origin") != origin) return std::nullopt;
  return stored.at("ms").get<std::array<double, 3>>();
}

bool RunSession::has_revisions() const {
  if (!found_) return false;
  const auto list = found_->manifest.texts.find("revision/list");
  return list != found_->manifest.texts.end() && list->second != "[]";
}

void RunSession::keep_costs(const std::string& origin, const std::array<double, 3>& costs) {
  costs_ = {{"origin", origin}, {"ms", costs}};
}

VisitState RunState::visit(bool writer_only) const {
  return [*this, writer_only](StateVisitor& visitor) {
    replica.visit(visitor, writer_only);
    scaler.visit(visitor);
    revisions.visit(visitor);
    controller.visit(visitor);
    spikes.visit(visitor);
    visitor.integer("progress/step", progress.step);
    visitor.integer("progress/updates", progress.updates);
    visitor.integer("progress/consumed_samples", progress.consumed_samples);
    visitor.integer("progress/consumed_tokens", progress.consumed_tokens);
    visitor.integer("progress/skipped", progress.skipped);
    visitor.integer("progress/skipped_samples", progress.skipped_samples);
    visitor.integer("progress/skipped_in_a_row", progress.skipped_in_a_row);
  };
}

void RunSession::refuse_other_model(const VerifiedCheckpoint& found) const {
  const nlohmann::json& info = found.manifest.info;
  if (!info.contains("config")) return;
  const std::string data = info.value("data", "");
  nlohmann::json here = resolved_json(config_);
  if (data == fingerprint_) {  // the same files in another place are the same data
    for (const char* key : kPathKeys) {
      if (here.contains(key) && info.at("config").contains(key) &&
          same_but_names(info.at("config").at(key), here.at(key)))
        here[key] = info.at("config").at(key);
    }
  }
  const std::vector<std::string> differing = differing_keys(info.at("config"), here);
  std::string text;
  for (const std::string& d : differing) text += "\n  " + d;
  if (data != fingerprint_) text += "\n  data files: checkpoint " + data + ", now " + fingerprint_;
  if (!text.empty()) {
    throw_bad_config(
        found.path + ": this checkpoint belongs to another model or other data (checkpoint, configuration):" + text +
        "\nset these keys back, or start anew in another run_dir, there from these weights if the model is the "
        "same: load=" +
        found.path + " finetune=true");
  }
}

// Not refused: whoever trains longer than planned may well do so over the data once more.
void RunSession::warn_of_other_order(const VerifiedCheckpoint& found) const {
  const nlohmann::json before = found.manifest.info.value("data_order", nlohmann::json::object());
  std::string text;
  for (const auto& [split, order] : order_.items()) {
    const std::string was = before.value(split, "");
    if (was.empty() || order == "" || order == was) continue;
    text += (text.empty() ? "" : "; ") + split + ": " + was + ", now " + order.get<std::string>();
  }
  if (text.empty()) return;
  log_warning("warning: the data come in another order than before the checkpoint (" + text +
              "), because train_iters, train_batch_size, eval_interval or eval_iters ask for another number of "
              "samples: some may come "
              "again and others late; set these keys back to keep the order");
}

LoadOptions RunSession::load_options() {
  LoadOptions options;
  if (device_->memory_total() > 0) options.copy = copy_state();
  return options;
}

bool RunSession::load_from(const VerifiedCheckpoint& found, const RunState& state) {
  const RunConfig& run = config_.run;
  bool replica_loaded = false;
  if (run.finetune) {
    const std::string other = require_same_model(found.path, model_of(found), run.model, true);
    if (!other.empty())
      log_warning("warning: finetune takes these weights under other keys (theirs, this configuration's):" + other);
    const auto weights = [&](StateVisitor& v) { state.replica.visit_weights(v, false); };
    load_checkpoint(found, weights, load_options(), job_.control());
  } else {
    if (found.manifest.info.contains("imported_from"))
      throw_bad_config("load: " + found.path + " was imported and holds weights only: say finetune=true beside load");
    replica_loaded = go_on_from(found, state, !run.no_load_optim);
  }
  log_info("loaded " + found.path +
           (run.finetune        ? " (weights only)"
            : run.no_load_optim ? " (without optimizer state)"
                                : ""));
  return replica_loaded;
}

void RunSession::import_weights(Replica& replica) {
  const RunConfig& run = config_.run;
  require_same_model(run.init_from_hf, read_hf_model(run.init_from_hf), run.model);
  const ParamList params = list_parameters(run.model);
  const HfMapping mapping(run.model, params);
  mapping.read_hf(HfTensors(run.init_from_hf), [&](const ParamSpec& p, std::vector<float> values) {
    replica.store().set(replica.device(), replica.stream(), p.name, values);
  });
  log_info("weights from " + run.init_from_hf);
}

void RunSession::start(const RunState& state, const SampleStream& stream) {
  const RunConfig& run = config_.run;
  Replica& replica = state.replica;
  const TrainProgress& progress = state.progress;
  fingerprint_ = stream.fingerprint();
  const std::string first = job_.control().share(fingerprint_);
  job_.agree([&] {
    if (first != fingerprint_) {
      throw_bad_data("the data files are not those of rank 0 (bytes of .bin:bytes of .idx:hash of .idx): " +
                     fingerprint_ + " here, " + first + " there; give every node the same files");
    }
  });
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) order_[name_of(split)] = stream.order(split);
  cut_ = cut_of(replica, config_);
  device_ = &replica.device();
  bool replica_loaded = false;
  job_.agree([&] {
    if (resumes_) {
      replica_loaded = go_on_from(*found_, state, true);
      owes_evaluation_ = found_->manifest.info.contains("owes_evaluation");
      if (!run.load.empty()) {
        log_warning("warning: load=" + run.load + " is not used: " + found_->path + " is step " +
                    std::to_string(found_->manifest.step) +
                    " of this run, which goes on from there; to start from load choose another run_dir");
      }
      last_saved_step_ = progress.step;
      log_info("resumed from " + found_->path + ": step " + std::to_string(progress.step) + ", " +
               std::to_string(progress.consumed_samples) + " samples consumed" + other_layout(found_->manifest.info));
      return;
    }
    replica.store().initialize(replica.exec(), run.seed);
    if (found_) {
      replica_loaded = load_from(*found_, state);
    } else if (!run.init_from_hf.empty()) {
      import_weights(replica);
    }
  });
  found_.reset();
  replica.weights_changed(replica_loaded);
  step_ = progress.step;
  if (!job_.first()) return;
  status_->running(step_);
  // Only now: a configuration that was refused is not the configuration of this run.
  write_file_atomic(resolved_config_path(run.run_dir), resolved_json(config_).dump(2) + "\n");
  metrics_ = std::make_unique<MetricsLog>(metrics_path(run.run_dir), progress.step);
  tensorboard_ = std::make_unique<TensorboardWriter>(tensorboard_dir(run.run_dir), progress.step + 1);
  tensorboard_->hyper_parameters(resolved_json(config_));
  console_ = std::make_unique<ConsoleProgress>(stdout, run.train_iters, run.log_interval, progress.step + 1);
}

void RunSession::record_step(const StepOutcome& outcome, const TrainProgress& progress, const StepTimer& timer,
                             double step_ms, int64_t samples, const std::optional<StragglerWatch::Report>& stragglers) {
  const RunConfig& run = config_.run;
  step_ = progress.step;
  if (!job_.first() || taken_over()) return;
  if (outcome.spike.spike) report_spike(outcome);
  StepRecord r;
  r.step = progress.step;
  r.consumed_samples = progress.consumed_samples;
  r.consumed_tokens = progress.consumed_tokens;
  r.loss = outcome.loss, r.lr = outcome.lr, r.grad_norm = outcome.grad_norm, r.loss_scale = outcome.loss_scale;
  r.attention_imbalance = outcome.attention_imbalance;
  r.skipped = outcome.skipped, r.listed = outcome.listed, r.non_finite = outcome.non_finite;
  r.wall_s = status_->wall_seconds();
  r.step_ms = step_ms;
  r.samples_per_s = static_cast<double>(samples) / step_ms * 1e3;
  r.tokens_per_s = r.samples_per_s * static_cast<double>(run.data.seq_length);
  const double share = r.tokens_per_s / static_cast<double>(job_.size());
  r.model_tflops_per_rank = share * model_flops_per_token(run.model) / 1e12;
  r.model_tflops_full_attn = share * full_attention_flops_per_token(run.model) / 1e12;
  r.hw_tflops = share * hardware_flops_per_token(run.model) / 1e12;
  if (run.peak_tflops > 0.0) r.mfu = r.model_tflops_per_rank / run.peak_tflops;
  const size_t device_peak = device_ != nullptr ? device_->memory_peak() : 0;
  r.memory_peak_bytes = device_peak > 0 ? static_cast<int64_t>(device_peak) : peak_rss_bytes();
  for (StepPart part : {StepPart::kData, StepPart::kForward, StepPart::kBackward, StepPart::kOptimizer,
                        StepPart::kEvaluation, StepPart::kCheckpoint}) {
    r.time_ms.emplace_back(std::string(name_of(part)), timer.ms(part));
  }
  r.comm = site_records(run, outcome);
  if (!r.listed) r.revisions = std::exchange(begun_, "");
  if (outcome.spike.spike) r.spike_spreads = outcome.spike.spreads, r.spike_median = outcome.spike.median;
  if (stragglers) {
    r.stragglers = stragglers->named;
    std::vector<std::string> lines;
    for (const StragglerRecord& s : stragglers->named) lines.push_back(text_of(s));
    status_->stragglers(std::move(lines));
  }
  metrics_->write(r);
  if (!r.listed)
    tensorboard_->scalars(r.step, {{"train/loss", r.loss},
                                   {"train/lr", r.lr},
                                   {"train/grad_norm", r.grad_norm},
                                   {"train/loss_scale", r.loss_scale},
                                   {"speed/tokens_per_s", r.tokens_per_s},
                                   {"speed/model_tflops", r.model_tflops_per_rank}});
  console_->step(r);
  status_->running(r.step);
}

void RunSession::record_revisions(const PlanRevisions& revisions, int64_t updates) {
  if (!job_.first() || (revisions.empty() && !config_.run.compression.adapt && !revisions.replays())) return;
  if (taken_over()) return;
  begun_ = revisions.begun_with(updates + 1);
  // The text grows with the run: it is made where it has changed, by what the next update is the first one under.
  if (begun_.empty() && recorded_revisions_) return;
  recorded_revisions_ = true;
  const std::string path = revisions_path(config_.run.run_dir);
  std::error_code none;
  if (std::filesystem::equivalent(path, config_.run.compression.revisions, none)) return;
  try {
    write_file_atomic(path, revisions.text(updates));
  } catch (const Error& e) {  // as for metrics, a disk that is full for a while ends nothing: checkpoints hold it, too
    recorded_revisions_ = false;
    if (!std::exchange(warned_of_revisions_, true))
      log_warning(std::string("warning: ") + e.what() + "; written anew behind each update until it can be");
  }
}

void RunSession::report_spike(const StepOutcome& outcome) {
  const std::string text =
      printed("step %lld: loss %.4f jumps %.1f spreads above the median %.4f of the window; %s",
              static_cast<long long>(step_), outcome.loss, outcome.spike.spreads, outcome.spike.median,
              outcome.spike.skip    ? "the step is skipped"
              : outcome.spike.shift ? "spike_budget is spent: taken for a real shift, the window begins anew"
                                    : "the step is applied (spike skip would drop it)");
  log_warning(text);
  status_->spike(text);
}

void RunSession::record_evaluation(const Evaluation& evaluation, int64_t step, Split split) {
  if (!job_.first() || taken_over()) return;
  EvalRecord r;
  r.step = step;
  r.eval_loss = evaluation.loss, r.perplexity = evaluation.perplexity, r.eval_ms = evaluation.ms,
  r.eval_tokens = evaluation.tokens, r.by_position = evaluation.by_position;
  r.wall_s = status_->wall_seconds();
  r.split = name_of(split);
  r.comm = site_records(config_.run, evaluation.traffic);
  metrics_->write(r);
  tensorboard_->scalars(step, {{r.split + "/loss", r.eval_loss}, {r.split + "/perplexity", r.perplexity}});
  console_->eval(r);
}

void RunSession::save(const RunState& state, bool wait) {
  if (wait) store_->wait();
  // A save of this very step that failed, and was allowed to, gets a second chance when it is the last one.
  if (last_saved_step_ != state.progress.step || (wait && store_->last_save().failed)) {
    if (state.replica.has_replica_state()) state.replica.traffic().finish_param_sync();
    store_->save(state.progress.step, state.visit(true), checkpoint_info());
    last_saved_step_ = state.progress.step;
  }
  if (wait) store_->wait(true);
}

bool RunSession::has_evaluation(int64_t step, Split split) const {
  bool found = false;
  std::ifstream lines;
  if (job_.first()) lines.open(metrics_path(config_.run.run_dir));
  for (std::string line; !found && std::getline(lines, line);) {
    if (line.find("\"eval_loss\"") == std::string::npos) continue;  // most are steps: parsing them takes seconds
    const nlohmann::json record = parse_shallow(line), none;
    found = record.is_object() && record.contains("eval_loss") && record.value("step", none) == step &&
            record.value("split", none) == name_of(split);
  }
  return job_.control().agree_max(found) != 0;
}

void RunSession::plans_memory(const std::string& planned) {
  if (status_) status_->plans_memory(planned);
}

void RunSession::finish(ExitCode code, const std::string& message) {
  if (!job_.first()) {
    if (code == ExitCode::kFinished || code == ExitCode::kPreempted || is_taken_from(config_.run.run_dir, token_))
      return;
    // This rank alone knows why the job ends; rank 0 will not get the chance to write it down.
    StatusFile file(status_path(config_.run.run_dir), config_.run.train_iters);
    file.adopt(job_.began());
    file.ended(code, step_, "rank " + std::to_string(job_.rank()) + ": " + message);
    return;
  }
  if (console_) console_->clear_bar();
  if (is_of_another_job()) return;  // a status, metrics and a report that are that job's
  status_->ended(code, step_, message);
  if (!message.empty()) log_write_file(LogLevel::kError, "error: " + message);  // the console hears it from main
  log_write_file(LogLevel::kInfo,
                 "ended with code " + std::to_string(static_cast<int>(code)) + " at step " + std::to_string(step_));
  metrics_.reset();
  if (tensorboard_ && code != ExitCode::kPreempted) tensorboard_->ended(code == ExitCode::kFinished);
  tensorboard_.reset();
  try {
    write_file_atomic(report_path(config_.run.run_dir), report_page({load_run(config_.run.run_dir)}), false);
  } catch (const std::exception& e) {  // no memory for it, too: the run has ended, and well
    log_warning(std::string("no report: ") + e.what());
  }
}

}  // namespace thinwire
