// Simulated times against times worked out by hand: one link, latency, windows, overlap, shared cores, and against the
// pricer of plans.
#include "engine/run/plan/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/run/config/load_config.h"
#include "engine/run/config/named_shapes.h"
#include "engine/run/plan/prediction.h"
#include "engine/run/plan/tape_links.h"

namespace thinwire::simulator_test {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kMegabyte = 1000000;

// Nothing costs anything but what a test says.
Cluster free_cluster(int nodes, double gbps, double latency_us = 0.0) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.links[1].gbps = gbps;
  cluster.links[1].latency_us = latency_us;
  cluster.machine.cores = 4;
  cluster.machine.flops = cluster.machine.bytes_per_second = cluster.machine.sum_bytes_per_second = 1e30;
  cluster.machine.any_codec = {1e30, 1e30};
  return cluster;
}

// A tape by hand: the same step several times.
class Hand {
 public:
  explicit Hand(int rank) { tape_.rank = rank; }
  Hand& compute(double seconds) { return event({.kind = TapeKind::kCompute, .seconds = seconds}); }
  Hand& work(double seconds) {
    tape_.code.push_back({.code = TapeCode::kWork, .seconds = seconds});
    return *this;
  }
  Hand& send(int to, int64_t bytes) { return legs(TapeCode::kSend, to, bytes); }
  Hand& await(int from, int64_t bytes) {
    legs(TapeCode::kPost, from, bytes);
    tape_.code.push_back({.code = TapeCode::kAwait, .first = static_cast<int>(tape_.code.size()) - 1});
    return *this;
  }
  // All since the last issue is one operation.
  Hand& issue(Site site = Site::kDpGradient) {
    const int end = static_cast<int>(tape_.code.size());
    tape_.operations.push_back({site, "test", begun_, end - begun_});
    begun_ = end;
    return event({.kind = TapeKind::kIssue, .operation = last()});
  }
  // The operation before this takes so many bytes of blocks of a size.
  Hand& blocks(int size_class, double bytes) {
    tape_.operations.back().blocks.push_back({size_class, bytes});
    return *this;
  }
  Hand& wait() { return wait_for(last()); }
  Hand& wait_for(int operation) { return event({.kind = TapeKind::kWait, .operation = operation}); }
  // The send before this has left.
  Hand& sent() {
    tape_.refs.push_back(static_cast<int>(tape_.code.size()) - 1);
    tape_.code.push_back({.code = TapeCode::kAwaitSent, .first = static_cast<int>(tape_.refs.size()) - 1, .count = 1});
    return *this;
  }
  Hand& step() { return event({.kind = TapeKind::kStep}); }
  int last() const { return static_cast<int>(tape_.operations.size()) - 1; }
  Tape tape() const { return tape_; }

 private:
  Hand& event(const TapeEvent& e) {
    tape_.events.push_back(e);
    return *this;
  }
  Hand& legs(TapeCode code, int peer, int64_t bytes) {
    tape_.code.push_back({.code = code, .first = static_cast<int>(tape_.legs.size()), .count = 1});
    tape_.legs.push_back({.channel = 0, .peer = peer, .bytes = bytes});
    return *this;
  }
  Tape tape_;
  int begun_ = 0;
};

Simulation run(const std::vector<Hand>& hands, const Cluster& cluster, bool spans = false) {
  std::vector<Tape> tapes;
  for (const Hand& hand : hands) tapes.push_back(hand.tape());
  const Folding all{false, {.data = static_cast<int>(hands.size())}};
  return simulate(tapes, all, cluster, kSteps, spans);
}

TEST(Simulator, OneMessageOnOneLink) {
  const Cluster cluster = free_cluster(2, 0.8, 500.0);  // 100 MB/s
  Hand sender(0), receiver(1);
  for (int s = 0; s < kSteps; ++s) {
    sender.send(1, 10 * kMegabyte).issue().wait().await(1, 8).issue().wait().step();
    receiver.await(0, 10 * kMegabyte).issue().wait().send(0, 8).issue().wait().step();
  }
  const Simulation s = run({sender, receiver}, cluster);
  EXPECT_NEAR(s.step_seconds, 0.1 + 2 * 500e-6, 1e-6);  // there, and the small answer back
  EXPECT_NEAR(s.actors[1].exposed[static_cast<size_t>(Site::kDpGradient)], 0.1 + 1e-3, 2e-3);
}

// Blocks come back when their operation is over, and are used again for what has the same size.
TEST(Simulator, ThePoolGrowsByWhatIsOpenAtATime) {
  const Cluster cluster = free_cluster(2, 0.8);  // 100 MB/s
  for (const double between : {0.0, 0.2}) {
    Hand sender(0), receiver(1);
    for (int s = 0; s < kSteps; ++s) {
      for (Hand* hand : {&sender, &receiver}) {
        const bool sends = hand == &sender;
        const auto move = [&] { sends ? hand->send(1, 10 * kMegabyte).sent() : hand->await(0, 10 * kMegabyte); };
        move();
        hand->issue().blocks(20, 1e6).blocks(12, 3e3);
        hand->compute(between);
        move();
        hand->issue().blocks(20, 9e5).blocks(21, 2e6);
        hand->wait_for(hand->last() - 1).wait().step();
      }
    }
    const double both = between > 0.0 ? 1e6 : 1.9e6;  // 10 MB take 0.1 s
    for (const ActorTimes& times : run({sender, receiver}, cluster).actors)
      EXPECT_NEAR(times.buffers, both + 3e3 + 2e6, 1.0) << between;
  }
}

// A core that issues codes until it has to wait for somebody. A GPU queues that on a stream of its own, and its compute
// goes on beside it: at the same cost, and so at the same one whether the network makes somebody wait or not.
TEST(Simulator, AGpuComputesOnWhileItsOperationsCode) {
  for (const bool gpu : {false, true}) {
    Cluster cluster = free_cluster(2, 8000.0);
    cluster.machine.gpu = gpu;
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s)
      for (Hand* h : {&a, &b}) {
        const int peer = h == &a ? 1 : 0;
        h->work(0.01).send(peer, 8).await(peer, 8).issue().compute(0.02).wait().step();
      }
    const Simulation s = run({a, b}, cluster);
    EXPECT_NEAR(s.step_seconds, 0.03, 1e-6);
    EXPECT_NEAR(s.actors[0].issue, gpu ? 0.0 : 0.01, 1e-6);
  }
}

TEST(Simulator, ComputeHidesWhatFitsBehindIt) {
  const Cluster cluster = free_cluster(2, 0.8);
  for (double compute : {0.05, 0.1, 0.25}) {
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s)
      for (Hand* h : {&a, &b}) {
        const int peer = h == &a ? 1 : 0;
        h->send(peer, 10 * kMegabyte).await(peer, 10 * kMegabyte).issue();
        h->compute(compute).wait().step();
      }
    EXPECT_NEAR(run({a, b}, cluster).step_seconds, std::max(compute, 0.1), 1e-6) << compute;
  }
}

// The last rank is the slowest, with whoever shares its core; the others wait for it.
TEST(Simulator, StepsWaitForTheSlowestCore) {
  Cluster cluster = free_cluster(4, 0.0);
  cluster.machine.uneven = 0.04;
  std::vector<Hand> hands;
  for (int rank = 0; rank < 4; ++rank) {
    Hand h(rank);
    for (int s = 0; s < kSteps; ++s) {
      for (int peer = 0; peer < 4; ++peer)
        if (peer != rank) h.send(peer, 8).await(peer, 8);
      h.compute(0.1).issue().wait().step();
    }
    hands.push_back(h);
  }
  for (int cores : {2, 0}) {
    cluster.shared_cores = cores;
    const Simulation s = run(hands, cluster);
    const double share = cores > 0 ? 2.0 : 1.0;
    EXPECT_NEAR(s.step_seconds, share * 0.104, 1e-6) << cores;
    EXPECT_NEAR(s.actors[0].wait(), share * 0.004, 1e-6) << cores;
    EXPECT_NEAR(s.actors[1].wait(), cores > 0 ? 0.0 : 0.004, 1e-6) << cores;
    EXPECT_NEAR(s.actors[3].wait(), 0.0, 1e-6) << cores;
  }
  cluster.stragglers.push_back({0, 1.02});  // a file that says itself who is slow
  EXPECT_NEAR(run(hands, cluster).step_seconds, 0.102, 1e-6);
}

// Ranks that are equally fast wait for each other all the same now and then: by then more operations are open, and
// messages have come early. No measured step does.
TEST(Simulator, MemoryIsThatOfAStepInWhichOneIsLate) {
  Cluster cluster = free_cluster(2, 8.0);  // 1 GB/s
  cluster.machine.network.socket_bytes = 1e9;
  for (const bool gpu : {false, true}) {
    cluster.machine.gpu = gpu;
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s)
      for (Hand* h : {&a, &b}) {
        const int peer = h == &a ? 1 : 0;
        for (int i = 0; i < 3; ++i)
          h->compute(0.005).send(peer, kMegabyte).await(peer, kMegabyte).issue().blocks(20, 1e6);
        h->wait_for(h->last() - 2).wait_for(h->last() - 1).wait().step();
      }
    const Simulation s = run({a, b}, cluster);
    EXPECT_NEAR(s.step_seconds, 0.016, 1e-6);
    EXPECT_EQ(s.actors[0].buffers, gpu ? 1e6 : 3e6);  // 1 ms each, and b comes after 25 ms
    EXPECT_EQ(s.actors[1].early, gpu ? 0.0 : 3.0 * kMegabyte);
  }
}

TEST(Simulator, TwoSendersShareAReceiver) {
  const Cluster cluster = free_cluster(3, 0.8);
  Hand a(0), b(1), c(2);
  for (int s = 0; s < kSteps; ++s) {
    a.send(2, 10 * kMegabyte).await(2, 8).issue().wait().step();
    b.send(2, 5 * kMegabyte).await(2, 8).issue().wait().step();
    c.await(0, 10 * kMegabyte).await(1, 5 * kMegabyte).send(0, 8).send(1, 8).issue().wait().step();
  }
  // Half of the link each until the short one is over at 0.1 s, but c posts for b when a's has come: one by one.
  EXPECT_NEAR(run({a, b, c}, cluster).step_seconds, 0.15, 1e-6);
}

TEST(Simulator, WhoMovesMessagesTakesACore) {
  Cluster cluster = free_cluster(2, 0.8);
  cluster.shared_cores = 2;
  Hand a(0), b(1);
  for (int s = 0; s < kSteps; ++s)
    for (Hand* h : {&a, &b}) {
      const int peer = h == &a ? 1 : 0;
      h->send(peer, kMegabyte).await(peer, kMegabyte).work(0.05).issue();
      h->compute(0.2).wait().step();
    }
  // 10 ms of wire, then two threads on a rank's core until 0.05 s is done; no core is ever idle.
  EXPECT_NEAR(run({a, b}, cluster).step_seconds, 0.25, 1e-6);
  cluster.shared_cores = 1;
  EXPECT_NEAR(run({a, b}, cluster).step_seconds, 0.5, 1e-6);
  cluster.shared_cores = 0;  // each has a machine of four
  EXPECT_NEAR(run({a, b}, cluster).step_seconds, 0.2, 1e-6);
}

TEST(Simulator, MessagesBetweenTwoRanksMoveOneBehindTheOther) {
  const Cluster cluster = free_cluster(2, 0.8);
  Hand a(0), b(1);
  for (int s = 0; s < kSteps; ++s) {
    a.send(1, 10 * kMegabyte).issue().send(1, 10 * kMegabyte).issue().await(1, 8).issue().wait().step();
    b.await(0, 10 * kMegabyte).issue();
    const int first = b.last();
    b.await(0, 10 * kMegabyte).issue().wait_for(first).compute(0.1).wait().send(0, 8).issue().wait().step();
  }
  EXPECT_NEAR(run({a, b}, cluster).step_seconds, 0.2, 1e-6);  // what the first one is for hides the second
}

TEST(Simulator, AShapersBucketFillsInSilence) {
  Cluster cluster = free_cluster(2, 0.8);
  cluster.links[1].burst_bytes = 2.0 * kMegabyte;
  for (double silence : {0.0, 0.01, 1.0}) {
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s) {
      a.compute(silence).send(1, 10 * kMegabyte).await(1, 8).issue().wait().step();
      b.await(0, 10 * kMegabyte).send(0, 8).issue().wait().step();
    }
    const double saved = std::min(0.02, silence);  // 100 MB/s
    EXPECT_NEAR(run({a, b}, cluster).step_seconds, silence + 0.1 - saved, 1e-4) << silence;
  }
}

TEST(Simulator, ASocketTakesMessagesOver) {
  Cluster cluster = free_cluster(2, 0.8);
  for (double socket : {0.0, 4.0 * kMegabyte}) {
    cluster.machine.network.socket_bytes = socket;
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s) {
      a.send(1, 10 * kMegabyte).sent().issue().wait().await(1, 8).issue().wait().step();
      b.compute(0.05).await(0, 10 * kMegabyte).send(0, 8).issue().wait().step();
    }
    const Simulation s = run({a, b}, cluster);
    // Without a socket it leaves when its receive is posted.
    EXPECT_NEAR(s.step_seconds, socket > 0.0 ? 0.1 : 0.15, 1e-6);
  }
}

// What has come before its receive is posted lies in the transport's memory.
TEST(Simulator, EarlyMessagesTakeMemory) {
  Cluster cluster = free_cluster(2, 0.8);
  cluster.machine.network.socket_bytes = 1e6;
  for (const double late : {0.05, 0.2}) {
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s) {
      a.send(1, 10 * kMegabyte).sent().issue().wait().await(1, 8).issue().wait().step();
      b.compute(late).await(0, 10 * kMegabyte).send(0, 8).issue().wait().step();
    }
    const Simulation s = run({a, b}, cluster);
    EXPECT_EQ(s.actors[0].early, 0.0);
    EXPECT_EQ(s.actors[1].early, late > 0.1 ? 10.0 * kMegabyte : 0.0);  // it takes 0.1 s
  }
}

// b works 20 ms and answers, a 5 ms beside it; the later b polls, the less of that they share. It polls at the latest
// when a waits, too.
TEST(Simulator, WhoWakesUpOnABusyCoreWaitsForIt) {
  Cluster cluster = free_cluster(2, 0.0);
  cluster.shared_cores = 1;
  for (double silence : {0.0, 0.0064})
    for (double late : {0.0, 0.002, 0.01}) {
      cluster.machine.crowded_yield = silence > 0.0 ? 0.0 : 2.0 * late;  // who has waited long sleeps
      cluster.machine.crowded_wake = silence > 0.0 ? late : 0.0;
      Hand a(0), b(1);
      for (int s = 0; s < kSteps; ++s) {
        a.compute(silence).send(1, 8).issue().wait().compute(0.005).await(1, 8).issue().wait().step();
        b.await(0, 8).issue().wait().compute(0.02).send(0, 8).issue().wait().step();
      }
      const Simulation s = run({a, b}, cluster);
      EXPECT_NEAR(s.step_seconds, silence + 0.025, 1e-6) << silence << " " << late;
      EXPECT_NEAR(s.actors[1].exposed[static_cast<size_t>(Site::kDpGradient)], silence + std::min(late, 0.005), 1e-6)
          << silence << " " << late;
    }
}

// A message's own costs are from a ping-pong whose ranks spin; who has waited for long sleeps, and notices later.
TEST(Simulator, WhoSpinsNoticesAtOnce) {
  Cluster cluster = free_cluster(2, 0.0);
  cluster.machine.waiter_seconds = 1e-3;
  for (const double silence : {20e-6, 0.0064}) {
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s) {
      a.compute(silence).send(1, 8).issue().wait().await(1, 8).issue().wait().step();
      b.await(0, 8).issue().wait().send(0, 8).issue().wait().step();
    }
    EXPECT_NEAR(run({a, b}, cluster).step_seconds, silence + (silence > 1e-3 ? 2e-3 : 0.0), 1e-6);
  }
}

// a and b work in turn: on one core each is slowed by the polls of the other, which waits.
TEST(Simulator, WhoWaitsTakesAPartOfTheCore) {
  Cluster cluster = free_cluster(2, 0.0);
  cluster.machine.waiting_share = 0.25;
  for (int cores : {1, 2}) {
    cluster.shared_cores = cores;
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s) {
      a.compute(0.03).send(1, 8).issue().wait().await(1, 8).issue().wait().step();
      b.await(0, 8).issue().wait().compute(0.03).send(0, 8).issue().wait().step();
    }
    EXPECT_NEAR(run({a, b}, cluster).step_seconds, cores == 1 ? 0.08 : 0.06, 1e-6) << cores;
  }
}

// Every message that comes while b computes has the progress thread poll twice.
TEST(Simulator, PollsTakeTheCore) {
  Cluster cluster = free_cluster(2, 0.0);
  cluster.shared_cores = 2;
  cluster.machine.poll = 1e-3;
  Hand a(0), b(1);
  for (int s = 0; s < kSteps; ++s) {
    for (int i = 0; i < 5; ++i) a.compute(0.01).send(1, 8).issue().wait();
    a.await(1, 8).issue().wait().step();
    b.await(0, 8).await(0, 8).await(0, 8).await(0, 8).await(0, 8).issue().compute(0.1).wait();
    b.send(0, 8).issue().wait().step();
  }
  EXPECT_NEAR(run({a, b}, cluster).step_seconds, 0.1 + 5 * 2e-3, 1e-6);
}

TEST(Simulator, AStragglerHoldsTheOthersUp) {
  Cluster cluster = free_cluster(2, 0.8);
  cluster.stragglers = {{.rank = 1, .slowdown = 1.5}};
  Hand a(0), b(1);
  for (int s = 0; s < kSteps; ++s)
    for (Hand* h : {&a, &b}) {
      const int peer = h == &a ? 1 : 0;
      h->compute(0.1).send(peer, 8).await(peer, 8).issue().wait().step();
    }
  EXPECT_NEAR(run({a, b}, cluster).step_seconds, 0.15, 1e-6);
}

double on_path(const Simulation& s, PathKind kind) {
  double sum = 0.0;
  for (const PathPart& part : s.critical) sum += part.kind == kind ? part.to - part.from : 0.0;
  return sum;
}

// Without a gap from the end of the step before to that of the measured one.
void expect_whole(const Simulation& s) {
  ASSERT_FALSE(s.critical.empty());
  for (size_t i = 1; i < s.critical.size(); ++i) EXPECT_EQ(s.critical[i - 1].to, s.critical[i].from) << i;
  EXPECT_NEAR(s.critical.back().to - s.critical.front().from, s.step_seconds, 1e-12);
}

// a computes, packs, and sends to b, which computes shorter, and then with what came: the path goes from one to the
// other over the wire.
TEST(Simulator, TheCriticalPathFollowsTheMessage) {
  const Cluster cluster = free_cluster(2, 0.8, 500.0);
  Hand a(0), b(1);
  for (int s = 0; s < kSteps; ++s) {
    a.compute(0.02).work(0.003).send(1, kMegabyte).issue().wait().await(1, 8).issue().wait().step();
    b.compute(0.005).await(0, kMegabyte).work(0.001).issue().wait().compute(0.03).send(0, 8).issue().wait().step();
  }
  const Simulation s = run({a, b}, cluster, true);
  expect_whole(s);
  EXPECT_NEAR(on_path(s, PathKind::kCompute), 0.02 + 0.03, 1e-9);
  EXPECT_NEAR(on_path(s, PathKind::kIssue), 0.003, 1e-9);
  EXPECT_NEAR(on_path(s, PathKind::kMove), 0.001, 1e-9);
  EXPECT_NEAR(on_path(s, PathKind::kWire), 0.01 + 2 * 500e-6, 1e-6);  // there, and the answer
}

TEST(Simulator, TheCriticalPathLeavesOutWhatIsHidden) {
  const Cluster cluster = free_cluster(2, 0.8);
  for (double compute : {0.05, 0.25}) {
    Hand a(0), b(1);
    for (int s = 0; s < kSteps; ++s)
      for (Hand* h : {&a, &b}) {
        const int peer = h == &a ? 1 : 0;
        h->send(peer, 10 * kMegabyte).await(peer, 10 * kMegabyte).issue().compute(compute).wait().step();
      }
    const Simulation s = run({a, b}, cluster, true);
    expect_whole(s);
    EXPECT_NEAR(on_path(s, PathKind::kCompute), compute > 0.1 ? compute : 0.0, 1e-6) << compute;
    EXPECT_NEAR(on_path(s, PathKind::kWire), compute > 0.1 ? 0.0 : 0.1, 1e-6) << compute;
  }
}

RunConfig config_of(const std::string& shape, std::vector<std::string> more, int ranks) {
  std::vector<std::string> overrides = shape_overrides(shape);
  overrides.insert(overrides.end(), more.begin(), more.end());
  overrides.emplace_back("threads_per_rank=1");
  ConfigOptions options;
  options.ranks = ranks;
  options.dry_run = true;
  return load_config({}, overrides, options).run;
}

// Work of a stage in a step, from its tape: the mean of each kind of node.
void add_costs(const Tape& tape, NodeCosts& costs) {
  double seconds = 0.0, forward = 0.0, backward = 0.0;
  int forwards = 0, backwards = 0;
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeKind::kCompute) seconds += event.seconds;
    if (event.kind != TapeKind::kNode) continue;
    if (event.node == NodeKind::kForward) forward += seconds, ++forwards;
    if (event.node == NodeKind::kBackward) backward += seconds, ++backwards;
    seconds = 0.0;
  }
  costs.forward.push_back(1e3 * forward / forwards);
  costs.backward_input.push_back(1e3 * backward / backwards);
  costs.backward_weight.push_back(0.0);
}

// The pricer of plans is another simulation, of nodes alone; where messages cost nothing both tell the same.
TEST(Simulator, PipelineAsThePricerSays) {
  for (const char* schedule : {"1f1b", "gpipe"})
    for (int micros : {1, 3, 8}) {
      const RunConfig config = config_of("tiny",
                                         {"pipe_parallel_size=4", std::string("schedule=") + schedule,
                                          "gradient_accumulation_steps=" + std::to_string(micros)},
                                         4);
      Cluster cluster = free_cluster(4, 0.0);
      cluster.machine.flops = 1e9, cluster.machine.bytes_per_second = 1e30;
      NodeCosts costs;
      for (int stage = 0; stage < 4; ++stage) add_costs(record_tape(config, cluster, stage, kSteps), costs);
      const PipelineShape shape = layout_of(config, 0).pipeline;
      const double expected = simulate(make_plans(shape), shape, costs).total;
      const Prediction p = predict(config, cluster);
      // Behind the pipeline stand norms and the optimizer, which take bytes and no FLOPs: nothing here.
      EXPECT_NEAR(p.step_ms, expected, 0.002 * expected) << schedule << " " << micros;
    }
}

TEST(Simulator, RingsAndDirectSumsSendAtTheLinksRate) {
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect})
    for (int ranks : {2, 4, 8}) {
      RunConfig config = config_of("30m", {}, ranks);
      config.layout.tuning.all_reduce = algorithm;
      const Cluster cluster = free_cluster(ranks, 1.0);
      const Prediction p = predict(config, cluster);
      const SitePrediction& dp = p.sites[static_cast<size_t>(Site::kDpGradient)];
      const double wire_ms = 1e3 * static_cast<double>(dp.wire_bytes) / 125e6;
      // Every rank sends all the time, but for a ring's and a window's last pieces.
      EXPECT_GE(p.step_ms, wire_ms * 0.999) << ranks;
      EXPECT_LE(p.step_ms, wire_ms * (algorithm == Algorithm::kRing ? 1.15 : 1.05)) << ranks;
    }
}

TEST(Simulator, SameEveryTime) {
  const RunConfig config = config_of("tiny", {"zero_optimization.stage=3", "gradient_accumulation_steps=2"}, 4);
  Cluster cluster = free_cluster(4, 0.1, 50.0);
  cluster.machine.flops = 1e10, cluster.machine.bytes_per_second = 1e9, cluster.jitter = 0.1;
  const Prediction a = predict(config, cluster), b = predict(config, cluster);
  EXPECT_EQ(a.step_ms, b.step_ms);
  EXPECT_EQ(a.simulation.events, b.simulation.events);
  expect_whole(predict(config, cluster, {.spans = true}).simulation);
}

// Equal ranks as one, beside all of them one by one. What folding leaves out - last pieces that are shorter on some
// ranks, slices told in at most four pieces - has to stay small where slices are large.
TEST(Simulator, FoldedRanksTakeAsLong) {
  const std::vector<std::vector<std::string>> cases = {{},
                                                       {"zero_optimization.stage=1"},
                                                       {"zero_optimization.stage=3"},
                                                       {"model_parallel_size=2"},
                                                       {"pipe_parallel_size=2", "gradient_accumulation_steps=4"},
                                                       {"compression.preset=thinwire"}};
  for (const std::vector<std::string>& keys : cases) {
    const RunConfig config = config_of("30m", keys, 16);
    Cluster cluster = free_cluster(4, 1.0, 20.0);
    cluster.ranks_per_node = 4;
    cluster.links[0].gbps = 20.0, cluster.links[0].latency_us = 2.0;
    cluster.machine.flops = 1e11, cluster.machine.bytes_per_second = 1e10, cluster.machine.any_codec = {1e9, 1e9};
    const Prediction each = predict(config, cluster, {.unfold_up_to = 16});
    const Prediction folded = predict(config, cluster, {.unfold_up_to = 1});
    ASSERT_TRUE(folded.folded && !each.folded);
    EXPECT_NEAR(folded.step_ms, each.step_ms, 0.1 * each.step_ms) << (keys.empty() ? "" : keys[0]);
  }
}

TEST(Simulator, UnfoldsWhereStagesShareNodesUnevenly) {
  Cluster cluster = free_cluster(8, 1.0, 20.0);
  cluster.ranks_per_node = 4;
  const auto folded = [&](const char* stages) {
    return predict(config_of("30m", {stages, "gradient_accumulation_steps=4"}, 24), cluster).folded;
  };
  EXPECT_TRUE(folded("pipe_parallel_size=2"));   // 12 a stage: three whole nodes
  EXPECT_FALSE(folded("pipe_parallel_size=4"));  // 6 a stage: one and a half
}

}  // namespace
}  // namespace thinwire::simulator_test
