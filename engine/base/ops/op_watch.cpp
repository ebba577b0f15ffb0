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
double bytes_of(const Matmul& op) {
  return sum_of({op.a, op.b, op.c, op.gelu_input, op.dgelu_input});
}
double bytes_of(const NormForward& op) {
  return sum_of({op.x, op.branch, op.sum, op.y});
}
double bytes_of(const NormBackward& op) {
  return sum_of({op.dy, op.x, op.residual, op.dx});
}
double bytes_of(const ResidualAdd& op) {
  return sum_of({op.x, op.branch, op.y});
}
double bytes_of(const DropoutApply& op) {
  return sum_of({op.x, op.y});
}
// The heads that are rotated, read and written.
double bytes_of(const Rotary& op) {
  return 2.0 * static_cast<double>(op.batch * op.length * op.groups * op.heads_per_group * op.rot_dim) *
         static_cast<double>(size_of(op.data.dtype));
}
double bytes_of(const AttentionForward& op) {
  return 4.0 * sum_of({op.out});
}
double bytes_of(const AttentionBackward& op) {
  return 8.0 * sum_of({op.out});
}
double bytes_of(const GeluForward& op) {
  return sum_of({op.x, op.y});
}
double bytes_of(const GeluBackward& op) {
  return sum_of({op.x, op.dy, op.dx});
}
double bytes_of(const SwigluForward& op) {
  return sum_of({op.x, op.y});
}
double bytes_of(const SwigluBackward& op) {
  return sum_of({op.x, op.dy, op.dx});
}
double bytes_of(const EmbeddingForward& op) {
  return 2.0 * sum_of({op.x});
}
double bytes_of(const EmbeddingBackward& op) {
  return 3.0 * sum_of({op.dx});
}
double bytes_of(const CrossEntropy& op) {
  return 2.0 * sum_of({op.logits});
}
double bytes_of(const VocabStatistics& op) {
  return sum_of({op.logits});
}
double bytes_of(const VocabLoss& op) {
  return 2.0 * sum_of({op.logits});
}
double bytes_of(const WeightedSum& op) {
  return sum_of({op.a, op.b});
}
double bytes_of(const SumSquares& op) {
  return sum_of({op.x});
}
double bytes_of(const BiasGradient& op) {
  return sum_of({op.dy});
}
double bytes_of(const Cast& op) {
  return sum_of({op.src, op.dst});
}
double bytes_of(const Axpy& op) {
  return sum_of({op.x, op.y, op.y});
}
double bytes_of(const FillNormal& op) {
  return sum_of({op.x});
}
double bytes_of(const FillConstant& op) {
  return sum_of({op.x});
}
double bytes_of(const CopyRuns& op) {
  return 2.0 * static_cast<double>(op.counts[0] * op.counts[1] * op.width) *
         static_cast<double>(size_of(op.from.dtype));
}
double bytes_of(const AdamW& op) {
  return sum_of({op.master, op.m, op.v, op.gradient, op.working});
}
double bytes_of(const MomentumShare& op) {
  return sum_of({op.m, op.gradient});
}
double bytes_of(const Sgd& op) {
  return sum_of({op.master, op.momentum_buffer, op.gradient, op.working});
}

// One wrapper per table entry; the name comes in as a template argument so that the wrapper stays a plain function.
template <size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&name)[N]) {  // NOLINT: made from a literal
    for (size_t i = 0; i < N; ++i) text[i] = name[i];
  }
};

template <auto Entry, Name name, typename Op>
void watched(Exec& exec, const Op& op) {
  exec.watcher->begin();
  (static_cast<const WatchedTable&>(exec.ops).watched.*Entry)(exec, op);
  exec.watcher->touched(bytes_of(op));
  exec.watcher->end(exec, name.text, flops_of(op));
}

template <auto Entry, Name name, typename Op>
void wrap(OpTable& table, void (*OpTable::*)(Exec&, const Op&)) {
  table.*Entry = watched<Entry, name, Op>;
}

}  // namespace

WatchedTable make_watched_table(const OpTable& ops) {
  WatchedTable table{ops, ops};
#define TW_WRAP(entry) wrap<&OpTable::entry, #entry>(table, &OpTable::entry);
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

void OpProfile::end(Exec& exec, const char* op, double flops) {
  exec.stream.synchronize();  // what runs on a device of its own is timed one by one
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  for (Time* t : {&times[op], &sizes[{op, flops, bytes_}]}) {
    t->ms += ms;
    t->flops += flops;
    t->least_ms = std::min(t->least_ms, ms);
    ++t->calls;
  }
}

}  // namespace thinwire
