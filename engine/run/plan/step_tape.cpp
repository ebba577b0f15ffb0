// Records tapes: listens to a rehearsal's ops, operations and waits.
#include "engine/run/plan/step_tape.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <utility>

#include "engine/base/ops/op_watch.h"
#include "engine/run/plan/route_code.h"
#include "engine/run/train/step_rehearsal.h"

namespace thinwire {
namespace {

class TapeRecorder final : public RehearsalWatch, public OpWatcher {
 public:
  TapeRecorder(Tape& tape, const Cluster& cluster, int most_pieces)
      : tape_(tape), cluster_(cluster), code_(tape, cluster, most_pieces) {}

  void route(const GroupLane& lane, const RouteRun& run) override { code_.add_route(lane, run); }
  void exchange(const GroupLane& lane, std::span<const int> to, std::span<const int> from, int64_t bytes) override {
    code_.add_exchange(lane, to, from, bytes);
  }
  void rounds(const RoundCodec& codec, int64_t count) override { code_.add_rounds(codec, count); }
  void block(int64_t bytes, int64_t written, bool taken) override {
    const auto size_class = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(bytes - 1)));
    const int64_t counted = cluster_.machine.gpu ? bytes : written;  // a device has no pages that nobody has taken
    held_[size_class] += taken ? counted : -counted;
    most_[size_class] = std::max(most_[size_class], held_[size_class]);
  }
  Ticket issued(const OperationNote& note) override {
    const int number = static_cast<int>(tape_.operations.size());
    const int end = static_cast<int>(tape_.code.size());
    code_.end_operation(static_cast<Site>(note.label.number));
    tape_.operations.push_back({static_cast<Site>(note.label.number), note.verb, begun_, end - begun_,
                                static_cast<double>(note.bytes), take_blocks()});
    tape_.sites.emplace(note.group, tape_.operations.back().site);
    begun_ = end;
    tape_.events.push_back({.kind = TapeKind::kIssue, .operation = number});
    return Ticket(std::make_shared<WatchedTicket>(
        [this, number] { tape_.events.push_back({.kind = TapeKind::kWait, .operation = number}); }));
  }

  void end(Exec&, const char* op, double flops, double bytes) override {
    compute(cluster_.machine.op_time(op, flops, bytes), 1);
  }
  // Takes as long as an op that fills or copies so many bytes, times the rank's threads: it runs on one of them.
  void moved(size_t read, size_t written) override {
    const char* const like = read > 0 ? "copy_runs" : "fill_constant";
    compute(cluster_.machine.op_time(like, 0.0, static_cast<double>(read + written)), tape_.threads);
  }
  void set_rank_bytes(double bytes) { code_.set_rank_bytes(bytes); }
  void node(const PlanNode& node) {
    tape_.events.push_back({.kind = TapeKind::kNode,
                            .node = node.kind,
                            .micro = static_cast<int16_t>(node.micro),
                            .chunk = static_cast<int16_t>(node.chunk)});
  }
  void step_is_over(const SitePrices& counted) {
    tape_.events.push_back({.kind = TapeKind::kStep});
    tape_.counted.push_back(counted);
  }

 private:
  void compute(const OpTime& time, int factor) {
    if (tape_.events.empty() || tape_.events.back().kind != TapeKind::kCompute) tape_.events.push_back({});
    tape_.events.back().seconds += factor * time.alone;
    tape_.events.back().loaded += factor * time.loaded;
  }
  std::vector<TapeBlocks> take_blocks() {
    std::vector<TapeBlocks> blocks;
    for (size_t i = 0; i < most_.size(); ++i)
      if (most_[i] > 0) blocks.push_back({static_cast<int>(i), static_cast<double>(std::exchange(most_[i], 0))});
    return blocks;
  }

  Tape& tape_;
  const Cluster& cluster_;
  RouteCode code_;
  std::array<int64_t, kBlockClasses> held_{}, most_{};  // of the operation that is being told
  int begun_ = 0;
};

}  // namespace

int threads_of(const RunConfig& config, const Cluster& cluster) {
  if (cluster.machine.gpu) return 1;
  if (config.threads_per_rank > 0) return static_cast<int>(config.threads_per_rank);
  const int ranks = mesh_shape(config).ranks();
  if (cluster.shared_cores > 0) return std::max(1, cluster.shared_cores / ranks);
  return std::max(1, cluster.machine.cores / std::min(ranks, cluster.ranks_per_node));
}

std::vector<int> nodes_of(const Cluster& cluster, int ranks) {
  std::vector<int> nodes;
  for (int r = 0; r < ranks; ++r) nodes.push_back(cluster.node_of(r));
  return nodes;
}

Tape record_tape(const RunConfig& config, const Cluster& cluster, int rank, int steps, int most_pieces) {
  Tape tape;
  tape.rank = rank;
  tape.threads = threads_of(config, cluster);
  TapeRecorder recorder(tape, cluster, most_pieces);
  std::vector<int> nodes;  // of the cluster, unless the configuration says what a node is, as to a run
  if (config.layout.ranks_per_node == 0) nodes = nodes_of(cluster, mesh_shape(config).ranks());
  const WatchedTable table = make_watched_table(rehearsal_ops());
  StepRehearsal rehearsal(config, layout_of(config, rank, std::move(nodes)), &recorder);
  Replica& replica = rehearsal.replica();
  recorder.set_rank_bytes(static_cast<double>(replica.memory().total()));
  replica.use_exec(make_watched_exec(table, replica.device(), replica.exec(), recorder));
  rehearsal.take_steps(
      static_cast<int>(config.accumulation), steps,
      [&](const PlanNode& node, StepTimer::Clock::time_point, StepTimer::Clock::time_point) { recorder.node(node); },
      [&](int, const SitePrices& counted) { recorder.step_is_over(counted); });
  tape.events.shrink_to_fit();
  tape.code.shrink_to_fit();
  return tape;
}

}  // namespace thinwire
