// Which messages a rule selects, by stage, layer, tensor class and micro-batch: resolved on the plan before step 1, so
// that both ends of every message agree.
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
// A layer in the list selects both units of its block; embedding and head are in no such list (model_units.h).
bool selects_unit(const SelectSpec& select, int unit, int layers);

// A rule that selects a unit by stage and layer; it is for the unit's tensors of these classes.
struct UnitRule {
  int number = 0;                    // index in the site's rules
  std::vector<TensorClass> classes;  // empty: all
  // Excludes tensors that every tensor-parallel rank holds in full. Their replicas would diverge under codecs whose
  // blocks cross the quantum, since their neighbours differ, and in payloads that are longer on some of these ranks
  // (matrix codecs, widths that do not divide), since sums take their order from length and place.
  bool skip_replicated = false;
};
std::vector<UnitRule> unit_rules(std::span<const SiteRule> rules, int stage, int unit, int layers);
// The number of the first of unit_rules(); -1: none.
int first_unit_rule(std::span<const SiteRule> rules, int stage, int unit, int layers);

// Elements of a unit, relative to its start, and the number of their rule; -1: none.
struct RuleRange {
  Range range;
  int rule = 0;
};
// All elements of the unit in ascending ranges, as few as possible. The first rule that selects a tensor codes it, with
// the padding after it. `params`: local tensors, indexed as FlatLayout::by_param.
std::vector<RuleRange> rule_ranges(std::span<const UnitRule> rules, const Unit& unit, const ParamList& params);
// For matrix codecs: the matrices inside [range] of a unit, positions relative to the range. Vectors, and matrices that
// the range cuts, are left out and sent uncoded. A matrix is this rank's part of it (rectangles stacked, as in its
// segment).
std::vector<MatrixShape> matrices_in(const Range& range, const Unit& unit, const ParamList& params);
// The elements inside [range] of a unit that belong to no tensor, positions relative to the range.
std::vector<ElementRange> padding_in(const Range& range, const Unit& unit);

// Which messages between stages a rule codes. Computed from the plans of all stages, so it is the same on all ranks.
//
// epilogue (Optimus-CC, section 2.2 of its reference page): gradients whose backward (or backward-input) comes after
//   the last forward, of any chunk, in the plan of the stage that sends them. With 1F1B these are, from stage r + 1 of
//   p to stage r, the last min(p - 1 - r, micro-batches) gradients. No activations.
// critical: messages with no slack, or with less than the time that they would take under the next rule
//   (`next_transfer`; without a next rule, uncoded). Slack is how much later a message may arrive, with everything else
//   as fast as it can be, before the pipelined part becomes longer: total float on the longest path through the events
//   of simulate(), waits for send buffers included. So of critical rules with rising bits a message gets the one with
//   the most bits that its slack hides.
// select.stages: of the sender.
class PipelineMessages {
 public:
  PipelineMessages() = default;  // codes everything
  // next_transfer: milliseconds, as NodeCosts::transfer, which is its upper limit.
  PipelineMessages(const SelectSpec& select, bool forward, const PipelineShape& shape, const NodeCosts& costs,
                   double next_transfer = std::numeric_limits<double>::infinity());
  // edge: as in Message. Each micro-batch count of a batch ramp has an object of its own.
  bool coded(int edge, int micro) const;
  int64_t count() const;  // of coded messages; 0 for an object without a plan

 private:
  int micro_batches_ = 0;
  std::vector<bool> coded_;  // edge * micro_batches + micro; empty: all
};

// Slack in milliseconds of every activation (forward) or gradient: [edge * micro_batches + micro].
std::vector<double> message_slack(const std::vector<Plan>& plans, const PipelineShape& shape, const NodeCosts& costs,
                                  bool forward);

}  // namespace thinwire
