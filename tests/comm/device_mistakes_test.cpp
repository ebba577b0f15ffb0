// Mistakes that communication on a device can make, each made on purpose and found by name: a strict fake that finds
// nothing would prove nothing.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/comm/device_rank.h"

namespace thinwire::device_mistakes_test {
namespace {

using namespace test;

constexpr int kRanks = 4, kSteps = 3;
constexpr int64_t kCount = 600;
constexpr double kShort = 1.5;  // seconds without a move until it is said that ranks wait for each other

// What goes wrong in a run: in calls of NCCL, with events of one device, or in the program of rank 0.
struct Wrong {
  Mistake call;
  int device = 0;
  EventMistakes events;
  double patience_s = 30.0;                           // short where ranks wait for each other for ever
  bool splits = false;                                // the call is wrong while communicators are made
  bool writes_early = false;                          // the program writes what is still being sent
  bool reads_early = false;                           // ... and reads what has not come
  bool exchanges_apart = false;                       // on all ranks: ... and sends and receives one behind the other
  bool swaps_in_group = false, swaps_groups = false;  // ... and takes two operations in the other order
};

// What has come on each rank; those it must be.
using Results = std::map<int, std::vector<char>>;

// A program of a few steps on four ranks in three kinds of groups: compute writes, groups sum and gather under it, the
// ring passes on, compute reads. The same on the host, where `host` says so.
Results run_program(const Wrong& wrong, Findings& findings, uint64_t seed, bool on_host) {
  FakeFabric fabric(findings, wrong.patience_s);
  Results results;
  std::mutex mutex;
  const auto body = [&](Progress& progress) {
    DeviceTraffic::Options options;
    options.scratch_bytes = 8 << 10, options.small_bytes = 64;
    DeviceRank rank(progress, fabric, findings, seed, options, 300,
                    wrong.splits ? wrong.call : Mistake{.what = CallMistake::kNone});
    const int me = rank.me, pair = me / 2 * 2;
    const std::vector<int> world = all_ranks(kRanks), two = {pair, pair + 1}, three = {0, 1, 3};
    const bool of_three = me != 2;
    WireCounters counters;
    CommTuning tuning;
    tuning.small_bytes = 64;
    HostStream none;
    Communicator host_world(progress, world, 1, Site::kControl, nullptr, {}, tuning);
    Communicator host_two(progress, two, 2, Site::kControl, nullptr, {}, tuning);
    std::unique_ptr<Communicator> host_three;
    if (of_three) host_three = std::make_unique<Communicator>(progress, three, 3, Site::kControl, nullptr);
    std::unique_ptr<DeviceCommunicator> all, pairs, some, ring;
    if (!on_host) {
      all = rank.communicator(0, world, DeviceEdges::kNone);
      pairs = rank.communicator(1, two, DeviceEdges::kAll);
      some = rank.communicator(2, three, DeviceEdges::kAll);
      ring = rank.communicator(4, world, DeviceEdges::kRing);
      rank.traffic.connect("program " + std::to_string(seed), kRanks, me, 5);
      if (!wrong.splits) rank.nccl->make(wrong.call);
      if (wrong.device == me) rank.gpu.make(wrong.events);
    }
    Buffer ones(DType::f32, kCount), parts(DType::f32, kCount), gathered(DType::f32, 3 * 100), words(DType::f32, 4);
    Buffer passed(DType::f32, kCount), mine(DType::f32, kCount / 2);
    const std::vector<int64_t> ragged = {0, 90, 130, 300}, halves = {0, kCount / 2, kCount};
    Tensor a(rank.gpu, *rank.compute, ones), b(rank.gpu, *rank.compute, parts), c(rank.gpu, *rank.compute, gathered);
    Tensor d(rank.gpu, *rank.compute, words), e(rank.gpu, *rank.compute, passed), f(rank.gpu, *rank.compute, mine);
    std::vector<char> seen;
    const auto keep = [&](const Buffer& from) { seen.insert(seen.end(), from.bytes().begin(), from.bytes().end()); };
    const int right = (me + 1) % kRanks, left = (me + kRanks - 1) % kRanks;
    const bool errs = me == 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto fresh = [&](int what, int64_t count) {
        return filled(DType::f32, count, static_cast<uint64_t>(step * 10 + what) + 1000, me);
      };
      ones = fresh(0, kCount), parts = fresh(1, kCount), words = fresh(2, 4), gathered = fresh(3, 300);
      passed = fresh(4, kCount), mine = fresh(5, kCount / 2);
      if (on_host) {
        host_two.all_reduce(ones.view(), ReduceKind::kSum, none).wait_on_host();
        host_two.reduce_scatter(parts.view(), halves, mine.view(), true, none).wait_on_host();
        if (of_three) {
          const int at = me == 3 ? 2 : me;
          const View own = gathered.view().element_range(
              ragged[static_cast<size_t>(at)], ragged[static_cast<size_t>(at) + 1] - ragged[static_cast<size_t>(at)]);
          host_three->all_gather(own, gathered.view(), ragged, none).wait_on_host();
        }
        host_world.all_reduce(words.view(), ReduceKind::kSum, none).wait_on_host();
        Buffer in(DType::f32, kCount);
        Ticket send = host_world.send(ones.view(), right, none), receive = host_world.receive(in.view(), left, none);
        send.wait_on_host(), receive.wait_on_host();
        keep(ones), keep(mine), keep(gathered), keep(words), keep(in);
        continue;
      }
      Stream& compute = *rank.compute;
      const auto uses = [&](const Tensor& tensor) {
        rank.gpu.add(compute, "compute", {{tensor.view().data, tensor.view().bytes(), false}}, [] {});
      };
      Ticket sum, scatter, gather, norm, send, receive;
      const auto start_sum = [&] {
        a.write(ones);
        sum = pairs->all_reduce(a.view(), compute);
      };
      const auto start_scatter = [&] {
        b.write(parts), f.write(mine);
        scatter = pairs->reduce_scatter(b.view(), halves, f.view(), true, compute);
        if (errs && wrong.writes_early) b.write(ones);
      };
      const auto start_gather = [&] {
        c.write(gathered);
        const auto at = static_cast<size_t>(me == 3 ? 2 : me);
        if (of_three)
          gather = some->all_gather(c.view().element_range(ragged[at], ragged[at + 1] - ragged[at]), c.view(), ragged,
                                    compute);
      };
      const auto start_norm = [&] {
        d.write(words);
        norm = all->all_reduce(d.view(), compute);
      };
      const auto in_order = [&](bool swapped, const std::function<void()>& first, const std::function<void()>& second) {
        swapped ? (second(), first()) : (first(), second());
      };
      in_order(errs && wrong.swaps_in_group, start_sum, start_scatter);
      in_order(errs && wrong.swaps_groups, start_gather, start_norm);
      if (errs && wrong.reads_early) keep(a.read());
      sum.wait(compute), uses(a);
      e.write(passed);
      if (!wrong.exchanges_apart) rank.traffic.open_exchange();
      send = ring->send(a.view(), right, compute);
      receive = ring->receive(e.view(), left, compute);
      if (!wrong.exchanges_apart) rank.traffic.close_exchange();
      scatter.wait(compute), uses(f);
      gather.wait(compute), uses(c);
      norm.wait(compute), uses(d);
      send.wait(compute), receive.wait(compute);
      for (Tensor* tensor : {&a, &f, &c, &d, &e}) keep(tensor->read());
    }
    const std::lock_guard lock(mutex);
    results[me] = std::move(seen);
  };
  try {
    run_ranks(kRanks, body, seed);
  } catch (const std::exception& error) {
    findings.add("exception", error.what());
  }
  return results;
}

// The name of what is found; "bits" where nothing was but the results differ, "nothing" where all is well.
std::string found_in(const Wrong& wrong, uint64_t seed, std::string* details) {
  static const Results expected = [] {
    Findings none;
    return run_program({}, none, 1, true);
  }();
  Findings findings;
  const Results results = run_program(wrong, findings, seed, false);
  *details = findings.text();
  if (findings.any()) return findings.name();
  return results == expected ? "nothing" : "bits";
}

void expect_found(const std::string& name, const std::function<Wrong(uint64_t seed)>& wrong,
                  std::set<std::string> also = {}, uint64_t seeds = 4) {
  also.insert(name);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    std::string details;
    const std::string found = found_in(wrong(seed), seed, &details);
    EXPECT_TRUE(also.contains(found)) << "seed " << seed << ": " << found << " instead of " << name << "; " << details;
  }
}

Wrong call(CallMistake what, uint64_t seed, int most, double patience_s = 30.0) {
  std::mt19937_64 random(seed * 77 + static_cast<uint64_t>(what));
  Wrong wrong;
  wrong.patience_s = patience_s;
  wrong.call = {.what = what,
                .rank = static_cast<int>(random() % kRanks),
                .at = static_cast<int>(random() % static_cast<uint64_t>(most))};
  return wrong;
}

TEST(DeviceMistakes, NoneIsFoundWhereNoneIsMade) {
  expect_found("nothing", [](uint64_t) { return Wrong{}; });
}

TEST(DeviceMistakes, MissingWaitBeforeCommunication) {
  expect_found("missing wait", [](uint64_t seed) {
    return Wrong{.device = static_cast<int>(seed % kRanks), .events = {.dropped_wait = static_cast<int>(seed - 1)}};
  });
}

TEST(DeviceMistakes, MissingWaitBehindCommunication) {
  expect_found("missing wait", [](uint64_t seed) {
    return Wrong{.device = static_cast<int>(seed % kRanks),
                 .events = {.dropped_wait = static_cast<int>(seed - 1), .of_waits_in_compute = true}};
  });
}

TEST(DeviceMistakes, EventRecordedTooEarly) {
  expect_found("missing wait", [](uint64_t seed) {  // an operation's second event is its ticket's
    return Wrong{.device = static_cast<int>(seed % kRanks),
                 .events = {.early_record = 2 * static_cast<int>(seed - 1) + 1}};
  });
}

TEST(DeviceMistakes, ReadBeforeItHasCome) {
  expect_found("missing wait", [](uint64_t) { return Wrong{.reads_early = true}; });
}

TEST(DeviceMistakes, EarlyReuseOfABuffer) {
  expect_found("early reuse", [](uint64_t) { return Wrong{.writes_early = true}; });
}

TEST(DeviceMistakes, SwappedOrder) {
  // Within a group the messages do not fit, or the collectives; between groups ranks wait for each other in a circle.
  expect_found("count", [](uint64_t) { return Wrong{.swaps_in_group = true}; }, {"order"});
  expect_found(
      "order", [](uint64_t) { return Wrong{.patience_s = kShort, .swaps_groups = true}; }, {}, 2);
}

TEST(DeviceMistakes, UngroupedPair) {
  expect_found(
      "ungrouped", [](uint64_t seed) { return call(CallMistake::kUngrouped, seed, 1, kShort); }, {}, 2);
  expect_found(
      "ungrouped", [](uint64_t) { return Wrong{.patience_s = kShort, .exchanges_apart = true}; }, {}, 2);
}

TEST(DeviceMistakes, WrongCount) {
  expect_found("count", [](uint64_t seed) { return call(CallMistake::kWrongCount, seed, 20); });
}

TEST(DeviceMistakes, WrongType) {
  expect_found("dtype", [](uint64_t seed) { return call(CallMistake::kWrongType, seed, 20); });
}

TEST(DeviceMistakes, WrongPeer) {
  expect_found(
      "absent", [](uint64_t seed) { return call(CallMistake::kWrongPeer, seed, 6, kShort); }, {"order"}, 2);
}

TEST(DeviceMistakes, WrongMemory) {
  expect_found("bits", [](uint64_t seed) { return call(CallMistake::kWrongMemory, seed, 6); });
}

TEST(DeviceMistakes, OperationOnAnotherStream) {
  // The next operation runs beside it; or it is a sum, of what has not come.
  expect_found("two at once", [](uint64_t seed) { return call(CallMistake::kOtherStream, seed, 10); },
               {"missing wait"});
}

TEST(DeviceMistakes, AbsenteeThatIsLeftOut) {
  expect_found(
      "creation",
      [](uint64_t) {  // rank 2 has no group of kind 2
        Wrong wrong{.patience_s = kShort, .splits = true};
        wrong.call = {.what = CallMistake::kSkippedSplit, .rank = 2, .at = 0};
        return wrong;
      },
      {"exception"}, 1);
}

TEST(DeviceMistakes, CommunicatorsInAnotherOrder) {
  expect_found(
      "creation",
      [](uint64_t seed) {
        Wrong wrong = call(CallMistake::kSwappedSplits, seed, 3, kShort);
        wrong.splits = true;
        return wrong;
      },
      {}, 2);
}

}  // namespace
}  // namespace thinwire::device_mistakes_test
