// The transport over an MPI library, where the build has one.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "parallel/wire/transport.h"

namespace thinwire {

class Keeper;

// Initialises MPI (THREAD_SERIALIZED); its destructor finalises it. hosts: per rank the name of its node.
// Throws Error(kBadConfig) in a build without MPI, and where MPI and the launcher disagree about `expected_ranks`.
// keeper: told of MPI_Init, of the first words between the ranks, and of their last barrier, and who is missing there.
// machines: per rank its `machine`, at most 127 bytes.
std::unique_ptr<Transport> open_mpi(int64_t expected_ranks, const std::string& machine, std::vector<std::string>& hosts,
                                    std::vector<std::string>& machines, Keeper* keeper = nullptr);

// The launcher passes on what ranks print; a rank that ends the job at once takes the last lines with it.
inline constexpr std::chrono::milliseconds kLastLines{300};

// For errors while there is no transport yet, or none any more: says so on stderr and ends all ranks with this code.
[[noreturn]] void end_mpi(int code, const std::string& message);

}  // namespace thinwire
