// Walks plan and units as a step does, and adds up what each operation sends.
#include "engine/run/train/site_price.h"

#include <algorithm>
#include <span>
#include <vector>

#include "engine/base/core/check.h"
#include "parallel/comm/tuning.h"

namespace thinwire {
namespace {

constexpr int64_t kFloat = 4;

// A group as its communicator sees it.
struct Group {
  std::vector<int> nodes;  // of each member
  int me = 0;
  int size() const { return static_cast<int>(nodes.size()); }
};

class SitePricer {
 public:
  SitePricer(const Replica& replica, int micro_batches)
      : replica_(replica),
        layout_(replica.layout()),
        model_(layout_.shard.whole),
        tuning_(replica.config().layout.tuning),
        micros_(micro_batches),
        tensor_(layout_.mesh.tensor),
        tokens_(replica.shape().tokens()) {
    PipelineShape shape = layout_.pipeline;
    shape.micro_batches = micro_batches;
    plan_ = make_plan(shape, layout_.at.pipeline);
    for (int r = 0; r <= tensor_; ++r) rows_.push_back(tokens_ * r / tensor_ * model_.hidden);
    tensor_group_ = group_of(tensor_ranks(layout_.mesh, layout_.at));
  }

  SitePrices run() {
    for (const PlanNode& node : plan_.nodes) {
      if (node.kind == NodeKind::kForward) forward(node);
      if (node.kind == NodeKind::kBackward || node.kind == NodeKind::kBackwardInput) backward(node);
      if (node.kind == NodeKind::kBackwardWeight) late_gathers(node);
      for (const Message& message : node.messages) {
        if (!message.send) continue;
        const int64_t rows = layout_.shard.part_rows(tokens_);
        add(message.forward ? Site::kPpForward : Site::kPpBackward, rows * model_.hidden * element());
      }
    }
    units();
    control();
    return prices_;
  }

 private:
  int64_t element() const { return static_cast<int64_t>(size_of(model_.dtype)); }
  void add(Site site, int64_t bytes, int64_t times = 1) {
    if (bytes == 0 || times == 0) return;
    prices_.bytes[static_cast<size_t>(site)] += bytes * times;
    prices_.operations[static_cast<size_t>(site)] += times;
  }

  Group group_of(const std::vector<int>& ranks) const {
    Group group;
    const int me = rank_at(layout_.mesh, layout_.at);
    for (size_t i = 0; i < ranks.size(); ++i) {
      group.nodes.push_back(layout_.nodes.at(static_cast<size_t>(ranks[i])));
      if (ranks[i] == me) group.me = static_cast<int>(i);
    }
    return group;
  }
  // Members of a unit's group count data-parallel ranks, those of the last stage behind those of the first.
  Group group_of(const std::vector<int>& members, const UnitMemory& unit) const {
    std::vector<int> ranks;
    for (int m : members) {
      Coordinates at = layout_.at;
      at.data = m % layout_.mesh.data;
      if (unit.tied) at.pipeline = m < layout_.mesh.data ? 0 : layout_.mesh.pipeline - 1;
      ranks.push_back(rank_at(layout_.mesh, at));
    }
    return group_of(ranks);
  }

  void all_reduce(Site site, const Group& group, int64_t count, int64_t element, int64_t times = 1) {
    if (group.size() > 1)
      add(site, all_reduce_bytes(tuning_, group.nodes, group.size(), group.me, count, element), times);
  }
  void reduce_scatter(Site site, const Group& group, std::span<const int64_t> bounds, int64_t element,
                      int64_t times = 1) {
    if (group.size() > 1) add(site, reduce_scatter_bytes(tuning_, group.nodes, group.me, bounds, element), times);
  }
  void all_gather(Site site, const Group& group, std::span<const int64_t> bounds, int64_t element, int64_t times = 1) {
    if (group.size() > 1) add(site, all_gather_bytes(tuning_, group.nodes, group.me, bounds, element), times);
  }

  // Activations [tokens, hidden] between tensor-parallel ranks: whole sums, or with sequence parallelism scattered sums
  // and gathers of rows.
  void sum_rows(Site site, int64_t times) {
    if (layout_.shard.splits_rows())
      reduce_scatter(site, tensor_group_, rows_, element(), times);
    else
      all_reduce(site, tensor_group_, tokens_ * model_.hidden, element(), times);
  }
  void gather_rows(Site site, int64_t times) {
    if (layout_.shard.splits_rows()) all_gather(site, tensor_group_, rows_, element(), times);
  }

  bool begins(const PlanNode& node) const { return layout_.shard.first && node.chunk == 0; }
  bool ends(const PlanNode& node) const {
    return layout_.shard.last && node.chunk + 1 == static_cast<int>(layout_.shard.chunks.size());
  }
  int64_t layers(const PlanNode& node) const { return layout_.shard.chunks[static_cast<size_t>(node.chunk)].count; }

  // The entries and exits of model/block.cpp, embedding.cpp and head.cpp.
  void forward(const PlanNode& node) {
    const int64_t n = layers(node), branches = model_.parallel_residual ? 1 : 2;
    if (begins(node)) sum_rows(Site::kTpForward, 1);
    gather_rows(Site::kTpForward, 2 * n);
    sum_rows(Site::kTpForward, branches * n);
    if (!ends(node)) return;
    gather_rows(Site::kTpForward, 1);
    sum_rows(Site::kTpBackward, 1);   // the head's input gradient is made with the loss
    std::vector<int64_t> statistics;  // of all of the head's pieces together
    for (int64_t r = 0; r <= tensor_; ++r) statistics.push_back(r * tokens_ * 3);
    all_gather(Site::kControl, tensor_group_, statistics, kFloat);
  }

  void backward(const PlanNode& node) {
    const int64_t n = layers(node), branches = model_.parallel_residual ? 1 : 2;
    if (model_.recompute == Recompute::kFull) {
      gather_rows(Site::kTpForward, 2 * n);
      if (!model_.parallel_residual) sum_rows(Site::kTpForward, n);
    }
    const bool rows = layout_.shard.splits_rows();
    gather_rows(Site::kTpBackward, branches * n);
    if (node.kind == NodeKind::kBackward) gather_rows(Site::kTpBackward, 2 * n);
    sum_rows(Site::kTpBackward, (rows ? 2 : branches) * n);
    if (begins(node)) gather_rows(Site::kTpBackward, 1);
  }

  // The weight half gathers again what the input half had.
  void late_gathers(const PlanNode& node) { gather_rows(Site::kTpBackward, 2 * layers(node)); }

  void units() {
    const std::vector<UnitMemory>& units = replica_.store().units();
    const GatherCounts gathers = count_gathers(units, replica_.uses_of(plan_));
    for (size_t u = 0; u < units.size(); ++u) {
      if (units[u].count == 0) continue;
      const UnitShard& shard = units[u].shard;
      reductions(units[u]);
      const auto gather = [&](const ShardGroup& group, int64_t times) {
        if (group.members.size() > 1)
          all_gather(Site::kZeroParameter, group_of(group.members, units[u]), group.bounds, element(), times);
      };
      gather(shard.update, 1);
      gather(shard.gather, gathers.whole[u]);
      gather(shard.keep, gathers.kept[u]);
    }
  }

  void reductions(const UnitMemory& unit) {
    const UnitShard& shard = unit.shard;
    const Site site = unit.tied ? Site::kEmbedding : Site::kDpGradient;
    const bool sharded = shard.shard.members.size() > 1;
    int64_t partial = 0;
    for (const Range& r : unit.tp_partial) partial += r.count;
    all_reduce(Site::kTpBackward, tensor_group_, partial, kFloat, sharded ? micros_ : 1);
    if (sharded) reduce_scatter(site, group_of(shard.shard.members, unit), shard.shard.bounds, kFloat, micros_);
    if (shard.refine.members.size() > 1)
      reduce_scatter(site, group_of(shard.refine.members, unit), shard.refine.bounds, kFloat);
    std::vector<int> replicas = shard.replicas;
    if (unit.tied && layout_.where.placement.embedding == EmbeddingSyncKind::kTwoStep) {
      const int other = replicas.back(), me = layout_.at.data + layout_.where.stage * layout_.mesh.data;
      all_reduce(site, group_of({std::min(me, other), std::max(me, other)}, unit), shard.optimizer.count, kFloat);
      replicas.pop_back();
    }
    all_reduce(site, group_of(replicas, unit), shard.optimizer.count, kFloat);
  }

  void control() {
    std::vector<int> world;
    for (int r = 0; r < layout_.mesh.ranks(); ++r) world.push_back(r);
    all_reduce(Site::kControl, group_of(world), kSumCount, 8);
  }

  const Replica& replica_;
  const RankLayout& layout_;
  const ModelConfig& model_;
  const CommTuning& tuning_;
  int64_t micros_;
  int tensor_;
  int64_t tokens_;
  Plan plan_;
  Group tensor_group_;
  std::vector<int64_t> rows_;  // bounds of the residual stream's rows, in elements
  SitePrices prices_;
};

}  // namespace

SitePrices price_sites(const Replica& replica, int micro_batches) {
  return SitePricer(replica, micro_batches).run();
}

}  // namespace thinwire
