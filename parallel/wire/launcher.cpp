// The variables that launchers leave in the environment.
#include "parallel/wire/launcher.h"

#include <cstdlib>

namespace thinwire {

Launch launch_of_environment() {
  // Of Open MPI, MPICH and its kin, MVAPICH, jsrun, and a job step of Slurm. SLURM_NTASKS is also set in a batch script
  // that starts one process only, so it says nothing. Open MPI's come first: its ranks inherit PMI's of a shell that a
  // job step by pmi2 has started (a shell of one task, a notebook).
  constexpr const char* kVariables[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                           {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},
                                           {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  for (const auto& [size_name, rank_name] : kVariables) {
    const char* size = std::getenv(size_name);
    const char* rank = std::getenv(rank_name);
    if (size == nullptr || rank == nullptr) continue;
    const Launch found{std::strtoll(size, nullptr, 10), std::strtoll(rank, nullptr, 10)};
    if (found.count >= 1 && found.rank >= 0 && found.rank < found.count) return found;
  }
  return {};
}

}  // namespace thinwire
