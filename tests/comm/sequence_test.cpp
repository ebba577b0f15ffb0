// Tags are used again: with two bits for the sequence, dozens of operations under way, and completions in any order,
// every message still meets the receive of its own operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/core/error.h"
#include "parallel/collective/coded.h"
#include "parallel/collective/collectives.h"
#include "parallel/collective/communicator.h"
#include "parallel/wire/sequence_window.h"
#include "tests/comm/local_group.h"

namespace thinwire::sequence_test {
namespace {

TEST(SequenceWindow, OperationsWaitForThoseThatHadTheirTag) {
  StartQueue queue;
  SequenceWindow window(queue, 4);
  std::vector<SequencePlace> places;
  for (uint32_t s = 0; s < 12; ++s) {
    places.push_back(window.take());
    EXPECT_EQ(places[s].sequence, s);
    EXPECT_EQ(places[s].may_start(), s < 4) << s;
  }
  places[1].over();
  places[3].over();
  EXPECT_FALSE(places[4].may_start()) << "0 has the tag of 4 and is not over";
  places[0].over();
  EXPECT_TRUE(places[5].may_start());
  EXPECT_FALSE(places[6].may_start()) << "2 is not over";
  places[2].over();
  places[2].over();  // may be told twice
  EXPECT_TRUE(places[7].may_start());
  EXPECT_FALSE(places[8].may_start());
  EXPECT_EQ(window.open(), 8u);
  EXPECT_TRUE(SequencePlace().may_start());
}

// What reports and traces call an operation is its number: that of a message among those of its peer and direction, the
// same at both ends, whether it is one transfer or a task.
TEST(SequenceWindow, NotesCountFromNoughtByPeerAndByGroup) {
  struct Notes final : OperationSink {
    void operation(const OperationNote& note, Clock::time_point, Clock::time_point) override {
      list.emplace_back(note.verb, note.sequence);
    }
    void waited(const OperationNote&, Clock::time_point, Clock::time_point) override {}
    std::vector<std::pair<std::string, uint32_t>> list;
  };
  run_ranks(2, [](Progress& progress) {
    Notes notes;
    progress.set_sink(&notes);
    HostStream host;
    Communicator group(progress, all_ranks(2), 0, Site::kControl, nullptr);
    int64_t value = 1;
    const View data(&value, DType::i64, {1});
    const bool sends = group.rank() == 0;
    const int peer = 1 - group.rank();
    const auto message = [&] { (sends ? group.send(data, peer, host) : group.receive(data, peer, host)).wait(host); };
    group.barrier().wait(host);
    group.barrier().wait(host);
    message();
    for (int i = 0; i < 2; ++i)
      group
          .start(sends ? coded_send(group.lane_to(peer), plain_call(), data, peer)
                       : coded_receive(group.lane_from(peer), plain_call(), data, peer),
                 "message", 8, peer)
          .wait(host);
    message();
    group.barrier().wait(host);
    progress.set_sink(nullptr);
    const std::string verb = sends ? "send" : "receive";
    const decltype(notes.list) expected = {{"barrier", 0}, {"barrier", 1}, {verb, 0},     {"message", 1},
                                           {"message", 2}, {verb, 3},      {"barrier", 2}};
    EXPECT_EQ(notes.list, expected);
  });
}

// A lane that is handed to two operations is refused, whether the first of them is over or not: both would have one
// tag.
TEST(SequenceWindow, ALaneIsForOneOperation) {
  run_ranks(2, [](Progress& progress) {
    HostStream host;
    Communicator group(progress, all_ranks(2), 0, Site::kControl, nullptr);
    int64_t value = 1;
    const View data(&value, DType::i64, {1});
    const auto issue = [&](const GroupLane& lane) {
      return group.start(small_all_reduce(lane, data, ReduceKind::kSum), "twice", 8);
    };
    const GroupLane lane = group.lane();
    Ticket first = issue(lane);
    EXPECT_THROW(issue(lane).wait(host), Error);
    first.wait(host);
    EXPECT_THROW(issue(lane).wait(host), Error);
    EXPECT_EQ(value, 2);
    issue(group.lane()).wait(host);
    EXPECT_EQ(value, 4);
  });
}

// One operation of the random program, with the memory that it leases and what must come out.
struct Step {
  std::vector<int64_t> in, out, expected;
  Ticket ticket;
};

// All ranks draw the same program; each waits for its tickets in an order of its own.
void random_program(Progress& progress, const CommTuning& tuning, int steps, uint64_t seed) {
  HostStream host;
  const int n = progress.transport().size(), me = progress.transport().rank();
  Communicator first(progress, all_ranks(n), 0, Site::kControl, nullptr, {}, tuning);
  Communicator second(progress, all_ranks(n), 30, Site::kControl, nullptr, {}, tuning);
  std::mt19937_64 program(seed), mine(seed * 31 + static_cast<uint64_t>(me));
  std::deque<Step> open;
  const auto wait_for_one = [&] {
    const size_t pick = mine() % open.size();
    open[pick].ticket.wait_on_host();
    ASSERT_EQ(open[pick].out, open[pick].expected);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
  };
  for (int k = 0; k < steps; ++k) {
    Communicator& group = program() % 3 == 0 ? second : first;
    const int64_t count = program() % 2 == 0 ? 1 + static_cast<int64_t>(program() % 4) : 700;
    const auto value = [&](int rank, int64_t i) { return int64_t{k} * 1000003 + rank * 1009 + i; };
    const auto fill = [&](std::vector<int64_t>& v, int rank) {
      v.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = value(rank, i);
    };
    const auto view = [&](std::vector<int64_t>& v) { return View(v.data(), DType::i64, {count}); };
    const uint64_t verb = program() % 4;
    const int root = static_cast<int>(program() % static_cast<uint64_t>(n));
    if (verb <= 1) {  // sums, and the broadcast of a vector
      Step& step = open.emplace_back();
      fill(step.out, me);
      fill(step.expected, verb == 0 ? 0 : root);
      for (int r = 1; verb == 0 && r < n; ++r)
        for (int64_t i = 0; i < count; ++i) step.expected[static_cast<size_t>(i)] += value(r, i);
      step.ticket = verb == 0 ? group.all_reduce(view(step.out), ReduceKind::kSum, host)
                              : group.broadcast(view(step.out), root, host);
    } else {  // to the next rank, from the one before
      const int to = (me + 1) % n, from = (me + n - 1) % n;
      Step& sent = open.emplace_back();
      fill(sent.in, me);
      sent.ticket = group.send(view(sent.in), to, host);
      Step& received = open.emplace_back();
      received.out.assign(static_cast<size_t>(count), -1);
      fill(received.expected, from);
      received.ticket = group.receive(view(received.out), from, host);
    }
    while (open.size() > 40) wait_for_one();
  }
  while (!open.empty()) wait_for_one();
  EXPECT_EQ(first.open_collectives(), 0u);
  EXPECT_EQ(second.open_collectives(), 0u);
}

TEST(Sequence, WrapsWithManyUnderWay) {
  for (int n : {2, 3, 5}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Algorithm algorithm = seed % 2 == 0 ? Algorithm::kRing : Algorithm::kDirect;
      const CommTuning tuning{.all_reduce = algorithm, .chunk_bytes = 1024, .small_bytes = 64, .sequence_bits = 2};
      run_ranks(
          n, [&](Progress& progress) { random_program(progress, tuning, 150, seed); }, seed % 3 == 0 ? 0 : seed);
    }
  }
}

TEST(Sequence, WrapsAtItsFullLength) {
  run_ranks(
      3, [](Progress& progress) { random_program(progress, {.small_bytes = 64}, 1500, 9); }, 5);
}

// Every verb tells that it is over: otherwise its tag would never be free again.
TEST(Sequence, EveryVerbEnds) {
  for (Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kTwoLevel}) {
    run_ranks(4, [&](Progress& progress) {
      HostStream host;
      const CommTuning tuning{.all_reduce = algorithm,
                              .reduce_scatter = algorithm,
                              .all_gather = algorithm,
                              .chunk_bytes = 512,
                              .small_bytes = 64,
                              .sequence_bits = 2};
      Communicator group(progress, all_ranks(4), 3, Site::kControl, nullptr, {0, 0, 1, 1}, tuning);
      std::vector<float> whole(1000), other(1000), part(250);
      const std::vector<int64_t> bounds = {0, 250, 500, 750, 1000};
      const View all(whole.data(), DType::f32, {1000}), apart(other.data(), DType::f32, {1000});
      const View mine(part.data(), DType::f32, {250});
      for (int round = 0; round < 5; ++round) {
        group.all_reduce(all, ReduceKind::kSum, host).wait_on_host();
        group.all_reduce(all.element_range(0, 4), ReduceKind::kMax, host).wait_on_host();
        group.all_reduce(all.element_range(0, 0), ReduceKind::kMax, host).wait_on_host();
        group.reduce_scatter(all, bounds, mine, false, host).wait_on_host();
        group.all_gather(mine, all, bounds, host).wait_on_host();
        group.all_gather(all.element_range(250 * group.rank(), 250), all, bounds, host).wait_on_host();
        group.all_to_all(all, bounds, apart, bounds, host).wait_on_host();
        group.broadcast(all, 1, host).wait_on_host();
        group.barrier().wait_on_host();
        EXPECT_EQ(group.open_collectives(), 0u);
      }
    });
  }
}

}  // namespace
}  // namespace thinwire::sequence_test
