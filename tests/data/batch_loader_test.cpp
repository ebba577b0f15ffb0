// The prefetching loader: the same batches as direct reads from any start, on any rank; errors and shutdown.
#include "data/batch_loader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "data/batch_ramp.h"
#include "tests/data/data_test_files.h"

namespace thinwire::batch_loader_test {
namespace {

using test::expect_error;
using test::TempDir;

class Loader : public ::testing::Test {
 protected:
  Loader() {
    test::write_pair(dir_.file("a"), {25, 3, 40, 11, 60, 7, 19, 33, 2, 28, 90, 14}, 10000);
    config_.data = {{dir_.file("a")}};
    config_.split = "9,3,0";
    config_.seq_length = 8;
    config_.vocab = 10000;
    config_.micro_batch = 2;
    config_.global_batch = 8;
    config_.ramp_start = 2;
    config_.ramp_increment = 2;
    config_.ramp_samples = 18;
    config_.train_iters = 14;
    config_.eval_interval = 7;
    config_.eval_iters = 2;
    config_.documents.eod_token = 401;
  }
  // Every row against a read without a thread.
  void expect_rows(const SampleStream& stream, Split split, const Batch& batch) const {
    const size_t seq = static_cast<size_t>(config_.seq_length);
    ASSERT_EQ(batch.inputs.size(), static_cast<size_t>(batch.rows) * seq);
    ASSERT_EQ(batch.targets.size(), batch.inputs.size());
    ASSERT_EQ(batch.loss_mask.size(), batch.inputs.size());
    ASSERT_EQ(batch.sample_ids.size(), static_cast<size_t>(batch.rows));
    std::vector<int32_t> tokens(seq + 1);
    for (int64_t r = 0; r < batch.rows; ++r) {
      ASSERT_EQ(batch.sample_ids[static_cast<size_t>(r)], batch.first_sample + r);
      stream.read(split, batch.first_sample + r, tokens);
      for (size_t t = 0; t < seq; ++t) {
        const size_t at = static_cast<size_t>(r) * seq + t;
        ASSERT_EQ(batch.inputs[at], tokens[t]);
        ASSERT_EQ(batch.targets[at], tokens[t + 1]);
        ASSERT_EQ(batch.loss_mask[at],
                  config_.documents.mask_loss && tokens[t] == config_.documents.eod_token ? 0.0f : 1.0f);
      }
    }
  }

  TempDir dir_;
  DataConfig config_;
};

TEST_F(Loader, EqualsDirectReadsFromEveryStart) {
  const SampleStream stream(config_);
  for (int prefetch : {1, 3, 1000}) {
    config_.prefetch_batches = prefetch;
    for (int64_t start = 0; start < config_.train_iters; ++start) {
      int64_t consumed = samples_after(config_, start);
      LoaderPlan plan = train_plan(config_, consumed);
      plan.end_sample = samples_after(config_, config_.train_iters);
      BatchLoader loader(stream, plan);
      for (int64_t update = start; update < config_.train_iters; ++update) {
        const int64_t size = global_batch_at(config_, consumed);
        ASSERT_EQ(loader.micro_steps_at(consumed), size / 2);
        for (int64_t s = 0; s < size / 2; ++s) {
          const auto batch = loader.next();
          ASSERT_TRUE(batch.has_value());
          ASSERT_EQ(batch->first_sample, consumed + 2 * s);
          ASSERT_EQ(batch->rows, 2);
          expect_rows(stream, Split::kTrain, *batch);
        }
        consumed += size;
      }
      EXPECT_FALSE(loader.next().has_value());
      EXPECT_FALSE(loader.next().has_value());
    }
  }
}

TEST_F(Loader, RanksTogetherTakeEverySampleOnce) {
  config_.micro_batch = 3;  // ragged: 2, 4, 6 and 8 are no multiples of 3 x ranks
  const SampleStream stream(config_);
  const int64_t end = samples_after(config_, config_.train_iters);
  for (const int64_t dp : {1, 2, 3}) {
    std::vector<int> seen(static_cast<size_t>(end), 0);
    for (int64_t rank = 0; rank < dp; ++rank) {
      LoaderPlan plan = train_plan(config_, 0, rank, dp);
      plan.end_sample = end;
      BatchLoader loader(stream, plan);
      while (auto batch = loader.next()) {
        expect_rows(stream, Split::kTrain, *batch);
        for (const int64_t id : batch->sample_ids) ++seen[static_cast<size_t>(id)];
      }
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << dp << " ranks";
  }
}

TEST_F(Loader, EvaluationGoesOnWhereItStopped) {
  const SampleStream stream(config_);
  for (int64_t round = 0; round < 3; ++round) {
    const int64_t first = round * config_.eval_iters * config_.global_batch;
    BatchLoader loader(stream, eval_plan(config_, Split::kValid, first, config_.eval_iters));
    for (int64_t s = 0; s < config_.eval_iters * config_.global_batch / 2; ++s) {
      const auto batch = loader.next();
      ASSERT_TRUE(batch.has_value());
      ASSERT_EQ(batch->first_sample, first + 2 * s);
      expect_rows(stream, Split::kValid, *batch);
    }
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST_F(Loader, DropsTheRaggedEndOfTheData) {
  const SampleStream stream(config_);
  const int64_t size = stream.size(Split::kTrain);
  BatchLoader loader(stream, train_plan(config_, 0));
  int64_t last = 0;
  while (auto batch = loader.next()) last = batch->first_sample + batch->rows;
  EXPECT_LE(last, size);
  EXPECT_GT(last + config_.global_batch, size);
}

TEST_F(Loader, MasksTheLossOfEndOfDocument) {
  config_.documents.mask_loss = true;
  const SampleStream stream(config_);
  BatchLoader loader(stream, train_plan(config_, 0));
  int masked = 0;
  while (auto batch = loader.next()) {
    expect_rows(stream, Split::kTrain, *batch);
    masked += static_cast<int>(std::count(batch->loss_mask.begin(), batch->loss_mask.end(), 0.0f));
  }
  EXPECT_GT(masked, 0);
}

// Token by token against a search for the end-of-document token before it in its row.
TEST(DocumentRules, AreMegatrons) {
  std::mt19937 rng(5);
  for (int trial = 0; trial < 400; ++trial) {
    const int64_t rows = 1 + static_cast<int64_t>(rng() % 3), seq = 1 + static_cast<int64_t>(rng() % 20);
    DocumentRules rules;
    rules.eod_token = trial % 7 == 0 ? -1 : 2;
    rules.mask_loss = rng() % 2 == 0, rules.reset_attention = rng() % 2 == 0, rules.reset_positions = rng() % 2 == 0;
    Batch batch;
    for (int64_t n = 0; n < rows * seq; ++n) batch.inputs.push_back(static_cast<int32_t>(rng() % 4));
    apply_document_rules(rules, seq, batch);
    double counted = 0.0;
    ASSERT_EQ(batch.first_keys.size(), rules.reset_attention ? batch.inputs.size() : 0u);
    ASSERT_EQ(batch.positions.size(), rules.reset_positions ? batch.inputs.size() : 0u);
    for (int64_t n = 0; n < rows * seq; ++n) {
      const auto at = static_cast<size_t>(n);
      int64_t before = n - 1;
      while (before >= n / seq * seq && batch.inputs[static_cast<size_t>(before)] != rules.eod_token) --before;
      const int64_t start = before + 1 - n / seq * seq;
      if (rules.reset_attention) {
        ASSERT_EQ(batch.first_keys[at], start);
      }
      if (rules.reset_positions) {
        ASSERT_EQ(batch.positions[at], n % seq - start);
      }
      const bool masked = rules.mask_loss && batch.inputs[at] == rules.eod_token;
      ASSERT_EQ(batch.loss_mask[at], masked ? 0.0f : 1.0f);
      counted += masked ? 0.0 : 1.0;
    }
    ASSERT_EQ(counted_tokens(batch), counted);
  }
}

TEST_F(Loader, StopsAtAnyTime) {
  const SampleStream stream(config_);
  for (int trial = 0; trial < 60; ++trial) {
    BatchLoader loader(stream, train_plan(config_, 0));
    for (int i = 0; i < trial % 5; ++i) ASSERT_TRUE(loader.next().has_value());
    if (trial % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the queue is full by now
  }
}

TEST_F(Loader, ForwardsErrorsAfterTheGoodBatches) {
  const SampleStream stream(config_);
  LoaderPlan plan = train_plan(config_, 0);
  plan.prefetch = 100;
  plan.global_batch = [](int64_t consumed) -> int64_t {
    if (consumed >= 12) throw_bad_data("the plan broke");
    return 4;
  };
  BatchLoader loader(stream, plan);
  for (int64_t i = 0; i < 6; ++i) ASSERT_EQ(loader.next()->first_sample, 2 * i);
  for (int i = 0; i < 3; ++i) expect_error(ExitCode::kBadData, {"the plan broke"}, [&] { (void)loader.next(); });
}

TEST_F(Loader, ForwardsDamagedFiles) {
  const SampleStream stream(config_);
  std::filesystem::resize_file(dir_.file("a.bin"), 30);
  BatchLoader loader(stream, train_plan(config_, 0));
  expect_error(ExitCode::kBadData, {"a.bin", "cut short"}, [&] {
    while (loader.next()) {
    }
  });
}

TEST_F(Loader, ErrorThatNobodyFetchesIsDropped) {
  const SampleStream stream(config_);
  LoaderPlan plan = train_plan(config_, 0);
  plan.global_batch = [](int64_t) -> int64_t { throw_bad_data("never seen"); };
  const BatchLoader loader(stream, plan);
}

}  // namespace
}  // namespace thinwire::batch_loader_test
