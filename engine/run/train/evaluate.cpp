// Runs the stage forward over evaluation batches and averages.
#include "engine/run/train/evaluate.h"

#include <chrono>
#include <cmath>

namespace thinwire {

Evaluation evaluate(Replica& replica, const SampleStream& stream, Split split, int64_t first, int64_t iters) {
  const auto start = std::chrono::steady_clock::now();
  const DataConfig& data = replica.config().data;
  BatchLoader loader(stream, eval_plan(data, split, first, iters));
  Evaluation result;
  replica.zero(replica.buffers().loss_sum);
  int64_t batches = 0;
  while (std::optional<Batch> batch = loader.next()) {
    replica.stage().evaluate(replica.exec(), replica.upload(*batch, 1, false));
    result.tokens += batch->rows * data.seq_length;
    ++batches;
  }
  TW_CHECK(batches > 0, "evaluation without a batch");
  replica.ports().control.sum(replica.buffers().loss_sum, replica.stream()).wait(replica.stream());
  result.loss = replica.read_scalar(replica.buffers().loss_sum) / static_cast<double>(batches);
  result.perplexity = std::exp(result.loss);
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace thinwire
