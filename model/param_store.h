// The flat buffers that hold a model's parameters: fp32 master, fp32 gradient, and the working copy that computes.
#pragma once

#include <string>
#include <unordered_map>

#include "engine/base/core/state_visitor.h"
#include "engine/base/device/arena.h"
#include "engine/base/ops/ops.h"
#include "model/params.h"
#include "parallel/zero/flat_layout.h"

namespace thinwire {

class ParamStore {
 public:
  // Takes memory from `arena`. Without `training` there are no gradients.
  ParamStore(const ModelConfig& config, Arena& arena, bool training);

  const ParamList& params() const { return params_; }
  const FlatLayout& layout() const { return layout_; }

  // Views of one tensor: [rows, cols], or [cols] for vectors. Empty if the model has no such tensor (biases, tied
  // head).
  View weight(const std::string& name) const;    // compute dtype
  View gradient(const std::string& name) const;  // fp32
  View master(const std::string& name) const;    // fp32; the same memory as `weight` when computing in fp32

  // Whole flat buffers, [total].
  View master_flat() const { return master_; }
  View gradient_flat() const { return gradient_; }
  View working_flat() const { return working_; }  // empty when computing in fp32

  // Counter-based initial weights: the same for every layout. Vocabulary padding rows are zero.
  void initialize(Exec& exec, uint64_t seed);
  // working = cast(master), after masters were loaded or set.
  void refresh_working(Exec& exec);

  // Shows every parameter as "model/<name>".
  void visit(StateVisitor& visitor);

  // Increases whenever working weights change; backends may keep packed copies until then.
  int64_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  View slice(View flat, const std::string& name) const;

  ParamList params_;
  FlatLayout layout_;
  std::unordered_map<std::string, int> index_;
  View master_, gradient_, working_;
  int64_t version_ = 0;
};

}  // namespace thinwire
