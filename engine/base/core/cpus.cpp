// Asks the kernel for the affinity mask, and the files of control groups for their limits.
#include "engine/base/core/cpus.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

namespace thinwire {
namespace {

// The first words of a file; empty where it is missing.
std::string words_in(const std::string& path) {
  char text[256] = {};
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    text[std::fread(text, 1, sizeof text - 1, file)] = 0;
    std::fclose(file);
  }
  return text;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::array<cpu_set_t, kMostCpus / CPU_SETSIZE> sets{};
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof sets, sets.data()) != 0) return cpus;  // more CPUs than these hold: unknown
  for (int i = 0; i < kMostCpus; ++i) {
    if (CPU_ISSET_S(static_cast<size_t>(i), sizeof sets, sets.data())) cpus.push_back(i);
  }
  return cpus;
}

int cpu_quota(const std::string& root) {
  double least = 1 << 20;
  const auto limit = [&](double quota, double period) {
    if (quota > 0.0 && period > 0.0) least = std::min(least, std::max(1.0, quota / period));
  };
  std::ifstream groups(root + "/proc/self/cgroup");  // lines of "0::/path", or "3:cpu,cpuacct:/path" of version 1
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (!names.empty() && ("," + names + ",").find(",cpu,") == std::string::npos) continue;
    const std::string mount = root + "/sys/fs/cgroup/" + names;
    // A container may see its own group as the root of what is mounted, whatever path is told.
    for (std::string path = line.substr(second + 1);; path.resize(std::min(path.size(), path.rfind('/')))) {
      const std::string folder = mount + (path == "/" ? "" : path);
      double quota = 0.0, period = 0.0;
      if (std::sscanf(words_in(folder + "/cpu.max").c_str(), "%lf %lf", &quota, &period) == 2) limit(quota, period);
      const std::string older = words_in(folder + "/cpu.cfs_quota_us") + " " + words_in(folder + "/cpu.cfs_period_us");
      if (std::sscanf(older.c_str(), "%lf %lf", &quota, &period) == 2) limit(quota, period);
      if (path.empty() || path == "/") break;
    }
  }
  return static_cast<int>(least);
}

int usable_cpus() {
  return std::max(1, std::min(cpu_quota(), static_cast<int>(allowed_cpus().size())));
}

}  // namespace thinwire
