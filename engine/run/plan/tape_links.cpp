// Matches sends and receives of tapes as a transport does: in order, by channel and pair of ranks.
#include "engine/run/plan/tape_links.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

constexpr int kReaches = static_cast<int>(Reach::kCount);
constexpr double kUnlimited = 0.0;

class Linker {
 public:
  Linker(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster)
      : tapes_(tapes), folding_(folding), cluster_(cluster) {}

  LinkedTapes link() {
    out_.group_ranges.resize(tapes_.size());
    for (size_t a = 0; a < tapes_.size(); ++a) {
      out_.group_ranges[a].assign(tapes_[a].code.size(), {0, 0});
      link_sends(static_cast<int>(a));
    }
    for (size_t a = 0; a < tapes_.size(); ++a) link_posts(static_cast<int>(a));
    make_networks();
    if (!folding_.folded) {
      TW_CHECK(out_.unmatched == 0, out_.unmatched, " receives without a send");  // folded: ranks differ in last pieces
      for (const auto& [key, line] : lines_)
        TW_CHECK(line.received == line.groups.size(), "a send that nobody receives: ", line.received, " of ",
                 line.groups.size());
    }
    return std::move(out_);
  }

 private:
  // Messages from an actor to another on a channel, in order; folded, those of a route.
  struct Line {
    std::vector<int> groups;
    size_t received = 0;
  };
  Line& line(int channel, int from, int to, int route) {
    return lines_[{static_cast<uint64_t>(channel) << 40 | static_cast<uint64_t>(from) << 20 | static_cast<uint64_t>(to),
                   folding_.folded ? route : 0}];
  }

  // A transport has one connection between two ranks. Between folded actors, which are many ranks, each channel counts
  // as a connection.
  int connection(int channel, int from, int to) {
    const auto [at, fresh] = connections_.try_emplace({from, to, folding_.folded ? channel : 0}, out_.connection_count);
    out_.connection_count += fresh ? 1 : 0;
    return at->second;
  }

  void link_sends(int actor) {
    const Tape& tape = tapes_[static_cast<size_t>(actor)];
    for (size_t i = 0; i < tape.code.size(); ++i) {
      const TapeInstruction& instruction = tape.code[i];
      if (instruction.code != TapeCode::kSend) continue;
      struct Leaving {
        int group;
        std::array<double, kReaches> bytes{};
      };
      std::map<int, Leaving> leaving;  // by the actor it is for
      for (int l = instruction.first; l < instruction.first + instruction.count; ++l) {
        const TapeLeg& leg = tape.legs[static_cast<size_t>(l)];
        const int to = folding_.actor_of(leg.peer);
        const auto [at, fresh] = leaving.try_emplace(to, Leaving{static_cast<int>(out_.groups.size())});
        auto& [group, bytes] = at->second;
        if (fresh) out_.groups.push_back({.from = actor, .to = to, .connection = connection(leg.channel, actor, to)});
        line(leg.channel, actor, to, instruction.route).groups.push_back(group);
        const std::array<double, kReaches> parts = parts_of(tape.rank, leg.peer, instruction.cyclic);
        for (size_t r = 0; r < kReaches; ++r) bytes[r] += parts[r] * static_cast<double>(leg.bytes);
        LinkedGroup& g = out_.groups[static_cast<size_t>(group)];
        g.bytes += static_cast<double>(leg.bytes);
        g.socket = cluster_.costs(cluster_.reach(tape.rank, leg.peer)).socket_bytes;
        g.large = g.large || (leg.bytes > kEagerBytes && g.socket == 0.0);
      }
      const int begin = static_cast<int>(out_.listed_groups.size());
      for (const auto& [to, left] : leaving) {
        out_.listed_groups.push_back(left.group);
        add_flows(left.group, left.bytes);
      }
      out_.group_ranges[static_cast<size_t>(actor)][i] = {begin, static_cast<int>(out_.listed_groups.size())};
    }
  }

  void link_posts(int actor) {
    const Tape& tape = tapes_[static_cast<size_t>(actor)];
    for (size_t i = 0; i < tape.code.size(); ++i) {
      const TapeInstruction& instruction = tape.code[i];
      if (instruction.code != TapeCode::kPost) continue;
      const auto begin = static_cast<std::ptrdiff_t>(out_.listed_groups.size());
      for (int l = instruction.first; l < instruction.first + instruction.count; ++l) {
        const TapeLeg& leg = tape.legs[static_cast<size_t>(l)];
        const int from = folding_.actor_of(leg.peer);
        Line& sent = line(leg.channel, from, actor, instruction.route);
        if (sent.received < sent.groups.size()) {
          out_.listed_groups.push_back(sent.groups[sent.received++]);
        } else {
          ++out_.unmatched;
          if (!sent.groups.empty()) out_.listed_groups.push_back(sent.groups.back());
        }
      }
      std::sort(out_.listed_groups.begin() + begin, out_.listed_groups.end());
      out_.listed_groups.erase(std::unique(out_.listed_groups.begin() + begin, out_.listed_groups.end()),
                               out_.listed_groups.end());
      for (auto at = out_.listed_groups.begin() + begin; at != out_.listed_groups.end(); ++at) {
        LinkedGroup& group = out_.groups[static_cast<size_t>(*at)];
        ++group.receives;
        if (group.large) ++group.posts;
      }
      out_.group_ranges[static_cast<size_t>(actor)][i] = {static_cast<int>(begin),
                                                          static_cast<int>(out_.listed_groups.size())};
    }
  }

  // How two ranks reach each other; cyclic and folded: as all pairs of ranks so far apart do, in parts.
  std::array<double, kReaches> parts_of(int rank, int peer, bool cyclic) {
    std::array<double, kReaches> parts{};
    if (!folding_.folded || !cyclic) {
      parts[static_cast<size_t>(cluster_.reach(rank, peer))] = 1.0;
      return parts;
    }
    const auto [at, fresh] = parts_.try_emplace({rank, peer}, parts);
    if (!fresh) return at->second;
    const MeshShape& mesh = folding_.mesh;
    const Coordinates a = coordinates_of(mesh, rank), b = coordinates_of(mesh, peer);
    for (int d = 0; d < mesh.data; ++d)
      for (int t = 0; t < mesh.tensor; ++t) {
        const int from = rank_at(mesh, {a.pipeline, (a.data + d) % mesh.data, (a.tensor + t) % mesh.tensor});
        const int to = rank_at(mesh, {b.pipeline, (b.data + d) % mesh.data, (b.tensor + t) % mesh.tensor});
        at->second[static_cast<size_t>(cluster_.reach(from, to))] += 1.0 / (mesh.data * mesh.tensor);
      }
    return at->second;
  }

  // A resource of one kind and place, made when it is first used.
  int resource(int kind, int place, const ClusterLink& link) {
    const auto [at, fresh] = resources_.try_emplace({kind, place}, static_cast<int>(used_.size()));
    if (fresh) used_.push_back({&link, at->second});
    return at->second;
  }

  // Links on a common path are one network: only they must be looked at when the rates of one of them are shared anew.
  void make_networks() {
    const auto root_of = [&](int r) {
      while (used_[static_cast<size_t>(r)].joined != r) r = used_[static_cast<size_t>(r)].joined;
      return r;
    };
    for (const LinkedPath& path : out_.paths)
      for (int u = 1; u < path.count; ++u) {
        const int a = root_of(path.uses[0].resource), b = root_of(path.uses[u].resource);
        used_[static_cast<size_t>(std::max(a, b))].joined = std::min(a, b);
      }
    out_.networks.resize(1);
    std::map<int, int> network_of;            // by root
    std::vector<std::pair<int, int>> places;  // of resources: network, number there
    for (int r = 0; r < static_cast<int>(used_.size()); ++r) {
      const auto [at, fresh] = network_of.try_emplace(root_of(r), static_cast<int>(network_of.size()));
      if (at->second == static_cast<int>(out_.networks.size())) out_.networks.emplace_back();
      const ClusterLink& link = *used_[static_cast<size_t>(r)].link;
      places.emplace_back(at->second, out_.networks[static_cast<size_t>(at->second)].add_resource(
                                          link.bytes_per_second(), link.burst_bytes, cluster_.machine.burst_rate()));
    }
    for (LinkedPath& path : out_.paths)
      for (int u = 0; u < path.count; ++u)
        std::tie(path.network, path.uses[u].resource) = places[static_cast<size_t>(path.uses[u].resource)];
  }

  // How many ranks that an actor stands for share the node or rack of its first one.
  double sharers(int actor, bool of_rack) {
    if (!folding_.folded) return 1.0;
    const auto [at, fresh] = sharers_.try_emplace({actor, of_rack}, 0.0);
    if (!fresh) return at->second;
    const int first = folding_.rank_of(actor);
    for (int r = 0; r < folding_.mesh.data * folding_.mesh.tensor; ++r) {
      const int rank = first + r;  // ranks of a stage are consecutive
      at->second += of_rack ? cluster_.rack_of(rank) == cluster_.rack_of(first)
                            : cluster_.node_of(rank) == cluster_.node_of(first);
    }
    return at->second;
  }

  void add_flows(int group, const std::array<double, kReaches>& bytes) {
    LinkedGroup& g = out_.groups[static_cast<size_t>(group)];
    g.first = static_cast<int>(out_.flows.size());
    for (int r = 0; r < kReaches; ++r)
      if (bytes[static_cast<size_t>(r)] > 0.0)
        out_.flows.push_back({bytes[static_cast<size_t>(r)], path(g, static_cast<Reach>(r)), group});
    g.count = static_cast<int>(out_.flows.size()) - g.first;
  }

  int path(const LinkedGroup& group, Reach reach) {
    const auto [at, fresh] =
        paths_.try_emplace({group.from, group.to, static_cast<int>(reach)}, static_cast<int>(out_.paths.size()));
    if (fresh) out_.paths.push_back(new_path(group, reach));
    return at->second;
  }

  LinkedPath new_path(const LinkedGroup& group, Reach reach) {
    enum Kind { kRankOut, kRankIn, kBus, kNodeOut, kNodeIn, kRackOut, kRackIn };
    LinkedPath f;
    const int from = folding_.rank_of(group.from), to = folding_.rank_of(group.to);
    const auto use = [&](int kind, int place, const ClusterLink& link, double share) {
      if (link.gbps == kUnlimited) return;
      f.uses[f.count++] = {resource(kind, place, link), share};
    };
    const ClusterLink& ranks = cluster_.links[0];
    if (reach == Reach::kNode) {
      f.latency = ranks.latency_us * 1e-6;
      if (ranks.shared) {
        use(kBus, cluster_.node_of(from), ranks, sharers(group.from, false));
      } else {
        use(kRankOut, from, ranks, 1.0);
        use(kRankIn, to, ranks, 1.0);
      }
      return f;
    }
    const ClusterLink &nodes = cluster_.links[1], &racks = cluster_.links[2];
    f.latency = nodes.latency_us * 1e-6;
    use(kNodeOut, cluster_.node_of(from), nodes, sharers(group.from, false));
    use(kNodeIn, cluster_.node_of(to), nodes, sharers(group.to, false));
    if (reach == Reach::kRacks) {
      f.latency += racks.latency_us * 1e-6;
      use(kRackOut, cluster_.rack_of(from), racks, sharers(group.from, true));
      use(kRackIn, cluster_.rack_of(to), racks, sharers(group.to, true));
    }
    return f;
  }

  const std::vector<Tape>& tapes_;
  const Folding& folding_;
  const Cluster& cluster_;
  LinkedTapes out_;
  std::map<std::pair<uint64_t, int>, Line> lines_;
  std::map<std::tuple<int, int, int>, int> connections_;
  std::map<std::pair<int, int>, std::array<double, kReaches>> parts_;
  struct Used {
    const ClusterLink* link;
    int joined;  // to this resource, or itself
  };
  std::vector<Used> used_;
  std::map<std::pair<int, int>, int> resources_;
  std::map<std::tuple<int, int, int>, int> paths_;
  std::map<std::pair<int, bool>, double> sharers_;
};

}  // namespace

LinkedTapes link_tapes(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster) {
  return Linker(tapes, folding, cluster).link();
}

}  // namespace thinwire
