// The bytes that coded collectives make a rank send, in closed form. Tests compare them with what is counted.
#include "parallel/comm/coded.h"
#include "parallel/comm/coded_chunks.h"
#include "parallel/comm/node_seat.h"
#include "parallel/comm/tuning.h"

namespace thinwire {
namespace {

int64_t length(std::span<const int64_t> bounds, int member) {
  return bounds[static_cast<size_t>(member) + 1] - bounds[static_cast<size_t>(member)];
}
std::vector<int64_t> part_list(int64_t count, int members, int64_t unit) {
  std::vector<int64_t> bounds;
  for (int m = 0; m <= members; ++m) bounds.push_back(part_bound(count, members, m, unit));
  return bounds;
}

// Bytes of a slice, by its length.
class SliceBytes {
 public:
  SliceBytes(const Coder* coder, const CommTuning& tuning, DType cut_dtype, DType dtype, const Coder* second = nullptr)
      : coder_(coder), cut_(tuning, cut_dtype, coder, second), dtype_(dtype) {}
  int64_t of(int64_t count) const { return slice_bytes(coder_, cut_, count, dtype_); }

 private:
  const Coder* coder_;
  Cut cut_;
  DType dtype_;
};

}  // namespace

int64_t coded_message_bytes(const Coder& coder, const CommTuning& tuning, int64_t count, DType dtype) {
  return SliceBytes(&coder, tuning, dtype, dtype).of(count);
}

int64_t coded_reduce_scatter_bytes(const Coder& coder, const CommTuning& tuning, int me,
                                   std::span<const int64_t> bounds, DType dtype) {
  const SliceBytes slice(&coder, tuning, dtype, dtype);
  int64_t bytes = 0;
  for (int m = 0; m + 1 < static_cast<int>(bounds.size()); ++m)
    if (m != me) bytes += slice.of(length(bounds, m));
  return bytes;
}

int64_t coded_all_gather_bytes(const Coder& coder, const CommTuning& tuning, int me, std::span<const int64_t> bounds,
                               DType dtype) {
  return (static_cast<int64_t>(bounds.size()) - 2) * SliceBytes(&coder, tuning, dtype, dtype).of(length(bounds, me));
}

int64_t coded_all_reduce_bytes(const Coder& scatter, const Coder* gather, const CommTuning& tuning, int members, int me,
                               int64_t count, DType dtype) {
  if (members == 1) return 0;
  const bool in_turn = is_framed(&scatter) || is_framed(gather);
  const DType sum_type = sum_dtype(gather, dtype);
  const SliceBytes first(&scatter, tuning, dtype, dtype, in_turn ? nullptr : gather);
  const SliceBytes back(gather, tuning, in_turn ? sum_type : dtype, sum_type, in_turn ? nullptr : &scatter);
  const std::vector<int64_t> bounds = part_list(count, members, common_unit(&scatter, gather));
  int64_t bytes = (members - 1) * back.of(length(bounds, me));
  for (int m = 0; m < members; ++m)
    if (m != me) bytes += first.of(length(bounds, m));
  return bytes;
}

int64_t coded_ring_reduce_scatter_bytes(const Coder& coder, const CommTuning& tuning, int me,
                                        std::span<const int64_t> bounds, DType dtype) {
  const int members = static_cast<int>(bounds.size()) - 1;
  const SliceBytes first(&coder, tuning, dtype, dtype), later(&coder, tuning, dtype, sum_dtype(&coder, dtype));
  int64_t bytes = 0;
  for (int step = 0; step + 1 < members; ++step) {
    const int64_t count = length(bounds, (me - step - 1 + 2 * members) % members);
    bytes += step == 0 ? first.of(count) : later.of(count);
  }
  return bytes;
}

int64_t coded_ring_all_reduce_bytes(const Coder& coder, const Coder* gather, const CommTuning& tuning, int members,
                                    int me, int64_t count, DType dtype) {
  if (members == 1) return 0;
  const std::vector<int64_t> bounds = part_list(count, members, common_unit(&coder, gather));
  const DType sum_type = sum_dtype(gather, dtype);
  const SliceBytes back(gather, tuning, sum_type, sum_type);
  int64_t bytes = coded_ring_reduce_scatter_bytes(coder, tuning, me, bounds, dtype);
  for (int step = 0; step + 1 < members; ++step) bytes += back.of(length(bounds, (me - step + members) % members));
  return bytes;
}

int64_t coded_two_level_reduce_scatter_bytes(const Coder* intra, const Coder* inter, const CommTuning& tuning,
                                             const NodeGrid& grid, int me, std::span<const int64_t> bounds,
                                             DType dtype) {
  const NodeSeat g(grid, me);
  const DType sum_type = sum_dtype(inter, dtype);
  const SliceBytes inside(intra, tuning, dtype, dtype), outside(inter, tuning, sum_type, sum_type);
  int64_t bytes = 0;
  for (int j = 0; j < g.nodes; ++j) {
    for (int l = 0; l < g.local; ++l)
      if (l != g.place) bytes += inside.of(length(bounds, g.member(j, l)));
    if (j != g.node) bytes += outside.of(length(bounds, g.member(j, g.place)));
  }
  return bytes;
}

int64_t coded_two_level_all_gather_bytes(const Coder* coder, const CommTuning& tuning, const NodeGrid& grid, int me,
                                         std::span<const int64_t> bounds, DType dtype) {
  const NodeSeat g(grid, me);
  const SliceBytes slice(coder, tuning, dtype, dtype);
  int64_t bytes = (g.nodes - 1) * slice.of(length(bounds, me));
  for (int j = 0; j < g.nodes; ++j) bytes += (g.local - 1) * slice.of(length(bounds, g.member(j, g.place)));
  return bytes;
}

int64_t coded_two_level_all_reduce_bytes(const Coder* intra, const Coder* inter, const Coder* gather,
                                         const CommTuning& tuning, const NodeGrid& grid, int me, int64_t count,
                                         DType dtype) {
  const std::vector<int64_t> bounds = part_list(count, grid.nodes * grid.local, common_unit(intra, inter, gather));
  return coded_two_level_reduce_scatter_bytes(intra, inter, tuning, grid, me, bounds, dtype) +
         coded_two_level_all_gather_bytes(gather, tuning, grid, me, bounds, sum_dtype(gather, dtype));
}

int64_t rounds_all_reduce_bytes(const RoundCodec& codec, const CommTuning& tuning, std::span<const int> nodes,
                                int members, int me, int64_t count, std::span<const MatrixShape> matrices) {
  Msg msg;
  msg.matrices = matrices;
  msg.ranks = members;
  msg.rank = me;
  const std::unique_ptr<CodingState> state = codec.make_state(count, matrices);
  int64_t bytes = 0;
  for (int r = 0; r < codec.rounds(); ++r) {
    const Round round = codec.round(r, msg, count, *state);
    const ReduceKind kind = round.reduction == Reduction::kSum   ? ReduceKind::kSum
                            : round.reduction == Reduction::kMax ? ReduceKind::kMax
                                                                 : ReduceKind::kOr;
    bytes += all_reduce_bytes(tuning, nodes, members, me, codec.bound(r, count, matrices),
                              static_cast<int64_t>(size_of(round.dtype)), kind);
  }
  return bytes;
}

}  // namespace thinwire
