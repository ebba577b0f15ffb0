// Builds a rank of a run out of stand-ins, and takes a step with it.
#include "engine/run/train/step_rehearsal.h"

#include <algorithm>

#include "engine/run/train/compression_setup.h"

namespace thinwire {
namespace {

DevicePasses passes_for(RehearsalWatch* watch) {
  if (watch == nullptr) return nullptr;
  return [watch](size_t read, size_t written) { watch->moved(read, written); };
}

}  // namespace

StepRehearsal::StepRehearsal(const RunConfig& config, const RankLayout& layout, RehearsalWatch* watch,
                             const OpTable& ops)
    : device_(make_rehearsal_device(passes_for(watch))) {
  RunConfig rehearsed = config;
  rehearsed.cuda_graphs = false;  // there is nothing to record
  if (layout.mesh.ranks() > 1) {
    transport_ = make_silent_transport(rank_at(layout.mesh, layout.at), layout.mesh.ranks());
    progress_ = std::make_unique<Progress>(*transport_, ProgressOptions{.thread = false});
    mesh_ = std::make_unique<Mesh>(*progress_, layout.mesh, layout.nodes, config.layout.tuning);
    mesh_->rehearse(prices_);
    watch_rehearsal(*progress_, watch);
  }
  replica_ = std::make_unique<Replica>(rehearsed, layout, mesh_.get(), device_.get(), &ops, true);
}

void StepRehearsal::start_counting() {
  for (SitePrice& price : prices_) price = {.state_bytes = price.state_bytes};
}

void StepRehearsal::take_steps(int micro_batches, int steps, const NodeSink& nodes, const Counted& counted) {
  BareTraining training(*replica_);
  training.progress.updates = std::max<int64_t>(1, steps_of_warm_up(replica_->config(), replica_->layout().mesh, true));
  training.step.set_node_sink(nodes);
  Batch batch;  // of tokens that nobody looks at
  batch.rows = replica_->shape().batch;
  for (int step = 0; step < steps; ++step) {
    start_counting();
    training.take_step(micro_batches, [&] { return batch; });
    if (step == steps - 1) replica_->traffic().finish_param_sync();
    counted(step, prices_);
  }
}

const SitePrices& StepRehearsal::take_step(int micro_batches) {
  take_steps(micro_batches, 1, nullptr, [](int, const SitePrices&) {});
  return prices_;
}

}  // namespace thinwire
