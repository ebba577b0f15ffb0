// Reads cluster files.
#include "engine/run/plan/cluster.h"

#include <filesystem>

#include "engine/run/plan/json_fields.h"

namespace thinwire {
namespace {

constexpr double kMost = 1e12;
constexpr int64_t kMostRanks = int64_t{1} << 24;
constexpr const char* kReachNames[] = {"ranks", "nodes", "racks"};

// "between": which level an entry of "links" is for; -1: reported.
int level_of(Fields& link) {
  link.require("between");
  const std::string between = link.text("between", "");
  for (int level = 0; level < static_cast<int>(Reach::kCount); ++level)
    if (between == kReachNames[level]) return level;
  if (link.has("between")) link.error("between", "\"" + between + "\" is none of ranks (inside a node), nodes, racks");
  return -1;
}

void read_links(const JsonTree* list, Cluster& cluster, FieldErrors& errors) {
  if (list == nullptr) return;
  bool seen[static_cast<int>(Reach::kCount)] = {};
  for (size_t i = 0; i < list->items.size(); ++i) {
    Fields link(list->items[i], "links[" + std::to_string(i) + "].", errors);
    const int level = level_of(link);
    ClusterLink read;
    read.gbps = link.number("gbps", 0.0, 1e-6, kMost);
    read.latency_us = link.number("latency_us", 0.0, 0.0, 1e9);
    read.efficiency = link.number("efficiency", 1.0, 0.01, 1.0);
    read.burst_bytes = link.number("burst_kib", 0.0, 0.0, kMost) * 1024.0 * read.efficiency;
    read.by_network = link.boolean("by_network", false);
    read.shared = link.boolean("shared", false);
    read.oversubscription = link.number("oversubscription", 1.0, 1.0, 1e6);
    link.text("source", "");
    if (level != static_cast<int>(Reach::kRacks)) link.require("gbps");
    link.unknown();
    if (level < 0) continue;
    if (seen[level]) link.error("between", std::string("a second link between ") + kReachNames[level]);
    if (read.by_network && level != 0) link.error("by_network", "only of links between ranks");
    if (read.shared && level != 0)
      link.error("shared", "only of links between ranks: nodes and racks share theirs anyway");
    if (read.oversubscription > 1.0 && level != static_cast<int>(Reach::kRacks))
      link.error("oversubscription", "only of links between racks");
    seen[level] = true;
    cluster.links[level] = read;
  }
  ClusterLink& racks = cluster.links[static_cast<int>(Reach::kRacks)];
  const ClusterLink& nodes = cluster.links[static_cast<int>(Reach::kNodes)];
  if (cluster.nodes > 1 && !seen[static_cast<int>(Reach::kNodes)])
    errors.add(list->at, "links", "no link between nodes, and there are " + std::to_string(cluster.nodes) + " nodes");
  if (cluster.nodes_per_rack > 0 && !seen[static_cast<int>(Reach::kRacks)])
    errors.add(list->at, "links", "no link between racks, and nodes_per_rack is given");
  if (seen[static_cast<int>(Reach::kRacks)] && cluster.nodes_per_rack == 0)
    errors.add(list->at, "links",
               "a link between racks, and nodes_per_rack is missing: give it, or leave that link out");
  // Without a rate of its own a rack sends what its nodes send together.
  if (seen[static_cast<int>(Reach::kRacks)] && racks.gbps == 0.0) {
    racks.gbps = nodes.gbps * cluster.nodes_per_rack;
    racks.efficiency = nodes.efficiency;
  }
}

void read_stragglers(const JsonTree* list, Cluster& cluster, FieldErrors& errors) {
  if (list == nullptr) return;
  for (size_t i = 0; i < list->items.size(); ++i) {
    Fields one(list->items[i], "stragglers[" + std::to_string(i) + "].", errors);
    one.require("rank");
    Straggler s;
    s.rank = static_cast<int>(one.integer("rank", 0, 0, cluster.ranks() - 1));
    s.slowdown = one.number("slowdown", 1.0, 0.01, 1e3);
    one.unknown();
    cluster.stragglers.push_back(s);
  }
}

}  // namespace

Reach Cluster::reach(int a, int b) const {
  if (node_of(a) == node_of(b)) return Reach::kNode;
  return rack_of(a) == rack_of(b) ? Reach::kNodes : Reach::kRacks;
}

Cluster read_cluster(const std::string& file) {
  const JsonText text = read_json_file(file);
  FieldErrors errors(file);
  Fields top(text.root, "", errors);
  Cluster cluster;
  cluster.file = file;
  cluster.name = top.text("name", std::filesystem::path(file).stem().string());
  top.require("nodes");
  cluster.nodes = static_cast<int>(top.integer("nodes", 1, 1, 1 << 20));
  cluster.ranks_per_node = static_cast<int>(top.integer("ranks_per_node", 1, 1, 1 << 12));
  if (const int64_t ranks = int64_t{cluster.nodes} * cluster.ranks_per_node; ranks > kMostRanks) {
    top.error("nodes", std::to_string(ranks) + " ranks are more than " + std::to_string(kMostRanks));
    cluster.nodes = cluster.ranks_per_node = 1;
  }
  cluster.nodes_per_rack = static_cast<int>(top.integer("nodes_per_rack", 0, 1, 1 << 20));
  cluster.shared_cores = static_cast<int>(top.integer("shared_cores", 0, 1, 1 << 16));
  cluster.memory_per_rank = top.number("memory_gb_per_rank", 0.0, 1e-3, kMost) * 1e9;
  cluster.jitter = top.number("jitter", 0.0, 0.0, 1.0);
  read_links(top.list("links"), cluster, errors);
  if (!top.has("links") && cluster.nodes > 1) top.require("links");
  read_stragglers(top.list("stragglers"), cluster, errors);
  top.require("machine");
  for (const JsonMember& member : text.root.members) {
    if (member.key != "machine") continue;
    if (member.value.kind == JsonTree::Kind::kString) {
      const std::string there = (std::filesystem::path(file).parent_path() / member.value.text).string();
      if (!std::filesystem::exists(there)) {
        top.error("machine", there + " does not exist: scripts/calibrate --output makes one");
      } else {
        cluster.machine = read_machine(there);
      }
    } else {
      cluster.machine = parse_machine(member.value, "machine.", errors);
    }
  }
  // Stated by none: with one core for all ranks of a node each would take turns.
  if (cluster.machine.cores == 0) cluster.machine.cores = cluster.ranks_per_node;
  for (const char* note : {"note", "source"}) top.text(note, "");
  top.unknown();
  errors.finish();
  return cluster;
}

}  // namespace thinwire
