// Who decides how messages are coded, told made-up times; and that light compressions carry on with the states of those
// whose place they take.
#include "engine/run/train/compression_controller.h"

#include <cmath>
#include <map>
#include <mutex>

#include "compression/codec_table.h"
#include "engine/base/core/philox.h"
#include "tests/comm/local_group.h"

namespace thinwire::compression_controller_test {
namespace {

constexpr int kRanks = 3;

// Keeps texts by name, and gives them back.
class Texts final : public StateVisitor {
 public:
  void tensor(const GlobalSlice&) override {}
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  void text(const std::string& name, std::string& value) override {
    if (reading)
      value = kept.at(name);
    else
      kept[name] = value;
  }
  bool reading = false;
  std::map<std::string, std::string> kept;
};

struct Times {
  double coded, light, plain;
};

constexpr auto kGradients = static_cast<size_t>(Site::kDpGradient),
               kWeights = static_cast<size_t>(Site::kZeroParameter);

SiteWays ways_of_gradients(int variants) {
  std::vector<CodingWay> ways{CodingWay::kCoded, CodingWay::kPlain};
  if (variants > 1) ways.insert(ways.begin() + 1, CodingWay::kLight);
  return {{Site::kDpGradient, ways}};
}

char letter_of(CodingWay way) {
  return "cplb"[static_cast<size_t>(way)];
}

SiteBytes gradient_bytes(int64_t bytes) {
  SiteBytes all{};
  all[kGradients] = bytes;
  return all;
}
std::string repeated(int n, const std::string& round) {
  std::string all;
  for (int i = 0; i < n; ++i) all += round;
  return all;
}

struct Story {
  std::string line, ways;  // a letter per step: c, l, p
  char behind = '?';       // the way of the step behind the decision
  char resumed = '?';      // and of the first one behind a checkpoint
};

// later: the times behind update 27.
Story decide(int variants, const Times& first_times, int64_t logical_bytes, int64_t begin = 0,
             const Times* later = nullptr) {
  std::vector<Story> stories(kRanks);
  run_ranks(kRanks, [&](Progress& progress) {
    Mesh mesh(progress, {1, kRanks, 1}, pretend_nodes(kRanks, kRanks));
    Control control(mesh.channel(GroupKind::kWorld, Site::kControl, all_ranks(kRanks)));
    PlanRevisions revisions;
    revisions.keep();
    const SiteWays ways = ways_of_gradients(variants);
    auto controller = std::make_unique<CompressionController>(true, ways, begin, 0, &mesh, control, revisions, "here");
    const auto way = [&](CompressionController& c, int64_t update) {
      c.before(update);
      return letter_of(mesh.clock().ways[kGradients]);
    };
    Story& story = stories[static_cast<size_t>(mesh.rank())];
    for (int64_t update = 1; update <= 160 && story.line.empty(); ++update) {
      const char now = way(*controller, update);
      story.ways += now;
      const Times& times = later != nullptr && update > 27 ? *later : first_times;
      const double ms = now == 'c' ? times.coded : now == 'l' ? times.light : times.plain;
      // The slowest rank counts, and the first step of a block, which still sees another way, does not.
      const bool first = story.ways.size() > 1 && story.ways[story.ways.size() - 2] != now;
      story.line = controller->after(first              ? 1e4
                                     : mesh.rank() == 1 ? ms
                                                        : 0.5 * ms,
                                     update, gradient_bytes(logical_bytes));
    }
    story.behind = way(*controller, 161);
    EXPECT_EQ(controller->after(1.0, 161, {}), "");
    Texts texts;
    const auto resumed = [&](const std::string& origin, PlanRevisions& list) {
      texts.reading = false;
      controller->visit(texts), revisions.visit(texts);
      texts.reading = true;
      auto again = std::make_unique<CompressionController>(true, ways, begin, 0, &mesh, control, list, origin);
      list.keep();
      again->visit(texts), list.visit(texts);
      return again;
    };
    PlanRevisions same, other;
    const auto again = resumed("here", same);
    EXPECT_EQ(again->resume(161), "");
    EXPECT_TRUE(again->decided());
    story.resumed = way(*again, 162);
    // The ways of all updates, as a replay would have them.
    for (size_t u = 0; u < story.ways.size(); ++u) {
      EXPECT_EQ(story.ways[u], letter_of(same.ways_at(static_cast<int64_t>(u) + 1)[kGradients])) << u;
    }
    const auto elsewhere = resumed("there", other);
    EXPECT_NE(elsewhere->resume(161), "");
    EXPECT_FALSE(elsewhere->decided());
    EXPECT_EQ(way(*elsewhere, 162), 'c');
    EXPECT_EQ(elsewhere->resume(161), "");
    // Without adapt from here on: as the rules say, and the list says so, too.
    PlanRevisions off;
    off.keep(), off.visit(texts);
    CompressionController nobody(false, ways, begin, 0, &mesh, control, off, "here");
    EXPECT_EQ(nobody.resume(161).empty(), story.behind == 'c');
    EXPECT_TRUE(off.ways_at(162) == CodingWays{});
    EXPECT_TRUE(off.ways_at(161) == revisions.ways_at(161));
    EXPECT_EQ(nobody.resume(161), "");
  });
  for (const Story& other : stories) {
    EXPECT_EQ(other.line, stories[0].line);
    EXPECT_EQ(other.ways, stories[0].ways);
    EXPECT_EQ(other.behind, stories[0].behind);
  }
  return stories[0];
}

TEST(CompressionController, TakesTheFastestOfThreeWays) {
  const std::string three =
      "ccc"
      "ccccllllpppp"
      "ccccllllpppp";
  struct Case {
    Times times;
    char way;
    const char* verdict;
  };
  for (const Case& c :
       {Case{{10.0, 8.0, 20.0},
             'l',
             "dp.gradient light instead of coded, which takes at least 25.0 % longer at 95 % confidence (coded steps "
             "take "},
        Case{{10.0, 8.0, 5.0}, 'p', "dp.gradient plain instead of coded, which takes at least 100.0 % longer"},
        Case{{10.0, 12.0, 11.0}, 'c', "dp.gradient coded stays, the others are slower at 95 % confidence ("}}) {
    const Story story = decide(2, c.times, 1);
    EXPECT_EQ(story.ways, three);
    EXPECT_EQ(story.behind, c.way);
    EXPECT_EQ(story.resumed, c.way);
    EXPECT_NE(story.line.find(c.verdict), std::string::npos) << story.line;
    EXPECT_EQ(story.line.rfind("plan revision after step 27: ", 0), 0u) << story.line;
  }
}

TEST(CompressionController, GivesWaysThatAreCloseMoreUpdates) {
  const std::string both =
      "ccc"
      "ccccllllpppp"
      "ccccllllpppp";
  const Story story = decide(2, {10.0, 9.8, 20.0}, 1);
  EXPECT_EQ(story.ways, both + repeated(8, "ccccllll"));
  EXPECT_EQ(story.behind, 'l');
  EXPECT_EQ(story.resumed, 'l');
  EXPECT_NE(story.line.find("step 91: dp.gradient light instead of coded, which takes at least 2.0 % longer at 95 % "
                            "confidence (coded steps take 10.0 ms, light steps take 9.8 ms, plain steps take 20.0 ms)"),
            std::string::npos)
      << story.line;
  // Three percent are told apart sooner than two.
  EXPECT_EQ(decide(2, {10.0, 9.7, 20.0}, 1).ways, both + repeated(4, "ccccllll"));
  // All three close: none is left out, and ten rounds are the most.
  const Story three = decide(2, {10.0, 9.9, 9.8}, 1);
  EXPECT_EQ(three.ways, both + repeated(8, "ccccllllpppp"));
  EXPECT_EQ(three.behind, 'p');
}

TEST(CompressionController, DoesNotComeBackToWhatItLeftOut) {
  const Times slower{99.0, 11.5, 11.4};  // somebody else came to the machine
  const Story story = decide(2, {10.6, 10.0, 10.1}, 1, 0, &slower);
  EXPECT_EQ(story.ways.back(), 'p');
  EXPECT_EQ(story.ways.find('c', 30), std::string::npos) << "coded updates were left out behind two rounds";
  EXPECT_EQ(story.behind, 'p') << story.line;
}

// A letter per update of a run that tries again 10 updates behind each decision. times: in force from an update on;
// each update takes up to `noise` longer, by chance.
std::string ways_of_a_run(const std::map<int64_t, Times>& times, int64_t updates, double noise) {
  std::vector<std::string> ways(kRanks);
  run_ranks(kRanks, [&](Progress& progress) {
    Mesh mesh(progress, {1, kRanks, 1}, pretend_nodes(kRanks, kRanks));
    Control control(mesh.channel(GroupKind::kWorld, Site::kControl, all_ranks(kRanks)));
    PlanRevisions revisions;
    CompressionController controller(true, ways_of_gradients(2), 0, 10, &mesh, control, revisions, "here");
    std::string& mine = ways[static_cast<size_t>(mesh.rank())];
    for (int64_t update = 1; update <= updates; ++update) {
      controller.before(update);
      mine += letter_of(mesh.clock().ways[kGradients]);
      const Times& now = std::prev(times.upper_bound(update))->second;
      const double ms = mine.back() == 'c' ? now.coded : mine.back() == 'l' ? now.light : now.plain;
      const uint32_t chance = philox({1, 2}, {static_cast<uint32_t>(update), 0, 0, 0})[0];
      controller.after(ms * (1.0 + noise * chance / 4294967296.0), update, gradient_bytes(1));
    }
  });
  EXPECT_EQ(ways[0], ways[1]);
  EXPECT_EQ(ways[0], ways[2]);
  return ways[0];
}

TEST(CompressionController, TriesAgainWhenLinksHaveChanged) {
  const std::string trials =
      "ccccllllpppp"
      "ccccllllpppp";
  EXPECT_EQ(ways_of_a_run({{1, {10.0, 8.0, 20.0}}, {30, {10.0, 8.0, 5.0}}}, 3 + 2 * (24 + 10), 0.0),
            "ccc" + trials + std::string(10, 'l') + trials + std::string(10, 'p'));
}

// Steps differ by more than the ways do: nothing is told apart in ten rounds, and what was there stays.
TEST(CompressionController, LeavesAWayOnlyForOneThatIsFasterForSure) {
  std::map<int64_t, Times> times{{1, {20.0, 8.0, 20.0}}};
  times[30] = {8.05, 8.0, 7.95};
  const std::string ways = ways_of_a_run(times, 3 + 24 + 10 + 120 + 10, 0.5);
  EXPECT_EQ(ways.substr(27, 10), std::string(10, 'l'));
  EXPECT_EQ(ways.substr(ways.size() - 10), std::string(10, 'l')) << ways;
}

// In a warm-up of the rules nothing is coded, so that ways differ by noise alone.
TEST(CompressionController, WaitsForTheEndOfWarmUps) {
  const Story story = decide(1, {10.0, 0.0, 20.0}, 1, 20);
  EXPECT_EQ(story.ways, std::string(20 + 3, 'c') +
                            "ccccpppp"
                            "ccccpppp");
  EXPECT_EQ(story.behind, 'c');
}

TEST(CompressionController, TriesNothingThatTheRulesDoNotHave) {
  const Story story = decide(1, {10.0, 0.0, 9.0}, 1);
  EXPECT_EQ(story.ways,
            "ccc"
            "ccccpppp"
            "ccccpppp");
  EXPECT_EQ(story.behind, 'p');
}

TEST(CompressionController, TriesNoPlainUpdatesWhereTheWireSaysNo) {
  constexpr int64_t kFar = int64_t{1} << 60;
  const Story light = decide(2, {10.0, 9.0, 1.0}, kFar);
  EXPECT_EQ(light.ways,
            "ccc"
            "ccccllll"
            "ccccllll");
  EXPECT_EQ(light.behind, 'l');
  const Story alone = decide(1, {10.0, 9.0, 1.0}, kFar);
  EXPECT_EQ(alone.ways,
            "ccc"
            "cccc");
  EXPECT_EQ(alone.behind, 'c');
  EXPECT_EQ(alone.resumed, 'c');
  EXPECT_NE(alone.line.find("step 7: dp.gradient coded stays, the others are slower"), std::string::npos) << alone.line;
  EXPECT_NE(alone.line.find("plain: the wire alone would take longer"), std::string::npos) << alone.line;
}

// Two sites, whose costs add up: a pair of letters per update, gradients first. cost: of a site and a way, in ms beside
// 10 that computing takes; noise as above. restart: the life ends behind this update; 0: never.
struct TwoSites {
  std::vector<std::string> lines;
  std::string gradients, weights;
};
using Costs = std::map<CodingWay, double>;
TwoSites run_two_sites(const Costs& gradients, const Costs& weights, int64_t updates, double noise, int64_t restart = 0,
                       int64_t weight_bytes = 1) {
  std::vector<TwoSites> runs(kRanks);
  const auto ways_of = [](const Costs& costs) {
    std::vector<CodingWay> ways;
    for (const CodingWay way : {CodingWay::kCoded, CodingWay::kLight, CodingWay::kBf16, CodingWay::kPlain})
      if (costs.count(way) > 0) ways.push_back(way);
    return ways;
  };
  const SiteWays ways{{Site::kDpGradient, ways_of(gradients)}, {Site::kZeroParameter, ways_of(weights)}};
  run_ranks(kRanks, [&](Progress& progress) {
    Mesh mesh(progress, {1, kRanks, 1}, pretend_nodes(kRanks, kRanks));
    Control control(mesh.channel(GroupKind::kWorld, Site::kControl, all_ranks(kRanks)));
    std::unique_ptr<PlanRevisions> revisions;
    std::unique_ptr<CompressionController> controller;
    Texts texts;
    const auto begin = [&] {
      revisions = std::make_unique<PlanRevisions>();
      revisions->keep();
      controller = std::make_unique<CompressionController>(true, ways, 0, 10, &mesh, control, *revisions, "here");
    };
    begin();
    TwoSites& mine = runs[static_cast<size_t>(mesh.rank())];
    SiteBytes bytes{};
    bytes[kGradients] = 1, bytes[kWeights] = weight_bytes;
    for (int64_t update = 1; update <= updates; ++update) {
      controller->before(update);
      const CodingWays& now = mesh.clock().ways;
      mine.gradients += letter_of(now[kGradients]), mine.weights += letter_of(now[kWeights]);
      const double ms = 10.0 + gradients.at(now[kGradients]) + weights.at(now[kWeights]);
      const uint32_t chance = philox({1, 2}, {static_cast<uint32_t>(update), 0, 0, 0})[0];
      const std::string line = controller->after(ms * (1.0 + noise * chance / 4294967296.0), update, bytes);
      if (!line.empty()) mine.lines.push_back(line);
      if (update != restart) continue;
      texts.reading = false;
      revisions->visit(texts), controller->visit(texts);
      begin();
      texts.reading = true;
      revisions->visit(texts), controller->visit(texts);
      EXPECT_EQ(controller->resume(update), "");
    }
  });
  for (const TwoSites& run : runs) {
    EXPECT_EQ(run.gradients, runs[0].gradients);
    EXPECT_EQ(run.weights, runs[0].weights);
  }
  return runs[0];
}

constexpr CodingWay kC = CodingWay::kCoded, kL = CodingWay::kLight, kB = CodingWay::kBf16, kP = CodingWay::kPlain;

// Each site has a way of its own, and while one is asked the other stays as it was decided.
TEST(CompressionController, DecidesSiteBySite) {
  const TwoSites run = run_two_sites({{kC, 6}, {kL, 2}, {kB, 4}, {kP, 8}}, {{kC, 1}, {kB, 5}, {kP, 9}}, 80, 0.0);
  const std::string first = repeated(2, "ccccllllbbbbpppp"), second = repeated(2, "ccccbbbbpppp");
  EXPECT_EQ(run.gradients, "ccc" + first + repeated(24 + 10, "l") + "ccccllllbbb");
  EXPECT_EQ(run.weights, "ccc" + repeated(32, "c") + second + repeated(10 + 11, "c"));
  ASSERT_EQ(run.lines.size(), 2u);
  EXPECT_NE(run.lines[0].find("dp.gradient light instead of coded"), std::string::npos) << run.lines[0];
  EXPECT_NE(run.lines[1].find("zero.parameter coded stays, the others are slower"), std::string::npos) << run.lines[1];
}

// A slow link for the weights' bytes says nothing of the gradients' few: each site's own bytes count, bf16's half.
TEST(CompressionController, TriesNothingWhoseBytesAloneTakeTooLong) {
  const TwoSites run = run_two_sites({{kC, 6}, {kP, 1}}, {{kC, 1}, {kB, 0}, {kP, 0}}, 60, 0.0, 0, int64_t{1} << 60);
  EXPECT_EQ(run.weights.find_first_not_of('c'), std::string::npos);
  EXPECT_EQ(run.gradients, "ccc" + repeated(2, "ccccpppp") + repeated(4 + 10, "p") + repeated(2, "ccccpppp") +
                               repeated(60 - 3 - 16 - 14 - 16, "p"));
}

// fp32 travels only where it is faster than bf16 for sure.
TEST(CompressionController, TakesBf16WherePlainCannotBeToldFromIt) {
  const Costs none{{kC, 0}};
  const TwoSites close = run_two_sites({{kC, 20}, {kB, 2.0}, {kP, 1.95}}, none, 100, 0.3),
                 apart = run_two_sites({{kC, 20}, {kB, 6.0}, {kP, 0.5}}, none, 100, 0.3);
  ASSERT_FALSE(close.lines.empty() || apart.lines.empty());
  EXPECT_NE(close.lines[0].find("dp.gradient bf16 instead of coded"), std::string::npos) << close.lines[0];
  EXPECT_NE(apart.lines[0].find("dp.gradient plain instead of coded"), std::string::npos) << apart.lines[0];
}

// At first, too: what was configured stays unless another way is faster for sure.
TEST(CompressionController, SaysThatItCannotBeTold) {
  const TwoSites run = run_two_sites({{kC, 1.0}, {kB, 1.0}, {kP, 0.99}}, {{kC, 0}}, 3 + 120 + 4 + 5, 0.5);
  EXPECT_EQ(run.gradients.back(), 'c');
  ASSERT_GE(run.lines.size(), 1u);
  EXPECT_NE(run.lines[0].find("dp.gradient coded stays, whether others are faster cannot be told at 95 % confidence"),
            std::string::npos)
      << run.lines[0];
}

// In the middle of a block, wherever it is: the same trials, but for the three updates that a life begins with.
TEST(CompressionController, TrialsGoOnBehindARestart) {
  const Costs gradients{{kC, 6}, {kL, 2}, {kB, 4}, {kP, 8}}, weights{{kC, 3}, {kB, 2}, {kP, 1}};
  const TwoSites whole = run_two_sites(gradients, weights, 66, 0.0);
  for (const int64_t restart : {5, 14, 34, 36, 50, 58}) {
    const TwoSites cut = run_two_sites(gradients, weights, 69, 0.0, restart);
    const auto at = static_cast<size_t>(restart);
    EXPECT_EQ(cut.gradients,
              whole.gradients.substr(0, at) + repeated(3, {cut.gradients[at]}) + whole.gradients.substr(at))
        << restart;
    EXPECT_EQ(cut.weights, whole.weights.substr(0, at) + repeated(3, {cut.weights[at]}) + whole.weights.substr(at))
        << restart;
  }
}

SiteRule entropy_coded(double rate, int64_t block, ResidualKind residual) {
  return {.codec = codec_spec("ecsq", {{"rate", rate}, {"block", block}, {"light", true}}),
          .residual = {.kind = residual}};
}

TEST(LightCoding, HasTheNextWholeNumberOfBitsThatHasAZero) {
  for (const auto& [rate, bits] :
       std::map<double, int64_t>{{1.25, 3}, {2.0, 3}, {2.25, 3}, {3.0, 3}, {3.5, 4}, {4.0, 4}}) {
    const CodecSpec light = cheaper_codec(entropy_coded(rate, 256, ResidualKind::kNone).codec);
    EXPECT_EQ(light.codec, "lloyd_max");
    EXPECT_EQ(light.integer("bits"), bits);
    EXPECT_EQ(light.integer("block"), 256);
    EXPECT_NE(make_codec(light).codec, nullptr);
  }
  CodecSpec heavy = entropy_coded(2.5, 64, ResidualKind::kNone).codec;
  heavy["light"] = false;
  EXPECT_EQ(cheaper_codec(heavy), heavy);
  // Light sums beside a codec of rounds, which has none: there is nothing to try.
  SiteRule sketch{.sum_codec = entropy_coded(2.5, 64, ResidualKind::kNone).codec, .has_sum_codec = true};
  sketch.codec = codec_spec("sketch");
  EXPECT_EQ(make_site_compression(Site::kDpGradient, sketch)->light, nullptr);
  EXPECT_EQ(make_site_compression(Site::kDpGradient, SiteRule{.codec = heavy})->light, nullptr);
}

constexpr CodingWay kTurns[] = {CodingWay::kCoded, CodingWay::kLight, CodingWay::kBf16};

// What loses nothing, and what is bf16 already, is not cast; rounds keep their residual for themselves.
TEST(Bf16Coding, StandsForWhatMayLoseSomething) {
  const auto bf16_of = [](const SiteRule& rule) { return make_site_compression(Site::kDpGradient, rule)->bf16; };
  EXPECT_EQ(bf16_of({.codec = codec_spec("entropy")}), nullptr);
  EXPECT_EQ(bf16_of({.codec = codec_spec("cast")}), nullptr);
  EXPECT_EQ(bf16_of(entropy_coded(2.5, 64, ResidualKind::kErrorFeedback))->first->name(),
            "cast(format=bf16) + error_feedback");
  const SiteRule low_rank{.codec = codec_spec("low_rank"), .residual = {.kind = ResidualKind::kErrorFeedback}};
  EXPECT_EQ(bf16_of(low_rank)->first->name(), "cast(format=bf16)");
  EXPECT_EQ(bf16_of(low_rank)->rounds, nullptr);
  // Nobody prepares a state for sums beside rounds.
  SiteRule with_sums = low_rank;
  with_sums.sum_codec = codec_spec("block_int"), with_sums.has_sum_codec = true;
  with_sums.sum_residual.kind = ResidualKind::kErrorFeedback;
  EXPECT_EQ(bf16_of(with_sums)->sums->name(), "cast(format=bf16)");
}

// What error feedback owes is the same debt under all compressions: after n equal sums the mean is off by one residual
// / n.
TEST(LightCoding, GradientsKeepTheirResidual) {
  constexpr int64_t kCount = 5003;
  const std::vector<int64_t> bounds = {0, 2000, 2000, kCount};
  run_ranks(kRanks, [&](Progress& progress) {
    Mesh mesh(progress, {1, kRanks, 1}, pretend_nodes(kRanks, kRanks));
    Mesh::Compressions compressions;
    const auto compression =
        make_site_compression(Site::kDpGradient, entropy_coded(2.5, 64, ResidualKind::kErrorFeedback));
    compressions[static_cast<size_t>(Site::kDpGradient)] = {compression};
    mesh.use_compressions(compressions);
    Channel channel = mesh.channel(GroupKind::kGradientShard, Site::kDpGradient, all_ranks(kRanks));
    const auto all = contributions(DType::f32, kCount, 11, kRanks);
    const auto me = static_cast<size_t>(mesh.rank());
    const int64_t mine = bounds[me + 1] - bounds[me];
    std::vector<double> sum(static_cast<size_t>(mine), 0.0);
    HostStream stream;
    constexpr int kSteps = 64;
    for (int step = 0; step < kSteps; ++step) {
      mesh.clock() = {.step = step, .pass = static_cast<uint64_t>(step)};
      mesh.clock().ways.fill(kTurns[static_cast<size_t>(step / 3 % 3)]);
      Buffer whole = all[me], out(DType::f32, mine);
      SiteCounters& counters = mesh.counters(Site::kDpGradient);
      const int64_t before = counters.wire_bytes;
      channel.reduce_scatter(whole.view(), bounds, out.view(), false, stream).wait(stream);
      mesh.settle_states(true);
      const SiteCompression& used = coded_by(*compression, mesh.clock().ways[kGradients]);
      size_t bytes = 0;
      for (size_t r = 0; r < kRanks; ++r)
        if (r != me && bounds[r + 1] > bounds[r])
          bytes += used.first->wire_bytes(bounds[r + 1] - bounds[r], DType::f32);
      EXPECT_EQ(counters.wire_bytes - before, static_cast<int64_t>(bytes)) << "step " << step;
      for (int64_t i = 0; i < mine; ++i) sum[static_cast<size_t>(i)] += out.get(i);
    }
    double off = 0.0, size = 0.0;
    for (int64_t i = 0; i < mine; ++i) {
      double want = 0.0;
      for (const Buffer& b : all) want += b.get(bounds[me] + i);
      off += std::pow(sum[static_cast<size_t>(i)] / kSteps - want, 2);
      size += want * want;
    }
    EXPECT_LE(std::sqrt(off), 0.6 / kSteps * std::sqrt(size));  // without feedback it would not fall with kSteps
  });
}

// Slices have the same owners under all compressions, or a residual would be left with somebody who no longer reads
// it.
TEST(LightCoding, SumsKeepTheirOwnersAndResidual) {
  constexpr int64_t kCount = 100003;  // three slices and a bit, cut at multiples of 32768
  SiteRule rule = entropy_coded(2.5, 64, ResidualKind::kErrorFeedback);
  rule.sum_codec = entropy_coded(3.5, 64, ResidualKind::kNone).codec;
  rule.sum_residual = rule.residual;
  rule.has_sum_codec = true;
  const auto compression = make_site_compression(Site::kDpGradient, rule);
  for (const auto& other : {compression->light, compression->bf16}) {
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(other->first->granule(), compression->first->granule());
    EXPECT_EQ(other->sums->granule(), compression->sums->granule());
  }
  constexpr int kSteps = 24;
  std::vector<std::vector<char>> last(kRanks);
  run_ranks(kRanks, [&](Progress& progress) {
    Mesh mesh(progress, {1, kRanks, 1}, pretend_nodes(kRanks, kRanks));
    Mesh::Compressions compressions;
    compressions[static_cast<size_t>(Site::kDpGradient)] = {compression};
    mesh.use_compressions(compressions);
    Channel channel = mesh.channel(GroupKind::kGradientReplicas, Site::kDpGradient, all_ranks(kRanks));
    const auto all = contributions(DType::f32, kCount, 13, kRanks);
    const auto me = static_cast<size_t>(mesh.rank());
    std::vector<double> sum(kCount, 0.0);
    HostStream stream;
    for (int step = 0; step < kSteps; ++step) {
      mesh.clock() = {.step = step, .pass = static_cast<uint64_t>(step)};
      mesh.clock().ways.fill(kTurns[static_cast<size_t>(step / 4 % 3)]);
      Buffer data = all[me];
      channel.all_reduce(data.view(), ReduceKind::kSum, stream).wait(stream);
      mesh.settle_states(true);
      for (int64_t i = 0; i < kCount; ++i) sum[static_cast<size_t>(i)] += data.get(i);
      last[me] = data.bytes();
    }
    double off = 0.0, size = 0.0;
    for (int64_t i = 0; i < kCount; ++i) {
      double want = 0.0;
      for (const Buffer& b : all) want += b.get(i);
      off += std::pow(sum[static_cast<size_t>(i)] / kSteps - want, 2);
      size += want * want;
    }
    EXPECT_LE(std::sqrt(off), 1.0 / kSteps * std::sqrt(size));
  });
  for (const auto& bytes : last) EXPECT_EQ(bytes, last[0]);
}

TEST(LightCoding, ReplicasStayEqualAndClose) {
  constexpr int64_t kCount = 4000;
  const std::vector<int64_t> bounds = {0, 1024, 2048, kCount};
  std::vector<Buffer> replicas;
  for (int r = 0; r < kRanks; ++r) replicas.emplace_back(DType::f32, kCount).fill(5, 0);
  std::mutex mutex;
  std::vector<double> far(12, 0.0);
  run_ranks(kRanks, [&](Progress& progress) {
    Mesh mesh(progress, {1, kRanks, 1}, pretend_nodes(kRanks, kRanks));
    Mesh::Compressions compressions;
    compressions[static_cast<size_t>(Site::kZeroParameter)] = {
        make_site_compression(Site::kZeroParameter, entropy_coded(2.25, 256, ResidualKind::kValueDifference))};
    mesh.use_compressions(compressions);
    Channel channel = mesh.channel(GroupKind::kParameterSync, Site::kZeroParameter, all_ranks(kRanks));
    const auto me = static_cast<size_t>(mesh.rank());
    Buffer master(DType::f32, bounds[me + 1] - bounds[me]);
    master.fill(6, mesh.rank());
    HostStream stream;
    for (size_t step = 0; step < far.size(); ++step) {
      mesh.clock() = {.step = static_cast<int64_t>(step), .pass = step};
      mesh.clock().ways.fill(kTurns[step % 3]);
      mesh.begin_parameter_gathers();
      channel.all_gather(master.view(), replicas[me].view(), bounds, stream).wait(stream);
      mesh.settle_states(true);
      double left = 0.0;
      for (int64_t i = 0; i < master.count(); ++i)
        left += std::pow(master.get(i) - replicas[me].get(bounds[me] + i), 2);
      const std::lock_guard lock(mutex);
      far[step] += left;
    }
  });
  for (const Buffer& r : replicas) EXPECT_EQ(r.bytes(), replicas[0].bytes());
  const double rounding = static_cast<double>(kCount) * 0x1p-48;  // of an fp32 replica of numbers near 1
  for (size_t step = 1; step < far.size(); ++step)
    EXPECT_LT(far[step], std::max(rounding, 0.2 * far[step - 1])) << "step " << step;
}

}  // namespace
}  // namespace thinwire::compression_controller_test
