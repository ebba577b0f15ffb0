// Spikes and stragglers as arithmetic: what is noticed, what is not, and that a checkpoint in between changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "engine/run/train/spike_guard.h"
#include "engine/run/train/straggler_watch.h"
#include "tests/comm/local_group.h"

namespace thinwire::watch_test {
namespace {

// --- spikes ----------------------------------------------------------------------------------------------------------

// What the guard promises, with sorted copies.
struct PlainGuard {
  SpikeConfig config;
  std::vector<double> losses;
  int64_t in_a_row = 0;
  static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2.0;
  }
  SpikeVerdict judge(double loss) {
    SpikeVerdict v;
    if (static_cast<int64_t>(losses.size()) >= std::max<int64_t>(8, config.window / 4)) {
      v.median = median(losses);
      std::vector<double> away = losses;
      for (double& x : away) x = std::abs(x - v.median);
      v.spreads = (loss - v.median) / std::max(1.4826 * median(away), 0.01 * std::abs(v.median));
      v.spike = v.spreads > config.threshold;
    }
    v.skip = v.spike && config.action == SpikeAction::kSkip && in_a_row < config.budget;
    v.shift = v.spike && config.action == SpikeAction::kSkip && !v.skip;
    in_a_row = v.skip ? in_a_row + 1 : 0;
    if (v.shift) losses.clear();
    if (v.skip) return v;
    losses.push_back(loss);
    if (static_cast<int64_t>(losses.size()) > config.window) losses.erase(losses.begin());
    return v;
  }
};

class Memory final : public StateVisitor {
 public:
  bool loads = false;
  void tensor(const GlobalSlice&) override { FAIL(); }
  void integer(const std::string& name, int64_t& value) override { keep(integers_, name, value); }
  void real(const std::string&, double&) override { FAIL(); }
  void text(const std::string& name, std::string& value) override { keep(texts_, name, value); }

 private:
  template <typename T>
  void keep(std::map<std::string, T>& stored, const std::string& name, T& value) {
    loads ? value = stored.at(name) : stored[name] = value;
  }
  std::map<std::string, int64_t> integers_;
  std::map<std::string, std::string> texts_;
};

TEST(SpikeGuard, JudgesAsPromisedAlsoBehindAResume) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    SpikeConfig config;
    config.action = seed % 3 == 0 ? SpikeAction::kWarn : SpikeAction::kSkip;
    config.window = 8 + static_cast<int64_t>(random() % 60);
    config.threshold = 3.0 + static_cast<double>(random() % 8);
    config.budget = 1 + static_cast<int64_t>(random() % 4);
    PlainGuard plain{config, {}, 0};
    auto guard = std::make_unique<SpikeGuard>(config);
    std::normal_distribution<double> noise(0.0, 0.05);
    double level = 5.0;
    int spikes = 0;
    for (int step = 0; step < 400; ++step) {
      if (random() % 97 == 0) level *= 2.0;  // a real shift
      level *= 0.998;
      const double loss = (level + noise(random)) * (random() % 31 == 0 ? 4.0 : 1.0);
      if (random() % 5 == 0) {
        Memory memory;
        guard->visit(memory);
        guard = std::make_unique<SpikeGuard>(config);
        memory.loads = true;
        guard->visit(memory);
      }
      const SpikeVerdict got = guard->judge(loss), wanted = plain.judge(loss);
      ASSERT_EQ(got.spike, wanted.spike) << "seed " << seed << " step " << step;
      ASSERT_EQ(got.skip, wanted.skip);
      ASSERT_EQ(got.shift, wanted.shift);
      ASSERT_EQ(got.median, wanted.median);
      ASSERT_NEAR(got.spreads, wanted.spreads, 1e-9 * std::abs(wanted.spreads));
      spikes += got.spike ? 1 : 0;
    }
    EXPECT_GT(spikes, 0);
  }
}

// Falling losses with the noise of small batches: nothing to say in 20 runs of 2,000 steps; off says nothing at all.
TEST(SpikeGuard, NoiseIsNoSpike) {
  for (uint64_t run = 1; run <= 20; ++run) {
    std::mt19937_64 random(run);
    std::normal_distribution<double> noise(0.0, 0.02 + 0.01 * static_cast<double>(run));
    SpikeConfig config;
    SpikeGuard guard(config);
    config.action = SpikeAction::kOff;
    SpikeGuard off(config);
    for (int step = 0; step < 2000; ++step) {
      const double loss = 2.0 + 8.0 * std::exp(-step / 300.0) + noise(random);
      ASSERT_FALSE(guard.judge(loss).spike) << "run " << run << " step " << step;
      ASSERT_FALSE(off.judge(loss * (step % 50 == 0 ? 100.0 : 1.0)).spike);
    }
    EXPECT_TRUE(guard.judge(100.0).spike);
  }
}

// --- stragglers ------------------------------------------------------------------------------------------------------

struct World {
  std::vector<int> kinds;
  double ms = 100.0;  // of a step's computing, times 1 + its kind / 2
};

// Medians and votes of an interval in which all ranks but `slow` take what their kind takes, with noise.
std::vector<RankTimes> interval(const World& world, std::mt19937_64& random, int slow, double factor, int late) {
  std::normal_distribution<double> noise(1.0, 0.08);
  std::vector<RankTimes> times(world.kinds.size());
  for (size_t r = 0; r < times.size(); ++r) {
    const double base = world.ms * (1.0 + 0.5 * world.kinds[r]) * (static_cast<int>(r) == slow ? factor : 1.0);
    times[r].compute_ms = base * std::abs(noise(random));
    times[r].wait_ms = 20.0;
    // Others wait now for this one, now for that one.
    times[r].awaited = static_cast<double>(random() % 30) + (static_cast<int>(r) == late ? 90.0 : 0.0);
  }
  return times;
}

TEST(Stragglers, NobodyIsNamedWhereAllAreAlike) {
  for (uint64_t run = 1; run <= 200; ++run) {
    std::mt19937_64 random(run);
    World world;
    const int ranks = 2 + static_cast<int>(random() % 63), stages = 1 + static_cast<int>(random() % 4);
    for (int r = 0; r < ranks; ++r) world.kinds.push_back(r % stages);
    EXPECT_TRUE(judge_times(interval(world, random, -1, 1.0, -1), world.kinds, 1.5, 100).empty()) << "run " << run;
  }
}

TEST(Stragglers, TheSlowAndTheLateAreNamedAndNobodyElse) {
  for (uint64_t run = 1; run <= 200; ++run) {
    std::mt19937_64 random(run);
    World world;
    const int stages = 1 + static_cast<int>(random() % 4), ranks = stages * (2 + static_cast<int>(random() % 16));
    for (int r = 0; r < ranks; ++r) world.kinds.push_back(r % stages);
    const int one = static_cast<int>(random() % static_cast<uint64_t>(ranks));
    const bool late = run % 2 == 0;
    // A rank that computes too long is late, too, which is no news.
    const auto records = judge_times(interval(world, random, late ? -1 : one, 2.2, one), world.kinds, 1.5, 100);
    ASSERT_EQ(records.size(), 1u) << "run " << run;
    EXPECT_EQ(records[0].rank, one);
    EXPECT_EQ(records[0].waits, late);
    if (!late) {
      EXPECT_NEAR(records[0].ratio, 2.2, 0.9);
    }
  }
}

TEST(Stragglers, WhatDiffersByAHairIsNoNews) {
  // Of a step of milliseconds, and of the only rank of its kind.
  EXPECT_TRUE(judge_times({{0.2, 0, 0}, {0.9, 0, 0}}, {0, 0}, 1.5, 100).empty());
  EXPECT_TRUE(judge_times({{10, 0, 0}, {29, 0, 0}}, {0, 0}, 1.5, 100).empty());
  EXPECT_EQ(judge_times({{10, 0, 0}, {31, 0, 0}}, {0, 0}, 1.5, 100).size(), 1u);
  EXPECT_TRUE(judge_times({{10, 0, 0}, {90, 0, 100}}, {0, 1}, 1.5, 100).empty());
  // All wait for all: a symmetric exchange.
  EXPECT_TRUE(judge_times({{10, 90, 100}, {10, 90, 100}}, {0, 0}, 1.5, 100).empty());
  EXPECT_EQ(judge_times({{10, 90, 0}, {10, 0, 95}}, {0, 0}, 1.5, 100).size(), 1u);
}

// Nobody sends more messages than a tree needs. (One sum of three numbers per rank was too long for doubling steps from
// 342 ranks on, and was exchanged directly.)
TEST(Stragglers, RanksTalkToFewOthersHoweverManyThereAre) {
  constexpr int kRanks = 360;
  std::vector<int64_t> messages(kRanks);
  run_ranks(kRanks,
            [&](Progress& progress) {
              WireCounters counters;
              Control control(
                  Channel(std::make_unique<Communicator>(progress, all_ranks(kRanks), 0, Site::kControl, &counters)));
              StragglerWatch watch(1, 1.5, std::vector<int>(kRanks), {}, control);
              std::vector<int64_t> waited(kRanks);
              waited[7] = 60'000'000;  // ns: all vote for rank 7
              std::optional<StragglerWatch::Report> report;
              for (int64_t step = 1; step <= 2; ++step) {
                report = watch.after_step(step, control.rank() == 300 ? 400.0 : 100.0, 60.0, waited);
                ASSERT_TRUE(report.has_value());
              }
              ASSERT_EQ(report->named.size(), 2u);
              EXPECT_EQ(report->named[0].rank, 7);
              EXPECT_TRUE(report->named[0].waits);
              EXPECT_EQ(report->named[1].rank, 300);
              EXPECT_FALSE(report->named[1].waits);
              messages[static_cast<size_t>(control.rank())] = counters.messages;
            },
            0, {.thread = false, .spin_us = 0});
  // Two steps of at most: a length and a text to rank 0, and each of them passed on to 9 others, the text in pieces.
  for (int r = 0; r < kRanks; ++r) EXPECT_LE(messages[static_cast<size_t>(r)], 100) << "rank " << r;
}

TEST(Stragglers, AllRanksHearTheSameOnceItIsSaidTwice) {
  constexpr int kRanks = 4;
  std::mutex mutex;
  std::vector<std::vector<std::string>> heard(kRanks);
  run_ranks(kRanks, [&](Progress& progress) {
    WireCounters counters;
    Control control(Channel(std::make_unique<Communicator>(progress, all_ranks(kRanks), 0, Site::kControl, &counters)));
    StragglerWatch watch(10, 1.5, std::vector<int>(kRanks), {"n0", "n1", "n2", "n3"}, control);
    std::vector<int64_t> waited(kRanks);
    const int me = control.rank();
    for (int64_t step = 401; step <= 450; ++step) {
      // Rank 2 is slow from step 411 to 430: in two intervals.
      const bool slow = me == 2 && step > 410 && step <= 430;
      const int64_t messages = counters.messages;
      const auto report = watch.after_step(step, slow ? 170.0 : 110.0, 10.0, waited);
      EXPECT_EQ(report.has_value(), step % 10 == 0);
      EXPECT_EQ(counters.messages > messages, report.has_value()) << "nothing travels in between";
      if (!report) continue;
      const std::lock_guard lock(mutex);
      std::string line = std::to_string(step) + ":";
      for (const StragglerRecord& r : report->named) line += " " + text_of(r);
      for (const StragglerRecord& r : report->changes) line += r.ratio > 0.0 ? " new" : " gone";
      heard[static_cast<size_t>(me)].push_back(line);
    }
  });
  EXPECT_EQ(heard[0],
            (std::vector<std::string>{"410:", "420:", "430: rank 2 (n2) computes 1.6 x the median since step 410 new",
                                      "440: gone", "450:"}));
  for (const auto& each : heard) EXPECT_EQ(each, heard[0]);
}

}  // namespace
}  // namespace thinwire::watch_test
