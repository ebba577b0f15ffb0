// Wraps a table entry by entry.
#include "engine/run/train/op_profile.h"

#include <chrono>

#include "engine/base/ops/op_list.h"

namespace thinwire {
namespace {

double flops_of(const Matmul& op) {
  const double k = static_cast<double>(op.trans_a ? op.a.shape[0] : op.a.shape[1]);
  return 2.0 * static_cast<double>(op.c.rows()) * static_cast<double>(op.c.cols()) * k;
}
double causal_pairs(const AttentionShape& s) {
  const double q = static_cast<double>(s.q_len), kv = static_cast<double>(s.kv_len);
  return static_cast<double>(s.batch * s.heads() * s.head_dim) * q * (kv - q / 2.0);
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
void timed(Exec& exec, const Op& op) {
  ProfiledExec& profiled = static_cast<ProfiledExec&>(exec);
  const auto start = std::chrono::steady_clock::now();
  (profiled.timed->*Entry)(exec, op);
  exec.stream.synchronize();  // what runs on a device of its own is timed one by one
  OpTime& t = profiled.times[name.text];
  t.ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  t.flops += flops_of(op);
  ++t.calls;
}

template <auto Entry, Name name, typename Op>
void wrap(OpTable& table, void (*OpTable::*)(Exec&, const Op&)) {
  table.*Entry = timed<Entry, name, Op>;
}

OpTable make_table(const OpTable& timed_ops) {
  OpTable t = timed_ops;
#define TW_WRAP(entry) wrap<&OpTable::entry, #entry>(t, &OpTable::entry);
  TW_FOR_EACH_OP(TW_WRAP)
#undef TW_WRAP
  return t;
}

}  // namespace

std::unique_ptr<ProfiledTable> make_profiled_table(const OpTable& ops) {
  return std::make_unique<ProfiledTable>(ProfiledTable{ops, make_table(ops)});
}

std::unique_ptr<ProfiledExec> make_profiled_exec(const ProfiledTable& table, Device& device, Stream& stream,
                                                 int threads) {
  auto exec = std::make_unique<ProfiledExec>(make_exec(table.wrapped, device, stream, threads));
  exec->timed = &table.timed;
  return exec;
}

}  // namespace thinwire
