// Where every tensor lives in the flat buffers: units (embedding, each block, head) split into segments on a fixed
// quantum, so that shard boundaries, codec blocks and checkpoints never depend on the layout of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/core/param_spec.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

inline constexpr int64_t kQuantum = 4096;  // elements; every matrix and every unit starts on a multiple of it

struct Segment {
  int param = -1;      // index in the ParamList
  int64_t offset = 0;  // elements from the start of the flat buffer
  int64_t count = 0;   // local elements, without padding
};

struct Unit {
  int64_t first = 0, count = 0;  // elements of the flat buffer, multiples of kQuantum
  // In storage order: matrices, then vectors, which share the unit's tail. Under tensor parallelism vectors that are
  // whole on every tensor rank have a tail of their own: codec blocks must not mix them with sharded ones, or a lossy
  // block's scale - and with it the copies of one tensor - would differ between tensor ranks.
  std::vector<Segment> segments;
};

// The layout of the local parts of tensors; units of which this rank's stage has nothing are empty, so that unit
// indices mean the same on every rank. It is the same on all tensor ranks of a stage, also where their parts of a
// tensor differ in length (ParamSpec::room()): a tensor that all of them hold would otherwise lie at places that
// differ, in messages that differ in length, and a lossy codec or another order of a sum would let its copies drift
// apart. Padding between segments is zero, takes no part in norms, and stays zero under the optimizer.
struct FlatLayout {
  std::vector<Unit> units;
  std::vector<Segment> by_param;  // same segments, indexed like the ParamList
  int64_t total = 0;

  // Runs of equal weight decay over [first, first + count), covering it.
  std::vector<DecaySpan> decay_spans(const ParamList& params, int64_t first, int64_t count) const;
};

FlatLayout make_flat_layout(const ParamList& params);

}  // namespace thinwire
