// Finds losses that jump: far above the median of the losses before, measured by their median absolute deviation (MAD).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/config/run_config.h"

namespace thinwire {

struct SpikeVerdict {
  bool spike = false;
  bool skip = false;     // the step is not to be applied
  bool shift = false;    // as many steps in a row as allowed were skipped: this one is applied, and the window restarts
  double median = 0.0;   // of the window; this and the next where losses were judged
  double spreads = 0.0;  // (loss - median) / spread
};

// All ranks have the same bits of every loss, so they come to the same verdict without communication. The window is
// saved in every checkpoint.
class SpikeGuard {
 public:
  explicit SpikeGuard(const SpikeConfig& config) : config_(config) {}

  // Call it once for every step whose loss and gradients are finite. A spread is 1.4826 MADs (the standard deviation,
  // if the noise is normal), but at least 1 % of the median: where losses hardly differ, a small change is no spike. No
  // loss is judged before the window holds a quarter of its losses, and at least 8.
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
