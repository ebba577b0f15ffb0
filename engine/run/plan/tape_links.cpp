// Matches sends and receives of tapes as a transport does: in order, by channel and pair of ranks.
#include "engine/run/plan/tape_links.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

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
    out_.places.resize(tapes_.size());
    for (size_t a = 0; a < tapes_.size(); ++a) {
      out_.places[a].assign(tapes_[a].code.size(), {0, 0});
      link_sends(static_cast<int>(a));
    }
    for (size_t a = 0; a < tapes_.size(); ++a) link_posts(static_cast<int>(a));
    if (!folding_.folded) {
      TW_CHECK(out_.unmatched == 0, out_.unmatched, " receives without a send");
      for (const auto& [key, line] : lines_)
        TW_CHECK(line.received == line.groups.size(), "a send that nobody receives: ", line.received, " of ",
                 line.groups.size());
    }
    return std::move(out_);
  }

 private:
  // Messages between two actors, a channel and a distance apart, in order.
  struct Line {
    std::vector<int> groups;
    size_t received = 0;
  };
  Line& line(int channel, int from, int to, int distance) {
    const auto key = static_cast<uint64_t>(channel) << 56 | static_cast<uint64_t>(from) << 40 |
                     static_cast<uint64_t>(to) << 24 | static_cast<uint64_t>(distance);
    return lines_[key];
  }

  void link_sends(int actor) {
    const Tape& tape = tapes_[static_cast<size_t>(actor)];
    for (size_t i = 0; i < tape.code.size(); ++i) {
      const TapeInstruction& instruction = tape.code[i];
      if (instruction.code != TapeCode::kSend) continue;
      std::map<int, int> group_to;  // actor -> group
      std::map<int, std::array<double, kReaches>> bytes_to;
      std::map<int, bool> large;
      for (int l = instruction.first; l < instruction.first + instruction.count; ++l) {
        const TapeLeg& leg = tape.legs[static_cast<size_t>(l)];
        const int to = folding_.actor_of(leg.peer), distance = folding_.distance(tape.rank, leg.peer);
        const auto [at, fresh] = group_to.try_emplace(to, static_cast<int>(out_.groups.size()));
        if (fresh) out_.groups.push_back({.posts = 0, .from = actor, .to = to});
        line(leg.channel, actor, to, distance).groups.push_back(at->second);
        const std::array<double, kReaches>& parts = parts_of(actor, to, distance, tape.rank, leg.peer);
        std::array<double, kReaches>& bytes = bytes_to[to];
        for (size_t r = 0; r < kReaches; ++r) bytes[r] += parts[r] * static_cast<double>(leg.bytes);
        large[to] = large[to] || leg.bytes > kEagerBytes;
      }
      const int begin = static_cast<int>(out_.lists.size());
      for (const auto& [to, group] : group_to) {
        out_.lists.push_back(group);
        add_flows(group, bytes_to[to]);
        if (!large[to]) small_.push_back(group);
      }
      out_.places[static_cast<size_t>(actor)][i] = {begin, static_cast<int>(out_.lists.size())};
    }
  }

  void link_posts(int actor) {
    const Tape& tape = tapes_[static_cast<size_t>(actor)];
    std::vector<bool> small(out_.groups.size(), false);
    for (int group : small_) small[static_cast<size_t>(group)] = true;
    for (size_t i = 0; i < tape.code.size(); ++i) {
      const TapeInstruction& instruction = tape.code[i];
      if (instruction.code != TapeCode::kPost) continue;
      const auto begin = static_cast<std::ptrdiff_t>(out_.lists.size());
      for (int l = instruction.first; l < instruction.first + instruction.count; ++l) {
        const TapeLeg& leg = tape.legs[static_cast<size_t>(l)];
        const int from = folding_.actor_of(leg.peer);
        Line& sent = line(leg.channel, from, actor, folding_.distance(leg.peer, tape.rank));
        if (sent.received < sent.groups.size()) {
          out_.lists.push_back(sent.groups[sent.received++]);
        } else {
          ++out_.unmatched;
        }
      }
      std::sort(out_.lists.begin() + begin, out_.lists.end());
      out_.lists.erase(std::unique(out_.lists.begin() + begin, out_.lists.end()), out_.lists.end());
      for (auto at = out_.lists.begin() + begin; at != out_.lists.end(); ++at) {
        LinkedGroup& group = out_.groups[static_cast<size_t>(*at)];
        if (!small[static_cast<size_t>(*at)]) ++group.posts;
      }
      out_.places[static_cast<size_t>(actor)][i] = {static_cast<int>(begin), static_cast<int>(out_.lists.size())};
    }
  }

  // How the pairs of ranks that two actors stand for, so far apart, reach each other.
  const std::array<double, kReaches>& parts_of(int from, int to, int distance, int rank, int peer) {
    const auto key = static_cast<uint64_t>(from) << 44 | static_cast<uint64_t>(to) << 24 |
                     static_cast<uint64_t>(folding_.folded ? distance : 0);
    const auto [at, fresh] = parts_.try_emplace(key);
    if (!fresh) return at->second;
    at->second.fill(0.0);
    if (!folding_.folded) {
      at->second[static_cast<size_t>(cluster_.reach(rank, peer))] = 1.0;
      return at->second;
    }
    const MeshShape& mesh = folding_.mesh;
    const int data = distance / mesh.tensor, tensor = distance % mesh.tensor;
    for (int d = 0; d < mesh.data; ++d)
      for (int t = 0; t < mesh.tensor; ++t) {
        const int a = rank_at(mesh, {from, d, t});
        const int b = rank_at(mesh, {to, (d + data) % mesh.data, (t + tensor) % mesh.tensor});
        at->second[static_cast<size_t>(cluster_.reach(a, b))] += 1.0 / (mesh.data * mesh.tensor);
      }
    return at->second;
  }

  // A resource of one kind and place, made when it is first used.
  int resource(int kind, int place, double capacity) {
    const auto [at, fresh] = resources_.try_emplace({kind, place}, 0);
    if (fresh) at->second = out_.network.add_resource(capacity);
    return at->second;
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
      if (bytes[static_cast<size_t>(r)] > 0.0) out_.flows.push_back(flow(g, static_cast<Reach>(r), bytes[static_cast<size_t>(r)]));
    g.count = static_cast<int>(out_.flows.size()) - g.first;
  }

  LinkedFlow flow(const LinkedGroup& group, Reach reach, double bytes) {
    enum Kind { kRankOut, kRankIn, kBus, kNodeOut, kNodeIn, kRackOut, kRackIn };
    LinkedFlow f;
    f.bytes = bytes;
    const int from = folding_.rank_of(group.from), to = folding_.rank_of(group.to);
    const auto use = [&](int kind, int place, const ClusterLink& link, double share) {
      if (link.gbps == kUnlimited) return;
      f.uses[f.count++] = {resource(kind, place, link.bytes_per_second()), share};
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
  std::unordered_map<uint64_t, Line> lines_;
  std::unordered_map<uint64_t, std::array<double, kReaches>> parts_;
  std::map<std::pair<int, int>, int> resources_;
  std::map<std::pair<int, bool>, double> sharers_;
  std::vector<int> small_;
};

}  // namespace

LinkedTapes link_tapes(const std::vector<Tape>& tapes, const Folding& folding, const Cluster& cluster) {
  return Linker(tapes, folding, cluster).link();
}

}  // namespace thinwire
