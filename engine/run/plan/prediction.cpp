// Tapes recorded, linked and executed; the numbers of the measured step.
#include "engine/run/plan/prediction.h"

#include <algorithm>

#include "engine/base/core/error.h"
#include "engine/run/config/layout_text.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/rank_layout.h"

namespace thinwire {
namespace {

constexpr int kSteps = 3;
constexpr int kFoldedPieces = 4;  // of a slice

Folding folding_of(const RunConfig& config, const Cluster& cluster, int unfold_up_to) {
  Folding folding;
  folding.mesh = mesh_shape(config);
  const int ranks = folding.mesh.ranks();
  if (ranks > cluster.ranks())
    throw_bad_config(cluster.file + ": the layout has " + std::to_string(ranks) + " ranks, and the cluster " +
                     std::to_string(cluster.ranks()) + " (" + std::to_string(cluster.nodes) + " nodes of " +
                     std::to_string(cluster.ranks_per_node) + "): fewer ranks, or more nodes in the file");
  for (const Straggler& s : cluster.stragglers)
    if (s.rank >= ranks)
      throw_bad_config(cluster.file + ": stragglers: rank " + std::to_string(s.rank) + " of " + std::to_string(ranks));
  if (cluster.uneven() && ranks > kMostUnfolded)
    throw_bad_config(cluster.file + ": jitter and stragglers are simulated with at most " +
                     std::to_string(kMostUnfolded) + " ranks, and the layout has " + std::to_string(ranks));
  // Ranks of a stage are not alike where stages share nodes without filling them, those of the machine or those that
  // the configuration says.
  const auto uneven = [](int64_t a, int64_t b) { return std::max(a, b) % std::min(a, b) != 0; };
  const int64_t stage = ranks / folding.mesh.pipeline, found = cluster.ranks_per_node,
                said = config.layout.ranks_per_node;
  if ((cluster.nodes > 1 && uneven(stage, found)) ||
      (said > 0 && said != found && (uneven(stage, said) || uneven(found, said))))
    unfold_up_to = std::max(unfold_up_to, kMostUnfolded);
  folding.folded = !cluster.uneven() && ranks > unfold_up_to && folding.mesh.pipeline < ranks;
  return folding;
}

void add_sites(Prediction& p, const std::vector<Tape>& tapes, const Folding& folding) {
  const double actors = static_cast<double>(tapes.size());
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    SitePrediction& s = p.sites[site];
    for (size_t a = 0; a < tapes.size(); ++a) {
      const SitePrice& price = tapes[a].counted[kSteps - 2][site];
      s.wire_bytes_total += price.bytes * folding.ranks_of_actor();
      s.exposed_ms_mean += 1e3 * p.simulation.actors[a].exposed[site] / actors;
      p.bytes_exact = p.bytes_exact && price.exact;
    }
    s.wire_bytes = tapes[0].counted[kSteps - 2][site].bytes;
    s.exposed_ms = 1e3 * p.simulation.actors[0].exposed[site];
  }
}

}  // namespace

double memory_of(const RunConfig& config, const Machine& machine) {
  const double beside = mesh_shape(config).ranks() > 1 ? machine.beside_plan : 0.0;
  return beside + static_cast<double>(plan_memory(config).total() + process_overhead(config));
}

Prediction predict(const RunConfig& given, const Cluster& cluster, const PredictOptions& options) {
  RunConfig config = given;
  if (cluster.memory_per_rank > 0.0)
    config.layout.hold = choose_hold(config, cluster.ranks_per_node, cluster.memory_per_rank * cluster.ranks_per_node);
  const Folding folding = folding_of(config, cluster, options.unfold_up_to);
  Prediction p;
  p.layout = layout_text(config);
  p.ranks = folding.mesh.ranks();
  p.folded = folding.folded;
  std::vector<Tape> tapes;
  for (int actor = 0; actor < folding.actors(); ++actor)
    tapes.push_back(record_tape(config, cluster, folding.rank_of(actor), kSteps, folding.folded ? kFoldedPieces : 0));
  p.simulation = simulate(tapes, folding, cluster, kSteps, options.spans);
  p.step_ms = 1e3 * p.simulation.step_seconds;
  p.tokens_per_s = static_cast<double>(config.data.global_batch * config.data.seq_length) / p.simulation.step_seconds;
  double buffers = 0.0;
  for (const ActorTimes& times : p.simulation.actors) buffers = std::max(buffers, times.buffers + times.early);
  p.memory_bytes = memory_of(config, cluster.machine) + buffers;
  add_sites(p, tapes, folding);
  for (const ActorTimes& times : p.simulation.actors) {
    const double part = 1e3 / static_cast<double>(tapes.size());
    p.compute_ms += part * times.compute;
    p.contention_ms += part * times.contention;
    p.issue_ms += part * times.issue;
    p.wait_ms += part * times.wait();
  }
  for (Site site : {Site::kPpForward, Site::kPpBackward})
    p.bubble += p.sites[static_cast<size_t>(site)].exposed_ms_mean / p.step_ms;
  if (options.spans) p.tapes = std::move(tapes);
  return p;
}

}  // namespace thinwire
