// A job that ends by agreement right behind a step: what its ranks have begun to send each other is over before the
// memory goes that it lies in.
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/base/core/log.h"
#include "engine/run/train/trainer.h"
#include "parallel/channel/mesh.h"
#include "parallel/collective/collectives.h"
#include "parallel/collective/rehearsal.h"
#include "tests/comm/between.h"
#include "tests/data/data_test_files.h"
#include "tests/support/local_world.h"

namespace thinwire::agreed_end_test {
namespace {

// Updated weights are reported two seconds after they came.
class LateWeights final : public Between {
 public:
  using Between::Between;
  int late = 0, taken_back = 0;

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    const bool over = Between::post_receive(data, bytes, peer, tag, token);
    GroupLane lane;
    lane.tag = tag;
    if (communicator_of(lane) != static_cast<int>(GroupKind::kParameterSync)) return over;
    ++late;
    if (over)
      hold({token, bytes});
    else
      awaited_.insert(token);
    return false;
  }
  size_t poll(std::span<Completion> done) override {
    size_t kept = 0;
    const size_t n = Between::poll(done);
    for (size_t i = 0; i < n; ++i) {
      if (awaited_.erase(done[i].token) > 0)
        hold(done[i]);
      else
        done[kept++] = done[i];
    }
    const Clock::time_point now = Clock::now();
    std::erase_if(held_, [&](const Held& h) {
      if (kept == done.size() || h.due > now) return false;
      done[kept++] = h.what;
      return true;
    });
    return kept;
  }
  bool withdraw(uint32_t token) noexcept override {
    ++taken_back;
    awaited_.erase(token);
    return std::erase_if(held_, [&](const Held& h) { return h.what.token == token; }) > 0 || Between::withdraw(token);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Completion what;
    Clock::time_point due;
  };
  void hold(const Completion& what) { held_.push_back({what, Clock::now() + std::chrono::seconds(2)}); }

  std::set<uint32_t> awaited_;
  std::vector<Held> held_;
};

TEST(AgreedEnd, WeightsUnderWayArriveBeforeTheirMemoryGoes) {
  const test::Scratch folder;
  test::write_pair(folder / "tokens", std::vector<int>(40, 100), 256, 0, 0);
  ConfigOptions options;
  options.ranks = 2, options.data_required = true, options.allow_faults = true;
  const ResolvedConfig config = load_config({},
                                            {"num_layers=2",
                                             "hidden_size=32",
                                             "num_attention_heads=2",
                                             "seq_length=32",
                                             "vocab_size=256",
                                             "make_vocab_size_divisible_by=1",
                                             "data_path=" + folder / "tokens",
                                             "split=100,0,0",
                                             "eval_interval=0",
                                             "eval_iters=0",
                                             "train_batch_size=4",
                                             "train_micro_batch_size_per_gpu=2",
                                             "train_iters=1",
                                             "optimizer.params.lr=1e-2",
                                             "lr_decay_style=constant",
                                             "warmup=0",
                                             "zero_optimization.stage=1",
                                             "threads_per_rank=1",
                                             "watchdog_seconds=0",
                                             "run_dir=" + folder / "run",
                                             R"(faults=[{"at": "save.begin", "rank": 1, "do": "enospc"}])"},
                                            options);
  run_local_ranks(2, [&](Transport& transport) {
    LateWeights late(transport);
    Job job(late);
    job.form_mesh(config.run, "agreed end");
    try {
      train(config, true, job);
      ADD_FAILURE() << "the save did not fail";
    } catch (const AgreedError& e) {
      EXPECT_EQ(e.code(), ExitCode::kIo) << e.what();
    }
    EXPECT_GT(late.late, 0);
    EXPECT_EQ(late.taken_back, 0);
    job.control().barrier();
  });
  log_close_file();
}

}  // namespace
}  // namespace thinwire::agreed_end_test
