// The channels over which one kind of unit is reduced and gathered; sites dp.gradient, zero.parameter and embedding
// share the shape.
#pragma once

#include "parallel/comm/mesh.h"
#include "parallel/zero/placement.h"

namespace thinwire {

// Gradients: shard (each micro-batch) -> refine (at the last) -> replicas (at the last) [-> pair: two-step embedding].
struct GradientChannels {
  Channel shard, refine, replicas, pair;
};
// Weights: update (after the optimizer) and gather / keep (before use).
struct ParameterChannels {
  Channel update, gather, keep;
};

// Built from any UnitShard of the kind: groups do not depend on the unit's size. `tied`: the embedding shared by first
// and last stage; its members then count both stages.
GradientChannels make_gradient_channels(Mesh& mesh, const Placement& placement, bool tied);
ParameterChannels make_parameter_channels(Mesh& mesh, const Placement& placement, bool tied);

// Starts the whole way of one unit's gradient as one operation: reduce-scatter, refine, replicas. `full` [unit] fp32 is
// this rank's sum; `shard` receives (accumulate) the range of the gradients' level - the same memory as in `full` where
// that level is one rank wide -; with `last`, the optimizer's range inside `shard` ends up with the sum over all.
struct GradientBuffers {
  View full, shard;
};
Ticket reduce_unit(GradientChannels& channels, const UnitShard& unit, const GradientBuffers& buffers, bool last,
                   Stream& stream);

}  // namespace thinwire
