// One line of text per tensor part and rank; rank 0 compares.
#include "engine/run/train/weight_hashes.h"

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/run/checkpoint/output_file.h"
#include "engine/run/train/traffic_counts.h"

namespace thinwire {
namespace {

// The same on every rank that holds the same elements of the model, and has to hold the same numbers.
std::string part_name(const ParamSpec& p, const Replica& replica) {
  std::string name = p.name;
  // NCCL adds in an order of its own for each tensor rank's group.
  if (!replica.config().deterministic && replica.config().device != "cpu")
    name += " tensor rank " + std::to_string(replica.layout().at.tensor);
  for (const ParamRect& r : p.local) {
    name += " " + std::to_string(r.row) + "+" + std::to_string(r.rows) + "," + std::to_string(r.col) + "+" +
            std::to_string(r.cols);
  }
  return name;
}

void hash_unit(Replica& replica, int unit, std::vector<std::byte>& bytes, std::string& lines) {
  for (const ParamSpec& p : replica.store().params()) {
    const View weight = replica.store().weight(p.name);
    if (p.unit != unit || !weight) continue;
    bytes.resize(weight.bytes());
    replica.read(weight, bytes.data());
    lines += part_name(p, replica) + "\t" + hash_bytes(bytes) + "\n";
  }
}

// Of what a forward pass computes with: gathered as for one, each unit once.
void hash_weights(Replica& replica, std::string& lines) {
  UnitTraffic& traffic = replica.traffic();
  traffic.begin(replica.evaluation_uses());
  std::vector<std::byte> bytes;
  std::set<int> done;
  for (int chunk = 0; chunk < replica.chunks(); ++chunk) {
    std::vector<UnitUse> of_chunk;
    replica.stage(chunk).list_uses(NodeKind::kForward, of_chunk);
    for (const UnitUse& use : of_chunk) {
      traffic.acquire(use.unit, use.backward);
      if (done.insert(use.unit).second) hash_unit(replica, use.unit, bytes, lines);
      traffic.release(use.unit, use.backward);
    }
    traffic.set_node_end();
  }
}

std::string first_difference(const std::vector<std::string>& of_ranks) {
  std::map<std::string, std::pair<std::string, size_t>> seen;  // part -> hash, first rank that has it
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::istringstream in(of_ranks[rank]);
    for (std::string line; std::getline(in, line);) {
      const size_t tab = line.find('\t');
      const std::string part = line.substr(0, tab), hash = line.substr(tab + 1);
      const auto& [first_hash, first_rank] = seen.try_emplace(part, hash, rank).first->second;
      if (first_hash != hash)
        return part.substr(0, part.find(' ')) + " of rank " + std::to_string(rank) + " differs from rank " +
               std::to_string(first_rank) + "'s";
    }
  }
  return "";
}

}  // namespace

void check_weight_hashes(Replica& replica, int64_t step) {
  std::string lines;
  run_beside_steps(replica, [&] { hash_weights(replica, lines); });
  const std::vector<std::string> of_ranks = replica.ports().control.collect(lines);
  const std::string difference = first_difference(of_ranks);
  replica.ports().control.agree_on_error(
      difference.empty() ? 0 : static_cast<int>(ExitCode::kInternal),
      "after step " + std::to_string(step) + " replicas no longer hold the same weights: " + difference +
          ": a machine's memory, or an error of ours; start again from a checkpoint before it (`load`), on other "
          "machines if it comes back");
}

}  // namespace thinwire
