// Looks at the traffic from between two things that a thread computes: they move it, the engine's thread rests
// meanwhile, and comes back when they end or are not enough.
#include <dirent.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "parallel/wire/progress.h"
#include "tests/comm/local_group.h"

namespace thinwire::look_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How often the engines' threads of this process have gone to sleep.
int64_t rests() {
  int64_t count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  for (const dirent* entry = readdir(tasks); entry != nullptr; entry = readdir(tasks)) {
    const std::string task = std::string("/proc/self/task/") + entry->d_name;
    std::string line;
    std::ifstream name(task + "/comm");
    if (!std::getline(name, line) || line != "tw-progress") continue;
    std::ifstream status(task + "/status");
    while (std::getline(status, line)) {
      if (line.starts_with("voluntary_ctxt_switches:")) count += std::stoll(line.substr(line.find(':') + 1));
    }
  }
  closedir(tasks);
  return count;
}

// Sleeps in the place of ops, a look behind each.
void compute(Progress& progress, milliseconds time) {
  for (const auto end = Clock::now() + time; Clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(1));
    progress.look();
  }
}

const ProgressOptions kShared = {.spin_us = 0, .shares_core = true};

TEST(Look, MovesWhatNobodyWaitsFor) {
  run_ranks(
      3,
      [](Progress& progress) {
        HostStream stream;
        Communicator group(progress, all_ranks(3), 1, Site::kControl, nullptr, {}, {.chunk_bytes = 4096});
        std::vector<float> data(100003, 1.0f);
        Ticket ticket = group.all_reduce(View(data.data(), DType::f32, {100003}), ReduceKind::kSum, stream);
        const auto deadline = Clock::now() + std::chrono::seconds(60);
        while (ticket.open() && Clock::now() < deadline) progress.look();
        EXPECT_FALSE(ticket.open());
        ticket.wait(stream);
        EXPECT_EQ(data.front(), 3.0f);
        EXPECT_EQ(data.back(), 3.0f);
        EXPECT_FALSE(progress.wants_looks()) << "nobody polls but who looks or waits";
      },
      0, ProgressOptions{.thread = false, .spin_us = 0});
}

TEST(Look, SurfacesErrorsWhereTheyAreAwaited) {
  run_ranks(2, [](Progress& progress) {
    HostStream stream;
    Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
    std::vector<float> data(100, 1.0f);
    const bool first = progress.transport().rank() == 0;
    const View message(data.data(), DType::f32, {first ? 50 : 100});
    Ticket ticket = first ? group.send(message, 1, stream) : group.receive(message, 0, stream);
    for (int i = 0; i < 200; ++i) progress.look(), std::this_thread::sleep_for(milliseconds(1));
    if (first)
      ticket.wait(stream);
    else
      EXPECT_THROW(ticket.wait(stream), std::exception);
  });
}

// The thread wakes up some twenty times a second while looks come, and several hundred times where they do not, or
// where whoever looks waits a third of the time all the same.
TEST(Look, LetsTheThreadRest) {
  run_ranks(
      2,
      [&](Progress& progress) {
        HostStream stream;
        Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr);
        const bool first = progress.transport().rank() == 0;
        EXPECT_TRUE(progress.wants_looks());
        std::vector<float> in(1000), out(1000, 1.0f);
        const View mine(out.data(), DType::f32, {1000}), theirs(in.data(), DType::f32, {1000});
        const auto during = [&](const auto& body) {
          group.barrier().wait(stream);
          Ticket open = group.receive(theirs, first ? 1 : 0, stream);
          compute(progress, milliseconds(300));  // the thread takes note of the change
          group.barrier().wait(stream);
          const int64_t before = rests();
          body();
          const int64_t count = rests() - before;
          group.barrier().wait(stream);
          Ticket sent = group.send(mine, first ? 1 : 0, stream);
          open.wait(stream);
          sent.wait(stream);
          return count;
        };
        const int64_t watched = during([&] { compute(progress, milliseconds(1000)); });
        const int64_t alone = during([&] { std::this_thread::sleep_for(milliseconds(1000)); });
        int64_t behind_waits = 0;
        during([&] {
          for (int i = 0; i < 8; ++i) {
            const int64_t before = rests();
            compute(progress, milliseconds(300));
            if (i >= 4) behind_waits += rests() - before;
            if (first) std::this_thread::sleep_for(milliseconds(150));  // for which the other one waits
            group.barrier().wait(stream);
          }
        });
        if (!first) return;
        EXPECT_LE(watched, 100);
        EXPECT_GE(alone, 150);
        EXPECT_GE(behind_waits, 2 * watched);
      },
      0, kShared);
}

TEST(Look, ThreadTakesOverWhenLooksEnd) {
  run_ranks(
      2,
      [](Progress& progress) {
        HostStream stream;
        Communicator group(progress, all_ranks(2), 1, Site::kControl, nullptr, {}, {.chunk_bytes = 4096});
        std::vector<float> data(50000, 1.0f);
        for (int round = 0; round < 3; ++round) {
          compute(progress, milliseconds(120));
          Ticket ticket = group.all_reduce(View(data.data(), DType::f32, {50000}), ReduceKind::kMax, stream);
          const auto deadline = Clock::now() + std::chrono::seconds(20);
          while (ticket.open() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
          EXPECT_FALSE(ticket.open());
          ticket.wait(stream);
        }
      },
      0, kShared);
}

}  // namespace
}  // namespace thinwire::look_test
