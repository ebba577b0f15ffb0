// CPUs that this process may use: by its affinity mask (Slurm, taskset) and by its control group (containers).
#pragma once

#include <functional>
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

// Folders of the control groups that limit this process's `controller` ("cpu"), the innermost first; `visit` says
// whether to go on. is_v2: of version 2. proc, groups: "/proc" and "/sys/fs/cgroup", other places for tests.
void for_each_control_group(const std::string& controller, const std::string& proc, const std::string& groups,
                            const std::function<bool(const std::string& folder, bool is_v2)>& visit);

}  // namespace thinwire
