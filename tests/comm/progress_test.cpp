// The engine: tasks, errors, waiting, many operations at once, what it costs to wait, and what it allocates.
#include "parallel/wire/progress.h"

#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <thread>

#include "engine/base/core/error.h"
#include "parallel/collective/collectives.h"
#include "tests/comm/allocation_count.h"
#include "tests/comm/local_group.h"

namespace thinwire::progress_test {
namespace {

double cpu_seconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Progress, SteadyStateAllocatesNothing) {
  constexpr int kSize = 3;
  std::vector<int64_t> counts;  // of rank 0
  counts.reserve(6);
  run_ranks(kSize, [&](Progress& progress) {
    HostStream stream;
    const int me = progress.transport().rank();
    WireCounters counters;
    Communicator group(progress, all_ranks(kSize), 1, Site::kControl, &counters, {}, {.chunk_bytes = 4096});
    Communicator ring(progress, all_ranks(kSize), 2, Site::kControl, &counters, {},
                      {.all_reduce = Algorithm::kRing,
                       .reduce_scatter = Algorithm::kRing,
                       .all_gather = Algorithm::kRing,
                       .chunk_bytes = 4096});
    std::vector<float> large(30000), small(10), out(10000), message(5000);
    const std::vector<int64_t> bounds = {0, 10000, 20000, 30000};
    const View whole(large.data(), DType::f32, {30000}), mine = whole.element_range(me * 10000, 10000);
    const auto all_verbs = [&] {
      Ticket open[] = {
          group.all_reduce(whole, ReduceKind::kSum, stream),
          group.all_reduce(View(small.data(), DType::f32, {10}), ReduceKind::kMax, stream),
      };
      for (Ticket& t : open) t.wait(stream);
      for (Communicator* c : {&group, &ring}) {
        c->reduce_scatter(whole, bounds, View(out.data(), DType::f32, {10000}), true, stream).wait(stream);
        c->all_gather(mine, whole, bounds, stream).wait(stream);
        c->all_reduce(whole, ReduceKind::kSum, stream).wait(stream);
      }
      group.broadcast(whole, 1, stream).wait(stream);
      const View text(message.data(), DType::f32, {5000});
      if (me == 0) group.send(text, 2, stream).wait(stream);
      if (me == 2) group.receive(text, 0, stream).wait(stream);
      group.barrier().wait(stream);
    };
    for (int i = 0; i < 200; ++i) all_verbs();
    for (int i = 0; i <= 1000; ++i) {
      if (i % 200 == 0) {
        group.barrier().wait(stream);
        if (me == 0) counts.push_back(allocations_of_the_process());
        group.barrier().wait(stream);
      }
      all_verbs();
    }
  });
  // One: how many operations meet in a mailbox at once depends on timing.
  EXPECT_LE(middle_growth(counts), 1) << "allocations in 600 rounds of nine verbs";
}

TEST(Progress, ErrorOfATaskSurfacesInItsWait) {
  run_ranks(2, [&](Progress& progress) {
    HostStream stream;
    Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
    const auto failing = [](Task first) -> Task {
      co_await first;
      throw Error(ExitCode::kBadData, "no good");
    };
    Task barrier = group.barrier_task();
    Ticket ticket = group.start(failing(std::move(barrier)), "failing", 0);
    try {
      ticket.wait(stream);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData);
      EXPECT_STREQ(e.what(), "no good");
    }
    EXPECT_FALSE(ticket.open());
    // Everything else goes on.
    std::vector<float> data(100, 1.0f);
    group.all_reduce(View(data.data(), DType::f32, {100}), ReduceKind::kSum, stream).wait(stream);
    EXPECT_EQ(data[99], 2.0f);
  });
}

TEST(Progress, OneRanksErrorEndsTheOthersWaits) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> told{0};
    try {
      run_ranks(
          4,
          [&](Progress& progress) {
            HostStream stream;
            Communicator group(progress, all_ranks(4), 1, Site::kControl, nullptr);
            std::vector<float> data(100000);
            Ticket open = group.all_reduce(View(data.data(), DType::f32, {100000}), ReduceKind::kSum, stream);
            if (progress.transport().rank() == 2) throw Error(ExitCode::kDiverged, "rank two has had enough");
            try {
              open.wait(stream);
              group.barrier().wait(stream);
            } catch (const Error& e) {
              EXPECT_EQ(e.code(), ExitCode::kHungPeer) << e.what();
              ++told;
              throw;
            }
          },
          static_cast<uint64_t>(round));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "rank two has had enough");
    }
    EXPECT_EQ(told, 3);
  }
}

TEST(Progress, WrongLengthIsAnError) {
  EXPECT_THROW(run_ranks(2,
                         [](Progress& progress) {
                           HostStream stream;
                           Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
                           std::vector<char> data(100);
                           if (progress.transport().rank() == 0) {
                             group.send(View(data.data(), DType::u8, {90}), 1, stream).wait(stream);
                           } else {
                             group.receive(View(data.data(), DType::u8, {100}), 0, stream).wait(stream);
                           }
                         }),
               Error);
}

TEST(Progress, DroppedOpenTicketIsACheck) {
  run_local_ranks(2, [](Transport& transport) {
    if (transport.rank() == 1) return;
    Progress progress(transport);
    HostStream stream;
    Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
    std::vector<char> data(100);
    EXPECT_THROW({ Ticket open = group.receive(View(data.data(), DType::u8, {100}), 1, stream); }, Error);
  });
}

TEST(Progress, TicketThatOutlivesTheEngineSaysSo) {
  run_local_ranks(2, [](Transport& transport) {
    if (transport.rank() == 1) return;
    HostStream stream;
    std::vector<char> data(100);
    Ticket open, done;
    {
      Progress progress(transport);
      Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
      open = group.receive(View(data.data(), DType::u8, {100}), 1, stream);
    }
    EXPECT_TRUE(open.open());
    EXPECT_THROW(open.wait(stream), Error);
  });
}

// Steps of several collectives in one operation, several operations on several groups, waited in any order.
TEST(Progress, ManyOperationsOfSeveralGroups) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    constexpr int kSize = 4, kEach = 12;
    std::atomic<int> wrong{0};
    run_ranks(
        kSize,
        [&](Progress& progress) {
          HostStream stream;
          const int me = progress.transport().rank();
          WireCounters counters[3];
          Communicator world(progress, all_ranks(kSize), 1, Site::kDpGradient, &counters[0], {}, {.chunk_bytes = 512});
          Communicator pair(progress, me < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, 2, Site::kTpForward,
                            &counters[1], {}, {.all_reduce = Algorithm::kRing, .chunk_bytes = 256});
          Communicator odd(progress, me % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1}, 3, Site::kPpForward,
                           &counters[2]);
          std::vector<std::vector<float>> a(kEach, std::vector<float>(1000)), b(kEach, std::vector<float>(700)),
              out(kEach, std::vector<float>(300)), in(kEach, std::vector<float>(300));
          const auto reduce_in_both = [](Task first, Task second) -> Task {
            co_await first;
            co_await second;
          };
          std::vector<Ticket> open;
          for (int i = 0; i < kEach; ++i) {
            const auto k = static_cast<size_t>(i);
            std::fill(a[k].begin(), a[k].end(), static_cast<float>(me + i));
            std::fill(b[k].begin(), b[k].end(), static_cast<float>(me));
            std::fill(out[k].begin(), out[k].end(), static_cast<float>(me * 100 + i));
            const View va(a[k].data(), DType::f32, {1000}), vb(b[k].data(), DType::f32, {700});
            Task first = pair.all_reduce_task(vb, ReduceKind::kSum);
            Task second = odd.all_reduce_task(vb, ReduceKind::kSum);
            open.push_back(world.start(reduce_in_both(std::move(first), std::move(second)), "both", 2800));
            const int other = odd.rank() == 0 ? 1 : 0;
            open.push_back(odd.receive(View(in[k].data(), DType::f32, {300}), other, stream));
            open.push_back(world.all_reduce(va, ReduceKind::kSum, stream));
            open.push_back(odd.send(View(out[k].data(), DType::f32, {300}), other, stream));
          }
          std::mt19937_64 random(seed * 10 + static_cast<uint64_t>(me));
          std::shuffle(open.begin(), open.end(), random);
          for (Ticket& t : open) t.wait(stream);
          const int partner = (me + 2) % 4;
          for (int i = 0; i < kEach; ++i) {
            const auto k = static_cast<size_t>(i);
            for (float v : a[k]) wrong += v != static_cast<float>(6 + 4 * i);
            for (float v : b[k]) wrong += v != 6.0f;
            for (float v : in[k]) wrong += v != static_cast<float>(partner * 100 + i);
          }
          EXPECT_EQ(counters[0].operations, 2 * kEach);
          EXPECT_EQ(counters[2].operations, 2 * kEach);
          EXPECT_EQ(counters[0].open, 0);
        },
        seed);
    ASSERT_EQ(wrong, 0) << "seed " << seed;
  }
}

// Two threads of a rank issue and wait, each on its own group, while the engine's thread polls as well.
TEST(Progress, ThreadsOfARankShareTheEngine) {
  constexpr int kSize = 3;
  run_ranks(kSize, [](Progress& progress) {
    Communicator one(progress, all_ranks(kSize), 1, Site::kControl, nullptr);
    Communicator two(progress, all_ranks(kSize), 2, Site::kDpGradient, nullptr);
    const auto work = [](Communicator& group) {
      HostStream stream;
      for (int i = 0; i < 300; ++i) {
        std::vector<float> data(static_cast<size_t>(10 + i * 7), static_cast<float>(i));
        const View view(data.data(), DType::f32, {static_cast<int64_t>(data.size())});
        Ticket ticket = group.all_reduce(view, ReduceKind::kSum, stream);
        if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ticket.wait(stream);
        ASSERT_EQ(data.front(), static_cast<float>(kSize * i));
        ASSERT_EQ(data.back(), static_cast<float>(kSize * i));
      }
    };
    std::thread other([&] { work(two); });
    work(one);
    other.join();
  });
}

// Nobody waits, and yet it gets done: the engine's thread polls.
TEST(Progress, ThreadFinishesWhatNobodyWaitsFor) {
  run_ranks(3, [](Progress& progress) {
    HostStream stream;
    Communicator group(progress, all_ranks(3), 1, Site::kControl, nullptr);
    std::vector<float> data(100000, 1.0f);
    for (int round = 0; round < 3; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(round * 120));  // the thread has gone to sleep in between
      Ticket ticket = group.all_reduce(View(data.data(), DType::f32, {100000}), ReduceKind::kMax, stream);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (ticket.open() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_FALSE(ticket.open());
      ticket.wait(stream);
    }
  });
}

TEST(Progress, CountsWhatTravelsAndHowLong) {
  struct Sink final : OperationSink {
    int operations = 0, waits = 0;
    int64_t bytes = 0;
    void operation(const OperationNote& note, Clock::time_point issued, Clock::time_point done) override {
      ++operations;
      bytes += note.bytes;
      EXPECT_LE(issued, done);
      EXPECT_STREQ(note.verb, "all_reduce");
    }
    void waited(const OperationNote&, Clock::time_point from, Clock::time_point to) override {
      ++waits;
      EXPECT_LE(from, to);
    }
  };
  run_ranks(2, [](Progress& progress) {
    HostStream stream;
    Sink sink;
    progress.set_sink(&sink);
    WireCounters counters;
    Communicator group(progress, all_ranks(2), 1, Site::kDpGradient, &counters, {}, {.chunk_bytes = 4096});
    std::vector<float> data(64 * 1024, 1.0f);
    Ticket first = group.all_reduce(View(data.data(), DType::f32, {32 * 1024}), ReduceKind::kSum, stream);
    Ticket second = group.all_reduce(View(data.data() + 32 * 1024, DType::f32, {32 * 1024}), ReduceKind::kSum, stream);
    if (progress.transport().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto from = std::chrono::steady_clock::now();
    first.wait(stream);
    second.wait(stream);
    const int64_t waited = (std::chrono::steady_clock::now() - from).count();
    EXPECT_EQ(counters.operations, 2);
    EXPECT_EQ(counters.wire_bytes, 2 * 32 * 1024 * 4);  // half a vector out, half a sum back
    EXPECT_EQ(counters.logical_bytes, counters.wire_bytes);
    EXPECT_EQ(counters.messages, 2 * (16 + 16));
    EXPECT_EQ(counters.open, 0);
    EXPECT_GT(counters.busy_ns, 0);
    EXPECT_LE(counters.exposed_ns, waited);
    EXPECT_EQ(sink.operations, 2);
    EXPECT_EQ(sink.bytes, 2 * 32 * 1024 * 4);
    EXPECT_LE(sink.waits, 2);
    progress.set_sink(nullptr);
  });
}

// One rank waits six seconds for the other; all its threads together use next to nothing.
TEST(Progress, WaitingCostsNextToNothing) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "would measure the sanitizer";
#endif
  double used = -1.0;
  std::atomic<bool> slept{false};
  run_ranks(
      2,
      [&](Progress& progress) {
        HostStream stream;
        Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
        group.barrier().wait(stream);
        if (progress.transport().rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(6100));
          slept = true;
          group.barrier().wait(stream);
          return;
        }
        const double before = cpu_seconds(RUSAGE_SELF);
        group.barrier().wait(stream);
        used = cpu_seconds(RUSAGE_SELF) - before;
        EXPECT_TRUE(slept.load()) << "the barrier let this rank through alone: nothing was waited for";
      },
      0, ProgressOptions{.spin_us = 50});
  EXPECT_LT(used, 0.12);  // of six seconds, all threads of the rank
  EXPECT_GE(used, 0.0) << "nobody measured";
}

// One message is an operation of its own kind, without a task: any number under way, any order of completion.
TEST(Progress, SingleTransfersArriveAndAreCounted) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    constexpr int kSize = 3, kEach = 40;
    std::atomic<int> wrong{0};
    run_ranks(
        kSize,
        [&](Progress& progress) {
          HostStream stream;
          const int me = progress.transport().rank();
          std::mt19937_64 same(seed + 7), own(seed * 100 + static_cast<uint64_t>(me));
          WireCounters counters;
          Communicator group(progress, all_ranks(kSize), 1, Site::kPpForward, &counters);
          std::vector<size_t> length(kEach);  // 0: nothing travels
          for (size_t& n : length) n = same() % 4 == 0 ? same() % 3 : same() % 20000;
          const int next = (me + 1) % kSize, previous = (me + kSize - 1) % kSize;
          const auto letter = [&](int from, int i) { return static_cast<unsigned char>(from * 71 + i); };
          std::vector<std::vector<unsigned char>> out(kEach), in(kEach);
          std::vector<Ticket> open;
          int64_t sent = 0, messages = 0;
          const auto began = std::chrono::steady_clock::now();
          for (int i = 0; i < kEach; ++i) {
            const size_t n = length[static_cast<size_t>(i)];
            out[static_cast<size_t>(i)].assign(n, letter(me, i));
            in[static_cast<size_t>(i)].assign(n, 0);
            const auto bytes = static_cast<int64_t>(n);
            const bool receive_first = own() % 2 == 0;
            for (int half = 0; half < 2; ++half) {
              if ((half == 0) == receive_first) {
                open.push_back(
                    group.receive(View(in[static_cast<size_t>(i)].data(), DType::u8, {bytes}), previous, stream));
              } else {
                open.push_back(group.send(View(out[static_cast<size_t>(i)].data(), DType::u8, {bytes}), next, stream));
              }
            }
            sent += bytes;
            messages += n > 0 ? 1 : 0;
          }
          std::shuffle(open.begin(), open.end(), own);
          for (Ticket& t : open) t.wait(stream);
          for (int i = 0; i < kEach; ++i)
            for (const unsigned char c : in[static_cast<size_t>(i)]) wrong += c != letter(previous, i);
          EXPECT_EQ(counters.wire_bytes, sent);
          EXPECT_EQ(counters.logical_bytes, sent);
          EXPECT_EQ(counters.messages, messages);
          EXPECT_EQ(counters.operations, 2 * kEach);
          EXPECT_EQ(counters.open, 0);
          // Operations that are open at once count once: 80 times added up were far more than the time that has passed.
          const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - began;
          EXPECT_GE(counters.busy_ns, 0);
          EXPECT_LE(counters.busy_ns, passed.count());
        },
        seed);
    ASSERT_EQ(wrong, 0) << "seed " << seed;
  }
}

TEST(Progress, ErrorEndsSingleTransfersToo) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::atomic<int> told{0};
    EXPECT_THROW(run_ranks(
                     2,
                     [&](Progress& progress) {
                       HostStream stream;
                       Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
                       std::vector<float> data(50000), more(50000);
                       const View in(data.data(), DType::f32, {50000}), out(more.data(), DType::f32, {50000});
                       if (progress.transport().rank() == 1) throw Error(ExitCode::kDiverged, "rank one is gone");
                       Ticket receive, send;
                       try {
                         receive = group.receive(in, 1, stream);
                         send = group.send(out, 1, stream);
                       } catch (const Error&) {
                         // The peer was gone before anything could be posted.
                       }
                       for (Ticket* t : {&receive, &send}) {
                         if (!t->open()) continue;
                         EXPECT_THROW(t->wait(stream), Error);
                         EXPECT_FALSE(t->open());
                       }
                       ++told;
                       throw Error(ExitCode::kDiverged, "and so is rank zero");
                     },
                     seed),
                 Error);
    EXPECT_EQ(told, 1);
  }
}

// One thread polls at full speed for a long message while another issues and waits: all of it arrives.
TEST(Progress, ThreadsIssueBesideAWaiterAtFullSpeed) {
  constexpr int kMessages = 400;
  constexpr int64_t kLong = 4 << 20;  // polled for 4 ms without a sleep
  int wrong = 0;
  run_ranks(
      2,
      [&](Progress& progress) {
        const int me = progress.transport().rank(), peer = 1 - me;
        HostStream stream;
        Communicator one(progress, all_ranks(2), 1, Site::kControl, nullptr);
        Communicator two(progress, all_ranks(2), 2, Site::kControl, nullptr);
        std::vector<unsigned char> large(kLong, static_cast<unsigned char>(me)), small(8, 0);
        const View all(large.data(), DType::u8, {kLong}), text(small.data(), DType::u8, {8});
        if (me == 1) {
          for (int i = 0; i < kMessages; ++i) {
            two.receive(text, peer, stream).wait(stream);
            wrong += small[7] != static_cast<unsigned char>(i);
          }
          one.send(all, peer, stream).wait(stream);
          return;
        }
        std::thread waiter([&] {
          HostStream other;
          one.receive(all, peer, other).wait(other);
        });
        for (int i = 0; i < kMessages; ++i) {
          small[7] = static_cast<unsigned char>(i);
          two.send(text, peer, stream).wait(stream);
        }
        waiter.join();
        for (const unsigned char c : large) wrong += c != 1;
      },
      0, ProgressOptions{.spin_us = 50});
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace thinwire::progress_test
