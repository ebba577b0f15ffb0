// Wraps a table entry by entry.
#include "engine/base/ops/op_watch.h"

#include <algorithm>

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

std::unique_ptr<Exec> make_watched_exec(const WatchedTable& table, Device& device, Stream& stream, int threads,
                                        OpWatcher& watcher) {
  auto exec = std::make_unique<Exec>(make_exec(table, device, stream, threads));
  exec->watcher = &watcher;
  return exec;
}

void OpProfile::end(Exec& exec, const char* op, double flops) {
  exec.stream.synchronize();  // what runs on a device of its own is timed one by one
  Time& t = times[op];
  t.ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  t.flops += flops;
  ++t.calls;
}

}  // namespace thinwire
