// Which messages a rule is for: stages, layers, tensor classes and micro-batches, resolved on the plan before step 1,
// so that both ends of every message agree.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "compression/codec.h"
#include "compression/rule.h"
#include "engine/base/core/param_spec.h"
#include "parallel/schedule/plan.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/placement.h"

namespace thinwire {

bool selects_stage(const SelectSpec& select, int stage);
// A list of layers names both halves of these blocks and nothing else (model_units.h).
bool selects_unit(const SelectSpec& select, int unit, int layers);

// A rule that selects a unit by stage and layer, and of it the tensors of these classes.
struct UnitRule {
  int number = 0;                    // among the site's rules
  std::vector<TensorClass> classes;  // empty: all
  // Not tensors that every tensor-parallel rank holds in full (for codecs that do not code within the quantum: ranks
  // would code such a tensor together with different neighbours, and their copies would drift apart).
  bool skip_replicated = false;
};
std::vector<UnitRule> unit_rules(std::span<const SiteRule> rules, int stage, int unit, int layers);
// The number of the first of unit_rules(); -1: none.
int first_unit_rule(std::span<const SiteRule> rules, int stage, int unit, int layers);

// A unit's elements as ascending ranges (relative to its start) of one rule each, as few as possible: a tensor falls
// under the first rule that selects it, with the padding after it. rule -1: none. `params`: local tensors, indexed as
// layout.by_param is.
struct RuleRange {
  Range range;
  int rule = 0;
};
std::vector<RuleRange> rule_ranges(std::span<const UnitRule> rules, const Unit& unit, const ParamList& params);
// For matrix codecs: the matrices that lie wholly inside [range] of a unit, positions relative to the range. Vectors,
// and matrices that the range cuts, are left out and travel uncoded. A matrix is this rank's part of it (rectangles
// stacked, as in its segment).
std::vector<MatrixShape> matrices_in(const Range& range, const Unit& unit, const ParamList& params);
// The elements inside [range] of a unit that belong to no tensor, positions relative to the range.
std::vector<ElementRange> padding_in(const Range& range, const Unit& unit);

// Which messages between stages a rule codes. Computed from the plans of all stages, so it is the same on all ranks.
//
// epilogue (Optimus-CC, section 2.2 of its reference page): gradients whose backward (or backward-input) stands behind
//   the last forward, of any chunk, in the plan of the stage that sends them. On 1F1B these are, on the boundary below
//   stage r of p, the last min(p - 1 - r, micro-batches) gradients. No activation is.
// critical: messages whose slack is less than the time that they would take under the rule behind (`richer`; without
//   one, as they are), or that have none. Slack is by how much a message may arrive later, with everything else as fast
//   as it can be, before the pipelined part becomes longer: total float on the longest path through the events of
//   simulate(), waits for send buffers included. So of critical rules with more and more bits a message falls under the
//   one with the most that its slack hides.
// select.stages: of the sender.
class PipelineMessages {
 public:
  PipelineMessages() = default;  // codes everything
  // richer: as NodeCosts::transfer, which is the most.
  PipelineMessages(const SelectSpec& select, bool forward, const PipelineShape& shape, const NodeCosts& costs,
                   double richer = std::numeric_limits<double>::infinity());
  // edge: as in Message. For micro-batch counts of a batch ramp another object is made.
  bool coded(int edge, int micro) const;
  int64_t count() const;  // of coded messages; 0 for an object without a plan

 private:
  int micro_batches_ = 0;
  std::vector<bool> coded_;  // edge * micro_batches + micro; empty: all
};

// Slack of every message in milliseconds: [edge * micro_batches + micro], of activations (forward) or gradients.
std::vector<double> message_slack(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs,
                                  bool forward);

}  // namespace thinwire
