// Sites pp.forward and pp.backward: activations go down to the next stage, their gradients come back up.
#pragma once

#include "engine/base/core/view.h"
#include "engine/base/device/stream.h"
#include "parallel/sites/group.h"

namespace thinwire {

class PpBoundary {
 public:
  explicit PpBoundary(Group stages) : stages_(stages) { require_single(stages, "pp.forward"); }
  bool first() const { return stages_.rank == 0; }
  bool last() const { return stages_.rank == stages_.size - 1; }

 private:
  Group stages_;
};

}  // namespace thinwire
