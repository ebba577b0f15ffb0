// Picks for each site the way of coding with the fastest steps: as configured, by light codecs, cast to bf16, or plain.
// Steps of this run are measured, and all ranks agree on the times. Every change of a way is a plan revision
// (plan_revisions.h), also for a trial, since what is sent decides what is learned.
//
// One site after the other: its ways take turns, a block of steps each, while the other sites keep theirs. The site
// goes over to the fastest of the ways that are faster than its present one at 95 % confidence (Welch's interval of the
// logarithms of step times); where none is, it keeps the present one. Where plain and bf16 cannot be told apart, bf16
// is taken: fp32 is sent only where it is faster. Ways that are slower at 95 % confidence are dropped from the trials,
// those that are close get more rounds. A way is not tried where its bytes alone, at the rate of one timed exchange
// between all ranks, would make steps much slower. Some updates after the last decision all sites are tried again:
// links and neighbours change. Trials go on after a restart; with another layout, other hosts or rules they start anew.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/train/plan_revisions.h"
#include "parallel/channel/mesh.h"
#include "parallel/sites/control.h"

namespace thinwire {

using SiteBytes = std::array<int64_t, kSiteNames.size()>;

class CompressionController {
 public:
  // enabled: the configuration asks for it, and something is coded. ways: of every coded site (coding_ways), kCoded
  // first. begin: updates until all rules code (warmup_steps); these are not measured. again: updates from the last
  // decision until all sites are tried again; 0: never. mesh: nullptr on one rank, where nothing is decided. revisions:
  // takes the decisions, and says the ways of every update; while it replays a file, nothing is measured. origin:
  // layout, rules and hosts as text, the same on all ranks.
  CompressionController(bool enabled, SiteWays ways, int64_t begin, int64_t again, Mesh* mesh, Control& control,
                        PlanRevisions& revisions, std::string origin = "");

  // Around every step. before() sets the ways of an update (1 is the first). after() is a collective until all sites
  // are decided. It returns a line for the log when it decides on one, else "". Not to be called for skipped steps:
  // they gather no parameters. step: updates applied. logical_bytes: what this rank would have sent plain, by site.
  void before(int64_t update);
  std::string after(double step_ms, int64_t step, const SiteBytes& logical_bytes);
  void visit(StateVisitor& visitor);
  // After a checkpoint of `updates` was loaded: drops times of another origin; where nothing is decided any more, ways
  // that were, too. Returns a line for the log, or "".
  std::string resume(int64_t updates);
  bool decided() const { return site_ == sites_.size(); }

 private:
  enum Phase : int { kWarmUp = 3, kBlock = 4, kRounds = 2, kMostRounds = 10 };
  using Way = CodingWay;
  Way trial() const;
  Way& way_of(Site site) { return ways_[static_cast<size_t>(site)]; }
  double measure_bytes_per_ms();
  double median_of(Way way) const;
  double least_excess(Way way, Way best) const;
  void begin_trials(size_t site);
  void leave_out_the_hopeless(int64_t logical_bytes);
  void leave_out_the_slow();
  std::string decide(int64_t step);
  std::string look(double step_ms, int64_t step, int64_t logical_bytes);
  std::string state() const;

  bool enabled_ = false;
  int64_t begin_, again_;
  Mesh* mesh_;
  Control* control_;
  PlanRevisions* revisions_;
  std::string origin_, measured_at_;  // measured_at_: the origin of what follows
  std::vector<std::pair<Site, std::vector<Way>>> sites_;
  size_t site_ = 0;                        // in sites_, on trial; sites_.size(): all are decided
  CodingWays ways_{};                      // decided ones; kCoded until then
  int64_t kept_ = 0;                       // updates since the last decision
  int64_t warm_ = 0;                       // steps since this process began that were not measured
  int64_t place_ = 0;                      // steps of this site's trials so far
  int round_ = 0;                          // rounds that are over
  int64_t round_began_ = 0;                // place_ when this round began
  std::vector<Way> tried_;                 // the ways of this round, a block of steps each, in turn
  std::map<Way, std::vector<double>> ms_;  // of steps, on the slowest rank
};

}  // namespace thinwire
