// Everything one rank holds of a training run: its share of the parameters, optimizer state, activations, and the
// buffers of a step. The same set-up code runs on a device for training, and on none for --dry-run (step_rehearsal.h).
#pragma once

#include <memory>
#include <vector>

#include "data/batch_loader.h"
#include "engine/run/config/run_config.h"
#include "engine/run/train/momentum_sender.h"
#include "engine/run/train/rank_layout.h"
#include "model/stage.h"
#include "optim/optimizer.h"
#include "parallel/sites/ports.h"
#include "parallel/sites/unit_traffic.h"

namespace thinwire {

// Device memory that a step reads and writes besides the model's own.
struct StepBuffers {
  View sums;           // [kSumCount] fp64: what the ranks add up in a step (see the constants below)
  View dlogits_scale;  // [1] fp32
  View token_losses;   // [N] fp32, of an evaluation's micro-batch; empty but on the last stage
  View positions;      // [32] fp64: PositionLosses::sums
  View state;          // one StepState
};
inline constexpr int kSumLoss = 0, kSumNorm = 1, kSumStop = 2, kSumSave = 3, kSumNonFinite = 4;
inline constexpr int kSumBusiest = 5, kSumWork = 6;  // AttentionPairs of the step
inline constexpr int kSumLogical = 7;
inline constexpr int kSumWire = kSumLogical + static_cast<int>(kSiteNames.size());
inline constexpr int kSumCount = kSumWire + static_cast<int>(kSiteNames.size());

// The tokens of a micro-batch in flight.
struct MicroBuffers {
  View tokens, targets;        // [N] i32
  View row_weight;             // [N] fp32
  View first_keys, positions;  // [N] i32, where documents reset them
  View sample_ids;             // [batch] i64
};

class Replica {
 public:
  // `training` false: evaluation only, no gradients and optimizer state. mesh == nullptr: one rank. Mesh and device
  // outlive the replica.
  Replica(const RunConfig& config, const RankLayout& layout, Mesh* mesh, Device* device, const OpTable* ops,
          bool training);
  // One rank.
  Replica(const RunConfig& config, Device* device, const OpTable* ops, bool training)
      : Replica(config, layout_of(config, 0), nullptr, device, ops, training) {}
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // connect_ports: all ranks together, once all constructors have returned, since one may fail on its rank alone.
  void connect();

  const RunConfig& config() const { return config_; }
  const RankLayout& layout() const { return layout_; }
  const MemoryPlan& memory() const { return arena_.plan(); }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Exec& exec() { return *exec_; }
  Mesh* mesh() { return mesh_; }
  Ports& ports() { return ports_; }
  ParamStore& store() { return store_; }
  const ParamStore& store() const { return store_; }
  Optimizer& optimizer() { return *optimizer_; }
  UnitTraffic& traffic() { return *traffic_; }
  MomentumSender* momentum() { return momentum_.get(); }  // nullptr where gradients are summed
  // What the step at hand sums.
  Summed summed() const { return momentum_ ? momentum_->summed() : Summed::kGradient; }
  int chunks() const { return static_cast<int>(stages_.size()); }
  Stage& stage(int chunk = 0) { return *stages_.at(static_cast<size_t>(chunk)); }
  StageWeightWork& weight_work(int index) { return weight_works_.at(static_cast<size_t>(index)); }
  int weight_halves() const { return static_cast<int>(weight_works_.size()); }
  TokenStore* token_store() const { return scratch_.store.get(); }  // nullptr: layers take all tokens at once
  const StepBuffers& buffers() const { return buffers_; }
  const BatchShape& shape() const { return shape_; }

  // Writes a micro-batch to the device, the first `slot` of `chunk`. tokens: that its loss is divided by.
  MicroBatch upload(const Batch& batch, double tokens, bool training, int chunk = 0, int slot = 0);
  bool counts_tokens() const { return config_.data.counts_tokens(); }

  // Whether this rank's loss counts: the last stage, once per tensor group.
  bool reports_loss() const { return layout_.shard.last && layout_.at.tensor == 0; }
  // Gradients of this rank that count in the global norm: every element of the model is one rank's.
  const std::vector<View>& counted_gradients() const { return counted_; }
  const std::vector<View>& copied_gradients() const { return copied_; }
  // Order in which a step (or an evaluation of one micro-batch) uses units on this rank.
  std::vector<UnitUse> uses_of(const Plan& plan) const;
  std::vector<UnitUse> evaluation_uses() const;

  // Runs on another Exec from now on (a profiling one).
  void use_exec(std::unique_ptr<Exec> exec) { exec_ = std::move(exec), profiled_ = true; }
  bool profiled() const { return profiled_; }

  // Device memory to the host, and back.
  void read(View source, void* destination);
  void write(View destination, const void* source, size_t bytes);
  void zero(View destination);

  // Shows weights and optimizer state to a checkpoint visitor. writer_only: what this rank has to save; otherwise all
  // it holds.
  void visit(StateVisitor& visitor, bool writer_only);
  void visit_weights(StateVisitor& visitor, bool writer_only);
  // What compressed parameter all-gathers have made of the masters: part of the first where has_replica_state().
  void visit_synced(StateVisitor& visitor, bool writer_only) const;
  // Weights from the configuration's seed, as a new run begins with them.
  void set_fresh_weights();
  // After weights were loaded or set from outside: working copies, and the shares of other ranks. replica_loaded: what
  // a compressed parameter all-gather had made of them was loaded, too, and stays.
  void weights_changed(bool replica_loaded = false);
  // Whether weights that compute are more than a copy of the masters (compressed parameter all-gather), and part of the
  // state. The same on all ranks of a stage: a save waits for their all-gathers together.
  bool has_replica_state() const;

 private:
  void begin_offload(TokenStore& tokens);
  void take_micro_buffers(const std::vector<int>& slots);

  RunConfig config_;
  RankLayout layout_;
  Mesh* mesh_;
  Device* device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Exec> exec_;
  bool profiled_ = false;
  Arena arena_;
  Ports ports_;
  BatchShape shape_;
  ParamStore store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<MomentumSender> momentum_;
  std::unique_ptr<UnitTraffic> traffic_;
  RotaryTables rotary_;
  StageScratch scratch_;
  std::vector<StageWeightWork> weight_works_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::vector<MicroBuffers>> micro_;  // per chunk and slot
  StepBuffers buffers_;
  std::vector<View> counted_, copied_;
  NoUnitEvents nothing_;
};

// Threads that a rank uses: as configured, else the cores this process may run on, at most OMP_NUM_THREADS.
int resolve_threads(const RunConfig& config);
// More than this on this machine is taken for a mistake: every thread has scratch memory of its own.
int most_threads();

}  // namespace thinwire
