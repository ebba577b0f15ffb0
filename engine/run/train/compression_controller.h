// Picks how each site's messages are coded by what it costs and saves: as configured, by light codes, cast to bf16, or
// not at all.
// Measured on this run, agreed by all ranks, and every change of a way is a plan revision (plan_revisions.h): trials,
// too, since what they send decides what is learned.
//
// One site after the other: a few steps run each way, in turn, while the other sites stay as they are. The site goes
// over to the fastest way that is faster at 95 % confidence (Welch's interval of the steps' logarithms); where none is,
// it cannot be told, and the site stays as it was. Of plain and bf16 that cannot be told apart bf16 is taken: fp32
// travels only where that is faster. Ways that are slower at 95 % confidence are left out on the way, and those that
// are close to each other are given more steps. So many updates behind the last site all are tried again: links and
// neighbours change. Where a site's bytes over the link - one timed exchange between all ranks - alone would make steps
// much slower, nobody tries that way. Trials go on behind a restart where they were, unless it has other ranks, hosts
// or rules: then nothing that was measured counts.
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
  // enabled: the configuration asks for it, and something is coded. ways: of every site that is (coding_ways).
  // begin: steps after which all rules code (warmup_steps); those before are not looked at. again: updates behind the
  // last decision after which all ways are tried again; 0: never. mesh may be nullptr (one rank). revisions: where
  // decisions go, and where the ways of all updates come from; where they are replayed nothing is measured. origin:
  // ranks, hosts and rules, the same text on all ranks.
  CompressionController(bool enabled, SiteWays ways, int64_t begin, int64_t again, Mesh* mesh, Control& control,
                        PlanRevisions& revisions, std::string origin = "");

  // Around every step; collectives until it has decided. before() sets the ways of an update (1 is the first). after()
  // returns a line for the log when it decides on a site, else an empty one; it is not told of skipped ones, whose
  // parameters nobody gathers. step: its number, of those applied. logical_bytes: what this rank would have sent plain.
  void before(int64_t update);
  std::string after(double step_ms, int64_t step, const SiteBytes& logical_bytes);
  void visit(StateVisitor& visitor);
  // Once a checkpoint of `updates` was loaded: drops what was measured elsewhere. Returns a line for the log, or "".
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
  std::string origin_, measured_at_;  // here, and where what follows was measured
  std::vector<std::pair<Site, std::vector<Way>>> sites_;
  size_t site_ = 0;          // whose ways are tried; behind the last: all are decided
  CodingWays ways_{};        // as decided, before that as configured
  int64_t kept_ = 0;         // updates behind the last decision
  int64_t warm_ = 0;         // steps of this life that were not looked at
  int64_t place_ = 0;        // steps that were, of this site's trials
  int round_ = 0;            // rounds that are over
  int64_t round_began_ = 0;  // place_ when this one began
  std::vector<Way> tried_;   // in this round, a block of steps each, in turn
  std::map<Way, std::vector<double>> ms_;
};

}  // namespace thinwire
