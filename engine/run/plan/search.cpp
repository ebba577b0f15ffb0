// Enumerates, prunes by memory and by bounds, simulates the rest in order of their bounds, and asks what would change
// the order.
#include "engine/run/plan/search.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/core/error.h"
#include "engine/base/core/text.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/config/layout_text.h"
#include "engine/run/plan/plan_text.h"
#include "engine/run/trace/flops.h"
#include "engine/run/train/dry_run.h"

namespace thinwire {
namespace {

constexpr size_t kShown = 10;
constexpr int kMostMicroBatch = 64;

#include "engine/run/plan/loss_gaps_table.inc"

std::string key(const char* name, int64_t value) {
  return std::string(name) + "=" + std::to_string(value);
}

std::vector<int64_t> divisors(int64_t n, int64_t most = INT64_MAX) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// All ways, as overrides and words; how many ranks share a sequence is the configuration's.
void for_each_layout(const RunConfig& base, const Cluster& cluster, int64_t ranks,
                     const std::vector<std::string>& presets, const std::function<void(Candidate)>& take) {
  const ModelConfig& m = base.model;
  const int64_t batch = base.data.global_batch, cp = base.layout.context;
  for (int64_t tp : divisors(ranks / cp)) {
    if (tp > cluster.ranks_per_node || m.heads % tp != 0 || m.kv_heads % tp != 0) continue;
    for (int64_t pp : divisors(ranks / cp / tp)) {
      if (pp > m.layers) continue;
      const int64_t dp = ranks / cp / tp / pp;
      if (batch % dp != 0) continue;
      for (int64_t micro : divisors(batch / dp, kMostMicroBatch)) {
        const int64_t micros = batch / dp / micro;
        for (int stage = 0; stage <= (dp * cp == 1 ? 0 : pp > 1 ? 1 : 3); ++stage)
          for (const char* schedule : {"1f1b", "zb_h1", "interleaved"}) {
            if (pp == 1 && schedule != std::string("1f1b")) continue;
            const bool interleaved = schedule == std::string("interleaved");
            if (interleaved && (m.layers % (2 * pp) != 0 || micros % pp != 0)) continue;
            for (const char* recompute :
                 {"none", "selective", "full"})  // one that fits keeps later ones of its hold out
              for (const std::string& preset : presets) {
                if (ranks == 1 && preset != "none") continue;
                Candidate c;
                c.overrides = {key("model_parallel_size", tp),
                               key("pipe_parallel_size", pp),
                               key("zero_optimization.stage", stage),
                               key("train_batch_size", batch),
                               key("train_micro_batch_size_per_gpu", micro),
                               key("gradient_accumulation_steps", micros),
                               std::string("recompute_granularity=") + recompute,
                               "compression.preset=" + preset};
                if (pp > 1) c.overrides.push_back(std::string("schedule=") + schedule);
                if (interleaved) c.overrides.push_back("virtual_chunks=2");
                c.preset = preset;
                c.stages = static_cast<int>(pp);
                c.words = "tp " + std::to_string(tp) + ", pp " + std::to_string(pp) +
                          (cp > 1 ? ", cp " + std::to_string(cp) : "") + ", dp " + std::to_string(dp) +
                          (pp > 1 ? std::string(", ") + schedule : "") + ", micro-batch " + std::to_string(micro) +
                          " x " + std::to_string(micros);
                c.way = c.words + ", " + preset;
                if (recompute == std::string("selective")) c.words += ", recompute attention";
                if (recompute == std::string("full")) c.words += ", recompute";
                c.words += ", " + preset;
                take(std::move(c));
              }
          }
      }
    }
  }
}

// Products at the best rate that the machine has, on all cores that ranks use, with the schedule's bubble for equal
// stages where nobody else can use the cores of a rank that waits.
double bound_of(const RunConfig& config, const Cluster& cluster, int64_t ranks) {
  double best = cluster.machine.flops;
  if (const auto curve = cluster.machine.products.find("matmul"); curve != cluster.machine.products.end())
    best = std::max(best, curve->second.alone.at(1e18));
  const double wanted = static_cast<double>(ranks) * threads_of(config, cluster);
  const int64_t nodes = (ranks + cluster.ranks_per_node - 1) / cluster.ranks_per_node;
  const double there = cluster.shared_cores > 0 ? cluster.shared_cores
                       : cluster.machine.gpu    ? wanted
                                                : static_cast<double>(nodes * cluster.machine.cores);
  const double cores = std::min(wanted, there);
  ModelConfig head = config.model;
  head.layers = 0;
  const bool full = config.model.recompute == Recompute::kFull;
  const double once = model_flops_per_token(config.model);
  const double flops = once + (full ? (once - model_flops_per_token(head)) / 3.0 : 0.0);
  const double work = flops * static_cast<double>(config.data.global_batch * config.data.seq_length) / best / cores;
  const PipelineShape shape = layout_of(config, 0).pipeline;
  const bool shared = cluster.shared_cores > 0 || wanted > there;
  const double idle = shared || shape.stages == 1 ? 0.0 : bubble_formula(shape, 1.0, full ? 2.0 : 1.0, 1.0);
  return 1e3 * work / (1.0 - idle) * 0.98;  // the head counts in the products, and is no layer of the schedule
}

// For the model, the batch and the number of ranks: what the configuration says of layouts may not fit the cluster.
RunConfig base_of(const CandidateConfig& config_of) {
  try {
    return config_of({});
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadConfig) throw;
  }
  return config_of({"model_parallel_size=1", "pipe_parallel_size=1", "train_micro_batch_size_per_gpu=1"});
}

}  // namespace

const LossGap* measured_loss_gap(const std::string& preset, int stages) {
  const LossGap* other = nullptr;
  for (const LossGap& gap : kLossGaps) {
    if (preset != gap.preset) continue;
    if (gap.stages == std::min(stages, 2)) return &gap;
    other = &gap;
  }
  return other;
}

SearchResult search(const CandidateConfig& config_of, const Cluster& cluster, const std::vector<std::string>& presets) {
  SearchResult result;
  const RunConfig base = base_of(config_of);
  const int64_t ranks = mesh_shape(base).ranks();
  std::vector<Candidate> open;
  std::set<std::string> known;
  for_each_layout(base, cluster, ranks, presets, [&](Candidate c) {
    ++result.candidates;
    try {
      const RunConfig config = config_of(c.overrides);
      const std::string placement = ", " + placement_text(config.layout.placement);
      c.words += placement, c.way += placement;
      // Where a preset has a placement of its own, all stages are one way.
      if (!known.insert(c.words).second) {
        --result.candidates;
        return;
      }
      c.bound_ms = bound_of(config, cluster, ranks);
      open.push_back(std::move(c));
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadConfig) throw;
      ++result.refused;
    }
  });
  std::stable_sort(open.begin(), open.end(),
                   [](const Candidate& a, const Candidate& b) { return a.bound_ms < b.bound_ms; });
  std::set<std::string> fitting;
  for (Candidate& c : open) {
    if (result.best.size() == kShown && c.bound_ms > result.best.back().prediction.step_ms) {
      ++result.pruned;
      continue;
    }
    const RunConfig config = config_of(c.overrides);
    // Recomputation takes time, but may leave room to hold gathered weights for longer, which saves some.
    if (cluster.memory_per_rank > 0.0)
      c.way +=
          ", " + word_of(choose_hold(config, cluster.ranks_per_node, cluster.memory_per_rank * cluster.ranks_per_node));
    if (fitting.contains(c.way)) {
      ++result.pruned;
      continue;
    }
    const auto too_large = [&](double bytes) {
      return cluster.memory_per_rank > 0.0 && bytes > cluster.memory_per_rank && ++result.too_large > 0;
    };
    const double planned = memory_of(config, cluster.machine);
    if (too_large(planned)) continue;
    // On GPUs the limit is of their memory, and a save's copy lies in the host's.
    const bool saves_here = cluster.memory_per_rank > 0.0 && !cluster.machine.gpu;
    const double saved = saves_here ? static_cast<double>(save_bytes(config)) : 0.0;
    if (too_large(planned + saved)) continue;
    c.prediction = predict(config, cluster);
    c.prediction.simulation = Simulation();
    if (too_large(c.prediction.memory_bytes + saved)) continue;
    ++result.simulated;
    fitting.insert(c.way);
    const auto behind = std::upper_bound(
        result.best.begin(), result.best.end(), c,
        [](const Candidate& a, const Candidate& b) { return a.prediction.step_ms < b.prediction.step_ms; });
    result.best.insert(behind, std::move(c));
    if (result.best.size() > kShown) result.best.pop_back();
  }
  return result;
}

namespace {

// The rate between nodes, nearest to the cluster's, at which `other` is as fast as `first`; 0: none within a factor
// of 64.
double crossing(const Candidate& first, const Candidate& other, const CandidateConfig& config_of,
                const Cluster& cluster) {
  const RunConfig a = config_of(first.overrides), b = config_of(other.overrides);
  const auto ahead = [&](double factor) {
    Cluster changed = cluster;
    for (int level = 1; level < static_cast<int>(Reach::kCount); ++level) changed.links[level].gbps *= factor;
    return predict(b, changed).step_ms - predict(a, changed).step_ms;
  };
  double found = 0.0;
  for (int step = 1; step <= 6 && found == 0.0; ++step)
    for (double sign : {1.0, -1.0}) {
      double near = std::exp2(sign * (step - 1)), far = std::exp2(sign * step);
      if (found != 0.0 || ahead(far) > 0.0) continue;
      for (int i = 0; i < 5; ++i) {
        const double middle = std::sqrt(near * far);
        (ahead(middle) > 0.0 ? near : far) = middle;
      }
      found = std::sqrt(near * far);
    }
  return found * cluster.links[1].gbps;
}

std::string why(const Prediction& p) {
  std::string text = "compute " + milliseconds(p.compute_ms) + " (+ " + milliseconds(p.contention_ms) +
                     " beside others), packing and sending " + milliseconds(p.issue_ms);
  double pipeline = 0.0;
  for (size_t site = 0; site < kSiteNames.size(); ++site) {
    const Site s = static_cast<Site>(site);
    const double ms = p.sites[site].exposed_ms_mean;
    if (s == Site::kPpForward || s == Site::kPpBackward)
      pipeline += ms;
    else if (ms >= 0.005 * p.step_ms)
      text += ", exposed " + std::string(kSiteNames[site]) + " " + milliseconds(ms);
  }
  if (pipeline > 0.0) text += ", waiting for neighbours in the pipeline " + milliseconds(pipeline);
  return text;
}

std::string loss_words(const Candidate& c) {
  if (c.preset == "none") return "";
  const LossGap* gap = measured_loss_gap(c.preset, c.stages);
  if (gap == nullptr) return ", loss not measured";
  return printed(", loss %+.2f +- %.2f %%", gap->percent, gap->half) +
         (gap->stages == std::min(c.stages, 2) ? "" : " (measured at pp " + std::to_string(gap->stages) + ")");
}

// Says when `other` would be at least as fast.
std::string when(const Candidate& first, const Candidate& other, const CandidateConfig& config_of,
                 const Cluster& cluster) {
  if (cluster.nodes == 1) return "no link between nodes decides here";
  const double gbps = crossing(first, other, config_of, cluster);
  if (gbps == 0.0) return "at no rate between nodes from 1/64 to 64 times this one";
  return (gbps > cluster.links[1].gbps ? "from " : "below ") + printed(gbps < 1000.0 ? "%.3g" : "%.0f", gbps) +
         " Gbit/s between nodes " + (gbps > cluster.links[1].gbps ? "on" : "only") +
         printed(" (here %g)", cluster.links[1].gbps);
}

}  // namespace

std::string search_text(const SearchResult& r, const CandidateConfig& config_of, const Cluster& cluster) {
  std::string text = "search on " + cluster.name +
                     (cluster.machine.ranking_only ? " (ranking only: the machine is not calibrated)" : "") + ": " +
                     std::to_string(r.candidates) + " candidates, " + std::to_string(r.refused) + " refused, " +
                     std::to_string(r.too_large) + " too large, " + std::to_string(r.pruned) +
                     " pruned by their bounds or because less recomputation fits, " + std::to_string(r.simulated) +
                     " simulated\n";
  if (r.best.empty()) return text + "none fits: more memory per rank, more ranks, or a smaller batch\n";
  for (size_t i = 0; i < r.best.size(); ++i) {
    const Candidate& c = r.best[i];
    text += printed("%2zu. %12.1f tokens/s %10.2f ms %9.1f MiB  ", i + 1, c.prediction.tokens_per_s,
                    c.prediction.step_ms, c.prediction.memory_bytes / 1048576.0) +
            c.words + loss_words(c) + "\n";
  }
  const Candidate& first = r.best.front();
  std::string second;  // when it wins
  text += "the first: " + why(first.prediction) + "\n";
  if (r.best.size() > 1) {
    text += "the second: " + why(r.best[1].prediction) + "\n";
    second = when(first, r.best[1], config_of, cluster);
    text += "the second wins: " + second + "\n";
  }
  for (const Candidate& c : r.best)
    if (c.preset != first.preset) {
      text += "preset " + c.preset + " (" + c.words +
              ") wins: " + (&c == &r.best[1] ? second : when(first, c, config_of, cluster)) + "\n";
      break;
    }
  text +=
      "loss: above the uncompressed run of the same seeds, measured with 3.2 M parameters (docs/results/rivals.md), "
      "of pipelines and of presets that are not there with 0.8 M (docs/results/compression.md), not for this model: "
      "time per token is not time to a "
      "loss\nkeys of the first:";
  for (const std::string& o : first.overrides) text += " " + o;
  return text + "\n";
}

std::string search_json(const SearchResult& r, const Cluster& cluster, const std::string& command) {
  std::string text;
  for (size_t i = 0; i < r.best.size(); ++i) {
    const Candidate& c = r.best[i];
    nlohmann::ordered_json row = {{"plan", "candidate"},
                                  {"place", i + 1},
                                  {"words", c.words},
                                  {"overrides", c.overrides},
                                  {"step_ms", c.prediction.step_ms},
                                  {"tokens_per_s", c.prediction.tokens_per_s},
                                  {"memory_bytes", c.prediction.memory_bytes},
                                  {"bubble", c.prediction.bubble}};
    const LossGap* gap = measured_loss_gap(c.preset, c.stages);
    row["loss_gap_percent"] = nullptr;  // not measured
    if (c.preset == "none") row["loss_gap_percent"] = 0.0;
    if (gap != nullptr) row["loss_gap_percent"] = gap->percent;
    text += row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  if (r.best.empty()) return text;
  return text + prediction_json(cluster, r.best.front().prediction, command) + "\n";
}

}  // namespace thinwire
