// How much memory the process uses, as the kernel counts it (resident pages), and how much there is for it.
#pragma once

#include <cstdint>
#include <string>

namespace thinwire {

// Bytes; 0 where /proc does not tell.
int64_t current_rss_bytes();
int64_t peak_rss_bytes();  // highest since the start

// What all processes of a job may use on this node, and what says so: the least of the machine's memory, of the control
// groups (version 1 and 2) that this process is in, and of Slurm's SLURM_MEM_PER_NODE or SLURM_MEM_PER_CPU.
struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;
};
// proc, groups: where the kernel tells, other places for tests.
MemoryLimit memory_limit(const std::string& proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

// How often the kernel has killed a process for want of memory, by `oom_kill` of memory.events or memory.oom_control of
// the innermost control group of this process that tells, or else of the machine's vmstat. It counts before it kills.
struct MemoryKills {
  std::string file;  // who tells; empty: nobody
  int64_t count = 0;
};
MemoryKills memory_kills(const std::string& proc = "/proc", const std::string& groups = "/sys/fs/cgroup");
// What such a file says; -1 where it is not there any more.
int64_t memory_kills_in(const std::string& file);

// RLIMIT_AS; 0: none.
int64_t address_limit();

}  // namespace thinwire
