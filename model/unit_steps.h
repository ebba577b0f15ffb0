// The order of a step: a unit that others wait for is stepped right before its parameter all-gather.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "model/param_store.h"

namespace thinwire {

// Which of the optimizer's pieces (ParamStore::owned) belong to which unit. A piece may hold several units; it is
// updated whole, with the first of them that is asked for.
class UnitSteps {
 public:
  explicit UnitSteps(const ParamStore& store);

  using StepPiece = std::function<void(size_t piece)>;

  // The pieces that no other rank gathers, at any time of a step.
  bool has_local() const;
  void local(const StepPiece& step) const;
  // Then begin(), and every gathered unit once, in any order: together they give each other piece once.
  void begin();
  void unit(int unit, const StepPiece& step);
  // True behind the last of them.
  bool complete() const;

 private:
  std::vector<std::vector<size_t>> pieces_of_;  // per unit; empty for those that no other rank gathers
  std::vector<bool> gathered_, stepped_;        // per piece
};

}  // namespace thinwire
