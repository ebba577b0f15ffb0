// Picks how messages are coded by what it costs and saves: as configured, by a cheaper variant of the rules, or not at
// all.
// Measured on this run, agreed by all ranks, and every change of the way is a plan revision (plan_revisions.h): trials,
// too, since what they send decides what is learned.
//
// A few steps run each way, in turn, and the fastest way stays; a way is left out when it is slower at 95 % confidence,
// and ways that are close to each other are given more steps. So many updates later all ways are tried again: links and
// neighbours change. What stays then is the way of before, unless it was left out. Where the wire alone would make
// plain steps much slower - so say their bytes and one timed exchange between all ranks - nobody tries them. Trials go
// on behind a restart where they were, unless it has other ranks, hosts or rules: then nothing that was measured
// counts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/train/plan_revisions.h"
#include "parallel/channel/mesh.h"
#include "parallel/sites/control.h"

namespace thinwire {

class CompressionController {
 public:
  // enabled: the configuration asks for it, and something is coded. variants: of the rules, with them as they are.
  // begin: steps after which all rules code (warmup_steps); those before are not looked at. again: updates behind a
  // decision after which all ways are tried again; 0: never. mesh may be nullptr (one rank). revisions: where decisions
  // go, and where the ways of all updates come from; where they are replayed nothing is measured. origin: ranks, hosts
  // and rules, the same text on all ranks.
  CompressionController(bool enabled, int variants, int64_t begin, int64_t again, Mesh* mesh, Control& control,
                        PlanRevisions& revisions, std::string origin = "");

  // Around every step; collectives until it has decided. before() sets the way of an update (1 is the first). after()
  // returns a line for the log when it decides, else an empty one; it is not told of skipped ones, whose parameters
  // nobody gathers. step: its number, of those applied. logical_bytes: what this rank would have sent plain, over all
  // sites.
  void before(int64_t update);
  std::string after(double step_ms, int64_t step, int64_t logical_bytes);
  void visit(StateVisitor& visitor);
  // Once a checkpoint of `updates` was loaded: drops what was measured elsewhere. Returns a line for the log, or "".
  std::string resume(int64_t updates);
  bool decided() const { return decided_; }

 private:
  enum Phase : int { kWarmUp = 3, kBlock = 4, kRounds = 2, kMostRounds = 10 };
  using Way = CodingWay;
  Way way_now() const;
  double measure_bytes_per_ms();
  double median_of(Way way) const;
  double least_excess(Way way, Way best) const;
  void leave_out_the_slow();
  void try_all();
  std::string decide(int64_t step);
  std::string look(double step_ms, int64_t step, int64_t logical_bytes);
  std::string state() const;

  bool enabled_ = false;
  int64_t begin_, again_;
  Mesh* mesh_;
  Control* control_;
  PlanRevisions* revisions_;
  std::string origin_, measured_at_;  // here, and where what follows was measured
  bool decided_ = false;
  Way way_ = Way::kCoded;             // while ways are tried again: that of before
  int64_t decisions_ = 0, kept_ = 0;  // so far; updates since the last
  int64_t warm_ = 0;                  // steps of this life that were not looked at
  int64_t place_ = 0;                 // steps that were
  int round_ = 0;                     // rounds that are over
  int64_t round_began_ = 0;           // place_ when this one began
  std::vector<Way> ways_;             // all, as the log lists them
  std::vector<Way> tried_;            // in this round, a block of steps each, in turn
  std::map<Way, std::vector<double>> ms_;
};

}  // namespace thinwire
