// bench op: each op at the shapes of real models, proved on a sample against a float64 loop, then timed.
#pragma once

#include <string>

namespace thinwire {

// Runs the cases whose name contains `filter` on `device` (cpu, cuda; a GPU has larger shapes besides). threads 0: all
// cores. Returns 0 if every proof held, 70 otherwise; a filter that matches nothing is a usage error.
int bench_op(const std::string& filter, const std::string& device, int threads, bool json);

}  // namespace thinwire
