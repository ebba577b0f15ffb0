// In a build without MPI one rank alone works, and several are refused.
#include <cstdlib>

#include "engine/base/core/error.h"
#include "parallel/wire/transport_mpi.h"

namespace thinwire {

std::unique_ptr<Transport> open_mpi(int64_t expected_ranks, const std::string&, std::vector<std::string>&,
                                    std::vector<std::string>&, Keeper*) {
  throw_bad_config(std::to_string(expected_ranks) +
                   " ranks were started, but this build has no MPI; build with MPI (cmake -DTHINWIRE_MPI=ON, with "
                   "libmpich-dev or libopenmpi-dev installed) or start one process");
}

void end_mpi(int code, const std::string&) {
  std::_Exit(code);
}

}  // namespace thinwire
