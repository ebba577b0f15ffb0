// The training loop: start, steps, evaluations and saves, and the ways in which a run ends.
#include "engine/run/train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "data/batch_ramp.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/program.h"
#include "engine/run/trace/console_progress.h"
#include "engine/run/trace/run_files.h"
#include "engine/run/train/backend.h"
#include "engine/run/train/device_traffic_choice.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/memory_check.h"
#include "engine/run/train/process_setup.h"
#include "engine/run/train/product_choice.h"
#include "engine/run/train/run_session.h"
#include "engine/run/train/settle_layout.h"
#include "engine/run/train/step_trace.h"
#include "engine/run/train/straggler_watch.h"
#include "engine/run/train/weight_hashes.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

// Schedules are validated before they run. That all ranks have the same ones, the configuration's fingerprint checks.
void validate_plan(const RankLayout& layout) {
  const std::string fault = validate(make_plans(layout.pipeline), layout.pipeline);
  TW_CHECK(fault.empty(), "the schedule is wrong: ", fault);
}

// What timing has decided: here, in an earlier job of the run, or in the run that is replayed.
struct Settled {
  PlanRevisions revisions;
  std::string origin;                          // ranks, hosts, layout and rules: where it was timed
  std::optional<std::array<double, 3>> costs;  // of the pipeline's partition
};

Settled settle(const ResolvedConfig& config, RunConfig& run, RunSession& session, Job& job) {
  Settled settled{.revisions = PlanRevisions(revisions_run(config)), .origin = "", .costs = {}};
  const std::string& path = run.compression.revisions;
  if (!path.empty()) {
    const SiteWays ways = coding_ways(run, mesh_shape(run));
    const std::string text = job.control().made_by_first([&] { return read_revisions(path); });
    job.agree([&] { settled.revisions = PlanRevisions::replayed(path, text, config, ways); });
    log_info("plan revisions are those of " + path + ": nothing is measured");
  }
  std::string hosts;
  for (const std::string& host : job.control().collect(this_host())) hosts += host + " ";
  settled.origin = revisions_run(config) + " on " + job.control().share(hosts);
  const LayoutConfig& l = run.layout;
  const bool measures = l.partition == PartitionMethod::kTime && !l.costs_given && l.pipeline > 1;
  std::optional<std::array<double, 3>> known = settled.revisions.partition();
  if (measures && !known) known = session.measured_costs(settled.origin);
  settled.costs = settle_layout(run, job, known);
  if (settled.costs) session.keep_costs(settled.origin, *settled.costs);
  // Also if adapt has been switched off since: how the first updates were coded stays part of the run.
  if (settled.costs || run.compression.adapt || session.has_revisions()) settled.revisions.keep();
  return settled;
}

// For a resume after a change of the batch size: the consumed samples are kept, and train_samples stays the length of
// the run, so train_iters changes.
void resume_with_other_batches(ResolvedConfig& config, RunSession& session, Job& job) {
  const auto [iters, samples] = session.find_checkpoint();
  job.agree([&] {
    if (samples_after(config.run.data, iters) == samples) return;
    const ResolvedConfig resumed = config.resumed_at(iters, samples);
    config.values = resumed.values;
    config.run.train_iters = resumed.run.train_iters;
    config.run.data = resumed.run.data;
    config.run.optim = resumed.run.optim;
    config.run.compression = resumed.run.compression;  // warm-ups and ramps may be shares of train_iters
    session.plans_steps();
    log_warning("warning: the " + std::to_string(iters) + " steps of the checkpoint took " + std::to_string(samples) +
                " samples, in other batches than train_batch_size and rampup_batch_size make now; train_iters is " +
                std::to_string(config.run.train_iters));
  });
}

class Trainer {
 public:
  // planned: receives the memory plan as text, for the message of out_of_memory().
  Trainer(const RunConfig& run, FaultPlan& faults, RunSession& session, Job& job, Settled& settled,
          std::string& planned)
      : run_(run),
        revisions_(settled.revisions),
        faults_(faults),
        session_(session),
        job_(job),
        backend_(open_backend(run_.device, job.local_rank())) {
    job.agree([&] { stream_.emplace(run_.data); });
    log_info("device " + backend_.device->description() + ", " + backend_.ops->isa() + ", " +
             std::to_string(resolve_threads(run_)) + " threads");
    log_info(stream_->describe());
    if (const std::string why = why_own_attention(run_); !why.empty() && job.first())
      log_warning("warning: attention runs on our own kernels, which are slower than cuDNN's: " + why);
    RankLayout layout;
    const int sharers = backend_.device->memory_total() > 0 ? job.sharers(backend_.device->memory_owner()) : 1;
    job.agree([&] {
      planned = refuse_what_does_not_fit(run_, job.local_size(), *backend_.device, true, sharers);
      job.plans_memory(planned);
      session_.plans_memory(planned);
      layout = layout_of(run_, job.rank(), job.nodes());
      validate_plan(layout);
    });
    products_ = choose_products(run_, job, *backend_.device, *backend_.ops);
    traffic_ = choose_device_traffic(run_, job, *backend_.device);
    job.agree([&] {
      replica_ = std::make_unique<Replica>(run_, layout, job.mesh(), backend_.device.get(), backend_.ops, true);
      use_products(replica_->exec(), products_);
    });
    replica_->connect();
    log_memory();
    scaler_ = std::make_unique<LossScaler>(run_.optim, run_.model.dtype == DType::f16);
    const MeshShape& shape = replica_->layout().mesh;
    controller_ = std::make_unique<CompressionController>(
        run_.compression.adapt && !run_.compression.rules.empty(), coding_ways(run_, shape),
        steps_of_warm_up(run_, shape, false), run_.adapt_interval, job_.mesh(), job_.control(), settled.revisions,
        settled.origin);
    std::vector<int> stages;  // by rank
    for (int rank = 0; rank < job.size(); ++rank) stages.push_back(coordinates_of(shape, rank).pipeline);
    stragglers_ = std::make_unique<StragglerWatch>(run_.straggler_interval, run_.straggler_ratio, std::move(stages),
                                                   job.hosts(), job_.control());
    waited_ns_.resize(static_cast<size_t>(job.size()));
    session_.start(state(), *stream_);
    if (const std::string dropped = controller_->resume(progress_.updates); !dropped.empty()) log_info(dropped);
    if (settled.costs && !revisions_.replays() && revisions_.partition() != settled.costs)
      revisions_.add(
          {.after = progress_.updates, .site = {}, .way = {}, .partition = settled.costs, .why = "measured"});
    session_.record_revisions(revisions_, progress_.updates);
    reset_spent_budget();
    // An evaluation may come before the first step.
    if (job_.mesh() != nullptr) job_.mesh()->clock().step = progress_.updates;
  }

  ~Trainer() {
    if (job_.mesh() != nullptr) job_.mesh()->progress().set_sink(nullptr);
  }

  ExitCode run() {
    if (progress_.step >= run_.train_iters) {
      log_info("nothing to train: step " + std::to_string(progress_.step) + " of " + std::to_string(run_.train_iters) +
               " is done");
      save(true);  // the weights of `load` or of the seed, if this directory does not have them yet
    } else if (const char* why = train_loop()) {
      return stop(why);
    }
    // The last evaluations, which a job that ended after its last save, or was stopped in its last step, may have left
    // undone. Splits are sized for train_iters, which may be less than what an earlier job has trained.
    const int64_t last = std::max<int64_t>(1, std::min(progress_.step, run_.train_iters));
    const int64_t earlier = run_.eval_interval > 0 ? (last - 1) / run_.eval_interval : 0;  // without that of `last`
    for (const auto& [split, evaluations_before] :
         {std::pair(Split::kValid, earlier), std::pair(Split::kTest, int64_t{0})})
      if (!session_.has_evaluation(progress_.step, split) && !evaluate_split(split, evaluations_before))
        return stop(wants_to_stop());
    return ExitCode::kFinished;
  }

  // Waits until weights under way have arrived.
  void drain() { replica_->traffic().drain(); }

 private:
  RunState state() { return {*replica_, progress_, *scaler_, *controller_, revisions_, spikes_}; }

  // A user who starts a run again that ended with code 76 has changed something: the next skipped step is the first of
  // a new series. A run that was interrupted before continues its count.
  void reset_spent_budget() {
    if (progress_.skipped_in_a_row == 0 || progress_.skipped_in_a_row < run_.optim.non_finite_budget) return;
    log_info("the last " + std::to_string(progress_.skipped_in_a_row) +
             " steps were skipped; non_finite_budget counts from here on");
    progress_.skipped_in_a_row = 0;
  }

  // Trains until train_iters and saves: nullptr. Or until something asks to stop: what.
  const char* train_loop() {
    step_.emplace(*replica_);
    step_->set_spike_guard(&spikes_);
    step_->set_wishes([this] { return StepWishes{.stop = wish_to_stop(), .save = wish_to_save()}; });
    if (!faults_.empty()) step_->set_gradient_sink([this] { inject_in_step(); });
    open_trace();
    const RankLayout& layout = replica_->layout();
    loader_ = std::make_unique<BatchLoader>(
        *stream_, train_plan(run_.data, progress_.consumed_samples, layout.data_rank(), layout.data_size()));
    if (progress_.step == 0 && is_extra_save()) save(false);
    if (session_.owes_evaluation() && evaluation_is_due() && !session_.has_evaluation(progress_.step, Split::kValid))
      evaluate_here();
    while (progress_.step < run_.train_iters) {
      if (const char* why = wants_to_stop()) return why;
      take_step();
      trace_after(progress_.step);
      if (faults_.flips_weights()) flip_weight();
      if (run_.weight_hash_interval > 0 && progress_.step % run_.weight_hash_interval == 0) check_weights();
      // A run that is stopped has only seconds to save: the next start evaluates.
      const bool stops = job_.size() > 1 ? stop_agreed_ : wish_to_stop();
      const bool due = evaluation_is_due();
      session_.owe_evaluation(due && stops);
      if (due && !stops) evaluate_here();
      if (save_is_due()) save(false);
      if (run_.exit_interval > 0 && progress_.step % run_.exit_interval == 0 && progress_.step < run_.train_iters)
        return "exit_interval";
    }
    end_trace();
    session_.record_revisions(revisions_, progress_.updates);  // again, if that failed before
    save(true);
    return nullptr;
  }

  void open_trace() {
    if (!run_.layout.trace) return;
    // Removes the traces of an earlier job of this run with more ranks.
    std::error_code gone;
    for (int rank = job_.size(); job_.first() && std::filesystem::remove(trace_path(run_.run_dir, rank), gone);) ++rank;
    trace_ = std::make_unique<StepTrace>(job_.rank());
    const ClockAlignment clock = align_clocks(
        job_.local_size() == job_.size(), [&] { job_.control().barrier(); },
        [&](const std::string& text) { return job_.control().share(text); });
    trace_->align(clock.origin_ns, clock.offset_ns, clock.note);
    const RankLayout& layout = replica_->layout();
    const int context = layout.mesh.context;
    trace_->describe("rank " + std::to_string(job_.rank()) + ": stage " + std::to_string(layout.at.pipeline) +
                     ", data " + std::to_string(layout.data_rank()) +
                     (context > 1 ? ", context " + std::to_string(layout.at.data % context) : "") + ", tensor " +
                     std::to_string(layout.at.tensor));
    first_step_ = progress_.step + 1;
    step_->set_node_sink(
        [this](const PlanNode& node, StepTimer::Clock::time_point from, StepTimer::Clock::time_point to) {
          if (trace_ && traces_step(run_.layout, progress_.step + 1, first_step_)) trace_->node(node, from, to);
        });
    trace_after(progress_.step);
  }

  // After step `step`: records operations if the trace shows the next step, and writes the file after the last one.
  void trace_after(int64_t step) {
    if (!trace_) return;
    const bool next = traces_step(run_.layout, step + 1, first_step_);
    if (job_.mesh() != nullptr) job_.mesh()->progress().set_sink(next ? trace_.get() : nullptr);
    if (TokenStore* tokens = replica_->token_store()) tokens->set_sink(next ? trace_.get() : nullptr);
    if (traced_ && !next) end_trace();
    traced_ = next;
  }

  // Also called when a run ends, or is asked to, before the last step that the trace would show.
  void end_trace() {
    if (trace_ && traced_) {
      if (job_.mesh() != nullptr) job_.mesh()->progress().set_sink(nullptr);
      try {
        trace_->write(trace_path(run_.run_dir, job_.rank()));
      } catch (const Error& e) {  // the run and its last save are worth more
        log_warning(std::string("no trace: ") + e.what());
      }
    }
    if (TokenStore* tokens = replica_->token_store()) tokens->set_sink(nullptr);
    trace_.reset();
  }

  void log_memory() const {
    const MemoryPlan& plan = replica_->memory();
    std::string text = "memory:";
    for (size_t i = 0; i < plan.bytes.size(); ++i) {
      text += " " + std::string(name_of(static_cast<MemoryCategory>(i))) + " " +
              format_bytes(static_cast<double>(plan.bytes[i])) + ",";
    }
    log_info(text + " total " + format_bytes(static_cast<double>(plan.total())));
  }

  bool evaluation_is_due() const {
    return run_.eval_interval > 0 && run_.eval_iters > 0 && progress_.step % run_.eval_interval == 0;
  }
  void evaluate_here() {
    session_.owe_evaluation(!evaluate_split(Split::kValid, progress_.step / run_.eval_interval - 1));
  }

  // save_agreed_: the ranks have agreed on wish_to_save() in the last step, as on wish_to_stop().
  bool save_is_due() const {
    if (progress_.step >= run_.train_iters) return false;  // train_loop() saves after its last step
    return save_agreed_ || is_extra_save() || (run_.save_interval > 0 && progress_.step % run_.save_interval == 0);
  }
  bool is_extra_save() const {
    const auto& extra = run_.extra_save_iters;
    return std::find(extra.begin(), extra.end(), progress_.step) != extra.end();
  }
  bool wish_to_save() const {
    return job_.first() && run_.save_interval_minutes > 0.0 &&
           Clock::now() - last_save_ >= std::chrono::duration<double, std::ratio<60>>(run_.save_interval_minutes);
  }

  bool wish_to_stop() const { return stop_signal() != 0 || (job_.first() && time_is_up()); }
  // After one step at the earliest, as in Megatron: a run whose start takes longer still progresses.
  bool time_is_up() const {
    return run_.exit_duration_in_mins > 0.0 && stepped_ && session_.minutes() >= run_.exit_duration_in_mins;
  }

  // Why the run has to stop, or nullptr. In a run of several ranks they agreed in the last step that one wishes to; for
  // the reason they vote once more.
  const char* wants_to_stop() {
    if (job_.size() > 1 && !stop_agreed_) return nullptr;
    const int signal = static_cast<int>(job_.control().agree_max(stop_signal()));
    if (signal != 0) return signal_name(signal);
    return job_.control().agree_max(job_.first() && time_is_up()) != 0 ? "exit_duration_in_mins" : nullptr;
  }

  ExitCode stop(const std::string& why) {
    log_info(why + ": saving step " + std::to_string(progress_.step) + " and leaving with code 75");
    end_trace();
    save(true);
    return ExitCode::kPreempted;
  }

  // What the watchdog reports of a rank that waits for no other.
  void now_doing(const char* what) {
    if (job_.mesh() != nullptr)
      job_.mesh()->progress().set_activity(what + std::string(" after step ") + std::to_string(progress_.step));
  }

  // A step of iterations_to_skip. It has no sums by which the ranks agree on their wishes, so this agrees on them.
  void leave_out_step() {
    const auto start = Clock::now();
    stepped_ = true;
    const StepOutcome outcome = step_->leave_out(
        static_cast<int>(loader_->micro_steps_at(progress_.consumed_samples)), [this] { return next_micro(); },
        progress_, *scaler_, timer_);
    stop_agreed_ = job_.control().agree_max(wish_to_stop()) != 0;
    save_agreed_ = job_.control().agree_max(wish_to_save()) != 0;
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    session_.record_step(outcome, progress_, timer_, ms, 0, std::nullopt);
    timer_.reset();
    log_info("step " + std::to_string(progress_.step) + " is left out: iterations_to_skip names it");
    faults_.reach("step.end");
  }

  Batch next_micro() {
    std::optional<Batch> batch = loader_->next();
    TW_CHECK(batch.has_value(), "the data ended before train_iters");
    return std::move(*batch);
  }

  void take_step() {
    now_doing("training");
    faults_.set_step(progress_.step + 1);
    faults_.reach("step.begin");
    if (run_.iterations_to_skip.contains(progress_.step + 1)) return leave_out_step();
    if (const float poison = faults_.poison(); poison != 0.0f) {
      // Into a gradient that the step adds to: write-first ones would overwrite it.
      const ParamStore& store = replica_->store();
      const auto added =
          std::ranges::find_if(store.params(), [&](const ParamSpec& p) { return store.product_gradient(p.name) < 0; });
      TW_CHECK(added != store.params().end());
      replica_->write(store.gradient(added->name), &poison, sizeof poison);
    }
    controller_->before(progress_.updates + 1);
    take_waits();  // drops those between the steps
    const auto start = Clock::now();
    const int64_t samples_before = progress_.consumed_samples;
    stepped_ = true;
    const StepOutcome outcome = step_->run(
        static_cast<int>(loader_->micro_steps_at(samples_before)), [this] { return next_micro(); }, progress_, *scaler_,
        timer_);
    stop_agreed_ = outcome.stop, save_agreed_ = outcome.save;
    const auto end = Clock::now();
    const double ms = std::chrono::duration<double, std::milli>(end - start).count();
    if (trace_ && traced_) trace_->step(progress_.step, start, end);
    const double waited_ms = static_cast<double>(take_waits()) * 1e-6;
    const auto stragglers = stragglers_->after_step(progress_.step, ms, waited_ms, waited_ns_);
    if (stragglers) log_changes(*stragglers);
    session_.record_step(outcome, progress_, timer_, ms, progress_.consumed_samples - samples_before, stragglers);
    if (!outcome.skipped) {
      SiteBytes logical{};
      for (size_t s = 0; s < logical.size(); ++s) logical[s] = outcome.sites[s].logical_bytes;
      if (const std::string revision = controller_->after(ms, progress_.updates, logical); !revision.empty())
        log_info(revision);
      session_.record_revisions(revisions_, progress_.updates);
    }
    timer_.reset();  // times of saving and evaluation are in the next step's line
    faults_.reach("step.end");
    if (!outcome.skipped || outcome.spike.skip) return;
    log_warning("step " + std::to_string(progress_.step) + " skipped: " + outcome.non_finite + " is not finite");
    if (progress_.skipped_in_a_row >= run_.optim.non_finite_budget) {
      save(true);
      throw AgreedError(ExitCode::kDiverged,
                        std::to_string(progress_.skipped_in_a_row) +
                            " steps in a row were not finite (last: " + outcome.non_finite +
                            "); the weights before them are saved; lower the learning rate or raise non_finite_budget");
    }
  }

  // Nanoseconds of waits since the last call; waited_ns_: the same by the rank that was waited for.
  int64_t take_waits() {
    const bool compares = job_.mesh() != nullptr && run_.straggler_interval > 0;
    return compares ? job_.mesh()->progress().take_waits(waited_ns_) : 0;
  }

  static void log_changes(const StragglerWatch::Report& report) {
    for (const StragglerRecord& r : report.changes) {
      if (r.ratio > 0.0)
        log_warning(text_of(r));
      else
        log_info("rank " + std::to_string(r.rank) + (r.host.empty() ? "" : " (" + r.host + ")") +
                 " is like the others");
    }
  }

  // Injected faults inside a step.
  void inject_in_step() {
    faults_.reach("compute");
    const double factor = faults_.loss_factor();
    if (factor == 1.0) return;
    const View loss = replica_->buffers().sums.element_range(kSumLoss, 1);
    double value = 0.0;
    replica_->read(loss, &value);
    value *= factor;
    replica_->write(loss, &value, sizeof value);
  }

  void check_weights() {
    now_doing("comparing weights");
    const auto t = timer_.measure(StepPart::kEvaluation);
    check_weight_hashes(*replica_, progress_.step);
  }

  // An injected fault: a bit of one weight that this rank computes with.
  void flip_weight() {
    replica_->traffic().finish_param_sync();  // a gather that is still under way would overwrite the fault
    const View weight = replica_->store().weight(replica_->store().params().front().name);
    std::vector<std::byte> bytes(weight.bytes());
    replica_->read(weight, bytes.data());
    bytes.back() ^= std::byte{1};
    replica_->write(weight, bytes.data(), bytes.size());
  }

  void save(bool wait) {
    now_doing("saving");
    const auto t = timer_.measure(StepPart::kCheckpoint);
    session_.save(state(), wait);
    last_save_ = Clock::now();
  }

  // Returns false if a signal asks the run to stop: the evaluation is left for the next start.
  bool evaluate_split(Split split, int64_t evaluations_before) {
    if (run_.eval_iters <= 0 || !stream_->has(split)) return true;
    now_doing("evaluating");
    const auto t = timer_.measure(StepPart::kEvaluation);
    // Coded as the last update was: a skipped step may have begun another way, of which a restart would not know.
    controller_->before(std::max<int64_t>(1, progress_.updates));
    const std::optional<Evaluation> e =
        evaluate(*replica_, *stream_, split, evaluations_before * run_.eval_iters * run_.data.global_batch,
                 run_.eval_iters, job_.control(), [] { return stop_signal() != 0; });
    if (e) session_.record_evaluation(*e, progress_.step, split);
    stop_agreed_ = stop_agreed_ || !e;
    return e.has_value();
  }

  const RunConfig& run_;
  PlanRevisions& revisions_;
  FaultPlan& faults_;
  RunSession& session_;
  Job& job_;
  Backend backend_;
  std::unique_ptr<DeviceTraffic> traffic_;
  std::optional<SampleStream> stream_;
  ProductTable products_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<LossScaler> scaler_;
  std::unique_ptr<CompressionController> controller_;
  SpikeGuard spikes_{run_.spike};
  std::unique_ptr<StragglerWatch> stragglers_;
  std::vector<int64_t> waited_ns_;  // by rank, in this step
  std::optional<TrainStep> step_;
  std::unique_ptr<BatchLoader> loader_;
  TrainProgress progress_;
  StepTimer timer_;
  bool stop_agreed_ = false, save_agreed_ = false, stepped_ = false;
  Clock::time_point last_save_ = Clock::now();  // before the first: the start
  std::unique_ptr<StepTrace> trace_;
  bool traced_ = false;  // the step that runs, or the next one, is recorded
  int64_t first_step_ = 1;
};

}  // namespace

void refuse_what_is_not_here(const RunConfig& run) {
  if (run.threads_per_rank > most_threads()) {
    throw_bad_config("threads_per_rank: " + std::to_string(run.threads_per_rank) +
                     " is more than this machine's cores make sensible; at most " + std::to_string(most_threads()) +
                     ", 0 takes the cores");
  }
  const DataConfig& d = run.data;
  for (int64_t size : {d.global_batch, d.ramp_start, d.ramp_increment}) {
    if (size % d.micro_batch != 0) {
      throw_bad_config("train_batch_size: " + std::to_string(size) +
                       " sequences (the batch or a step of its ramp) are not a multiple of "
                       "train_micro_batch_size_per_gpu " +
                       std::to_string(d.micro_batch));
    }
  }
}

ExitCode train(const ResolvedConfig& resolved, bool allow_faults, Job& job) {
  ResolvedConfig config = resolved;
  install_signal_handlers();
  job.agree([&] {
    // The device is checked before files are read or written.
    if (config.run.device != "cpu") open_backend(config.run.device, job.local_rank());
    refuse_what_is_not_here(config.run);
  });
  FaultPlan faults;
  job.agree([&] { faults = FaultPlan(config.run.faults_json, allow_faults, job.rank()); });
  RunSession session(config, faults, job);
  RunConfig run;
  std::string planned;
  std::optional<Settled> settled;
  std::optional<Trainer> trainer;  // outlives the job's end: messages under way point into it
  try {
    resume_with_other_batches(config, session, job);
    run = config.run;
    job.share_cores(run);
    settled = settle(config, run, session, job);
    trainer.emplace(run, faults, session, job, *settled, planned);
    const ExitCode code = trainer->run();
    session.finish(code, "");
    return code;
  } catch (const AgreedError& e) {
    // All ranks throw it between the same two steps.
    if (trainer) failure_of([&] { trainer->drain(); });
    if (job.first()) session.finish(e.code(), e.what());  // rank 0 speaks for all
    throw;
  } catch (...) {
    const Failure failure = failure_of([] { throw; }, out_of_memory(planned));
    const auto code = static_cast<ExitCode>(failure.code);
    session.finish(code, failure.message);
    job.end_all(code, failure.message);
    throw Error(code, failure.message);
  }
}

}  // namespace thinwire
