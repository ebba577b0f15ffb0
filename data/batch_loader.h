// Micro-batches in the order of training, prefetched by a reader thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/data_config.h"
#include "data/sample_stream.h"

namespace thinwire {

// One micro-batch of one data-parallel rank. Matrices are [rows, seq_length], row-major, one row per sample.
struct Batch {
  int64_t first_sample = 0;
  int64_t rows = 0;
  std::vector<int32_t> inputs, targets;  // targets[r][t] is the token after inputs[r][t]
  std::vector<float> loss_mask;  // 1; 0 where the input is the end-of-document token and DocumentRules mask its loss
  // Per token, within its row: the first input that it attends to, and its position; each empty unless DocumentRules
  // reset it.
  std::vector<int32_t> first_keys, positions;
  std::vector<int64_t> sample_ids;  // [rows]: first_sample, first_sample + 1, ...
};

// Tokens of the batch that count in the loss.
double counted_tokens(const Batch& batch);
// Fills loss_mask, first_keys and positions from the inputs.
void apply_document_rules(const DocumentRules& rules, int64_t seq_length, Batch& batch);

struct LoaderPlan {
  Split split = Split::kTrain;
  int64_t first_sample = 0;  // consumed samples: the loader begins with the global batch that starts there
  int64_t end_sample = -1;   // the loader ends before the first global batch that would pass this; -1: the split's size
  int64_t micro_batch = 1;
  int64_t dp_rank = 0, dp_size = 1;
  std::function<int64_t(int64_t consumed)> global_batch;  // samples of the step that begins there; called by the reader
  DocumentRules documents;
  int prefetch = 2;  // micro-batches read ahead, at least 1
};

// Training from `consumed` samples on, with the batch ramp.
LoaderPlan train_plan(const DataConfig& config, int64_t consumed, int64_t dp_rank = 0, int64_t dp_size = 1);
// `iters` evaluation batches of the full batch size from sample `first` on. (Megatron goes on where the last evaluation
// ended: first = evaluations so far * eval_iters * global_batch.)
LoaderPlan eval_plan(const DataConfig& config, Split split, int64_t first, int64_t iters, int64_t dp_rank = 0,
                     int64_t dp_size = 1);

// The stream must outlive the loader. One consumer thread. Destruction at any time stops and joins the reader.
class BatchLoader {
 public:
  BatchLoader(const SampleStream& stream, LoaderPlan plan);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next micro-batch; nothing when the plan has ended. An exception of the reader is thrown here, after the batches
  // read before it, and again by every later call.
  std::optional<Batch> next();
  // Micro-batches per rank of the step that begins after `consumed` samples.
  int64_t micro_steps_at(int64_t consumed) const;

 private:
  void run();
  bool push(Batch batch);  // false: stop
  Batch load(int64_t first, int64_t rows) const;

  const SampleStream& stream_;
  const LoaderPlan plan_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> queue_;
  bool stop_ = false, finished_ = false;
  std::exception_ptr error_;
  std::thread reader_;
};

}  // namespace thinwire
