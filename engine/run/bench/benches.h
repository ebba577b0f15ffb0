// The four benchmarks of the program `bench`. Each proves what it times.
//
// All print a line per case, or a JSON object per case when `json`, and return the exit code: 0 if every proof held, 70
// otherwise. A filter that matches nothing is a usage error (Error(kUsage)).
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/run/config/named_shapes.h"
#include "engine/run/train/job.h"

namespace thinwire {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// At once, for whoever waits for the next case.
inline void print_line(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// `bench op`: each op at the shapes of real models, proved on a sample against a float64 loop. Runs the cases whose
// name contains `filter` on `device` (cpu, cuda; a GPU has larger shapes besides). threads 0: all cores.
int bench_op(const std::string& filter, const std::string& device, int threads, bool json);

// `bench comm`: every verb of a communicator side by side with plain MPI in the same run. Runs the cases whose name
// contains `filter`; rank 0 prints. Without several ranks under MPI a usage error.
int bench_comm(const std::string& filter, bool json);
[[noreturn]] inline void refuse_one_rank(const std::string& filter) {
  throw_usage("bench comm: measures between ranks: mpirun -n 2 build/bench comm" +
              (filter.empty() ? "" : " " + filter));
}

// `bench codec`: every codec on one core beside memcpy and other people's code; and its fidelity on synthetic data and
// on a tiny model's gradients, activations and weights. Cases are CODEC/BYTES (fp32 input; low_rank: CODEC/ROWSxCOLS)
// for speed and CODEC/snr for fidelity; those whose name contains all of `filters` run.
int bench_codec(const std::vector<std::string>& filters, bool json);

// `bench step`: the real training step of a shape on random tokens, with `overrides` on top; on all ranks of the job.
// Rank 0 prints progress as text, and as its last line one JSON object when `json`. `profile` adds the time of each op
// (and costs a stopwatch per call). The first `warm_up` steps are not counted. Proves nothing.
struct StepBench {
  std::string shape;
  std::vector<std::string> overrides;
  bool json = false, profile = false;
  int64_t warm_up = 2;
};
int bench_step(const StepBench& bench, Job& job);

}  // namespace thinwire
