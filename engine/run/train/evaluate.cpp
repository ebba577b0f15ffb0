// Runs the stages forward over evaluation batches and averages.
#include "engine/run/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "engine/run/train/compression_setup.h"
#include "engine/run/train/token_positions.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

// When ranks vote on leaving an evaluation: after a number of micro-batches that the slowest rank's time decides.
class StopVotes {
 public:
  StopVotes(Control& control, const std::function<bool()>& wish) : control_(control), wish_(wish) {}
  bool leaves(int64_t batches) {
    if (batches < next_) return false;
    constexpr int64_t kLeave = std::numeric_limits<int64_t>::max(), kApartUs = 5'000'000;
    const auto spent = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_).count();
    const int64_t vote = control_.agree_max(wish_() ? kLeave : spent / batches + 1);
    // Twice as many at most: the first ones may be queued on a device in no time.
    if (vote != kLeave) next_ = batches + std::clamp<int64_t>(kApartUs / vote, 1, batches);
    return vote == kLeave;
  }

 private:
  Control& control_;
  const std::function<bool()>& wish_;
  const Clock::time_point begin_ = Clock::now();
  int64_t next_ = 1;
};

}  // namespace

void run_micro_batch(Replica& r, const Batch& batch, Ticket& leaving, const AtTheHead& at_the_head) {
  for (int chunk = 0; chunk < r.chunks(); ++chunk) {
    Stage& stage = r.stage(chunk);
    const bool first = chunk == 0 && r.layout().shard.first, last = chunk == r.chunks() - 1 && r.layout().shard.last;
    const int stages = r.layout().pipeline.stages, below = chunk * stages + r.layout().at.pipeline;
    const auto key = [&](int edge) { return evaluation_key(r.config(), edge, stages); };
    if (!first) r.ports().pp.receive_forward(stage.input(0), r.stream(), key(below - 1)).wait(r.stream());
    leaving.wait(r.stream());  // also: chunks share nothing, but one message under way is enough
    const MicroBatch micro = r.upload(batch, r.counts_tokens() ? 1.0 : counted_tokens(batch), false, chunk, 0);
    if (last && at_the_head) {
      at_the_head(stage, micro);
    } else {
      stage.evaluate(r.exec(), micro);
    }
    r.traffic().set_node_end();
    if (!last) leaving = r.ports().pp.send_forward(stage.output(0), r.stream(), key(below));
  }
}

std::optional<Evaluation> evaluate(Replica& r, const SampleStream& stream, Split split, int64_t first, int64_t iters,
                                   Control& control, const std::function<bool()>& wishes_to_stop) {
  const auto start = Clock::now();
  const DataConfig& data = r.config().data;
  const RankLayout& layout = r.layout();
  BatchLoader loader(stream, eval_plan(data, split, first, iters, layout.data_rank(), layout.data_size()));
  Evaluation result;
  const double zero[kSumCount] = {};
  r.write(r.buffers().sums, zero, sizeof zero);
  const std::vector<UnitUse> uses = r.evaluation_uses();
  int64_t batches = 0;
  bool left = false;
  StopVotes votes(control, wishes_to_stop);
  double counted = 0.0;
  PositionLosses positions;
  double sums[kSumCount];
  std::vector<float> losses(static_cast<size_t>(r.reports_loss() ? r.shape().tokens() : 0));
  run_beside_steps(r, [&] {
    Ticket leaving;
    while (std::optional<Batch> batch = loader.next()) {
      if (batches > 0 && (left = votes.leaves(batches))) break;
      r.traffic().begin(uses);
      run_micro_batch(r, *batch, leaving);
      result.tokens += batch->rows * data.seq_length * layout.data_size();
      ++batches;
      counted += counted_tokens(*batch);
      if (losses.empty()) continue;
      r.read(r.buffers().token_losses, losses.data());
      positions.add(*batch, layout.shard.cut, losses);
    }
    leaving.wait(r.stream());
    if (left) return;
    r.write(r.buffers().positions, positions.sums.data(), sizeof positions.sums);
    r.ports().control.sum(r.buffers().positions, r.stream()).wait(r.stream());
    r.read(r.buffers().positions, positions.sums.data());
    take_counters(r, result.traffic);
    if (!r.reports_loss()) r.zero(r.buffers().sums.element_range(kSumLoss, 1));
    r.write(r.buffers().sums.element_range(kSumNorm, 1), &counted, sizeof counted);  // a place that is not used here
    // It carries the totals of the counters, and so its own bytes are in no line.
    r.ports().control.sum(r.buffers().sums, r.stream()).wait(r.stream());
    r.read(r.buffers().sums, sums);
  });
  if (left) return std::nullopt;
  TW_CHECK(batches > 0, "evaluation without a batch");
  add_findings(r, result.traffic);
  r.exec().state->check_faults(r.stream());
  result.traffic.read_totals(sums);
  if (r.counts_tokens())
    result.loss = sums[kSumNorm] > 0.0
                      ? sums[kSumLoss] * static_cast<double>(layout.copies() * layout.mesh.context) / sums[kSumNorm]
                      : 0.0;
  else
    result.loss = sums[kSumLoss] / static_cast<double>(batches * layout.data_size());
  result.perplexity = std::exp(result.loss);
  result.by_position = positions.means();
  result.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return result;
}

}  // namespace thinwire
