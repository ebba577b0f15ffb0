// Ranks of a node tell each other their affinity masks, and each takes its share of the cores in machine order.
#include "parallel/wire/binding.h"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/cpus.h"
#include "engine/base/core/file.h"
#include "parallel/wire/handshake.h"

namespace thinwire {
namespace {

using CpuSets = std::array<cpu_set_t, kMostCpus / CPU_SETSIZE>;
constexpr int kTag = kTags - 1;
using Mask = std::array<unsigned char, kMostCpus / 8>;

std::vector<int> list_of(const Mask& mask) {
  std::vector<int> cpus;
  for (int i = 0; i < kMostCpus; ++i) {
    if ((mask[static_cast<size_t>(i / 8)] >> (i % 8) & 1) != 0) cpus.push_back(i);
  }
  return cpus;
}

// -1 where the file is missing or holds no number.
int number_in(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return -1;
  int value = -1;
  if (std::fscanf(file, "%d", &value) != 1) value = -1;
  std::fclose(file);
  return value;
}

}  // namespace

NodePlace place_on_node(const std::vector<int>& nodes, int rank) {
  TW_CHECK(rank >= 0 && rank < static_cast<int>(nodes.size()), "rank ", rank, " of ", nodes.size());
  NodePlace place;
  for (int r = 0; r < static_cast<int>(nodes.size()); ++r) {
    if (nodes[static_cast<size_t>(r)] != nodes[static_cast<size_t>(rank)]) continue;
    if (r == rank) place.local_rank = static_cast<int>(place.ranks.size());
    place.ranks.push_back(r);
  }
  place.local_size = static_cast<int>(place.ranks.size());
  return place;
}

std::vector<int> number_nodes(const std::vector<std::string>& names) {
  std::map<std::string, int> numbers;
  std::vector<int> nodes;
  for (const std::string& name : names)
    nodes.push_back(numbers.emplace(name, static_cast<int>(numbers.size())).first->second);
  return nodes;
}

std::string machine_identity() {
  char text[64] = {};
  std::string identity;
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "r")) {
    if (std::fscanf(file, "%63s", text) == 1) identity = text;
    std::fclose(file);
  }
  struct stat space {};
  if (!identity.empty() && ::stat("/proc/self/ns/ipc", &space) == 0)
    return identity + ":" + std::to_string(space.st_dev) + ":" + std::to_string(space.st_ino);
  return this_host();
}

std::vector<int> choose_cpus(const std::vector<std::vector<int>>& masks, int local_rank,
                             const std::vector<Cpu>& machine) {
  const auto ranks = static_cast<int64_t>(masks.size());
  TW_CHECK(local_rank >= 0 && local_rank < ranks);
  if (ranks == 1) return {};
  for (const std::vector<int>& mask : masks) {
    if (mask != masks.front()) return {};  // the launcher has bound the ranks
  }
  std::map<std::pair<int, int>, std::vector<int>> cores;  // CPUs by (package, core)
  for (int number : masks.front()) {
    const auto known =
        std::find_if(machine.begin(), machine.end(), [number](const Cpu& cpu) { return cpu.number == number; });
    // A CPU that `machine` does not list is a core by itself, behind all packages.
    const std::pair<int, int> core =
        known != machine.end() ? std::pair(known->package, known->core) : std::pair(1 << 30, number);
    cores[core].push_back(number);
  }
  const auto count = static_cast<int64_t>(cores.size());
  if (count < ranks) return {};
  std::vector<int> chosen;
  int64_t at = 0;
  for (const auto& [core, cpus] : cores) {
    if (at >= local_rank * count / ranks && at < (local_rank + 1) * count / ranks)
      chosen.insert(chosen.end(), cpus.begin(), cpus.end());
    ++at;
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

int cpus_per_rank(const std::vector<std::vector<int>>& masks, int local_rank) {
  const std::vector<int>& mine = masks[static_cast<size_t>(local_rank)];
  std::set<int> all;
  int ranks = 0;
  for (const std::vector<int>& mask : masks) {
    if (std::find_first_of(mask.begin(), mask.end(), mine.begin(), mine.end()) == mask.end()) continue;
    all.insert(mask.begin(), mask.end());
    ++ranks;
  }
  return ranks == 0 ? 0 : static_cast<int>(all.size()) / ranks;
}

std::vector<Cpu> machine_cpus(const std::vector<int>& numbers) {
  std::vector<Cpu> list;
  for (int number : numbers) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(number) + "/topology/";
    const int package = number_in(folder + "physical_package_id"), core = number_in(folder + "core_id");
    if (core >= 0) list.push_back({number, package, core});
  }
  return list;
}

CpuShare bind_to_cores(Transport& transport, const std::vector<int>& nodes, Keeper* keeper) {
  const NodePlace place = place_on_node(nodes, transport.rank());
  const std::vector<int> allowed = allowed_cpus();
  const int quota = cpu_quota() / place.local_size;
  if (place.local_size == 1)  // it shares with nobody
    return {{}, usable_cpus()};
  Mask mine{};
  for (int cpu : allowed) mine[static_cast<size_t>(cpu / 8)] |= static_cast<unsigned char>(1 << (cpu % 8));
  std::vector<Mask> masks(static_cast<size_t>(place.local_size));
  masks[static_cast<size_t>(place.local_rank)] = mine;
  Handshake handshake(transport, kTag, keeper);
  for (int l = 0; l < place.local_size; ++l) {
    if (l == place.local_rank) continue;
    const int peer = place.ranks[static_cast<size_t>(l)];
    handshake.receive(masks[static_cast<size_t>(l)].data(), sizeof(Mask), peer);
    handshake.send(mine.data(), mine.size(), peer);
  }
  handshake.finish();
  std::vector<std::vector<int>> lists;
  for (const Mask& mask : masks) lists.push_back(list_of(mask));
  const std::vector<int> chosen = choose_cpus(lists, place.local_rank, machine_cpus(lists.front()));
  CpuSets sets{};
  for (int cpu : chosen) CPU_SET_S(static_cast<size_t>(cpu), sizeof sets, sets.data());
  if (!chosen.empty() && ::sched_setaffinity(0, sizeof sets, sets.data()) == 0)
    return {chosen, std::min(quota, static_cast<int>(chosen.size()))};
  // Of more CPUs than a mask holds: unknown.
  return {{}, std::min(quota, allowed.empty() ? 1 : cpus_per_rank(lists, place.local_rank))};
}

}  // namespace thinwire
