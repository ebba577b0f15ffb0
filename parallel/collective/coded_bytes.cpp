// The bytes that coded collectives make a rank send: the sums of their routes. Tests compare them with what is counted.
#include "parallel/collective/coded.h"
#include "parallel/collective/coded_chunks.h"
#include "parallel/collective/node_seat.h"
#include "parallel/collective/route_run.h"
#include "parallel/collective/tuning.h"

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
  SliceBytes(const Coder* coder, const CommTuning& tuning, DType dtype)
      : coder_(coder), cut_(tuning, dtype, coder), dtype_(dtype) {}
  int64_t of(int64_t count) const { return slice_bytes(coder_, cut_, count, dtype_); }

 private:
  const Coder* coder_;
  Cut cut_;
  DType dtype_;
};

// A sink for routes with one compression.
RouteBytes one_coding(const Coder* coder, const CommTuning& tuning, DType dtype) {
  return {Cut(tuning, dtype, coder), {coder, dtype}, {coder, dtype}};
}

}  // namespace

int64_t coded_message_bytes(const Coder& coder, const CommTuning& tuning, int64_t count, DType dtype) {
  RouteBytes sent = one_coding(&coder, tuning, dtype);
  message_route(sent, 0, true, count);
  return sent.bytes;
}

int64_t coded_reduce_scatter_bytes(const Coder& coder, const CommTuning& tuning, int me,
                                   std::span<const int64_t> bounds, DType dtype) {
  RouteBytes sent = one_coding(&coder, tuning, dtype);
  direct_reduce_scatter_route(sent, {me, bounds});
  return sent.bytes;
}

int64_t coded_all_gather_bytes(const Coder& coder, const CommTuning& tuning, int me, std::span<const int64_t> bounds,
                               DType dtype) {
  RouteBytes sent = one_coding(&coder, tuning, dtype);
  direct_all_gather_route(sent, {me, bounds});
  return sent.bytes;
}

int64_t coded_all_reduce_bytes(const Coder& scatter, const Coder* gather, const CommTuning& tuning, int members, int me,
                               int64_t count, DType dtype) {
  if (members == 1) return 0;
  const std::vector<int64_t> bounds = part_list(count, members, common_unit(&scatter, gather));
  const DType sum_type = sum_dtype(gather, dtype);
  if (!is_framed(&scatter) && !is_framed(gather)) {
    RouteBytes sent(Cut(tuning, dtype, &scatter, gather), {&scatter, dtype}, {gather, sum_type});
    direct_all_reduce_route(sent, {me, bounds}, 1);
    return sent.bytes;
  }
  RouteBytes back = one_coding(gather, tuning, sum_type);
  direct_all_gather_route(back, {me, bounds});
  return coded_reduce_scatter_bytes(scatter, tuning, me, bounds, dtype) + back.bytes;
}

int64_t coded_ring_reduce_scatter_bytes(const Coder& coder, const CommTuning& tuning, int me,
                                        std::span<const int64_t> bounds, DType dtype) {
  RouteBytes sent(Cut(tuning, dtype, &coder), {&coder, dtype}, {&coder, sum_dtype(&coder, dtype)});
  ring_reduce_scatter_route(sent, {me, bounds}, 1, false);
  return sent.bytes;
}

int64_t coded_ring_all_reduce_bytes(const Coder& coder, const Coder* gather, const CommTuning& tuning, int members,
                                    int me, int64_t count, DType dtype) {
  if (members == 1) return 0;
  const std::vector<int64_t> bounds = part_list(count, members, common_unit(&coder, gather));
  RouteBytes back = one_coding(gather, tuning, sum_dtype(gather, dtype));
  ring_all_gather_route(back, {me, bounds}, 1);
  return coded_ring_reduce_scatter_bytes(coder, tuning, me, bounds, dtype) + back.bytes;
}

int64_t coded_two_level_reduce_scatter_bytes(const Coder* intra, const Coder* inter, const CommTuning& tuning,
                                             const NodeGrid& grid, int me, std::span<const int64_t> bounds,
                                             DType dtype) {
  const NodeSeat g(grid, me);
  const DType sum_type = sum_dtype(inter, dtype);
  const SliceBytes inside(intra, tuning, dtype), outside(inter, tuning, sum_type);
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
  const SliceBytes slice(coder, tuning, dtype);
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
