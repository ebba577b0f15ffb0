// Reads resident memory from proc(5), and limits from cgroups(7) and Slurm's variables (sbatch(1)).
#include "engine/run/trace/memory_probe.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "engine/base/core/cpus.h"

namespace thinwire {

namespace {

int64_t status_field(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with(key)) continue;
    const size_t digits = line.find_first_of("0123456789", key.size());
    // The kernel writes "kB" and means KiB.
    return digits == std::string::npos ? 0 : std::stoll(line.substr(digits)) * 1024;
  }
  return 0;
}

// The number in a file; 0 where there is no file, or a word in it ("max").
int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : 0;
}

int64_t number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoll(text);
}

void lower_to(MemoryLimit& limit, int64_t bytes, const std::string& source) {
  if (bytes > 0 && bytes < limit.bytes) limit = {bytes, source};
}

// The number that follows a word in a file of "word number" lines; -1 where there is none.
int64_t number_behind(const std::string& word, const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  for (std::string key; file >> key >> number;)
    if (key == word) return number;
  return -1;
}

}  // namespace

int64_t current_rss_bytes() {
  return status_field("VmRSS:");
}
int64_t peak_rss_bytes() {
  return status_field("VmHWM:");
}

MemoryLimit memory_limit(const std::string& proc, const std::string& groups) {
  MemoryLimit limit{sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), "the machine's memory"};
  for_each_control_group("memory", proc, groups, [&](const std::string& folder, bool is_v2) {
    const std::string file = folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes");
    lower_to(limit, number_in(file), file);
    return true;  // the limits of enclosing groups hold, too
  });
  constexpr int64_t kMiB = int64_t{1} << 20;  // Slurm's unit; its 0 means all that the node has
  lower_to(limit, number_in_environment("SLURM_MEM_PER_NODE") * kMiB, "SLURM_MEM_PER_NODE");
  lower_to(limit, number_in_environment("SLURM_MEM_PER_CPU") * number_in_environment("SLURM_CPUS_ON_NODE") * kMiB,
           "SLURM_MEM_PER_CPU");
  return limit;
}

MemoryKills memory_kills(const std::string& proc, const std::string& groups) {
  MemoryKills kills{.count = -1};
  const auto ask = [&](const std::string& file) {
    kills = {file, memory_kills_in(file)};
    return kills.count < 0;
  };
  for_each_control_group("memory", proc, groups, [&](const std::string& folder, bool is_v2) {
    return ask(folder + (is_v2 ? "/memory.events" : "/memory.oom_control"));
  });
  if (kills.count < 0 && ask(proc + "/vmstat")) return {};
  return kills;
}

int64_t memory_kills_in(const std::string& file) {
  return number_behind("oom_kill", file);
}

int64_t address_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? static_cast<int64_t>(limit.rlim_cur)
                                                                                : 0;
}

}  // namespace thinwire
