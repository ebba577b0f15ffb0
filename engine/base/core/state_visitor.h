// Everything that a checkpoint must hold is shown to a StateVisitor: the owner names its tensors and values once, and
// saving, loading and verifying are three visitors.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/core/view.h"

namespace thinwire {

// A slice of a global tensor. The whole tensor is rows x cols (row-major); this holder has `local`, which is
// global elements [first, first + local.count()) of it. Full tensors have first = 0 and local.count() == rows * cols.
struct GlobalSlice {
  std::string name;  // e.g. "model/layers.0.mlp.fc1.weight", "adam_m/...", "adam_v/..."
  int64_t rows = 0, cols = 0;
  int64_t first = 0;
  View local;
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(const GlobalSlice& slice) = 0;
  virtual void integer(const std::string& name, int64_t& value) = 0;
  virtual void real(const std::string& name, double& value) = 0;  // stored bit-exactly
  virtual void text(const std::string& name, std::string& value) = 0;
};

}  // namespace thinwire
