// Picks how messages are coded by what it costs and saves: as configured, by a cheaper variant of the rules, or not at
// all.
// Measured on this run, agreed by all ranks, logged, and part of every checkpoint (a plan revision).
//
// A few steps run each way, in turn, and the fastest way stays; ways that are close to each other are given more
// steps. Where the wire alone would make plain steps much slower - so say their bytes and one timed exchange
// between all ranks - nobody tries them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "parallel/channel/mesh.h"
#include "parallel/sites/control.h"

namespace thinwire {

class CompressionController {
 public:
  // enabled: the configuration asks for it, and something is coded. variants: of the rules, with them as they are.
  // begin: steps after which all rules code (warmup_steps); those before are not looked at. mesh may be nullptr (one
  // rank).
  CompressionController(bool enabled, int variants, int64_t begin, Mesh* mesh, Control& control);

  // Around every step; collectives until it has decided. after() returns a line for the log when it decides, else an
  // empty one; it is not told of skipped ones, whose parameters nobody gathers. step: its number, of those applied.
  // logical_bytes: what this rank would have sent plain, over all sites.
  void before();
  std::string after(double step_ms, int64_t step, int64_t logical_bytes);
  void visit(StateVisitor& visitor);
  bool decided() const { return decided_ != 0; }

 private:
  enum Phase : int { kWarmUp = 3, kBlock = 4, kRounds = 2, kMostRounds = 10 };
  enum Way : int64_t { kCoded, kPlain };  // further ones: variants 1, 2 ... Numbers stand in checkpoints
  Way way_now() const;
  double measure_bytes_per_ms();
  double median_of(Way way) const;
  void leave_out_the_slow();
  std::string decide(int64_t step);

  bool enabled_ = false;
  int64_t begin_;
  Mesh* mesh_;
  Control* control_;
  int64_t decided_ = 0, way_ = kCoded, revised_at_ = 0;  // state
  int64_t seen_ = 0;                                     // steps of this life
  int round_ = 0;                                        // rounds that are over
  int64_t round_began_ = 0;                              // steps behind the warm-up before this one
  std::vector<Way> ways_;                                // all, as the log lists them
  std::vector<Way> tried_;                               // in this round, a block of steps each, in turn
  std::map<Way, std::vector<double>> ms_;
};

}  // namespace thinwire
