// The transport over an MPI library, where the build has one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/wire/transport.h"

namespace thinwire {

// Initialises MPI (THREAD_SERIALIZED); its destructor finalises it. hosts: per rank the name of its node.
// Throws Error(kBadConfig) in a build without MPI, and where MPI and the launcher disagree about `expected_ranks`.
// machines: per rank its `machine`, at most 127 bytes.
std::unique_ptr<Transport> open_mpi(int64_t expected_ranks, const std::string& machine, std::vector<std::string>& hosts,
                                    std::vector<std::string>& machines);

}  // namespace thinwire
