// One step: the story of a step, told by walking its plan.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/run/train/compression_setup.h"
#include "engine/run/train/spike_guard.h"
#include "engine/run/train/step_graphs.h"
#include "engine/run/train/step_timer.h"
#include "engine/run/train/token_positions.h"
#include "engine/run/train/traffic_counts.h"
#include "model/unit_steps.h"
#include "optim/loss_scaler.h"
#include "parallel/schedule/plan.h"

namespace thinwire {

// Traffic from the control node of the step before to this one's: with the gathers behind the step before, which run
// under this step's forward; without evaluations.
struct StepOutcome : TrafficCounts {
  double loss = 0.0;       // mean over the step's tokens, or over micro-batches (calculate_per_token_loss)
  double grad_norm = 0.0;  // global L2 norm before clipping, without the loss scale; of momenta where they are summed
  double lr = 0.0;
  double loss_scale = 1.0;  // that this step used
  bool skipped = false;     // nothing was updated: non-finite, a spike, or listed
  bool listed = false;      // iterations_to_skip names it: loss and norm are NaN, for nothing was computed
  std::string
      non_finite;      // name of the first tensor whose gradient is not finite, or "loss"; empty where it is a spike
  SpikeVerdict spike;  // its skip is part of `skipped`
  // Attention's work of the busiest context-parallel rank over the mean, micro-batch by micro-batch; 0: whole
  // sequences.
  double attention_imbalance = 0.0;
  bool stop = false;  // some rank wishes to stop; all know it in the same step
  bool save = false;  // some rank wishes to save
};

// What a rank would like to do behind a step.
struct StepWishes {
  bool stop = false, save = false;
};

// Progress of training that is state: goes into every checkpoint.
struct TrainProgress {
  int64_t step = 0;     // steps attempted, skipped ones included
  int64_t updates = 0;  // steps applied: what the schedule and Adam's bias correction count
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped = 0;          // steps, in total
  int64_t skipped_samples = 0;  // theirs: consumed, but not counted by a schedule in samples
  int64_t skipped_in_a_row = 0;
};

// Told what the compute thread does, node by node (trace, bubble measurements).
using NodeSink =
    std::function<void(const PlanNode& node, StepTimer::Clock::time_point from, StepTimer::Clock::time_point to)>;

class TrainStep {
 public:
  explicit TrainStep(Replica& replica);

  // Runs one step of `micro_batches` per data-parallel rank. next_micro() gives this rank's in consumption order.
  StepOutcome run(int micro_batches, const std::function<Batch()>& next_micro, TrainProgress& progress,
                  LossScaler& scaler, StepTimer& timer);
  // Instead of run(): reads the batch, counts the step and its samples, and does nothing else. Sends nothing.
  StepOutcome leave_out(int micro_batches, const std::function<Batch()>& next_micro, TrainProgress& progress,
                        const LossScaler& scaler, StepTimer& timer);

  // Judges the loss of every step, and may skip it; outlives the steps. nullptr: none does.
  void set_spike_guard(SpikeGuard* guard) { spike_guard_ = guard; }
  // Asked late in every step, so that a signal that came within it is heeded behind it.
  void set_wishes(std::function<StepWishes()> wishes) { wishes_ = std::move(wishes); }
  // Called in every step when all gradients are reduced and none is used yet: they lie in the owned pieces.
  void set_gradient_sink(std::function<void()> sink) { gradient_sink_ = std::move(sink); }
  void set_node_sink(NodeSink sink) { node_sink_ = std::move(sink); }
  const StepGraphs& graphs() const { return graphs_; }

 private:
  // Messages of one slot of a chunk that are under way.
  struct Mail {
    Ticket activation_in, activation_out, gradient_in, gradient_out;
  };

  // What run() was called with.
  struct Call {
    int micro_batches;
    const std::function<Batch()>& next_micro;
    TrainProgress& progress;
    StepTimer& timer;
  };

  void prepare(int micro_batches);
  void execute(const PlanNode& node, const Call& call, StepOutcome& outcome);
  void read_batches(int last, const Call& call);
  void count_tokens(const Call& call);
  void forward(const PlanNode& node, const Call& call);
  void backward(const PlanNode& node);
  void exchange(const PlanNode& node);
  void control(StepOutcome& outcome);
  void step_weights(const StepOutcome& outcome);
  void step_piece(size_t piece);
  void step_and_gather();
  std::string first_non_finite();
  Mail& mail(int chunk, int slot) { return mail_.at(static_cast<size_t>(chunk)).at(static_cast<size_t>(slot)); }

  Replica& replica_;
  StepGraphs graphs_;
  UnitSteps unit_steps_;
  Plan plan_;
  std::vector<UnitUse> uses_;
  int planned_micro_batches_ = 0;
  PipelineCompression compression_;  // of that plan
  std::vector<std::vector<Mail>> mail_;
  std::vector<std::vector<int>> work_of_;  // per chunk and slot: the weight work that leases it
  std::map<int, Batch> batches_;           // host copies that later chunks still need
  int batches_read_ = 0;
  AttentionPairs work_;       // of this rank's batches, where their sequences are cut
  double step_tokens_ = 0.0;  // that count in the loss, on all ranks; only where Replica::counts_tokens()
  SpikeGuard* spike_guard_ = nullptr;
  std::function<StepWishes()> wishes_;
  NodeSink node_sink_;
  std::function<void()> gradient_sink_;
};

}  // namespace thinwire
