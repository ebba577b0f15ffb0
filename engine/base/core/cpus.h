// CPUs that this process may use: by its affinity mask (Slurm, taskset) and by its control group (containers).
#pragma once

#include <string>
#include <vector>

namespace thinwire {

constexpr int kMostCpus = 16 * 1024;  // that a mask holds

// CPUs that the calling thread may run on, ascending.
std::vector<int> allowed_cpus();

// CPUs' worth of time that this process's control group may use (cpu.max, cpu.cfs_quota_us; a container's --cpus), the
// least of the group and those above it; 1 at least. No limit, or none known: 1 << 20. root: in front of /proc and
// /sys.
int cpu_quota(const std::string& root = "");

// The lesser of both; 1 at least.
int usable_cpus();

}  // namespace thinwire
