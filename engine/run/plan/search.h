// Looks for the fastest way to train a model on a cluster: layouts, ZeRO stages, schedules, micro-batches,
// recomputation and compression presets under the memory limit, by time per token.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/run/plan/prediction.h"

namespace thinwire {

// One way, as overrides of the configuration.
struct Candidate {
  std::vector<std::string> overrides;
  std::string words;  // "tp 2, pp 4, dp 8, zb_h1, micro-batch 2 x 4, recompute, thinwire, ZeRO-1"
  std::string way;    // the same with any recomputation that leaves the same hold
  std::string preset;
  int stages = 1;
  double bound_ms = 0.0;  // no step is shorter: products at the machine's best rate, and the schedule's bubble
  Prediction prediction;
};

// What a preset was measured to cost: evaluation loss above the uncompressed run of the same seeds, of 3.2 M parameters
// after 1,000 steps (docs/results/rivals.md); with pipelines, and of presets that are not there, of 0.8 M after 500
// (docs/results/compression.md).
struct LossGap {
  const char* preset;
  int stages;  // of the pipeline: 1, or 2 for more
  double percent;
  double half;  // of its 95 % interval; one seed: what the uncompressed seeds differ by
  int seeds;
};
// The row of so many stages, else one of another number; nullptr: not measured.
const LossGap* measured_loss_gap(const std::string& preset, int stages);

struct SearchResult {
  std::vector<Candidate> best;  // at most ten, fastest first
  int candidates = 0, refused = 0, too_large = 0, pruned = 0, simulated = 0;
};

// The configuration with a candidate's overrides; throws Error(kBadConfig) where they do not fit.
using CandidateConfig = std::function<RunConfig(const std::vector<std::string>& overrides)>;

// The batch (sequences per step) stays, so the order by tokens per second is that of the time to any number of tokens.
SearchResult search(const CandidateConfig& config_of, const Cluster& cluster, const std::vector<std::string>& presets);

// The table, why the first wins, and at which bandwidth between nodes others would.
std::string search_text(const SearchResult& result, const CandidateConfig& config_of, const Cluster& cluster);
// One JSON line per row, the last one the winner's with the line of a prediction.
std::string search_json(const SearchResult& result, const Cluster& cluster, const std::string& command);

}  // namespace thinwire
