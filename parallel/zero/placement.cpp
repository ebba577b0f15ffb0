// Turns levels into widths, and widths into the ranges and groups of every unit.
#include "parallel/zero/placement.h"

#include <algorithm>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "parallel/zero/flat_layout.h"

namespace thinwire {

namespace {

// Ranks of the group on each node; refused where slices would not fall on whole nodes.
int node_width(const std::vector<int>& nodes) {
  const auto explain = [](const std::string& what) {
    throw_bad_config(
        "placement: level \"node\" needs the data-parallel ranks of a group spread evenly over nodes, in "
        "order; " +
        what + ". Use \"pair\" or \"global\", or start the same number of ranks on every node");
  };
  const int size = static_cast<int>(nodes.size());
  int width = 1;
  while (width < size && nodes[static_cast<size_t>(width)] == nodes[0]) ++width;
  for (int first = 0; first < size; first += width) {
    const int node = nodes[static_cast<size_t>(first)];
    const auto on_node = std::count(nodes.begin(), nodes.end(), node);
    if (on_node != width) {
      explain("node " + std::to_string(node) + " has " + std::to_string(on_node) + " of them where the first has " +
              std::to_string(width));
    }
    for (int r = first; r < first + width; ++r) {
      if (nodes[static_cast<size_t>(r)] != node)
        explain("those of node " + std::to_string(node) + " are not neighbours");
    }
  }
  return width;
}

int width_of(Level level, const std::vector<int>& nodes, const char* what) {
  const int size = static_cast<int>(nodes.size());
  switch (level) {
    case Level::kReplicated:
      return 1;
    case Level::kPair:
      if (size % 2 != 0 && size > 1) {
        throw_bad_config(std::string("placement.") + what +
                         ": \"pair\" needs an even number of data-parallel ranks, there are " + std::to_string(size));
      }
      return std::min(size, 2);
    case Level::kNode:
      return node_width(nodes);
    case Level::kGlobal:
      return size;
  }
  return 1;
}

ShardGroup group_of(std::vector<int> members, int64_t count) {
  ShardGroup group;
  group.bounds = split_bounds(count, static_cast<int>(members.size()));
  group.members = std::move(members);
  return group;
}

Range part_of(const std::vector<int64_t>& bounds, int part, int64_t first) {
  const int64_t a = bounds[static_cast<size_t>(part)], b = bounds[static_cast<size_t>(part) + 1];
  return {first + a, b - a};
}

// Bounds of a range that is split into `outer` parts, each of them into `inner`.
std::vector<int64_t> nested_bounds(int64_t count, int outer, int inner) {
  std::vector<int64_t> bounds{0};
  const std::vector<int64_t> coarse = split_bounds(count, outer);
  for (int o = 0; o < outer; ++o) {
    const int64_t first = coarse[static_cast<size_t>(o)];
    const std::vector<int64_t> fine = split_bounds(coarse[static_cast<size_t>(o) + 1] - first, inner);
    for (int i = 1; i <= inner; ++i) bounds.push_back(first + fine[static_cast<size_t>(i)]);
  }
  return bounds;
}

}  // namespace

Placement resolve_placement(const PlacementLevels& levels, const std::vector<int>& nodes) {
  TW_CHECK(!nodes.empty());
  const auto narrower = [](const char* a, Level la, int wa, const char* b, Level lb, int wb) {
    if (wb % wa == 0) return;
    throw_bad_config(std::string("placement: ") + a + " = \"" + name_of(la) + "\" (" + std::to_string(wa) +
                     " ranks) does not fit into " + b + " = \"" + name_of(lb) + "\" (" + std::to_string(wb) +
                     " ranks): what is sharded finer must be sharded inside the coarser shards; widen " + b);
  };
  Placement p;
  p.replicas = static_cast<int>(nodes.size());
  p.weights = width_of(levels.weights, nodes, "weights");
  p.gradients = width_of(levels.gradients, nodes, "gradients");
  p.optimizer = width_of(levels.optimizer, nodes, "optimizer");
  narrower("weights", levels.weights, p.weights, "gradients", levels.gradients, p.gradients);
  narrower("gradients", levels.gradients, p.gradients, "optimizer", levels.optimizer, p.optimizer);
  if (levels.secondary != Level::kReplicated) {
    p.secondary = width_of(levels.secondary, nodes, "secondary");
    if (levels.secondary >= levels.weights) {
      throw_bad_config(std::string("placement: secondary = \"") + name_of(levels.secondary) +
                       "\" must be narrower than weights = \"" + name_of(levels.weights) + "\"");
    }
    narrower("secondary", levels.secondary, p.secondary, "weights", levels.weights, p.weights);
    if (p.secondary == p.weights) p.secondary = 0;  // on this machine it would be a copy of the same shards
  }
  return p;
}

std::vector<int64_t> split_bounds(int64_t count, int parts) {
  TW_CHECK(count >= 0 && count % kQuantum == 0 && parts >= 1, count, " elements in ", parts, " parts");
  const int64_t quanta = count / kQuantum;
  std::vector<int64_t> bounds;
  for (int64_t p = 0; p <= parts; ++p) bounds.push_back(quanta * p / parts * kQuantum);
  return bounds;
}

UnitShard shard_unit(int64_t count, const Placement& p, int dp_rank, int stage, int stage_count) {
  TW_CHECK(p.weights >= 1 && p.gradients % p.weights == 0 && p.optimizer % p.gradients == 0 &&
               p.replicas % p.optimizer == 0 && (p.secondary == 0 || p.weights % p.secondary == 0),
           "placement ", p.weights, " | ", p.gradients, " | ", p.optimizer, " | ", p.replicas, ", secondary ",
           p.secondary);
  TW_CHECK(dp_rank >= 0 && dp_rank < p.replicas && stage >= 0 && stage < stage_count && stage_count <= 2);
  const bool fused = stage_count == 2 && p.embedding == EmbeddingSyncKind::kFused;
  const bool joined = fused && p.optimizer == p.replicas && p.optimizer > 1;  // both stages shard one optimizer state
  const int stages_in_shards = joined ? 2 : 1;
  const int js = p.gradients / p.weights, ks = p.optimizer / p.gradients, rs = p.replicas / p.optimizer;
  const int i = dp_rank % p.weights, j = dp_rank / p.weights % js, k = dp_rank / p.gradients % ks,
            r = dp_rank / p.optimizer;
  const auto member = [&](int of_stage, int rr, int kk, int jj, int ii) {
    return of_stage * p.replicas + rr * p.optimizer + kk * p.gradients + jj * p.weights + ii;
  };
  UnitShard s;

  std::vector<int> gather, shard, refine, sync, keep;
  for (int ii = 0; ii < p.weights; ++ii) {
    gather.push_back(member(stage, r, k, j, ii));
    for (int jj = 0; jj < js; ++jj) shard.push_back(member(stage, r, k, jj, ii));
  }
  for (int kk = 0; kk < ks; ++kk) {
    for (int st = 0; st < stages_in_shards; ++st) refine.push_back(member(joined ? st : stage, r, kk, j, i));
  }
  for (int jj = 0; jj < js; ++jj) {
    for (int kk = 0; kk < ks; ++kk) {
      for (int st = 0; st < stages_in_shards; ++st) sync.push_back(member(joined ? st : stage, r, kk, jj, i));
    }
  }

  s.gather = group_of(gather, count);
  s.weights = part_of(s.gather.bounds, i, 0);
  s.shard.members = shard;
  s.shard.bounds = nested_bounds(count, p.weights, js);
  s.gradients = part_of(s.shard.bounds, i * js + j, 0);
  s.refine = group_of(refine, s.gradients.count);
  s.optimizer = part_of(s.refine.bounds, k * stages_in_shards + (joined ? stage : 0), s.gradients.first);
  s.sync.members = sync;
  s.sync.bounds = nested_bounds(s.weights.count, js, ks * stages_in_shards);
  if (p.secondary > 0) {
    const int first = i / p.secondary * p.secondary;
    for (int ii = first; ii < first + p.secondary; ++ii) keep.push_back(member(stage, r, k, j, ii));
    s.keep = group_of(keep, count);
    s.secondary = part_of(s.keep.bounds, i % p.secondary, 0);
  }

  // Fused: replicas of the first stage, then those of the last. Two-step: the other stage's rank behind all others.
  for (int st = 0; st < stage_count; ++st) {
    if (st != stage && (!fused || joined)) continue;
    for (int rr = 0; rr < rs; ++rr) s.replicas.push_back(member(st, rr, k, j, i));
  }
  if (stage_count == 2 && !fused) s.replicas.push_back(member(1 - stage, r, k, j, i));
  s.counted = r == 0 && (stage == 0 || joined);
  return s;
}

}  // namespace thinwire
