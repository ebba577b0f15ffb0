// Wraps a table entry by entry.
#include "engine/base/ops/op_watch.h"

#include <algorithm>
#include <initializer_list>

#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

double flops_of(const Matmul& op) {
  const double k = static_cast<double>(op.trans_a ? op.a.shape[0] : op.a.shape[1]);
  return 2.0 * static_cast<double>(op.c.rows()) * static_cast<double>(op.c.cols()) * k;
}
double causal_pairs(const AttentionShape& s) {
  double pairs = 0.0;
  for (int64_t t = 0; t < s.q_len; ++t)
    pairs += std::clamp(static_cast<double>(t + s.behind()) + 0.5, 0.0, static_cast<double>(s.kv_len));
  return static_cast<double>(s.batch * s.heads() * s.head_dim) * pairs;
}
double flops_of(const AttentionForward& op) {
  return 4.0 * causal_pairs(op.shape);
}
double flops_of(const AttentionBackward& op) {
  return 10.0 * causal_pairs(op.shape);
}
template <typename Op>
double flops_of(const Op&) {
  return 0.0;
}

double sum_of(std::initializer_list<View> views) {
  double bytes = 0.0;
  for (const View& v : views) bytes += static_cast<double>(v.bytes());
  return bytes;
}
#define TW_BYTES(Op, factor, ...)          \
  double bytes_of(const Op& op) {          \
    return factor * sum_of({__VA_ARGS__}); \
  }
TW_BYTES(Matmul, 1.0, op.a, op.b, op.c, op.gelu_input, op.dgelu_input)
TW_BYTES(NormForward, 1.0, op.x, op.branch, op.sum, op.y)
TW_BYTES(NormBackward, 1.0, op.dy, op.x, op.residual, op.dx)
TW_BYTES(ResidualAdd, 1.0, op.x, op.branch, op.y)
TW_BYTES(DropoutApply, 1.0, op.x, op.y)
TW_BYTES(AttentionForward, 4.0, op.out)
TW_BYTES(AttentionBackward, 8.0, op.out)
TW_BYTES(GeluForward, 1.0, op.x, op.y)
TW_BYTES(GeluBackward, 1.0, op.x, op.dy, op.dx)
TW_BYTES(SwigluForward, 1.0, op.x, op.y)
TW_BYTES(SwigluBackward, 1.0, op.x, op.dy, op.dx)
TW_BYTES(EmbeddingForward, 2.0, op.x)
TW_BYTES(EmbeddingBackward, 3.0, op.dx)
TW_BYTES(CrossEntropy, 2.0, op.logits)
TW_BYTES(VocabStatistics, 1.0, op.logits)
TW_BYTES(VocabLoss, 2.0, op.logits)
TW_BYTES(WeightedSum, 1.0, op.a, op.b)
TW_BYTES(SumSquares, 1.0, op.x)
TW_BYTES(BiasGradient, 1.0, op.dy)
TW_BYTES(Cast, 1.0, op.src, op.dst)
TW_BYTES(Axpy, 1.0, op.x, op.y, op.y)
TW_BYTES(FillNormal, 1.0, op.x)
TW_BYTES(FillConstant, 1.0, op.x)
TW_BYTES(AdamW, 1.0, op.master, op.m, op.v, op.gradient, op.working)
TW_BYTES(Sgd, 1.0, op.master, op.momentum_buffer, op.gradient, op.working)
#undef TW_BYTES
// The heads that are rotated, read and written.
double bytes_of(const Rotary& op) {
  return 2.0 * static_cast<double>(op.batch * op.length * op.groups * op.heads_per_group * op.rot_dim) *
         static_cast<double>(size_of(op.data.dtype));
}
double bytes_of(const CopyRuns& op) {
  return 2.0 * static_cast<double>(op.counts[0] * op.counts[1] * op.width) *
         static_cast<double>(size_of(op.from.dtype));
}

template <typename Op>
void watched(Exec& exec, const Op& op, void (*OpTable::*entry)(Exec&, const Op&), const char* name) {
  exec.watcher->begin();
  (static_cast<const WatchedTable&>(exec.ops).watched.*entry)(exec, op);
  exec.watcher->end(exec, name, flops_of(op), bytes_of(op));
}

}  // namespace

WatchedTable make_watched_table(const OpTable& ops) {
  WatchedTable table{ops, ops};
#define TW_WRAP(name, Op) table.name = [](Exec& exec, const Op& op) { watched(exec, op, &OpTable::name, #name); };
  TW_FOR_EACH_OP(TW_WRAP)
#undef TW_WRAP
  return table;
}

std::unique_ptr<Exec> make_watched_exec(const WatchedTable& table, Device& device, const Exec& as, OpWatcher& watcher) {
  auto exec = std::make_unique<Exec>(make_exec(table, device, as.stream, as.threads));
  exec->deterministic = as.deterministic;
  exec->watcher = &watcher;
  return exec;
}

void OpProfile::end(Exec& exec, const char* op, double flops, double bytes) {
  exec.stream.synchronize();  // what runs on a device of its own is timed one by one
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  for (Time* t : {&times[op], &sizes[{op, flops, bytes}]}) {
    t->ms += ms;
    t->flops += flops;
    t->least_ms = std::min(t->least_ms, ms);
    ++t->calls;
  }
}

}  // namespace thinwire
