// What a stage tells about its units while it runs: weights are needed, no longer needed, gradients are complete.
#pragma once

namespace thinwire {

class UnitEvents {
 public:
  virtual ~UnitEvents() = default;
  // Before the unit's weights are read: they are whole when this returns. backward: for a gradient (a secondary copy may
  // serve it).
  virtual void acquire(int unit, bool backward) = 0;
  virtual void release(int unit, bool backward) = 0;
  // The micro-batch at hand has added all it will add to the unit's gradients.
  virtual void gradients_complete(int unit) = 0;
};

// One rank that holds everything: nothing to do.
class NoUnitEvents final : public UnitEvents {
 public:
  void acquire(int, bool) override {}
  void release(int, bool) override {}
  void gradients_complete(int) override {}
};

}  // namespace thinwire
