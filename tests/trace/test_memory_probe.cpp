// Limits of control groups, version 1 and 2, nested and seen from inside a container.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "engine/run/trace/memory_probe.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_memory_probe {
namespace {

void put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

int64_t limit_of(const test::Scratch& scratch, std::string* source = nullptr) {
  const MemoryLimit limit = memory_limit(scratch / "proc", scratch / "groups");
  if (source != nullptr) *source = limit.source;
  return limit.bytes;
}

TEST(MemoryProbe, TheLeastOfAllGroupsAroundThisOneCounts) {
  const test::Scratch scratch;
  const int64_t machine = limit_of(scratch);
  EXPECT_GT(machine, int64_t{1} << 28);
  put(scratch / "proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  put(scratch / "groups/slurm/job_7/step_0/memory.max", "max\n");
  EXPECT_EQ(limit_of(scratch), machine);
  put(scratch / "groups/slurm/job_7/memory.max", "20000000\n");
  put(scratch / "groups/memory.max", "30000000\n");
  std::string source;
  EXPECT_EQ(limit_of(scratch, &source), 20000000);
  EXPECT_EQ(source, scratch / "groups/slurm/job_7/memory.max");
}

TEST(MemoryProbe, AContainerSeesItsOwnGroupAsTheRoot) {
  const test::Scratch scratch;
  put(scratch / "proc/self/cgroup", "0::/system.slice/docker-abc.scope\n");
  put(scratch / "groups/memory.max", "30000000\n");
  EXPECT_EQ(limit_of(scratch), 30000000);
  put(scratch / "proc/self/cgroup", "0::/\n");
  EXPECT_EQ(limit_of(scratch), 30000000);
}

TEST(MemoryProbe, VersionOneHasAFolderPerController) {
  const test::Scratch scratch;
  put(scratch / "proc/self/cgroup", "5:cpu,cpuacct:/jobs\n4:memory:/jobs/7\n0::/elsewhere\n");
  put(scratch / "groups/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  put(scratch / "groups/memory/jobs/7/memory.limit_in_bytes", "40000000\n");
  put(scratch / "groups/cpu,cpuacct/jobs/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(limit_of(scratch), 40000000);
}

TEST(MemoryProbe, KillsForMemoryAreThoseOfTheInnermostGroupThatTells) {
  const test::Scratch scratch;
  const auto counted = [&] { return memory_kills(scratch / "proc", scratch / "groups").count; };
  EXPECT_EQ(counted(), 0);
  EXPECT_EQ(memory_kills(scratch / "proc", scratch / "groups").file, "");
  put(scratch / "proc/vmstat", "nr_free_pages 7\noom_kill 9\n");
  put(scratch / "proc/self/cgroup", "0::/job_7/step_0\n");
  EXPECT_EQ(counted(), 9);
  put(scratch / "groups/job_7/memory.events", "low 0\nhigh 0\nmax 8\noom 5\noom_kill 4\n");
  EXPECT_EQ(counted(), 4);
  put(scratch / "groups/job_7/step_0/memory.events", "low 0\noom_kill 0\n");
  EXPECT_EQ(counted(), 0);
  put(scratch / "proc/self/cgroup", "4:memory:/jobs/7\n0::/\n");
  put(scratch / "groups/memory/jobs/7/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(counted(), 3);
  const std::string file = memory_kills(scratch / "proc", scratch / "groups").file;
  EXPECT_EQ(file, scratch / "groups/memory/jobs/7/memory.oom_control");
  EXPECT_EQ(memory_kills_in(file), 3);
  EXPECT_EQ(memory_kills_in(scratch / "groups/memory/jobs/6/memory.oom_control"), -1);
}

TEST(MemoryProbe, SlurmSaysWhatItGrants) {
  const test::Scratch scratch;
  const int64_t machine = limit_of(scratch);
  ::setenv("SLURM_MEM_PER_NODE", "0", 1);  // the whole node
  EXPECT_EQ(limit_of(scratch), machine);
  ::setenv("SLURM_MEM_PER_NODE", "100", 1);
  std::string source;
  EXPECT_EQ(limit_of(scratch, &source), 100 << 20);
  EXPECT_EQ(source, "SLURM_MEM_PER_NODE");
  ::unsetenv("SLURM_MEM_PER_NODE");
  ::setenv("SLURM_MEM_PER_CPU", "10", 1);
  ::setenv("SLURM_CPUS_ON_NODE", "4", 1);
  EXPECT_EQ(limit_of(scratch), 40 << 20);
  ::unsetenv("SLURM_MEM_PER_CPU");
  ::unsetenv("SLURM_CPUS_ON_NODE");
}

}  // namespace
}  // namespace thinwire::test_memory_probe
