// What a job does with its run directory: lock, resume, checkpoints, metrics, status. The trainer's loop tells it what
// happened.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/run/checkpoint/checkpoint_store.h"
#include "engine/run/checkpoint/run_lock.h"
#include "engine/run/config/load_config.h"
#include "engine/run/trace/console_progress.h"
#include "engine/run/trace/metrics_log.h"
#include "engine/run/trace/status_file.h"
#include "engine/run/trace/tensorboard_writer.h"
#include "engine/run/train/compression_controller.h"
#include "engine/run/train/evaluate.h"
#include "engine/run/train/fault_plan.h"
#include "engine/run/train/job.h"
#include "engine/run/train/straggler_watch.h"
#include "engine/run/train/train_step.h"

namespace thinwire {

// Refuses (78) a checkpoint that was written before Adam's moments said how many steps they have seen.
void refuse_uncounted_moments(const VerifiedCheckpoint& found);

// Fills in skipped_samples for older checkpoints, which lack it: the consumed samples beyond those of the first
// `updates` steps, so that the schedule goes on from where it stood; of other batches (DataConfig::done_iters) the
// mean.
void complete_progress(const Manifest& manifest, const DataConfig& data, TrainProgress& progress);

// The parts of a run that checkpoints hold; they outlive what visit() returns.
struct RunState {
  Replica& replica;
  TrainProgress& progress;
  LossScaler& scaler;
  CompressionController& controller;
  PlanRevisions& revisions;
  SpikeGuard& spikes;

  // writer_only: the slices that this rank saves; otherwise all that it holds.
  VisitState visit(bool writer_only) const;
};

class RunSession {
 public:
  // Makes and locks the run directory and save_dir (73, naming the holder, where another run has one of them); from
  // then on status.json says how the run goes. All ranks call the same functions in the same order; rank 0 writes
  // everything but the other ranks' parts of checkpoints.
  RunSession(const ResolvedConfig& config, FaultPlan& faults, Job& job);

  // Finds the newest checkpoint of the run that verifies, else that of `load`; the first call. Returns the steps and
  // samples with which the run goes on: 0, 0 where it begins anew.
  std::pair<int64_t, int64_t> find_checkpoint();
  // The configuration has another train_iters than the constructor saw.
  void plans_steps();

  // Fills the state from: the checkpoint that find_checkpoint() found, of `load` under `finetune` weights alone; else
  // `init_from_hf`; else initial weights. Refuses data files that are not those of rank 0 (65), and a checkpoint whose
  // model or data keys differ (78), naming both values. Opens metrics, TensorBoard and the console line at the step
  // that was found.
  void start(const RunState& state, const SampleStream& stream);

  // samples: of this step, from all ranks. stragglers: nothing where ranks were not compared in this step.
  void record_step(const StepOutcome& outcome, const TrainProgress& progress, const StepTimer& timer, double step_ms,
                   int64_t samples, const std::optional<StragglerWatch::Report>& stragglers);
  // Writes revisions.jsonl, unless timing decides nothing in this run; where it cannot, it warns once, and the next
  // call tries again. Revisions that begin with the next update are part of that step's record.
  void record_revisions(const PlanRevisions& revisions, int64_t updates);
  void record_evaluation(const Evaluation& evaluation, int64_t step, Split split);

  // Whether metrics.jsonl holds the evaluation of this split after this step, by this process or an earlier one.
  bool has_evaluation(int64_t step, Split split) const;
  // Whether the run stopped here before it had evaluated the valid split; the next checkpoint says so to whoever
  // resumes.
  bool owes_evaluation() const { return owes_evaluation_; }
  void owe_evaluation(bool owes) { owes_evaluation_ = owes; }

  // Saves this step's checkpoint if there is none yet. wait: returns when it is committed, and throws Error(kIo) if it
  // could not be written; otherwise it is written in the background.
  void save(const RunState& state, bool wait);

  // Writes the memory plan (refuse_what_does_not_fit) into status.json.
  void plans_memory(const std::string& planned);
  // Writes the report and the final status; nothing where the run directory has become another job's.
  void finish(ExitCode code, const std::string& message);

  double minutes() const;
  // The layer, embedding and head milliseconds by which the newest checkpoint's run cut its stages, if it measured them
  // with the same layout, rules and hosts (`origin`). Between find_checkpoint() and start().
  std::optional<std::array<double, 3>> measured_costs(const std::string& origin) const;
  // Whether timing has decided something in the run that goes on, whoever decides now. Between find_checkpoint() and
  // start().
  bool has_revisions() const;
  // Makes these milliseconds part of the checkpoints from here on.
  void keep_costs(const std::string& origin, const std::array<double, 3>& costs);

 private:
  // Rank 0: whether another job has taken the run directory over while this one stood still. Looks once a second, so at
  // once behind a longer stop.
  bool taken_over();
  // The same now, or that job has come and gone.
  bool is_of_another_job();
  const RunLock& lock_of_run() const { return run_lock_ ? *run_lock_ : store_->lock(); }
  void report_spike(const StepOutcome& outcome);
  nlohmann::json checkpoint_info() const;
  // How the layout of a checkpoint differs, for the log; empty when it is this run's.
  std::string other_layout(const nlohmann::json& info) const;
  int64_t other_data_ranks(const nlohmann::json& info) const;
  bool same_rules(const nlohmann::json& info) const;
  bool same_tokens(const nlohmann::json& info) const;
  void refuse_other_model(const VerifiedCheckpoint& found) const;
  void warn_of_other_order(const VerifiedCheckpoint& found) const;
  LoadOptions load_options();  // of a checkpoint that has been verified
  // Fills the state from a checkpoint of the same model and data, as far as this run can use it. Returns what
  // take_compression_state does.
  bool go_on_from(const VerifiedCheckpoint& found, const RunState& state, bool with_optimizer);
  void take_momentum(const Manifest& manifest, LoadOptions& options) const;
  bool take_compression_state(const VerifiedCheckpoint& found, Replica& replica, LoadOptions& options);
  // After the load that take_compression_state has prepared, where only the number of data ranks has changed.
  void adopt_residuals(const VerifiedCheckpoint& found, Replica& replica);
  // Returns what take_compression_state does.
  bool load_from(const VerifiedCheckpoint& found, const RunState& state);
  void import_weights(Replica& replica);
  CopyBytes copy_state();

  const ResolvedConfig& config_;
  Job& job_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::optional<RunLock> run_lock_;  // rank 0 alone
  std::string token_;                // of the lease on the run directory, on all ranks
  std::unique_ptr<CheckpointStore> store_;
  std::optional<std::chrono::steady_clock::time_point> looked_;  // taken_over() did
  bool taken_over_ = false;
  std::optional<VerifiedCheckpoint> found_;  // from find_checkpoint() to start()
  bool resumes_ = false;                     // found_ is of this run
  std::unique_ptr<StatusFile> status_;       // this and the next three: rank 0 alone
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  std::unique_ptr<ConsoleProgress> console_;
  std::string fingerprint_;
  nlohmann::json order_;  // SampleStream::order by split
  // Layers of each stage's chunks, the placement, and the parts in which stages send. Compression state is loaded only
  // from a checkpoint with the same.
  nlohmann::json cut_;
  nlohmann::json costs_;             // what measured_costs() will find; null: nothing was measured
  std::string begun_;                // revisions that begin with the next update
  bool recorded_revisions_ = false;  // revisions.jsonl is this job's
  bool warned_of_revisions_ = false;
  Device* device_ = nullptr;  // the replica's, from start() on
  int64_t step_ = 0;
  bool owes_evaluation_ = false;
  int64_t last_saved_step_ = -1;
};

}  // namespace thinwire
