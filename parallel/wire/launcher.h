// What the launcher says in the environment, before any MPI is asked.
#pragma once

#include <cstdint>

namespace thinwire {

// Ranks that a launcher (mpirun, srun, jsrun) started side by side, and which of them this process is; {1, 0} without
// one.
struct Launch {
  int64_t count = 1, rank = 0;
};
Launch launch_of_environment();

}  // namespace thinwire
