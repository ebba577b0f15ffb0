// Traces: the file parses, tracks are sorted and nest, nothing recorded is lost or invented, full buffers are counted.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "engine/run/trace/run_files.h"
#include "engine/run/train/step_trace.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_step_trace {
namespace {

using nlohmann::json;
using Clock = StepTrace::Clock;

Clock::time_point at(int64_t us) {
  return Clock::time_point(std::chrono::microseconds(us));
}

OperationNote note(Site site, const char* verb, uint32_t sequence = 0, int64_t bytes = 0, int peer = -1) {
  return {{thinwire::name_of(site).data(), static_cast<int>(site)}, verb, 3, peer, sequence, bytes};
}

struct Slice {
  std::string name, category;
  double from = 0, to = 0;
  json arguments;
};

// Per track name: its slices in the order of the file. Fails the test where the file is no sound trace.
std::map<std::string, std::vector<Slice>> tracks_of(const std::string& text, int rank) {
  std::map<std::string, std::vector<Slice>> tracks;
  const json j = json::parse(text, nullptr, false);
  EXPECT_TRUE(j.is_object() && j.contains("traceEvents"));
  if (!j.is_object()) return tracks;
  std::map<int, std::string> names;
  for (const json& e : j["traceEvents"]) {
    EXPECT_EQ(e["pid"], rank);
    if (e["ph"] == "M" && e["name"] == "thread_name") {
      EXPECT_EQ(names.count(e["tid"]), 0u) << "named twice";
      names[e["tid"]] = e["args"]["name"];
    }
  }
  std::map<int, std::vector<double>> open;  // ends of the slices that enclose the next one
  std::map<int, double> last;
  for (const json& e : j["traceEvents"]) {
    if (e["ph"] == "M") continue;
    EXPECT_EQ(e["ph"], "X");
    const int tid = e["tid"];
    EXPECT_EQ(names.count(tid), 1u) << "track without a name";
    const double from = e["ts"], to = from + e["dur"].get<double>();
    EXPECT_GE(to, from);
    if (last.count(tid) == 1) {
      EXPECT_GE(from, last[tid]) << names[tid];
    }
    last[tid] = from;
    std::vector<double>& ends = open[tid];
    while (!ends.empty() && ends.back() <= from + 1e-6) ends.pop_back();
    if (!ends.empty()) {
      EXPECT_LE(to, ends.back() + 1e-6) << "slices of " << names[tid] << " overlap without nesting";
    }
    ends.push_back(to);
    tracks[names[tid]].push_back({e["name"], e["cat"], from, to, e.value("args", json::object())});
  }
  return tracks;
}

TEST(StepTrace, ShowsComputeSitesAndWaits) {
  StepTrace trace(5, 100);
  trace.describe("rank 5: stage 1, data 0, \"tensor\" 1");
  trace.align(1000'000, 0, "test");
  PlanNode forward{NodeKind::kForward};
  forward.micro = 2, forward.chunk = 1;
  trace.node(forward, at(1000), at(1500));
  trace.compute("data", -1, 0, at(1500), at(1600));
  trace.operation(note(Site::kDpGradient, "reduce_scatter", 7, 4096), at(1100), at(1700));
  trace.operation(note(Site::kDpGradient, "reduce_scatter", 8, 8192), at(1200), at(1800));
  trace.operation(note(Site::kDpGradient, "reduce_scatter", 9), at(1750), at(1900));
  trace.operation(note(Site::kPpForward, "send", 1, 64, 6), at(1500), at(1550));
  trace.waited(note(Site::kDpGradient, "reduce_scatter", 9), at(1850), at(1900));
  trace.waited(note(Site::kPpBackward, "receive", 2, 64, 6), at(1600), at(1650));
  trace.step(12, at(1000), at(1900));
  const auto tracks = tracks_of(trace.json(), 5);
  ASSERT_EQ(tracks.at("steps").size(), 1u);
  EXPECT_EQ(tracks.at("steps")[0].name, "step 12");
  ASSERT_EQ(tracks.at("compute").size(), 2u);
  EXPECT_EQ(tracks.at("compute")[0].name, "F2.1");
  EXPECT_EQ(tracks.at("compute")[0].from, 0.0);
  EXPECT_EQ(tracks.at("compute")[0].to, 500.0);
  EXPECT_EQ(tracks.at("compute")[1].name, "data");
  // Two at once need two lanes; the third starts when the first has ended.
  ASSERT_EQ(tracks.at("dp.gradient").size(), 2u);
  ASSERT_EQ(tracks.at("dp.gradient +1").size(), 1u);
  EXPECT_EQ(tracks.at("dp.gradient")[1].arguments["sequence"], 9);
  EXPECT_EQ(tracks.at("dp.gradient")[0].arguments["bytes"], 4096);
  EXPECT_EQ(tracks.at("pp.forward")[0].arguments["peer"], 6);
  ASSERT_EQ(tracks.at("waiting").size(), 2u);
  EXPECT_EQ(tracks.at("waiting")[0].category, "bubble");
  EXPECT_EQ(tracks.at("waiting")[1].category, "exposed");
  EXPECT_EQ(tracks.at("waiting")[1].name, "wait dp.gradient");
}

TEST(StepTrace, RandomTracesAreSoundAndComplete) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int round = 0; round < 60; ++round) {
    StepTrace trace(round, 5000);
    int64_t now = 1000 + below(100000);
    double busy[kSiteNames.size()] = {}, waited = 0, computed = 0;
    size_t recorded = 0;
    for (int i = 0; i < 300; ++i, ++recorded) {
      const auto site = static_cast<Site>(below(static_cast<int>(kSiteNames.size())));
      const int64_t length = below(50);
      if (below(3) == 0) {
        trace.compute("F", i, 0, at(now), at(now + length));
        computed += static_cast<double>(length);
        if (below(2) == 0) trace.waited(note(site, "x"), at(now), at(now + length)), waited += length, ++recorded;
        now += length;
      } else {
        const int64_t issued = now - below(200);  // finished operations come in any order of their starts
        trace.operation(note(site, "all_gather"), at(issued), at(now));
        busy[static_cast<size_t>(site)] += static_cast<double>(now - issued);
        now += below(10);
      }
    }
    EXPECT_EQ(json::parse(trace.json())["otherData"]["dropped_events"], 0);
    size_t shown = 0;
    double busy_here[kSiteNames.size()] = {}, waited_here = 0, computed_here = 0;
    for (const auto& [name, slices] : tracks_of(trace.json(), round)) {
      double sum = 0;
      for (const Slice& s : slices) sum += s.to - s.from;
      shown += slices.size();
      if (name == "waiting") waited_here += sum;
      if (name == "compute") computed_here += sum;
      for (size_t s = 0; s < kSiteNames.size(); ++s)
        if (name == kSiteNames[s] || name.rfind(std::string(kSiteNames[s]) + " +", 0) == 0) busy_here[s] += sum;
    }
    EXPECT_EQ(shown, recorded);
    EXPECT_NEAR(waited_here, waited, 1e-3);
    EXPECT_NEAR(computed_here, computed, 1e-3);
    for (size_t s = 0; s < kSiteNames.size(); ++s) EXPECT_NEAR(busy_here[s], busy[s], 1e-3) << kSiteNames[s];
  }
}

TEST(StepTrace, AFullBufferCountsAndSaysSo) {
  StepTrace trace(0, 10);
  for (int i = 0; i < 25; ++i) trace.compute("F", i, 0, at(i), at(i + 1));
  const json j = json::parse(trace.json());
  EXPECT_EQ(j["otherData"]["dropped_events"], 15);
  EXPECT_EQ(tracks_of(trace.json(), 0).at("compute").size(), 10u);
}

TEST(StepTrace, ThreadsRecordTogetherAndEmptyIsAFile) {
  StepTrace trace(1, 4000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < 900; ++i)
        trace.operation(note(static_cast<Site>(t), "send", static_cast<uint32_t>(i)), at(10 * i), at(10 * i + 5));
    });
  for (std::thread& t : threads) t.join();
  const auto tracks = tracks_of(trace.json(), 1);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(tracks.at(std::string(kSiteNames[static_cast<size_t>(t)])).size(), 900u);
  const test::Scratch scratch;
  const std::string path = trace_path(scratch.path(), 3);
  EXPECT_EQ(path, scratch / "trace.rank3.json");
  StepTrace(3, 10).write(path);
  EXPECT_TRUE(tracks_of(test::slurp(path), 3).empty());
}

// More at once than there are lanes must still be a file that viewers load.
TEST(StepTrace, VeryManyAtOnce) {
  StepTrace trace(0, 500);
  for (int i = 0; i < 200; ++i) trace.operation(note(Site::kOuter, "send"), at(i), at(10000));
  const json j = json::parse(trace.json());
  std::set<int> tracks;
  for (const json& e : j["traceEvents"])
    if (e["ph"] == "X") tracks.insert(e["tid"].get<int>());
  EXPECT_EQ(tracks.size(), 64u);
}

TEST(StepTrace, WhichStepsAreTraced) {
  LayoutConfig layout;
  EXPECT_FALSE(traces_step(layout, 1, 1));
  layout.trace = true, layout.trace_steps = 3;
  EXPECT_TRUE(traces_step(layout, 1, 1) && traces_step(layout, 3, 1));
  EXPECT_FALSE(traces_step(layout, 4, 1));
  EXPECT_TRUE(traces_step(layout, 41, 41));  // resumed
  layout.trace_steps = INT64_MAX;            // all there are
  EXPECT_TRUE(traces_step(layout, 1, 1) && traces_step(layout, 45, 41));
  layout.trace_steps = 3;
  layout.trace_first = 10;
  EXPECT_FALSE(traces_step(layout, 9, 1) || traces_step(layout, 13, 1));
  EXPECT_TRUE(traces_step(layout, 10, 1) && traces_step(layout, 12, 1));
}

TEST(StepTrace, ClocksMeet) {
  // Another machine's clock runs 5 s ahead of rank 0's.
  std::string first;
  const auto keep = [&](const std::string& mine) { return first = mine; };
  const ClockAlignment zero = align_clocks(
      false, [] {}, keep);
  EXPECT_EQ(zero.offset_ns, 0);
  std::string ahead;
  std::istringstream times(first);
  for (int64_t t = 0; times >> t;) ahead += std::to_string(t - 5'000'000'000) + " ";
  const ClockAlignment other = align_clocks(
      false, [] {}, [&](const std::string&) { return ahead; });
  EXPECT_LT(std::abs(other.offset_ns + 5'000'000'000), 1'000'000'000);
  EXPECT_LT(other.offset_ns, -5'000'000'000);  // my times are later than rank 0's by the run of this test as well
  EXPECT_NE(other.note.find("several machines"), std::string::npos);
  EXPECT_EQ(align_clocks(
                true, [] {}, [&](const std::string&) { return ahead; })
                .offset_ns,
            0);
}

}  // namespace
}  // namespace thinwire::test_step_trace
