// The bytes that verbs make a rank send, by rehearsal, for comparison with what is counted. nullptr:
// uncoded.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "parallel/collective/coded.h"
#include "parallel/collective/tuning.h"
#include "parallel/collective/two_level.h"

namespace thinwire {

// Of member `me` of a group that has no engine.
inline int64_t rehearsed_bytes(const CommTuning& tuning, std::span<const int> nodes, int members, int me,
                               const std::function<Task(const GroupLane& lane)>& verb) {
  struct Pool {
    BlockPool* pool = BlockPool::create();
    ~Pool() { pool->retire(); }
  } const own;
  Rehearsal rehearsal{.pool = *own.pool};
  GroupLane lane;
  lane.rehearsal = &rehearsal;
  const Scratch<int> ranks(lane.pool(), members);
  lane.ranks = {ranks.data(), static_cast<size_t>(members)};
  lane.nodes = nodes;
  lane.me = me;
  lane.tuning = &tuning;
  lane.checksums = tuning.checksums;
  return rehearsed_bytes(lane, verb);
}

// Of a plain all-reduce, with the algorithm that choose_algorithm gives.
inline int64_t all_reduce_bytes(const CommTuning& tuning, std::span<const int> nodes, int members, int me,
                                int64_t count, DType dtype, ReduceKind kind = ReduceKind::kSum) {
  return rehearsed_bytes(tuning, nodes, members, me,
                         [&](const GroupLane& lane) { return plain_all_reduce(lane, nowhere(dtype, count), kind); });
}

inline int64_t rounds_all_reduce_bytes(const RoundCodec& codec, const CommTuning& tuning, std::span<const int> nodes,
                                       int members, int me, int64_t count, std::span<const MatrixShape> matrices) {
  RoundCall call;
  call.codec = &codec;
  call.msg.matrices = matrices;
  return rehearsed_bytes(tuning, nodes, members, me, [&](const GroupLane& lane) {
    return rounds_all_reduce(lane, call, nowhere(DType::f32, count));
  });
}

inline CodedCall call_of(const Coder* coder) {
  CodedCall call;
  call.coder = coder;
  return call;
}

// A verb on slices: verb(lane, whole, bounds).
template <typename Verb>
int64_t of_slices(const CommTuning& tuning, std::span<const int> nodes, int me, std::span<const int64_t> bounds,
                  DType dtype, const Verb& verb) {
  return rehearsed_bytes(tuning, nodes, static_cast<int>(bounds.size()) - 1, me, [&](const GroupLane& lane) {
    return verb(lane, nowhere(dtype, bounds.back()), Bounds(lane.pool(), bounds));
  });
}

inline View slice_at(View whole, std::span<const int64_t> bounds, int me) {
  const auto m = static_cast<size_t>(me);
  return whole.element_range(bounds[m], bounds[m + 1] - bounds[m]);
}

inline std::vector<int> nodes_of(Algorithm way, const NodeGrid& grid) {
  std::vector<int> nodes;
  for (int r = 0; way == Algorithm::kTwoLevel && r < grid.nodes * grid.local; ++r) nodes.push_back(r / grid.local);
  return nodes;
}

inline int64_t coded_message_bytes(const Coder& coder, const CommTuning& tuning, int64_t count, DType dtype) {
  return rehearsed_bytes(tuning, {}, 2, 0, [&](const GroupLane& lane) {
    return coded_send(lane, call_of(&coder), nowhere(dtype, count), 1);
  });
}

// between, grid: of two levels.
inline int64_t coded_reduce_scatter_bytes(const Coder& coder, const CommTuning& tuning, int me,
                                          std::span<const int64_t> bounds, DType dtype,
                                          Algorithm way = Algorithm::kDirect, const Coder* between = nullptr,
                                          const NodeGrid& grid = {}) {
  return of_slices(tuning, nodes_of(way, grid), me, bounds, dtype, [&](const GroupLane& lane, View whole, Bounds own) {
    return coded_reduce_scatter(lane, call_of(&coder), whole, std::move(own), whole, false, way, call_of(between));
  });
}

inline int64_t coded_all_gather_bytes(const Coder& coder, const CommTuning& tuning, int me,
                                      std::span<const int64_t> bounds, DType dtype, Algorithm way = Algorithm::kDirect,
                                      const NodeGrid& grid = {}) {
  return of_slices(tuning, nodes_of(way, grid), me, bounds, dtype, [&](const GroupLane& lane, View whole, Bounds own) {
    return coded_all_gather(lane, call_of(&coder), slice_at(whole, bounds, me), whole, std::move(own), way);
  });
}

inline int64_t coded_all_reduce_bytes(const Coder& scatter, const Coder* gather, const CommTuning& tuning, int members,
                                      int me, int64_t count, DType dtype, Algorithm way = Algorithm::kDirect,
                                      const Coder* between = nullptr, const NodeGrid& grid = {}) {
  return rehearsed_bytes(tuning, nodes_of(way, grid), members, me, [&](const GroupLane& lane) {
    return coded_all_reduce(lane, call_of(&scatter), call_of(gather), nowhere(dtype, count), way, call_of(between));
  });
}

}  // namespace thinwire
