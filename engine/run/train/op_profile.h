// Where the time of a step goes, op by op: a table with a stopwatch around every entry.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/ops/ops.h"

namespace thinwire {

struct OpTime {
  int64_t calls = 0;
  double ms = 0.0;
  double flops = 0.0;  // of matrix products and attention (its causal half), 0 elsewhere
};
using OpTimes = std::map<std::string, OpTime>;

// An Exec whose table records into `times`. Only for Execs made by make_profiled_exec.
struct ProfiledExec : Exec {
  explicit ProfiledExec(Exec&& exec) : Exec(std::move(exec)) {}
  OpTimes times;
  const OpTable* timed = nullptr;
};

struct ProfiledTable {
  const OpTable& timed;
  OpTable wrapped;
};
std::unique_ptr<ProfiledTable> make_profiled_table(const OpTable& ops);

// The table outlives the Exec. Every op is waited for: on a GPU the gaps between kernels show, and nothing overlaps.
std::unique_ptr<ProfiledExec> make_profiled_exec(const ProfiledTable& table, Device& device, Stream& stream,
                                                 int threads);

}  // namespace thinwire
