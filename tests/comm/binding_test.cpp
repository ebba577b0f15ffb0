// Cores are dealt out disjointly and whole, and nothing is touched where somebody else decided.
#include "parallel/wire/binding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>

#include "engine/base/core/cpus.h"
#include "tests/support/local_world.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::binding_test {
namespace {

std::vector<int> range(int first, int last) {
  std::vector<int> list;
  for (int i = first; i < last; ++i) list.push_back(i);
  return list;
}

// Threads of a core are `cores` apart, as Linux numbers them.
std::vector<Cpu> machine(int packages, int cores_per_package, int threads) {
  std::vector<Cpu> list;
  const int cores = packages * cores_per_package;
  for (int t = 0; t < threads; ++t) {
    for (int c = 0; c < cores; ++c) list.push_back({t * cores + c, c / cores_per_package, c % cores_per_package});
  }
  return list;
}

std::vector<std::vector<int>> same(const std::vector<int>& mask, int ranks) {
  return std::vector<std::vector<int>>(static_cast<size_t>(ranks), mask);
}

TEST(Binding, PlacesByNode) {
  EXPECT_EQ(number_nodes({"a", "a", "b"}), (std::vector<int>{0, 0, 1}));
  const std::vector<int> nodes = number_nodes({"x", "y", "x", "z", "x", "y"});
  EXPECT_EQ(nodes, (std::vector<int>{0, 1, 0, 2, 0, 1}));
  const int local[] = {0, 0, 1, 0, 2, 1}, size[] = {3, 2, 3, 1, 3, 2};
  for (int r = 0; r < 6; ++r) {
    const NodePlace place = place_on_node(nodes, r);
    EXPECT_EQ(place.local_rank, local[r]);
    EXPECT_EQ(place.local_size, size[r]);
    EXPECT_EQ(place.ranks[static_cast<size_t>(place.local_rank)], r);
  }
  EXPECT_EQ(place_on_node(nodes, 4).ranks, (std::vector<int>{0, 2, 4}));
}

TEST(Binding, DealsWholeCoresInPackageOrder) {
  // 2 packages x 4 cores x 2 threads: 4 ranks get two cores with both threads each, none across packages.
  const std::vector<Cpu> m = machine(2, 4, 2);
  EXPECT_EQ(choose_cpus(same(range(0, 16), 4), 0, m), (std::vector<int>{0, 1, 8, 9}));
  EXPECT_EQ(choose_cpus(same(range(0, 16), 4), 3, m), (std::vector<int>{6, 7, 14, 15}));
  // A mask inside the machine (a container's): only its CPUs are dealt.
  EXPECT_EQ(choose_cpus(same({2, 3, 10}, 2), 0, m), (std::vector<int>{2, 10}));
  EXPECT_EQ(choose_cpus(same({2, 3, 10}, 2), 1, m), (std::vector<int>{3}));
}

TEST(Binding, LeavesAlone) {
  const std::vector<Cpu> m = machine(1, 8, 1);
  EXPECT_TRUE(choose_cpus(same(range(0, 8), 1), 0, m).empty()) << "alone on the node";
  EXPECT_TRUE(choose_cpus(same(range(0, 4), 5), 2, m).empty()) << "more ranks than cores";
  EXPECT_TRUE(choose_cpus({range(0, 4), range(4, 8)}, 0, m).empty()) << "bound by the launcher";
  EXPECT_TRUE(choose_cpus({range(0, 8), range(0, 8), range(0, 7)}, 1, m).empty()) << "one rank differs";
  EXPECT_TRUE(choose_cpus(same({}, 2), 0, m).empty()) << "no masks known";
  // Eight threads on four cores are not enough for five ranks.
  EXPECT_TRUE(choose_cpus(same(range(0, 8), 5), 0, machine(1, 4, 2)).empty());
}

TEST(Binding, RandomMasksAreCoveredDisjointlyAndEvenly) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    const int threads = 1 + static_cast<int>(random() % 3);
    const std::vector<Cpu> m = machine(1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 9), threads);
    std::vector<int> mask;
    for (const Cpu& cpu : m) {
      if (random() % 4 != 0) mask.push_back(cpu.number);
    }
    std::sort(mask.begin(), mask.end());
    const bool known = random() % 4 != 0;  // a /sys that says nothing
    std::set<std::pair<int, int>> cores;
    const auto core_of = [&](int number) {
      const Cpu& cpu = *std::find_if(m.begin(), m.end(), [&](const Cpu& c) { return c.number == number; });
      return known ? std::pair(cpu.package, cpu.core) : std::pair(99, number);
    };
    for (int number : mask) cores.insert(core_of(number));
    const int ranks = 2 + static_cast<int>(random() % 6);
    std::vector<int> all;
    std::set<std::pair<int, int>> taken;
    size_t least = 1000, most = 0;
    for (int r = 0; r < ranks; ++r) {
      const std::vector<int> mine = choose_cpus(same(mask, ranks), r, known ? m : std::vector<Cpu>{});
      if (static_cast<int>(cores.size()) < ranks) {
        EXPECT_TRUE(mine.empty());
        continue;
      }
      std::set<std::pair<int, int>> my_cores;
      for (int number : mine) my_cores.insert(core_of(number));
      least = std::min(least, my_cores.size());
      most = std::max(most, my_cores.size());
      for (const auto& core : my_cores) EXPECT_TRUE(taken.insert(core).second) << "a core shared by two ranks";
      EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
      all.insert(all.end(), mine.begin(), mine.end());
    }
    if (static_cast<int>(cores.size()) < ranks) continue;
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, mask);
    EXPECT_GE(least, 1u);
    EXPECT_LE(most, least + 1);
  }
}

// A launcher that binds ranks may give several of them one core, and a container may have fewer than its machine.
TEST(Binding, CpusPerRank) {
  EXPECT_EQ(cpus_per_rank(same(range(0, 8), 2), 1), 4);
  EXPECT_EQ(cpus_per_rank(same(range(0, 2), 4), 0), 0) << "more ranks than cores";
  EXPECT_EQ(cpus_per_rank({range(0, 4), range(4, 8)}, 1), 4) << "divided by the launcher";
  const std::vector<std::vector<int>> wrapped = {{0}, {1}, {0}};
  EXPECT_EQ(cpus_per_rank(wrapped, 0), 0);
  EXPECT_EQ(cpus_per_rank(wrapped, 1), 1);
  EXPECT_EQ(cpus_per_rank({range(0, 8), range(0, 4)}, 0), 4) << "overlapping";
  EXPECT_EQ(cpus_per_rank(same({}, 2), 0), 0) << "no masks known";
}

TEST(Binding, QuotaOfTheControlGroup) {
  const test::Scratch root;
  const auto put = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = root.path() + file;
    std::filesystem::create_directories(path.parent_path());
    test::spill(path.string(), text);
  };
  EXPECT_EQ(cpu_quota(root.path()), 1 << 20) << "no control groups";
  put("/proc/self/cgroup", "0::/jobs/step\n");
  put("/sys/fs/cgroup/jobs/step/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 1 << 20) << "no limit";
  put("/sys/fs/cgroup/jobs/cpu.max", "650000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 6) << "the group above it";
  put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 1) << "the root, as a container sees its own group";
  put("/proc/self/cgroup", "5:memory:/x\n3:cpu,cpuacct:/x\n");
  EXPECT_EQ(cpu_quota(root.path()), 1 << 20) << "version 1, no files";
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 1 << 20);
  put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
  put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 3);
}

TEST(Binding, MachineKnowsTheAllowedCpus) {
  const std::vector<int> allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  EXPECT_TRUE(std::is_sorted(allowed.begin(), allowed.end()));
  EXPECT_LE(machine_cpus(allowed).size(), allowed.size());
}

// Threads stand for ranks: each binds itself, and the masks really change.
TEST(Binding, BindsRanksToDisjointCores) {
  const std::vector<int> before = allowed_cpus();
  std::mutex mutex;
  std::set<int> used;
  size_t total = 0;
  run_local_ranks(2, [&](Transport& transport) {
    const CpuShare share = bind_to_cores(transport, {0, 0});
    const std::vector<int>& chosen = share.bound;
    EXPECT_EQ(share.cpus,
              std::min(cpu_quota() / 2, static_cast<int>(chosen.empty() ? before.size() / 2 : chosen.size())));
    std::lock_guard lock(mutex);
    EXPECT_EQ(allowed_cpus(), chosen.empty() ? before : chosen);
    used.insert(chosen.begin(), chosen.end());
    total += chosen.size();
  });
  EXPECT_EQ(used.size(), total);
  if (before.size() >= 2 && machine_cpus(before).size() == before.size()) {
    std::set<std::pair<int, int>> cores;
    for (const Cpu& cpu : machine_cpus(before)) cores.insert({cpu.package, cpu.core});
    EXPECT_EQ(used.size(), cores.size() >= 2 ? before.size() : 0);
  }
  run_local_ranks(2, [&](Transport& transport) {
    const CpuShare share = bind_to_cores(transport, {0, 1});
    EXPECT_TRUE(share.bound.empty()) << "alone on its node";
    EXPECT_EQ(share.cpus, std::min(cpu_quota(), static_cast<int>(before.size())));
  });
}

}  // namespace
}  // namespace thinwire::binding_test
