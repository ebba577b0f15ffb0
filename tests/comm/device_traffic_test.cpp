// Communication on devices, over a fake NCCL whose streams run beside each other: the bits and the bytes of the host's
// verbs for random messages, and the end of a job whose peer has stopped.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/comm/device_rank.h"

namespace thinwire::device_traffic_test {
namespace {

using namespace test;

// Small, so that messages come in pieces.
DeviceTraffic::Options in_pieces() {
  DeviceTraffic::Options options;
  options.scratch_bytes = 8 << 10, options.small_bytes = 512;
  return options;
}

// body(rank, host, device, seed): two communicators of the same ranks, each with counters.
using Body = std::function<void(DeviceRank&, Communicator& host, DeviceCommunicator& device, uint64_t seed)>;

void on_ranks(const Body& body, bool same_counters = true) {
  for (int size : {2, 3, 5}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Findings findings;
      FakeFabric fabric(findings, 30.0);
      run_ranks(
          size,
          [&](Progress& progress) {
            WireCounters sent, sent_here;
            CommTuning tuning;
            tuning.small_bytes = in_pieces().small_bytes;
            Communicator host(progress, all_ranks(size), 1, Site::kControl, &sent, {}, tuning);
            DeviceRank rank(progress, fabric, findings, seed, in_pieces());
            const auto device = rank.communicator(7, all_ranks(size), DeviceEdges::kAll, &sent_here);
            rank.traffic.connect("law", size, rank.me, 9);
            for (uint64_t round = 0; round < 4; ++round)
              body(rank, host, *device, 1000 * seed + 10 * static_cast<uint64_t>(size) + round);
            if (same_counters) {
              EXPECT_EQ(sent_here.wire_bytes, sent.wire_bytes);
              EXPECT_EQ(sent_here.logical_bytes, sent.logical_bytes);
              EXPECT_EQ(sent_here.operations, sent.operations);
            }
            EXPECT_EQ(rank.gpu.host_blocks(), 0);
          },
          seed);
      EXPECT_FALSE(findings.any()) << findings.text();
    }
  }
}

DType some_dtype(std::mt19937_64& random) {
  constexpr DType kinds[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  return kinds[random() % 4];
}

TEST(DeviceTraffic, AllReduce) {
  on_ranks([](DeviceRank& rank, Communicator& host, DeviceCommunicator& device, uint64_t seed) {
    std::mt19937_64 random(seed);
    const DType dtype = some_dtype(random);
    const int64_t count = 1 + random_count(random, 9000);
    Buffer plain = filled(dtype, count, seed, rank.me);
    Tensor there(rank.gpu, *rank.compute, plain);
    HostStream none;
    host.all_reduce(plain.view(), ReduceKind::kSum, none).wait_on_host();
    device.all_reduce(there.view(), *rank.compute).wait(*rank.compute);
    EXPECT_EQ(there.read().bytes(), plain.bytes());
  });
}

TEST(DeviceTraffic, ReduceScatterIntoItselfElsewhereAndAdding) {
  on_ranks([](DeviceRank& rank, Communicator& host, DeviceCommunicator& device, uint64_t seed) {
    for (int form = 0; form < 3; ++form) {
      std::mt19937_64 random(seed * 3 + static_cast<uint64_t>(form));
      const int64_t count = random_count(random, 9000);
      const std::vector<int64_t> bounds = ragged_bounds(random, count, rank.size);
      const auto me = static_cast<size_t>(rank.me);
      const int64_t first = bounds[me], mine = bounds[me + 1] - first;
      constexpr DType kinds[] = {DType::f32, DType::bf16, DType::f16};
      const DType dtype = form == 0 ? DType::f32 : kinds[random() % 3];
      Buffer plain = filled(dtype, count, seed, rank.me), out = filled(DType::f32, mine, seed + 50, rank.me);
      Tensor whole(rank.gpu, *rank.compute, plain), result(rank.gpu, *rank.compute, out);
      HostStream none;
      const View to = form == 0 ? plain.view().element_range(first, mine) : out.view();
      host.reduce_scatter(plain.view(), bounds, to, form == 2, none).wait_on_host();
      const View there = form == 0 ? whole.view().element_range(first, mine) : result.view();
      device.reduce_scatter(whole.view(), bounds, there, form == 2, *rank.compute).wait(*rank.compute);
      Buffer got = form == 0 ? whole.read() : result.read();
      for (int64_t i = 0; i < mine; ++i)
        ASSERT_EQ(got.get(form == 0 ? first + i : i), form == 0 ? plain.get(first + i) : out.get(i)) << form;
    }
  });
}

TEST(DeviceTraffic, AllGatherEvenAndRaggedFromInsideAndOutside) {
  on_ranks([](DeviceRank& rank, Communicator& host, DeviceCommunicator& device, uint64_t seed) {
    for (int form = 0; form < 4; ++form) {
      std::mt19937_64 random(seed + static_cast<uint64_t>(form));
      const DType dtype = some_dtype(random);
      const int64_t each = random_count(random, 2000);
      std::vector<int64_t> bounds;
      for (int r = 0; r <= rank.size; ++r) bounds.push_back(each * r);
      if (form < 2) bounds = ragged_bounds(random, each * rank.size, rank.size);
      const auto me = static_cast<size_t>(rank.me);
      const int64_t first = bounds[me], mine = bounds[me + 1] - first;
      Buffer plain = filled(dtype, bounds.back(), seed, rank.me), part = filled(dtype, mine, seed + 9, rank.me);
      Tensor whole(rank.gpu, *rank.compute, plain), piece(rank.gpu, *rank.compute, part);
      HostStream none;
      const bool inside = form % 2 == 0;
      host.all_gather(inside ? plain.view().element_range(first, mine) : part.view(), plain.view(), bounds, none)
          .wait_on_host();
      device
          .all_gather(inside ? whole.view().element_range(first, mine) : piece.view(), whole.view(), bounds,
                      *rank.compute)
          .wait_on_host();
      EXPECT_EQ(whole.read().bytes(), plain.bytes());
    }
  });
}

TEST(DeviceTraffic, AllToAllAndMessages) {
  on_ranks(
      [](DeviceRank& rank, Communicator& host, DeviceCommunicator& device, uint64_t seed) {
        std::vector<int64_t> from_bounds = {0}, to_bounds = {0};
        for (int r = 0; r < rank.size; ++r) {  // rank a sends a + r + 1 dozens to rank r
          from_bounds.push_back(from_bounds.back() + 12 * (rank.me + r + 1));
          to_bounds.push_back(to_bounds.back() + 12 * (r + rank.me + 1));
        }
        Buffer from = filled(DType::bf16, from_bounds.back(), seed, rank.me), to(DType::bf16, to_bounds.back());
        Tensor from_there(rank.gpu, *rank.compute, from), to_there(rank.gpu, *rank.compute, to);
        HostStream none;
        host.all_to_all(from.view(), from_bounds, to.view(), to_bounds, none).wait_on_host();
        device.all_to_all(from_there.view(), from_bounds, to_there.view(), to_bounds, *rank.compute)
            .wait(*rank.compute);
        EXPECT_EQ(to_there.read().bytes(), to.bytes());

        // To the right and to the left at once, and a hop around: all as one piece of work.
        const int right = (rank.me + 1) % rank.size, left = (rank.me + rank.size - 1) % rank.size;
        Buffer mine = filled(DType::f32, 500, seed, rank.me), empty(DType::f32, 500);
        Buffer right_in(DType::f32, 500), left_in(DType::f32, 500), hop_in(DType::f32, 500);
        Tensor out(rank.gpu, *rank.compute, mine), in_right(rank.gpu, *rank.compute, empty);
        Tensor in_left(rank.gpu, *rank.compute, empty), in_hop(rank.gpu, *rank.compute, empty);
        std::vector<Ticket> host_tickets, tickets;
        const auto both = [&](auto& group, View data, View from_left, View from_right, Stream& stream,
                              std::vector<Ticket>& all) {
          all.push_back(group.send(data, right, stream));
          all.push_back(group.receive(from_left, left, stream));
          if (rank.size > 2) {  // (with two ranks, right and left are one)
            all.push_back(group.send(data, left, stream));
            all.push_back(group.receive(from_right, right, stream));
          }
        };
        both(host, mine.view(), left_in.view(), right_in.view(), none, host_tickets);
        for (Ticket& t : host_tickets) t.wait_on_host();
        host_tickets.clear();
        host_tickets.push_back(host.send(mine.view(), right, none));
        host_tickets.push_back(host.receive(hop_in.view(), left, none));
        for (Ticket& t : host_tickets) t.wait_on_host();
        rank.traffic.open_exchange();
        both(device, out.view(), in_left.view(), in_right.view(), *rank.compute, tickets);
        EXPECT_TRUE(tickets[0].open());
        rank.traffic.close_exchange();
        for (Ticket& t : tickets) t.wait(*rank.compute);
        device.send_and_receive(out.view(), right, in_hop.view(), left, *rank.compute).wait(*rank.compute);
        EXPECT_EQ(in_left.read().bytes(), left_in.bytes());
        EXPECT_EQ(in_hop.read().bytes(), hop_in.bytes());
        if (rank.size > 2) {
          EXPECT_EQ(in_right.read().bytes(), right_in.bytes());
        }
        device.broadcast(out.view(), 0, *rank.compute).wait(*rank.compute);
        Buffer roots = filled(DType::f32, 500, seed, 0);
        EXPECT_EQ(out.read().bytes(), roots.bytes());
      },
      false);
}

// Numbers whose sums are exact in any order: what NCCL's own sums give.
TEST(DeviceTraffic, SumsOfNcclWhereBitsMayDiffer) {
  Findings findings;
  FakeFabric fabric(findings, 30.0);
  DeviceTraffic::Options options = in_pieces();
  options.deterministic = false;
  run_ranks(3, [&](Progress& progress) {
    DeviceRank rank(progress, fabric, findings, 3, options);
    const auto device = rank.communicator(1, all_ranks(3), DeviceEdges::kAll);
    rank.traffic.connect("sums", 3, rank.me, 2);
    const int64_t count = 1000;
    Buffer whole(DType::f32, count), out(DType::f32, 400);
    for (int64_t i = 0; i < count; ++i) whole.set(i, static_cast<double>(i % 50 + rank.me));
    for (int64_t i = 0; i < 400; ++i) out.set(i, 7.0);
    const std::vector<int64_t> mine = {0, 400, 800, 1000};
    Tensor there(rank.gpu, *rank.compute, whole), again(rank.gpu, *rank.compute, whole);
    const auto me = static_cast<size_t>(rank.me);
    const int64_t first = mine[me], own = mine[me + 1] - first;
    Tensor result(rank.gpu, *rank.compute, out);
    device->all_reduce(there.view(), *rank.compute).wait(*rank.compute);
    device->reduce_scatter(again.view(), mine, result.view().element_range(0, own), true, *rank.compute)
        .wait(*rank.compute);
    Buffer sums = there.read(), parts = result.read();
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(sums.get(i), 3.0 * static_cast<double>(i % 50) + 3.0);
    for (int64_t i = 0; i < own; ++i) ASSERT_EQ(parts.get(i), 10.0 + 3.0 * static_cast<double>((first + i) % 50));
  });
  EXPECT_FALSE(findings.any()) << findings.text();
}

// Every rank has other groups, and some have none of a kind: nobody is left behind, and each group is its own.
TEST(DeviceTraffic, GroupsOfSomeRanksAreMadeByAll) {
  Findings findings;
  FakeFabric fabric(findings, 30.0);
  run_ranks(6, [&](Progress& progress) {
    DeviceRank rank(progress, fabric, findings, 5);
    const std::vector<std::vector<std::vector<int>>> kinds = {
        {{0, 1, 2, 3, 4, 5}}, {{0, 1}, {2, 3}, {4, 5}}, {{4, 2, 0}}, {}, {{1, 3, 5}}, {{0, 1}, {2, 3}, {4, 5}}};
    std::vector<std::pair<std::vector<int>, std::unique_ptr<DeviceCommunicator>>> groups;
    for (size_t k = 0; k < kinds.size(); ++k) {
      for (const std::vector<int>& ranks : kinds[k]) {
        auto made = rank.communicator(static_cast<int>(k), ranks, k == 4 ? DeviceEdges::kRing : DeviceEdges::kAll);
        if (made) groups.emplace_back(ranks, std::move(made));
      }
    }
    rank.traffic.connect("groups", 6, rank.me, static_cast<int>(kinds.size()));
    for (auto& [ranks, group] : groups) {
      Buffer mine(DType::f32, 1), all(DType::f32, static_cast<int64_t>(ranks.size()));
      mine.set(0, rank.me);
      Tensor one(rank.gpu, *rank.compute, mine), every(rank.gpu, *rank.compute, all);
      std::vector<int64_t> bounds;
      for (size_t r = 0; r <= ranks.size(); ++r) bounds.push_back(static_cast<int64_t>(r));
      group->all_gather(one.view(), every.view(), bounds, *rank.compute).wait(*rank.compute);
      Buffer got = every.read();
      for (size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(got.get(static_cast<int64_t>(r)), ranks[r]);
    }
  });
  EXPECT_FALSE(findings.any()) << findings.text();
}

// ---- the end of a job

// What a watch does at the end, noted instead of done.
struct End {
  std::mutex mutex;
  std::condition_variable over;
  std::string message;
  int code = 0;
  DeviceWatch::Options options(double seconds) {
    return {.seconds = seconds,
            .end =
                [this](int c) {
                  const std::lock_guard lock(mutex);
                  code = c;
                  over.notify_all();
                },
            .print =
                [this](const std::string& m) {
                  const std::lock_guard lock(mutex);
                  message = m;
                }};
  }
  void wait() {
    std::unique_lock lock(mutex);
    over.wait(lock, [this] { return code != 0; });
  }
};

// Two ranks of which the second does not come.
void with_stopped_peer(DeviceTraffic::Options options, const std::function<void()>& meanwhile) {
  Findings findings;
  FakeFabric fabric(findings, 600.0);
  run_ranks(2, [&](Progress& progress) {
    DeviceTraffic::Options mine;
    if (progress.transport().rank() == 0) mine = options;
    DeviceRank rank(progress, fabric, findings, 1, mine);
    const auto device = rank.communicator(4, all_ranks(2), DeviceEdges::kAll);
    rank.traffic.connect("stopped", 2, rank.me, 5);
    Buffer data(DType::f32, 5000);
    Tensor there(rank.gpu, *rank.compute, data);
    HostStream none;
    Communicator host(progress, all_ranks(2), 1, Site::kControl, nullptr);
    if (rank.me == 0) {
      Ticket first = device->all_reduce(there.view(), *rank.compute);
      Ticket second = device->broadcast(there.view(), 0, *rank.compute);
      meanwhile();
      fabric.let_go();  // a process would have ended
      first.wait(*rank.compute), second.wait(*rank.compute);
    }
    host.barrier().wait_on_host();
  });
}

TEST(DeviceTraffic, AStoppedPeerEndsTheJob) {
  End end;
  with_stopped_peer({.watch = end.options(2.0)}, [&] { end.wait(); });  // both are issued long before
  EXPECT_EQ(end.code, 71);
  EXPECT_NE(end.message.find("nothing has moved for"), std::string::npos) << end.message;
  EXPECT_NE(end.message.find("all_reduce 0 of control (group 4, 20000 bytes)"), std::string::npos) << end.message;
  EXPECT_NE(end.message.find("broadcast 1 of control"), std::string::npos) << end.message;
}

TEST(DeviceTraffic, ItEndsTheProcess) {
  EXPECT_EXIT(
      with_stopped_peer({.watch = {.seconds = 0.3}}, [] { std::this_thread::sleep_for(std::chrono::seconds(60)); }),
      testing::ExitedWithCode(71), "nothing has moved for");
}

TEST(DeviceTraffic, AFaultOfACommunicatorEndsTheJobAtOnce) {
  End end;
  Findings findings;
  FakeFabric fabric(findings, 600.0);
  run_ranks(2, [&](Progress& progress) {
    DeviceTraffic::Options options;
    if (progress.transport().rank() == 0) options.watch = end.options(600.0);
    DeviceRank rank(progress, fabric, findings, 1, options);
    rank.traffic.connect("fault", 2, rank.me, 1);
    if (rank.me == 0) {
      fabric.break_down("NCCL: remote process exited or there was a network error");
      end.wait();
    }
  });
  EXPECT_EQ(end.code, 71);
  EXPECT_NE(end.message.find("remote process exited"), std::string::npos) << end.message;
}

}  // namespace
}  // namespace thinwire::device_traffic_test
