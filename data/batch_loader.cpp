// The prefetching reader of micro-batches.
#include "data/batch_loader.h"

#include <algorithm>
#include <utility>

#include "data/batch_ramp.h"
#include "engine/base/core/check.h"

namespace thinwire {

LoaderPlan train_plan(const DataConfig& config, int64_t consumed, int64_t dp_rank, int64_t dp_size) {
  LoaderPlan plan;
  plan.first_sample = consumed;
  plan.micro_batch = config.micro_batch;
  plan.dp_rank = dp_rank;
  plan.dp_size = dp_size;
  plan.global_batch = [config](int64_t at) { return global_batch_at(config, at); };
  plan.documents = config.documents;
  plan.prefetch = config.prefetch_batches;
  return plan;
}

LoaderPlan eval_plan(const DataConfig& config, Split split, int64_t first, int64_t iters, int64_t dp_rank,
                     int64_t dp_size) {
  LoaderPlan plan = train_plan(config, first, dp_rank, dp_size);
  plan.split = split;
  plan.end_sample = first + iters * config.global_batch;
  plan.global_batch = [size = config.global_batch](int64_t) { return size; };
  return plan;
}

BatchLoader::BatchLoader(const SampleStream& stream, LoaderPlan plan)
    : stream_(stream), plan_([&] {
        if (plan.end_sample < 0) plan.end_sample = stream.size(plan.split);
        plan.prefetch = std::max(plan.prefetch, 1);
        return std::move(plan);
      }()) {
  TW_CHECK(plan_.global_batch != nullptr);
  TW_CHECK(plan_.first_sample >= 0 && plan_.micro_batch > 0, "first ", plan_.first_sample, " micro ",
           plan_.micro_batch);
  TW_CHECK(plan_.dp_rank >= 0 && plan_.dp_rank < plan_.dp_size, "rank ", plan_.dp_rank, " of ", plan_.dp_size);
  reader_ = std::thread([this] { run(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  reader_.join();
}

std::optional<Batch> BatchLoader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !queue_.empty() || finished_; });
  if (queue_.empty()) {
    if (error_) std::rethrow_exception(error_);
    return std::nullopt;
  }
  Batch batch = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

int64_t BatchLoader::micro_steps_at(int64_t consumed) const {
  return micro_steps(plan_.global_batch(consumed), plan_.micro_batch, plan_.dp_size);
}

void BatchLoader::run() {
  std::exception_ptr error;
  try {
    bool go = true;
    for (int64_t consumed = plan_.first_sample; go;) {
      const int64_t size = plan_.global_batch(consumed);
      if (size <= 0 || size > plan_.end_sample - consumed) break;
      const int64_t steps = micro_steps_at(consumed);
      for (int64_t s = 0; s < steps && go; ++s) {
        const auto [first, rows] =
            micro_batch_samples(consumed, size, plan_.micro_batch, plan_.dp_size, plan_.dp_rank, s);
        go = push(load(first, rows));
      }
      consumed += size;
    }
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    error_ = error;
  }
  changed_.notify_all();
}

bool BatchLoader::push(Batch batch) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || queue_.size() < static_cast<size_t>(plan_.prefetch); });
    if (stop_) return false;
    queue_.push_back(std::move(batch));
  }
  changed_.notify_all();
  return true;
}

Batch BatchLoader::load(int64_t first, int64_t rows) const {
  const size_t seq = static_cast<size_t>(stream_.seq_length());
  Batch batch;
  batch.first_sample = first;
  batch.rows = rows;
  batch.inputs.resize(static_cast<size_t>(rows) * seq);
  batch.targets.resize(batch.inputs.size());
  std::vector<int32_t> tokens(seq + 1);
  for (int64_t r = 0; r < rows; ++r) {
    stream_.read(plan_.split, first + r, tokens);
    const size_t at = static_cast<size_t>(r) * seq;
    std::copy(tokens.begin(), tokens.end() - 1, batch.inputs.begin() + static_cast<std::ptrdiff_t>(at));
    std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + static_cast<std::ptrdiff_t>(at));
    batch.sample_ids.push_back(first + r);
  }
  apply_document_rules(plan_.documents, stream_.seq_length(), batch);
  return batch;
}

double counted_tokens(const Batch& batch) {
  double counted = 0.0;
  for (float mask : batch.loss_mask) counted += mask;
  return counted;
}

void apply_document_rules(const DocumentRules& rules, int64_t seq_length, Batch& batch) {
  const size_t count = batch.inputs.size();
  batch.loss_mask.assign(count, 1.0f);
  batch.first_keys.assign(rules.reset_attention ? count : 0, 0);
  batch.positions.assign(rules.reset_positions ? count : 0, 0);
  int32_t start = 0;
  for (size_t n = 0; n < count; ++n) {
    const auto t = static_cast<int32_t>(n % static_cast<size_t>(seq_length));
    if (t == 0) start = 0;
    if (rules.reset_attention) batch.first_keys[n] = start;
    if (rules.reset_positions) batch.positions[n] = t - start;
    if (batch.inputs[n] != rules.eod_token) continue;
    if (rules.mask_loss) batch.loss_mask[n] = 0.0f;
    start = t + 1;
  }
}

}  // namespace thinwire
