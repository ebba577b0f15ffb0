// `bench comm`: proves every verb of a communicator, then times it side by side with plain MPI in the same run.
#pragma once

#include <string>

namespace thinwire {

// Cases whose name contains `filter`; rank 0 prints a line each (JSON objects on request). Returns the exit code: 0
// only if every proof held. Throws Error(kUsage) for a filter that matches nothing, or without several ranks under MPI.
int bench_comm(const std::string& filter, bool json);

}  // namespace thinwire
