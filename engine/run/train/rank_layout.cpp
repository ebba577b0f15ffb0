// From (configuration, rank) to coordinates, shard, placement and plans.
#include "engine/run/train/rank_layout.h"

#include <algorithm>

#include "engine/base/core/error.h"
#include "engine/run/trace/flops.h"
#include "engine/run/train/compression_setup.h"
#include "model/params.h"

namespace thinwire {
namespace {

// What a layer, the embedding and the head cost, in the unit that the method counts.
std::vector<LayerRange> split_layers(const RunConfig& config, int parts) {
  const ModelConfig& m = config.model;
  std::vector<double> costs(static_cast<size_t>(m.layers), 1.0);
  double first = 0.0, last = 0.0;
  if (config.layout.partition == PartitionMethod::kParameters) {
    const ParamList params = list_parameters(m);
    std::fill(costs.begin(), costs.end(), 0.0);
    for (const ParamSpec& p : params) {
      const double n = static_cast<double>(p.count());
      if (const int64_t layer = layer_of_unit(p.unit, m.layers); layer >= 0)
        costs[static_cast<size_t>(layer)] += n;
      else if (p.unit == head_unit(m))
        last += n;
      else
        first += n;
    }
    if (m.tied_head && parts > 1) last += static_cast<double>(m.padded_vocab * m.hidden);
  } else if (config.layout.partition == PartitionMethod::kTime) {
    std::fill(costs.begin(), costs.end(), config.layout.layer_ms);
    first = config.layout.embedding_ms, last = config.layout.head_ms;
  }
  return partition_layers(costs, parts, first, last);
}

// Refused where level "node" is another width for a group that has to shard as this rank's does: that of another tensor
// rank, whose copies of norms and biases would be summed in another order, or of the other stage that has the tied
// embedding, whose group the two share. Secondary copies are gathered from and never summed: their width matters where
// the gather is coded.
Placement placement_of(const RunConfig& config, const RankLayout& layout) {
  const PlacementLevels& levels = config.layout.placement;
  const int mine = layout.at.pipeline, last = layout.mesh.pipeline - 1;
  const bool shares = config.model.tied_head && (mine == 0 || mine == last);
  const auto of_group = [&](int stage, int tensor) {
    std::vector<int> nodes;
    for (int r : data_ranks(layout.mesh, {stage, 0, tensor})) nodes.push_back(layout.nodes[static_cast<size_t>(r)]);
    return resolve_placement(levels, nodes);
  };
  const Placement placement = of_group(mine, layout.at.tensor);
  const bool coded_gathers = std::ranges::any_of(config.compression.at(Site::kZeroParameter),
                                                 [](const SiteRule& rule) { return rule.codec.codec != "identity"; });
  for (const int stage : {shares ? 0 : mine, shares ? last : mine}) {
    for (int tensor = 0; tensor < layout.mesh.tensor; ++tensor) {
      Placement other = of_group(stage, tensor);
      if (!coded_gathers) other.secondary = placement.secondary;
      if (other == placement) continue;
      throw_bad_config(
          "placement: level \"node\" is not as many data-parallel ranks for all tensor ranks, or for both stages of "
          "the tied embedding. Use \"pair\" or \"global\", or start the same number of ranks on every node");
    }
  }
  return placement;
}

}  // namespace

MeshShape mesh_shape(const RunConfig& config) {
  return {static_cast<int>(config.layout.pipeline), static_cast<int>(config.layout.data),
          static_cast<int>(config.layout.tensor), static_cast<int>(config.layout.context)};
}

RankLayout layout_of(const RunConfig& config, int rank, std::vector<int> nodes) {
  const LayoutConfig& l = config.layout;
  RankLayout layout;
  layout.mesh = mesh_shape(config);
  layout.at = coordinates_of(layout.mesh, rank);
  if (nodes.empty()) {
    nodes = l.ranks_on_node() > 0 ? pretend_nodes(layout.mesh.ranks(), static_cast<int>(l.ranks_on_node()))
                                  : std::vector<int>(static_cast<size_t>(layout.mesh.ranks()), 0);
  }
  layout.nodes = std::move(nodes);

  layout.pipeline.kind = l.schedule_kind;
  layout.pipeline.stages = layout.mesh.pipeline;
  layout.pipeline.chunks = layout.mesh.pipeline > 1 && l.schedule_kind == ScheduleKind::kInterleaved
                               ? static_cast<int>(l.virtual_chunks)
                               : 1;
  if (layout.mesh.pipeline == 1) layout.pipeline.kind = ScheduleKind::k1f1b;
  layout.pipeline.micro_batches = static_cast<int>(config.accumulation);

  const int stages = layout.pipeline.stages, chunks = layout.pipeline.chunks;
  const std::vector<LayerRange> ranges = split_layers(config, stages * chunks);
  layout.shard.whole = config.model;
  layout.shard.tensor_rank = layout.at.tensor;
  layout.shard.tensor_size = layout.mesh.tensor;
  layout.shard.cut = {config.data.seq_length, layout.at.data % layout.mesh.context, layout.mesh.context};
  layout.shard.sequence_way = l.sequence_way;
  layout.shard.equal_distances = config.device == "cuda";
  layout.shard.sequence_parallel = l.sequence_parallel && layout.mesh.tensor > 1;
  layout.sends_parts = l.scatter_in_pipeline && !l.sequence_parallel && layout.mesh.tensor > 1 && stages > 1;
  for (int chunk = 0; chunk < chunks; ++chunk)
    layout.shard.chunks.push_back(ranges[static_cast<size_t>(chunk * stages + layout.at.pipeline)]);
  layout.shard.first = layout.at.pipeline == 0;
  layout.shard.last = layout.at.pipeline == stages - 1;

  layout.where.placement = placement_of(config, layout);
  layout.where.placement.hold = l.hold;
  layout.where.placement.embedding = l.embedding_sync;
  layout.where.placement.overlap = l.overlap_communication;
  layout.where.data_rank = layout.at.data;
  layout.where.coded_param_sync = compresses_param_sync(config, layout.at.pipeline);
  layout.where.coded_tied_param_sync = compresses_tied_param_sync(config, stages);
  layout.where.stage = layout.shard.first ? 0 : 1;
  layout.where.gradient_dtype = config.gradient_dtype;
  layout.where.split_backward = layout.pipeline.kind == ScheduleKind::kZbH1;
  return layout;
}

NodeCosts node_costs(const RunConfig& config) {
  // Of one layer and of the head, by the formula of the whole: three passes, so a third is the forward's.
  const ModelConfig& m = config.model;
  ModelConfig none = m;
  none.layers = 0;
  const double head = model_flops_per_token(none),
               layer = (model_flops_per_token(m) - head) / static_cast<double>(m.layers);
  const double recomputed = m.recompute == Recompute::kFull ? 1.0 : 0.0;
  const PipelineShape shape = layout_of(config, 0).pipeline;
  const std::vector<LayerRange> ranges = split_layers(config, shape.stages * shape.chunks);
  NodeCosts costs;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const double layers = static_cast<double>(ranges[i].count), end = i + 1 == ranges.size() ? head / layer : 0.0;
    // The head's gradients are made with its loss, in the forward node.
    costs.forward.push_back(layers + 3.0 * end);
    costs.backward_input.push_back(layers * (1.0 + recomputed));
    costs.backward_weight.push_back(layers);
  }
  return costs;
}

int first_rank_of_stage(const RunConfig& config, int stage) {
  return rank_at(mesh_shape(config), {stage, 0, 0});
}

}  // namespace thinwire
