// Asks the kernel for the affinity mask, and the files of control groups for their limits.
#include "engine/base/core/cpus.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

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
  for_each_control_group("cpu", root + "/proc", root + "/sys/fs/cgroup", [&](const std::string& folder, bool is_v2) {
    const std::string words =
        is_v2 ? words_in(folder + "/cpu.max")
              : words_in(folder + "/cpu.cfs_quota_us") + " " + words_in(folder + "/cpu.cfs_period_us");
    double quota = 0.0, period = 0.0;
    if (std::sscanf(words.c_str(), "%lf %lf", &quota, &period) == 2 && quota > 0.0 && period > 0.0)
      least = std::min(least, std::max(1.0, quota / period));
    return true;  // the limits of enclosing groups hold, too
  });
  return static_cast<int>(least);
}

int usable_cpus() {
  return std::max(1, std::min(cpu_quota(), static_cast<int>(allowed_cpus().size())));
}

// Inside a container the path may be the host's, which does not exist here; its last parent, the root, does.
void for_each_control_group(const std::string& controller, const std::string& proc, const std::string& groups,
                            const std::function<bool(const std::string& folder, bool is_v2)>& visit) {
  std::ifstream entries(proc + "/self/cgroup");  // <number>:<controllers>:<path>
  for (std::string entry; std::getline(entries, entry);) {
    std::istringstream words(entry);
    std::string number, controllers, path;
    std::getline(words, number, ':'), std::getline(words, controllers, ':'), std::getline(words, path);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const std::string root = groups + (is_v2 ? "" : "/" + controllers);
    if (path == "/") path.clear();
    for (size_t end = path.size(); end != std::string::npos; end = path.rfind('/')) {
      path.resize(end);
      if (!visit(root + path, is_v2)) return;
    }
  }
}

}  // namespace thinwire
