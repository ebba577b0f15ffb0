// The reference law: our fp32 run of a model against another program's float64 dump of it, with derived tolerances.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/run/train/job.h"

namespace thinwire {

// Checks one directory laid out like vectors/models/<family>/, with configuration overrides (recompute, accumulation,
// threads). All ranks of the job run it, with any layout keys; rank 0 compares. Prints a line per quantity `name
// max_abs_err max_rel_err tolerance ok|FAIL` to `out`; returns whether all hold. Throws Error for a directory that is
// not such a dump.
bool check_reference(const std::string& directory, const std::vector<std::string>& overrides, std::FILE* out, Job& job);

}  // namespace thinwire
