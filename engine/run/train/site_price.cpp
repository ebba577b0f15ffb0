// Walks plan and units as a step does, and adds up what each operation sends.
#include "engine/run/train/site_price.h"

#include <algorithm>
#include <span>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/base/core/model_units.h"
#include "engine/run/train/coding_setup.h"
#include "parallel/channel/channel_price.h"

namespace thinwire {
namespace {

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
    tensor_ranks_ = tensor_ranks(layout_.mesh, layout_.at);
    codings_ = codings_of(replica.config(), layout_);
    for (size_t site = 0; site < codings_.size(); ++site) further_[site] = further_coding(codings_[site]);
    messages_ = pipeline_coding(replica.config(), shape);
    units_ = replica.store().units();
    select_unit_messages(replica.config(), layout_, replica.store(), units_);
  }

  SitePrices run() {
    for (const PlanNode& node : plan_.nodes) {
      if (node.kind == NodeKind::kForward) forward(node);
      if (node.kind == NodeKind::kBackward || node.kind == NodeKind::kBackwardInput) backward(node);
      if (node.kind == NodeKind::kBackwardWeight) late_gathers(node);
      for (const Message& message : node.messages) {
        if (!message.send) continue;
        const Site site = message.forward ? Site::kPpForward : Site::kPpBackward;
        const PipelineMessages& which = message.forward ? messages_.forward : messages_.backward;
        const MatrixShape matrix{0, layout_.shard.part_rows(tokens_), model_.hidden};
        MessageKey key{static_cast<uint32_t>(message.edge), which.coded(message.edge, message.micro)};
        key.matrices = {&matrix, 1};
        add(site, price_send(group_of(site, {}), key, matrix.rows * matrix.cols, model_.dtype));
      }
    }
    units();
    control();
    return prices_;
  }

 private:
  void add(Site site, const Price& price, int64_t times = 1) {
    const size_t at = static_cast<size_t>(site);
    if (price.bytes == 0 || times == 0) return;
    prices_.bytes[at] += price.bytes * times;
    prices_.plain_bytes[at] += price.plain * times;
    prices_.operations[at] += times;
    prices_.exact[at] = prices_.exact[at] && price.exact;
  }

  PricedGroup group_of(Site site, const std::vector<int>& ranks, bool further = false) const {
    PricedGroup group;
    group.coding = (further ? further_ : codings_)[static_cast<size_t>(site)].get();
    group.tuning = &tuning_;
    const int me = rank_at(layout_.mesh, layout_.at);
    for (size_t i = 0; i < ranks.size(); ++i) {
      group.nodes.push_back(layout_.nodes.at(static_cast<size_t>(ranks[i])));
      if (ranks[i] == me) group.me = static_cast<int>(i);
    }
    return group;
  }
  // Members of a unit's group count data-parallel ranks, those of the last stage behind those of the first.
  PricedGroup group_of(Site site, const std::vector<int>& members, const UnitMemory& unit, bool further) const {
    std::vector<int> ranks;
    for (int m : members) {
      Coordinates at = layout_.at;
      at.data = m % layout_.mesh.data;
      if (unit.tied) at.pipeline = m < layout_.mesh.data ? 0 : layout_.mesh.pipeline - 1;
      ranks.push_back(rank_at(layout_.mesh, at));
    }
    return group_of(site, ranks, further);
  }

  // Activations [tokens, hidden] between tensor-parallel ranks: whole sums, or with sequence parallelism scattered sums
  // and gathers of rows.
  void sum_rows(Site site, int64_t times) {
    const PricedGroup group = group_of(site, tensor_ranks_);
    add(site,
        layout_.shard.splits_rows() ? price_reduce_scatter(group, unit_key(site), rows_, model_.dtype)
                                    : price_all_reduce(group, unit_key(site), tokens_ * model_.hidden, model_.dtype),
        times);
  }
  void gather_rows(Site site, int64_t times) {
    if (layout_.shard.splits_rows())
      add(site, price_all_gather(group_of(site, tensor_ranks_), unit_key(site), rows_, model_.dtype), times);
  }
  // Rows that the forward pass gathered, again: coded as they were then, counted under tp.backward.
  void gather_rows_again(int64_t times) {
    if (!layout_.shard.splits_rows()) return;
    MessageKey key = unit_key(Site::kTpForward);
    key.as = codings_[static_cast<size_t>(Site::kTpForward)].get();
    key.coded = key.coded && key.as != nullptr;
    add(Site::kTpBackward, price_all_gather(group_of(Site::kTpBackward, tensor_ranks_), key, rows_, model_.dtype),
        times);
  }
  // For a rule that names layers.
  MessageKey unit_key(Site site) const {
    const SiteRule* rule = rule_of(replica_.config(), site);
    MessageKey key;
    key.coded = rule == nullptr || selects_unit(rule->select, unit_, static_cast<int>(model_.layers));
    return key;
  }

  bool begins(const PlanNode& node) const { return layout_.shard.first && node.chunk == 0; }
  bool ends(const PlanNode& node) const {
    return layout_.shard.last && node.chunk + 1 == static_cast<int>(layout_.shard.chunks.size());
  }
  // Calls body() for each block of the chunk, with `unit_` saying which.
  template <typename F>
  void each_block(const PlanNode& node, F&& body) {
    const LayerRange& chunk = layout_.shard.chunks[static_cast<size_t>(node.chunk)];
    for (int64_t layer = 0; layer < chunk.count; ++layer) {
      unit_ = attention_unit(chunk.first + layer);  // the other half counts alike
      body();
    }
  }

  // The entries and exits of model/block.cpp, embedding.cpp and head.cpp.
  void forward(const PlanNode& node) {
    const int64_t branches = model_.parallel_residual ? 1 : 2;
    unit_ = kEmbeddingUnit;
    if (begins(node)) sum_rows(Site::kTpForward, 1);
    each_block(node, [&] {
      gather_rows(Site::kTpForward, 2);
      sum_rows(Site::kTpForward, branches);
    });
    if (!ends(node)) return;
    unit_ = head_unit(model_);
    gather_rows(Site::kTpForward, 1);
    sum_rows(Site::kTpBackward, 1);   // the head's input gradient is made with the loss
    std::vector<int64_t> statistics;  // of all of the head's pieces together
    for (int64_t r = 0; r <= tensor_; ++r) statistics.push_back(r * tokens_ * 3);
    add(Site::kControl, price_all_gather(group_of(Site::kControl, tensor_ranks_), {}, statistics, DType::f32));
  }

  void backward(const PlanNode& node) {
    const int64_t branches = model_.parallel_residual ? 1 : 2;
    const bool rows = layout_.shard.splits_rows();
    each_block(node, [&] {
      if (model_.recompute == Recompute::kFull) {
        gather_rows(Site::kTpForward, 2);
        if (!model_.parallel_residual) sum_rows(Site::kTpForward, 1);
      }
      gather_rows(Site::kTpBackward, branches);
      if (node.kind == NodeKind::kBackward) gather_rows_again(2);
      sum_rows(Site::kTpBackward, rows ? 2 : branches);
    });
    unit_ = kEmbeddingUnit;
    if (begins(node)) gather_rows(Site::kTpBackward, 1);
  }

  // The weight half gathers again what the input half had.
  void late_gathers(const PlanNode& node) {
    each_block(node, [&] { gather_rows_again(2); });
  }

  void units() {
    const GatherCounts gathers = count_gathers(units_, replica_.uses_of(plan_));
    for (size_t u = 0; u < units_.size(); ++u) {
      const UnitMemory& unit = units_[u];
      if (unit.count == 0) continue;
      reductions(unit);
      const MessageKey key{static_cast<uint32_t>(u), unit.coded_weights};
      const auto gather = [&](const ShardGroup& group, int64_t times, DType source) {
        if (group.members.size() > 1)
          add(Site::kZeroParameter,
              price_all_gather(group_of(Site::kZeroParameter, group.members, unit, false), key, group.bounds,
                               model_.dtype, source),
              times);
      };
      gather(unit.shard.sync, 1, DType::f32);  // from the masters
      gather(unit.shard.gather, gathers.whole[u], model_.dtype);
      gather(unit.shard.keep, gathers.kept[u], model_.dtype);
    }
  }

  void reductions(const UnitMemory& unit) {
    const UnitShard& shard = unit.shard;
    const Site site = unit.tied ? Site::kEmbedding : Site::kDpGradient;
    const bool sharded = shard.shard.members.size() > 1, refined = shard.refine.members.size() > 1;
    int64_t partial = 0;
    for (const Range& r : unit.tp_partial) partial += r.count;
    MessageKey plain;
    plain.coded = false;
    add(Site::kTpBackward, price_all_reduce(group_of(Site::kTpBackward, tensor_ranks_), plain, partial, DType::f32),
        sharded ? micros_ : 1);
    std::vector<int> replicas = shard.replicas, pair;
    if (unit.tied && layout_.where.placement.embedding == EmbeddingSyncKind::kTwoStep) {
      const int other = replicas.back(), me = layout_.at.data + layout_.where.stage * layout_.mesh.data;
      pair = {std::min(me, other), std::max(me, other)};
      replicas.pop_back();
    }
    for (const UnitPiece& piece : unit.pieces) {
      const PieceRanges& ranges = piece.ranges;
      if (sharded) {
        add(site,
            price_reduce_scatter(group_of(site, shard.shard.members, unit, false), piece.key(piece.shard_matrices),
                                 ranges.shard_bounds, DType::f32),
            micros_);
      }
      if (refined) {
        add(site, price_reduce_scatter(group_of(site, shard.refine.members, unit, sharded),
                                       piece.key(piece.refine_matrices), ranges.refine_bounds, DType::f32));
      }
      const MessageKey mine = piece.key(piece.mine_matrices);
      const bool summed = sharded || refined;
      add(site, price_all_reduce(group_of(site, replicas, unit, summed), mine, ranges.mine.count, DType::f32));
      if (!pair.empty())
        add(site, price_all_reduce(group_of(site, pair, unit, summed || replicas.size() > 1), mine, ranges.mine.count,
                                   DType::f32));
    }
  }

  void control() {
    std::vector<int> world;
    for (int r = 0; r < layout_.mesh.ranks(); ++r) world.push_back(r);
    add(Site::kControl, price_all_reduce(group_of(Site::kControl, world), {}, kSumCount, DType::f64));
  }

  const Replica& replica_;
  const RankLayout& layout_;
  const ModelConfig& model_;
  const CommTuning& tuning_;
  int64_t micros_;
  int tensor_;
  int64_t tokens_;
  Plan plan_;
  std::vector<int> tensor_ranks_;
  std::vector<int64_t> rows_;  // bounds of the residual stream's rows, in elements
  Mesh::Codings codings_, further_;
  PipelineCoding messages_;
  std::vector<UnitMemory> units_;  // with the pieces that a rule cuts them into
  int unit_ = 0;                   // that tensor-parallel traffic belongs to
  SitePrices prices_;
};

}  // namespace

SitePrices price_sites(const Replica& replica, int micro_batches) {
  return SitePricer(replica, micro_batches).run();
}

}  // namespace thinwire
