// A configuration on a cluster: how long a step takes, where its time goes, what a rank needs and sends.
#pragma once

#include <string>
#include <vector>

#include "engine/run/config/run_config.h"
#include "engine/run/plan/cluster.h"
#include "engine/run/plan/simulator.h"

namespace thinwire {

struct SitePrediction {
  int64_t wire_bytes = 0;        // of rank 0 in a step, as in metrics.jsonl
  int64_t wire_bytes_total = 0;  // of all ranks; folded: as if all of a stage sent what its first one does
  double exposed_ms = 0.0;       // on rank 0
  double exposed_ms_mean = 0.0;  // over all ranks
};

struct Prediction {
  std::string layout;  // in words, with the hold that the cluster's memory decides
  double step_ms = 0.0, tokens_per_s = 0.0;
  double bubble = 0.0;  // share of the step in which a rank waits for its pipeline neighbours, mean over the ranks
  double memory_bytes = 0.0;  // of the rank that needs most, with the process
  std::array<SitePrediction, kSiteNames.size()> sites{};
  // Of the mean rank, in ms: work alone, what it takes longer beside others, packing and sending on the compute thread.
  double compute_ms = 0.0, contention_ms = 0.0, issue_ms = 0.0, wait_ms = 0.0;
  int ranks = 1;
  bool folded = false;
  bool bytes_exact = true;  // false: lengths depend on values, and bytes are the most
  std::vector<Tape> tapes;  // where spans were asked for
  Simulation simulation;
};

inline constexpr int kUnfoldedRanks = 16;  // so many are simulated one by one in any case
inline constexpr int kMostUnfolded = 64;   // and at most so many where ranks differ, or stages share nodes unevenly

struct PredictOptions {
  bool spans = false;  // with the critical path and the tapes that both name: what plan_text.h needs
  int unfold_up_to = kUnfoldedRanks;
};
// Throws Error(kBadConfig) where the cluster has not so many ranks, or ranks that differ cannot be told apart.
Prediction predict(const RunConfig& config, const Cluster& cluster, const PredictOptions& options = {});

// Bytes of the rank that needs most, but for what only a simulation tells: blocks of open operations, and messages that
// come early.
double memory_of(const RunConfig& config, const Machine& machine);

}  // namespace thinwire
