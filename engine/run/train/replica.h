// Everything one rank holds of a training run: parameters, optimizer state, activations, and the buffers of a step. The
// same set-up code runs on a measuring arena for --dry-run and on a device for training.
#pragma once

#include <memory>

#include "data/batch_loader.h"
#include "engine/run/config/run_config.h"
#include "model/stage.h"
#include "optim/optimizer.h"
#include "parallel/sites/ports.h"

namespace thinwire {

// Device memory that a step reads and writes besides the model's own.
struct StepBuffers {
  View tokens, targets;  // [N] i32
  View row_weight;       // [N] fp32
  View sample_ids;       // [batch] i64
  View loss_sum;         // [1] fp64
  View norm_squared;     // [1] fp64
  View dlogits_scale;    // [1] fp32
  View state;            // one StepState
};

class Replica {
 public:
  // `training` false: evaluation only, no gradients and optimizer state. device == nullptr: measures.
  Replica(const RunConfig& config, Device* device, const OpTable* ops, bool training);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  const RunConfig& config() const { return config_; }
  const MemoryPlan& memory() const { return arena_.plan(); }
  bool measuring() const { return device_ == nullptr; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Exec& exec() { return *exec_; }
  Ports& ports() { return ports_; }
  ParamStore& store() { return store_; }
  Optimizer& optimizer() { return *optimizer_; }
  Stage& stage() { return stage_; }
  const StepBuffers& buffers() const { return buffers_; }
  const BatchShape& shape() const { return shape_; }

  // Copies a micro-batch to the device. Each token counts mask / (tokens that count in this micro-batch) /
  // micro_batches, so that an update's loss is the mean of its micro-batches' means (the NeoX rule).
  MicroBatch upload(const Batch& batch, int micro_batches, bool training);

  // Runs on another Exec from now on (a profiling one).
  void use_exec(std::unique_ptr<Exec> exec) { exec_ = std::move(exec); }

  // One fp64 scalar from the device, and a host value to the device.
  double read_scalar(View scalar);
  void write(View destination, const void* source, size_t bytes);
  void zero(View destination);

  // Shows weights and optimizer state to a checkpoint visitor.
  void visit(StateVisitor& visitor);
  // After weights were loaded or set from outside.
  void weights_changed() { store_.refresh_working(*exec_); }

 private:
  RunConfig config_;
  Device* device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Exec> exec_;
  Arena arena_;
  Ports ports_;
  BatchShape shape_;
  ParamStore store_;
  std::unique_ptr<Optimizer> optimizer_;
  Stage stage_;
  StepBuffers buffers_;
};

// Threads that a rank uses: as configured, else the cores this process may run on.
int resolve_threads(const RunConfig& config);
// More than this on this machine is taken for a mistake: every thread has scratch memory of its own.
int most_threads();

}  // namespace thinwire
