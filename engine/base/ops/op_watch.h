// A table whose every entry tells somebody when it is over: for a profile, and for whoever has something to do between
// ops.
#pragma once

#include <chrono>
#include <compare>
#include <map>
#include <memory>
#include <string>

#include "engine/base/ops/ops.h"

namespace thinwire {

class OpWatcher {
 public:
  virtual ~OpWatcher() = default;
  // Around every op, on the thread that calls it. flops: of matrix products and attention (its causal half), 0
  // elsewhere; bytes: of the tensors that the op names.
  virtual void begin() {}
  virtual void end(Exec& exec, const char* op, double flops, double bytes) = 0;
};

// Only for Execs with a watcher.
struct WatchedTable : OpTable {
  const OpTable& watched;
};
WatchedTable make_watched_table(const OpTable& ops);

// On the stream of `as`, with its threads and as deterministic. Table and watcher outlive the Exec.
std::unique_ptr<Exec> make_watched_exec(const WatchedTable& table, Device& device, const Exec& as, OpWatcher& watcher);

// Where the time of a step goes, op by op. Every op is waited for: on a GPU the gaps between kernels show, and nothing
// overlaps.
class OpProfile final : public OpWatcher {
 public:
  struct Time {
    int64_t calls = 0;
    double ms = 0.0, flops = 0.0;
    double least_ms = 1e300;  // of one call
  };
  // An op at one size: its tables of rates are made of these (scripts/calibrate).
  struct Size {
    std::string op;
    double flops = 0.0, bytes = 0.0;
    auto operator<=>(const Size&) const = default;
  };
  void begin() override { start_ = std::chrono::steady_clock::now(); }
  void end(Exec& exec, const char* op, double flops, double bytes) override;

  std::map<std::string, Time> times;
  std::map<Size, Time> sizes;

 private:
  std::chrono::steady_clock::time_point start_;
};

}  // namespace thinwire
