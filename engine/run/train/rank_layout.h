// Where one rank stands: its coordinates, its share of the model and of the placement, and the order of its work. All
// of it follows from the configuration and the rank's number, so that every rank (and --dry-run) can work it out for
// any other.
#pragma once

#include <vector>

#include "engine/run/config/run_config.h"
#include "model/model_shard.h"
#include "model/param_store.h"
#include "parallel/channel/mesh.h"
#include "parallel/schedule/plan.h"

namespace thinwire {

struct RankLayout {
  MeshShape mesh;
  Coordinates at;
  ModelShard shard;
  StorePlacement where;
  PipelineShape pipeline;    // micro_batches: of a full batch
  std::vector<int> nodes;    // per world rank
  bool sends_parts = false;  // tensor ranks hold the same activations, and each sends the next stage a part of them

  // Who has which samples: context-parallel ranks have the same.
  int64_t data_rank() const { return at.data / mesh.context; }
  int64_t data_size() const { return mesh.data / mesh.context; }
  // How many ranks have a token of a micro-batch.
  int64_t copies() const { return static_cast<int64_t>(mesh.tensor) * mesh.pipeline; }
};

MeshShape mesh_shape(const RunConfig& config);

// nodes: per world rank; empty: what `ranks_per_node` pretends, else as found, else all on one node. Throws
// Error(kBadConfig) where the placement does not fit the nodes or there are fewer layers than virtual stages.
RankLayout layout_of(const RunConfig& config, int rank, std::vector<int> nodes = {});

// Cost of one micro-batch on every virtual stage, in forward passes of the average layer: what its matrix products and
// its share of the head count, recomputation included.
NodeCosts node_costs(const RunConfig& config);

// The first rank of a pipeline stage: data and tensor coordinate 0.
int first_rank_of_stage(const RunConfig& config, int stage);

}  // namespace thinwire
