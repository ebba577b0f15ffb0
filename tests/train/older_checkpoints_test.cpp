// What older checkpoints lack is filled in so that their runs go on as they were.
#include <gtest/gtest.h>

#include "data/batch_ramp.h"
#include "engine/run/train/run_session.h"

namespace thinwire::older_checkpoints_test {
namespace {

// The schedule stood at the samples of the first `updates` steps, whichever steps were skipped.
TEST(OlderCheckpoints, SamplesOfSkippedStepsAreThoseThatTheScheduleDidNotCount) {
  DataConfig data;
  data.global_batch = 8;
  for (const int64_t ramp : {0, 12}) {
    data.ramp_samples = ramp, data.ramp_start = 2, data.ramp_increment = 2;
    TrainProgress progress;
    progress.step = 7, progress.updates = 5, progress.skipped = 2;
    progress.consumed_samples = samples_after(data, progress.step);
    Manifest manifest;
    complete_progress(manifest, data, progress);
    EXPECT_EQ(progress.consumed_samples - progress.skipped_samples, samples_after(data, progress.updates));
    EXPECT_GT(progress.skipped_samples, 0);
    manifest.integers["progress/skipped_samples"] = progress.skipped_samples = 3;
    complete_progress(manifest, data, progress);
    EXPECT_EQ(progress.skipped_samples, 3);
  }
  // Seven steps of 5 samples, and now the batch is another.
  TrainProgress progress;
  progress.step = data.done_iters = 7, progress.updates = 5, progress.skipped = 2;
  progress.consumed_samples = data.done_samples = 35;
  complete_progress(Manifest(), data, progress);
  EXPECT_EQ(progress.skipped_samples, 10);
}

}  // namespace
}  // namespace thinwire::older_checkpoints_test
