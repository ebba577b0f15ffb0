// Failures on purpose, for tests: what the key `faults` asks for (only with --allow-faults).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// faults: [{"at": POINT, "step": N, "rank": R, "do": ACTION}, ...]; rank 0 unless said. Points: "step.begin", "grad",
// "step.end", "compute" (in the step, behind its backward passes), "loss", and the save points
// ("save.begin" ... "save.after_prune"). A fault without "step" strikes each time. Actions: kill9, stop, segv, abort,
// enospc (a write error), nomem (no memory), delay:SECONDS, nan or inf at the point "grad" (an element of a
// gradient), scale:FACTOR at the point "loss" (what the rank adds to the step's loss), and flip at the point
// "weights" (a bit of what the rank computes with, behind the step).
class FaultPlan {
 public:
  FaultPlan() = default;
  // Throws Error(kBadConfig) naming the entry that is wrong, or if faults are given without being allowed.
  FaultPlan(const std::string& json_text, bool allowed, int rank = 0);

  void set_step(int64_t step) { step_ = step; }
  // Strikes if a fault is planned here and now.
  // Save points count for the step whose save began last, however far the training thread has come since.
  void reach(std::string_view point);
  // The value to poison a gradient with at this step, or 0.
  float poison() const;
  // What this rank's loss of the step is multiplied by.
  double loss_factor() const;
  // Whether a bit of the weights is flipped behind this step.
  bool flips_weights() const;
  bool empty() const { return faults_.empty(); }

 private:
  struct Fault {
    std::string at, action;
    int64_t step = -1;
    int64_t rank = 0;
    double amount = 0.0;  // seconds of a delay, factor of a scale
  };
  std::vector<Fault> faults_;
  int64_t step_ = 0;
  int64_t saving_step_ = 0;  // set while nothing is being written, so the writing thread reads it without a lock
};

}  // namespace thinwire
