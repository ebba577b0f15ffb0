// Everything that a checkpoint must hold is shown to a StateVisitor: the owner names its tensors and values once, and
// saving, loading and verifying are three visitors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/base/core/view.h"

namespace thinwire {

// A slice of a global tensor. The whole tensor is rows x cols (row-major). The holder's rectangle is rows [row, row +
// part_rows) x columns [col, col + part_cols) of it; `local` is elements [first, first + local.count()) of that
// rectangle, flattened row by row. A full tensor has the whole as rectangle and first = 0.
struct GlobalSlice {
  std::string name;  // e.g. "model/layers.0.mlp.fc1.weight", "adam_m/...", "adam_v/..."
  int64_t rows = 0, cols = 0;
  int64_t row = 0, part_rows = 0, col = 0, part_cols = 0;
  int64_t first = 0;
  View local;

  static GlobalSlice whole(std::string name, int64_t rows, int64_t cols, View local) {
    return {std::move(name), rows, cols, 0, rows, 0, cols, 0, local};
  }
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
