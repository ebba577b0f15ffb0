// Builds a rank of a run out of stand-ins, and takes a step with it.
#include "engine/run/train/step_rehearsal.h"

#include <algorithm>

#include "engine/run/train/bare_training.h"
#include "engine/run/train/compression_setup.h"

namespace thinwire {

StepRehearsal::StepRehearsal(const RunConfig& config, const RankLayout& layout) : device_(make_rehearsal_device()) {
  RunConfig rehearsed = config;
  rehearsed.cuda_graphs = false;  // there is nothing to record
  if (layout.mesh.ranks() > 1) {
    transport_ = make_silent_transport(rank_at(layout.mesh, layout.at), layout.mesh.ranks());
    progress_ = std::make_unique<Progress>(*transport_, ProgressOptions{.thread = false});
    mesh_ = std::make_unique<Mesh>(*progress_, layout.mesh, layout.nodes, config.layout.tuning);
    mesh_->rehearse(prices_);
  }
  replica_ = std::make_unique<Replica>(rehearsed, layout, mesh_.get(), device_.get(), &rehearsal_ops(), true);
}

const SitePrices& StepRehearsal::take_step(int micro_batches) {
  for (SitePrice& price : prices_) price = {.state_bytes = price.state_bytes};
  BareTraining training(*replica_);
  training.progress.updates = std::max<int64_t>(1, steps_of_warm_up(replica_->config(), replica_->layout().mesh));
  Batch batch;  // of tokens that nobody looks at
  batch.rows = replica_->shape().batch;
  training.take_step(micro_batches, [&] { return batch; });
  replica_->traffic().finish_param_sync();
  return prices_;
}

}  // namespace thinwire
