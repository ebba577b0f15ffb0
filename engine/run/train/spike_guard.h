// Notices losses that jump: told apart from noise by median and MAD of the losses before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/config/run_config.h"

namespace thinwire {

// What it said of a loss.
struct SpikeVerdict {
  bool spike = false;
  bool skip = false;     // the step is not to be applied
  bool shift = false;    // the budget is spent: it is applied, and the window begins anew with it
  double median = 0.0;   // of the window; this and the next where there is a spike
  double spreads = 0.0;  // how far above, in spreads
};

// Pure arithmetic on losses that all ranks have bit for bit, so all of them judge alike without a word. State: goes
// into every checkpoint.
class SpikeGuard {
 public:
  explicit SpikeGuard(const SpikeConfig& config) : config_(config) {}

  // Once per step whose loss and gradients are finite. A spread is 1.4826 MADs (a standard deviation, of normal noise),
  // but at least 1 % of the median: losses that hardly differ are no reason to skip one that does a little. Nothing is
  // judged before a quarter of the window, at least 8 losses, is known.
  SpikeVerdict judge(double loss);

  void visit(StateVisitor& visitor);

 private:
  void remember(double loss);

  SpikeConfig config_;
  std::vector<double> losses_;  // at most `window`, the oldest at next_ once it is full
  int64_t next_ = 0;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace thinwire
