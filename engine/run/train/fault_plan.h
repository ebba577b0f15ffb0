// Failures on purpose, for tests: what the key `faults` asks for (only with --allow-faults).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// faults: [{"at": POINT, "step": N, "rank": R, "do": ACTION}, ...]. Without "rank": rank 0; without "step": every step.
// At the points "step.begin", "compute" (in the step, behind its backward passes), "step.end" and the save points
// (kSavePoints) the actions are kill9, stop, segv, abort, enospc (a write error), nomem (std::bad_alloc) and
// delay:SECONDS. Three points have actions of their own:
//   "grad"     nan, inf: an element of a gradient becomes that
//   "loss"     scale:FACTOR: this rank's share of the step's loss is multiplied by it
//   "weights"  flip: after the step, one bit of the weights that the rank computes with
class FaultPlan {
 public:
  FaultPlan() = default;
  // Throws Error(kBadConfig) naming the entry that is wrong, or if faults are given without being allowed.
  FaultPlan(const std::string& json_text, bool allowed, int rank = 0);

  void set_step(int64_t step) { step_ = step; }
  // Does what is planned for this point at this step: may end the process, sleep, or throw. A save point belongs to the
  // step whose save began last, which an asynchronous save may reach many steps later.
  void reach(std::string_view point);
  // What an element of a gradient becomes at this step (NaN or infinity); 0: nothing is planned.
  float poison() const;
  // What this rank's share of the step's loss is multiplied by; 1: nothing is planned.
  double loss_factor() const;
  // Whether a bit of the weights is flipped after this step.
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
  int64_t saving_step_ = 0;  // set only while no save is under way, so the writing thread reads it without a lock
};

}  // namespace thinwire
