// Set-up of a rank's training state and its small transfers.
#include "engine/run/train/replica.h"

#include <sched.h>

#include <algorithm>
#include <vector>

namespace thinwire {
namespace {

std::unique_ptr<Optimizer> make_optimizer(const RunConfig& config, ParamStore& store, Arena& arena) {
  const int64_t n = store.layout().total;
  OptimizerBuffers buffers;
  buffers.master = store.master_flat();
  buffers.gradient = store.gradient_flat();
  buffers.working = store.working_flat();
  if (config.optim.kind == OptimizerKind::kAdamW) {
    buffers.m = arena.take(MemoryCategory::kOptimizer, DType::f32, {n});
    buffers.v = arena.take(MemoryCategory::kOptimizer, DType::f32, {n});
  } else if (config.optim.momentum != 0.0) {
    buffers.momentum = arena.take(MemoryCategory::kOptimizer, DType::f32, {n});
  }
  buffers.spans = store.layout().decay_spans(store.params(), 0, n);
  return std::make_unique<Optimizer>(config.optim, std::move(buffers));
}

StepBuffers take_step_buffers(const BatchShape& shape, Arena& arena) {
  const int64_t n = shape.tokens();
  StepBuffers b;
  b.tokens = arena.take(MemoryCategory::kData, DType::i32, {n});
  b.targets = arena.take(MemoryCategory::kData, DType::i32, {n});
  b.row_weight = arena.take(MemoryCategory::kData, DType::f32, {n});
  b.sample_ids = arena.take(MemoryCategory::kData, DType::i64, {shape.batch});
  b.loss_sum = arena.take(MemoryCategory::kWorkspace, DType::f64, {1});
  b.norm_squared = arena.take(MemoryCategory::kWorkspace, DType::f64, {1});
  b.dlogits_scale = arena.take(MemoryCategory::kWorkspace, DType::f32, {1});
  b.state = arena.take(MemoryCategory::kWorkspace, DType::u8, {static_cast<int64_t>(sizeof(StepState))});
  return b;
}

}  // namespace

int resolve_threads(const RunConfig& config) {
  if (config.threads_per_rank > 0) return static_cast<int>(config.threads_per_rank);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

int most_threads() {
  return std::max(64, 4 * resolve_threads({}));
}

Replica::Replica(const RunConfig& config, Device* device, const OpTable* ops, bool training)
    : config_(config),
      device_(device),
      stream_(device != nullptr ? device->make_stream() : nullptr),
      exec_(device != nullptr ? std::make_unique<Exec>(make_exec(*ops, *device, *stream_, resolve_threads(config)))
                              : nullptr),
      arena_(device),
      shape_{config.data.micro_batch, config.data.seq_length},
      store_(config_.model, arena_, training),
      optimizer_(training ? make_optimizer(config_, store_, arena_) : nullptr),
      stage_(config_.model, store_, shape_, training ? 1 : 0, ports_, config.seed, arena_, device, stream_.get()),
      buffers_(take_step_buffers(shape_, arena_)) {}

MicroBatch Replica::upload(const Batch& batch, int micro_batches, bool training) {
  TW_CHECK(batch.rows == shape_.batch, "micro-batch of ", batch.rows, " rows");
  double counted = 0.0;
  for (float mask : batch.loss_mask) counted += mask;
  std::vector<float> weight(batch.loss_mask);
  const double share = counted > 0.0 ? 1.0 / (counted * micro_batches) : 0.0;
  for (float& w : weight) w = static_cast<float>(w * share);
  write(buffers_.tokens, batch.inputs.data(), batch.inputs.size() * sizeof(int32_t));
  write(buffers_.targets, batch.targets.data(), batch.targets.size() * sizeof(int32_t));
  write(buffers_.row_weight, weight.data(), weight.size() * sizeof(float));
  write(buffers_.sample_ids, batch.sample_ids.data(), batch.sample_ids.size() * sizeof(int64_t));
  MicroBatch micro;
  micro.tokens = buffers_.tokens;
  micro.sample_ids = static_cast<const int64_t*>(buffers_.sample_ids.data);
  micro.loss = {buffers_.targets, buffers_.row_weight, training ? buffers_.dlogits_scale : View{}, buffers_.loss_sum};
  return micro;
}

double Replica::read_scalar(View scalar) {
  double value = 0.0;
  TW_CHECK(scalar.dtype == DType::f64 && scalar.count() == 1);
  device_->copy_to_host(&value, scalar.data, sizeof value, *stream_).wait_on_host();
  return value;
}

void Replica::write(View destination, const void* source, size_t bytes) {
  TW_CHECK(bytes <= destination.bytes(), bytes, " bytes into ", destination.bytes());
  device_->copy_to_device(destination.data, source, bytes, *stream_).wait(*stream_);
}

void Replica::zero(View destination) {
  device_->fill_zero(destination.data, destination.bytes(), *stream_);
}

void Replica::visit(StateVisitor& visitor) {
  store_.visit(visitor);
  if (!optimizer_) return;
  const OptimizerBuffers& b = optimizer_->buffers();
  const auto show = [&](const char* prefix, View flat) {
    if (!flat) return;
    for (size_t i = 0; i < store_.params().size(); ++i) {
      const ParamSpec& p = store_.params()[i];
      visitor.tensor(
          {prefix + p.name, p.rows, p.cols, 0, flat.element_range(store_.layout().by_param[i].offset, p.count())});
    }
  };
  show("adam_m/", b.m);
  show("adam_v/", b.v);
  show("sgd_momentum/", b.momentum);
}

}  // namespace thinwire
