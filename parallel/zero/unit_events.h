// What a stage tells about its units while it runs: weights are needed, no longer needed, gradients are complete.
#pragma once

#include <initializer_list>

namespace thinwire {

// One use of a unit in a step, in the order of execution.
struct UnitUse {
  int unit = 0;
  bool backward = false;
};

class UnitEvents {
 public:
  virtual ~UnitEvents() = default;
  // Before the unit's weights are read: they are whole when this returns. backward: for a gradient (a secondary copy
  // may serve it).
  virtual void acquire(int unit, bool backward) = 0;
  virtual void release(int unit, bool backward) = 0;
  // Before the micro-batch at hand adds the first of its gradients to the unit: their buffer is free, and zero or holds
  // the sum so far, when this returns.
  virtual void gradients_begin(int unit) = 0;
  // The micro-batch at hand has added all it will add to the unit's gradients. (Others may have added some of theirs.)
  virtual void gradients_complete(int unit) = 0;
};

// Runs `use` while the units' weights are whole. Units below 0 are none.
template <typename Use>
void with_weights(UnitEvents& events, std::initializer_list<int> units, bool backward, const Use& use) {
  for (int unit : units) {
    if (unit >= 0) events.acquire(unit, backward);
  }
  use();
  for (int unit : units) {
    if (unit >= 0) events.release(unit, backward);
  }
}

// One rank that holds everything: nothing to do.
class NoUnitEvents final : public UnitEvents {
 public:
  void acquire(int, bool) override {}
  void release(int, bool) override {}
  void gradients_begin(int) override {}
  void gradients_complete(int) override {}
};

}  // namespace thinwire
