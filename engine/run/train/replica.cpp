// Set-up of a rank's training state and its small transfers.
#include "engine/run/train/replica.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <vector>

#include "engine/base/core/cpus.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/text.h"
#include "engine/base/device/spill_file.h"
#include "engine/base/device/spill_host.h"
#include "engine/run/train/compression_setup.h"
#include "engine/run/train/token_positions.h"
#include "model/rotary_tables.h"

namespace thinwire {
namespace {

std::unique_ptr<Optimizer> make_optimizer(const RunConfig& config, const ParamStore& store, Arena& arena) {
  int64_t total = 0;
  for (const OwnedPiece& piece : store.owned()) total += piece.range.count;
  View m, v, momentum;
  if (config.optim.kind == OptimizerKind::kAdamW) {
    m = arena.take(MemoryCategory::kOptimizer, DType::f32, {total});
    v = arena.take(MemoryCategory::kOptimizer, DType::f32, {total});
  } else if (config.optim.momentum != 0.0) {
    momentum = arena.take(MemoryCategory::kOptimizer, DType::f32, {total});
  }
  std::vector<OptimizerBuffers> pieces;
  int64_t at = 0;
  for (const OwnedPiece& piece : store.owned()) {
    const int64_t n = piece.range.count;
    OptimizerBuffers b;
    b.master = piece.master, b.gradient = piece.gradient;
    if (!piece.coded_sync) b.working = piece.working;
    if (m) b.m = m.element_range(at, n), b.v = v.element_range(at, n);
    if (momentum) b.momentum = momentum.element_range(at, n);
    const Unit& unit = store.layout().units[static_cast<size_t>(piece.unit)];
    b.added = store.added_gradients(piece);
    b.spans = store.layout().decay_spans(store.params(), unit.first + piece.range.first, n);
    pieces.push_back(std::move(b));
    at += n;
  }
  return std::make_unique<Optimizer>(config.optim, std::move(pieces));
}

Ports ports_of(const RunConfig& config, const RankLayout& layout, Mesh* mesh) {
  if (mesh == nullptr) return {};
  mesh->use_compressions(compressions_of(config, layout));
  mesh->clock().seed = config.seed;
  mesh->clock().threads = resolve_threads(config);
  return make_ports(*mesh, layout.where.placement, layout.shard.sequence_parallel,
                    layout.shard.whole.tied_head && layout.mesh.pipeline > 1, layout.sends_parts);
}

}  // namespace

int resolve_threads(const RunConfig& config) {
  if (config.threads_per_rank > 0) return static_cast<int>(config.threads_per_rank);
  const int cores = usable_cpus();
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  const int wanted = asked != nullptr ? std::atoi(asked) : 0;
  return wanted > 0 ? std::min(cores, wanted) : cores;
}

int most_threads() {
  return std::max(64, 4 * static_cast<int>(allowed_cpus().size()));
}

Replica::Replica(const RunConfig& config, const RankLayout& layout, Mesh* mesh, Device* device, const OpTable* ops,
                 bool training)
    : config_(config),
      layout_(layout),
      mesh_(mesh),
      device_(device),
      stream_(device->make_stream()),
      exec_(std::make_unique<Exec>(make_exec(*ops, *device, *stream_, resolve_threads(config)))),
      arena_(device),
      ports_(ports_of(config_, layout, mesh)),
      shape_{config.data.micro_batch, layout.shard.cut.count()},
      store_(layout.shard, layout.where, arena_, training),
      optimizer_(training ? make_optimizer(config_, store_, arena_) : nullptr),
      momentum_(training && config.compression.sends_momentum
                    ? std::make_unique<MomentumSender>(config_, store_, *optimizer_)
                    : nullptr),
      rotary_(make_rotary_tables(config.model, std::max(config.model.max_positions, config.data.seq_length), arena_,
                                 device, stream_.get())),
      scratch_(take_stage_scratch(layout.shard, shape_, training, arena_)) {
  exec_->deterministic = config_.deterministic;
  int64_t largest_partial = 0;
  for (const UnitMemory& unit : store_.units()) {
    int64_t partial = 0;
    for (const Range& r : unit.tp_partial) partial += r.count;
    largest_partial = std::max(largest_partial, partial);
  }
  View packed[2];
  for (View& p : packed) p = arena_.take(MemoryCategory::kWorkspace, DType::f32, {training ? largest_partial : 0});
  std::vector<UnitMemory> units = store_.units();
  const bool coded = !config_.compression.rules.empty() && mesh_ != nullptr;
  if (coded) {
    select_unit_messages(config_, layout_, store_, units);
    use_layer_rules(config_, layout_, ports_);
  }
  if (coded && training) {
    prepare_states(config_, layout_, shape_, units, ports_);
    arena_.count(MemoryCategory::kResiduals, mesh_->state_bytes());
  }
  if (mesh_ != nullptr && mesh_->device() != nullptr)
    arena_.count(MemoryCategory::kWorkspace, mesh_->device()->options().scratch_bytes);
  traffic_ =
      std::make_unique<UnitTraffic>(std::move(units), layout_.where.placement, ports_, *device_, *stream_, packed);
  traffic_->set_sent_value(momentum_.get());
  traffic_->set_rounding([this](View from, View to) { exec_->ops.cast(*exec_, {from, to}); });
  std::vector<int> slots(layout_.shard.chunks.size(), 1);
  if (training) {
    const Plan plan = make_plan(layout_.pipeline, layout_.at.pipeline);
    slots = plan.slots;
    for (int i = 0; i < plan.weight_halves; ++i)
      weight_works_.push_back(take_weight_work(layout_.shard, shape_, arena_));
  }
  UnitEvents* events = &nothing_;
  if (mesh_ != nullptr || momentum_ || config_.gradient_dtype != DType::f32) events = traffic_.get();
  for (int chunk = 0; chunk < static_cast<int>(slots.size()); ++chunk) {
    stages_.push_back(std::make_unique<Stage>(layout_.shard, chunk, store_, shape_,
                                              training ? slots[static_cast<size_t>(chunk)] : 0, ports_, &rotary_,
                                              scratch_, *events, config.seed, arena_));
  }
  if (TokenStore* tokens = scratch_.store.get(); tokens != nullptr && tokens->spills()) begin_offload(*tokens);
  if (training) counted_ = store_.counted_gradients(), copied_ = store_.copied_gradients();
  take_micro_buffers(slots);
  buffers_.sums = arena_.take(MemoryCategory::kWorkspace, DType::f64, {kSumCount});
  buffers_.token_losses = arena_.take(MemoryCategory::kData, DType::f32, {layout_.shard.last ? shape_.tokens() : 0});
  buffers_.positions = arena_.take(MemoryCategory::kWorkspace, DType::f64, {2 * kPositionBuckets});
  buffers_.dlogits_scale = arena_.take(MemoryCategory::kWorkspace, DType::f32, {1});
  buffers_.state = arena_.take(MemoryCategory::kWorkspace, DType::u8, {static_cast<int64_t>(sizeof(StepState))});
}

Replica::~Replica() {
  if (std::uncaught_exceptions() == 0) traffic_->drain();
}

void Replica::connect() {
  if (mesh_ != nullptr) connect_ports(*mesh_, ports_);
}

void Replica::begin_offload(TokenStore& tokens) {
  if (device_->kind() == DeviceKind::kNone) return tokens.begin(arena_, nullptr);
  const bool on_disk = config_.model.offload == Offload::kDisk;
  if (on_disk) make_directories(config_.run_dir);
  tokens.begin(arena_, [&](uint64_t room, int requests) -> std::unique_ptr<SpillPlace> {
    if (on_disk) return std::make_unique<SpillFile>(config_.run_dir, room, requests);
    return std::make_unique<SpillHost>(*device_, *stream_, room, requests);
  });
  log_info("activation_offload: " + mebibytes(static_cast<uint64_t>(tokens.room())) + " " +
           (on_disk ? "under " + config_.run_dir + " (" + tokens.description() + ")" : "of " + tokens.description()));
}

void Replica::take_micro_buffers(const std::vector<int>& slots) {
  const int64_t n = shape_.tokens();
  for (int count : slots) {
    std::vector<MicroBuffers> chunk;
    for (int slot = 0; slot < count; ++slot) {
      MicroBuffers b;
      b.tokens = arena_.take(MemoryCategory::kData, DType::i32, {n});
      b.targets = arena_.take(MemoryCategory::kData, DType::i32, {n});
      b.row_weight = arena_.take(MemoryCategory::kData, DType::f32, {n});
      const int64_t queries = layout_.shard.exchanges_heads() ? shape_.batch * layout_.shard.cut.length : n;
      if (config_.data.documents.reset_attention)
        b.first_keys = arena_.take(MemoryCategory::kData, DType::i32, {queries});
      if (config_.data.documents.reset_positions || !layout_.shard.cut.whole())
        b.positions = arena_.take(MemoryCategory::kData, DType::i32, {n});
      b.sample_ids = arena_.take(MemoryCategory::kData, DType::i64, {shape_.batch});
      chunk.push_back(b);
    }
    micro_.push_back(std::move(chunk));
  }
}

MicroBatch Replica::upload(const Batch& batch, double tokens, bool training, int chunk, int slot) {
  TW_CHECK(batch.rows == shape_.batch, "micro-batch of ", batch.rows, " rows");
  const MicroBuffers& b = micro_.at(static_cast<size_t>(chunk)).at(static_cast<size_t>(slot));
  const SequenceCut& cut = layout_.shard.cut;
  // This rank's tokens of per-token values of whole sequences.
  const auto write_tokens = [&]<typename T>(const std::vector<T>& values, View to, bool all = false) {
    if (values.empty()) return View{};
    const std::vector<T>* mine = &values;
    std::vector<T> part;
    if (!cut.whole() && !all) {
      part.reserve(static_cast<size_t>(batch.rows * cut.count()));
      for (int64_t row = 0; row < batch.rows; ++row)
        for (const SequenceCut::Run& run : {cut.front(), cut.back()}) {
          const auto from = values.begin() + (row * cut.length + run.first);
          part.insert(part.end(), from, from + run.count);
        }
      mine = &part;
    }
    write(to, mine->data(), mine->size() * sizeof(T));
    return to;
  };
  std::vector<float> weight(batch.loss_mask);
  const double share = tokens > 0.0 ? 1.0 / tokens : 0.0;
  for (float& w : weight) w = static_cast<float>(w * share);
  MicroBatch micro;
  micro.tokens = b.tokens;
  write_tokens(batch.inputs, b.tokens);
  write_tokens(batch.targets, b.targets);
  write_tokens(weight, b.row_weight);
  write(b.sample_ids, batch.sample_ids.data(), batch.sample_ids.size() * sizeof(int64_t));
  micro.first_keys = write_tokens(batch.first_keys, b.first_keys, layout_.shard.exchanges_heads());
  if (batch.positions.empty() && !cut.whole()) {
    std::vector<int32_t> positions(batch.inputs.size());
    for (size_t n = 0; n < positions.size(); ++n)
      positions[n] = static_cast<int32_t>(n % static_cast<size_t>(cut.length));
    write_tokens(positions, b.positions);
    micro.positions = b.positions;
  } else {
    micro.positions = write_tokens(batch.positions, b.positions);
  }
  micro.sample_ids = static_cast<const int64_t*>(b.sample_ids.data);
  micro.loss = {b.targets, b.row_weight, training ? buffers_.dlogits_scale : View{},
                buffers_.sums.element_range(kSumLoss, 1), training ? View{} : buffers_.token_losses};
  return micro;
}

std::vector<UnitUse> Replica::uses_of(const Plan& plan) const {
  std::vector<UnitUse> uses;
  for (const PlanNode& node : plan.nodes) {
    if (node.kind > NodeKind::kBackwardWeight) continue;
    stages_[static_cast<size_t>(node.chunk)]->list_uses(node.kind, uses);
  }
  return uses;
}

std::vector<UnitUse> Replica::evaluation_uses() const {
  std::vector<UnitUse> uses;
  for (const auto& stage : stages_) stage->list_uses(NodeKind::kForward, uses);
  return uses;
}

void Replica::read(View source, void* destination) {
  device_->copy_to_host(destination, source.data, source.bytes(), *stream_).wait_on_host();
}

void Replica::write(View destination, const void* source, size_t bytes) {
  TW_CHECK(bytes <= destination.bytes(), bytes, " bytes into ", destination.bytes());
  device_->copy_to_device(destination.data, source, bytes, *stream_).wait(*stream_);
}

void Replica::zero(View destination) {
  device_->fill_zero(destination.data, destination.bytes(), *stream_);
}

void Replica::visit_weights(StateVisitor& visitor, bool writer_only) {
  store_.visit(visitor, "model/", {}, writer_only);
}

void Replica::visit(StateVisitor& visitor, bool writer_only) {
  visit_weights(visitor, writer_only);
  if (!optimizer_) return;
  const auto show = [&](const char* prefix, View OptimizerBuffers::*field) {
    std::vector<View> pieces;
    for (const OptimizerBuffers& b : optimizer_->pieces()) {
      if (!(b.*field)) return;
      pieces.push_back(b.*field);
    }
    if (!pieces.empty()) store_.visit(visitor, prefix, pieces, writer_only);
  };
  show("adam_m/", &OptimizerBuffers::m);
  show("adam_v/", &OptimizerBuffers::v);
  show("sgd_momentum/", &OptimizerBuffers::momentum);
  if (optimizer_->kind() == OptimizerKind::kAdamW) {
    // Under the moments' own prefixes: who leaves the moments out begins to count anew, too.
    visitor.integer("adam_m/updates", optimizer_->moment_steps().m);
    visitor.integer("adam_v/updates", optimizer_->moment_steps().v);
  }
  if (has_replica_state()) visit_synced(visitor, writer_only);
  if (mesh_ != nullptr) mesh_->visit_states(visitor);
}

void Replica::visit_synced(StateVisitor& visitor, bool writer_only) const {
  std::vector<View> replicas;
  for (const OwnedPiece& piece : store_.owned()) replicas.push_back(piece.coded_sync ? piece.working : View{});
  store_.visit(visitor, "replica/", replicas, writer_only);
}

bool Replica::has_replica_state() const {
  return store_.coded_sync();
}

void Replica::set_fresh_weights() {
  store_.initialize(*exec_, config_.seed);
  weights_changed();
}

void Replica::weights_changed(bool replica_loaded) {
  store_.refresh_working(*exec_, !replica_loaded);
  if (mesh_ != nullptr) traffic_->sync_raw_params();
}

}  // namespace thinwire
