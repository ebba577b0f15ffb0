// The ring keeps the last 256 operations, never loses an open one, and can be read while it is written.
#include "parallel/wire/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "parallel/wire/progress.h"

namespace thinwire::flight_recorder_test {
namespace {

OperationNote note(uint32_t sequence, int peer = -1) {
  return {.label = {"dp.gradient", 4},
          .verb = "all_reduce",
          .group = 3,
          .peer = peer,
          .sequence = sequence,
          .bytes = 8 * static_cast<int64_t>(sequence)};
}

TEST(FlightRecorder, KeepsTheLastOperationsInOrder) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.read().empty());
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint64_t index = recorder.begin(note(i));
    EXPECT_EQ(recorder.open_operations(), 1);
    recorder.finish(index, i == 999);
  }
  const std::vector<FlightEntry> list = recorder.read();
  ASSERT_EQ(list.size(), 256u);
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].number, 744 + i);
    EXPECT_EQ(list[i].sequence, 744 + i);
    EXPECT_EQ(list[i].bytes, 8 * static_cast<int64_t>(744 + i));
    EXPECT_STREQ(list[i].label, "dp.gradient");
    EXPECT_STREQ(list[i].verb, "all_reduce");
    EXPECT_EQ(list[i].state, i == 255 ? FlightEntry::State::kError : FlightEntry::State::kDone);
    EXPECT_GE(list[i].done_ns, list[i].issued_ns);
  }
  EXPECT_EQ(recorder.open_operations(), 0);
}

TEST(FlightRecorder, OpenOperationsOutliveTheRing) {
  FlightRecorder recorder;
  const uint64_t old = recorder.begin(note(77, 2));
  recorder.posted(old, 0, 2);
  for (uint32_t i = 0; i < 5000; ++i) recorder.finish(recorder.begin(note(i)));
  std::vector<FlightEntry> list = recorder.read();
  ASSERT_EQ(list.size(), 256u);
  EXPECT_EQ(list[0].sequence, 77u);
  EXPECT_EQ(list[0].state, FlightEntry::State::kIssued);
  EXPECT_EQ(list[0].missing, std::vector<int>{2});
  recorder.over(0);
  recorder.finish(old);
  for (uint32_t i = 0; i < 256; ++i) recorder.finish(recorder.begin(note(i)));
  EXPECT_NE(recorder.read()[0].sequence, 77u);
}

TEST(FlightRecorder, MissingPeersAreCountedPerTransfer) {
  FlightRecorder recorder;
  const uint64_t a = recorder.begin(note(1)), b = recorder.begin(note(2));
  recorder.posted(a, 0, 5);
  recorder.posted(a, 1, 1);
  recorder.posted(a, 2, 1);
  recorder.posted(b, 3, 3);
  EXPECT_EQ(recorder.read()[0].missing, (std::vector<int>{1, 5}));
  recorder.over(1);
  EXPECT_EQ(recorder.read()[0].missing, (std::vector<int>{1, 5})) << "one of two messages is still under way";
  recorder.over(2);
  EXPECT_EQ(recorder.read()[0].missing, (std::vector<int>{5}));
  EXPECT_EQ(recorder.read()[1].missing, (std::vector<int>{3}));
  recorder.finish(a);  // failed half way: its place must start clean
  recorder.finish(b);
  for (uint32_t i = 0; i < 512; ++i) {
    const uint64_t c = recorder.begin(note(i));
    EXPECT_TRUE(recorder.read().back().missing.empty());
    recorder.finish(c);
  }
}

TEST(FlightRecorder, MoreOpenOperationsThanPlaces) {
  FlightRecorder recorder;
  std::vector<uint64_t> open;
  for (uint32_t i = 0; i < 700; ++i) {
    open.push_back(recorder.begin(note(i)));
    recorder.posted(open.back(), i, 1);
  }
  EXPECT_EQ(recorder.open_operations(), 700);
  EXPECT_EQ(recorder.read().size(), 256u);
  for (uint32_t i = 0; i < 700; ++i) recorder.over(i), recorder.finish(open[i]);
  EXPECT_EQ(recorder.open_operations(), 0);
  for (const FlightEntry& e : recorder.read()) EXPECT_TRUE(e.missing.empty());
}

TEST(FlightRecorder, EveryCallIsASignOfLife) {
  FlightRecorder recorder;
  uint64_t last = recorder.signs_of_life();
  const auto moved = [&] { return std::exchange(last, recorder.signs_of_life()) != last; };
  const uint64_t index = recorder.begin(note(1));
  EXPECT_TRUE(moved());
  recorder.posted(index, 0, 1);
  EXPECT_TRUE(moved());
  recorder.enter_wait(index);
  EXPECT_TRUE(moved());
  EXPECT_EQ(recorder.waiting_threads(), 1);
  EXPECT_EQ(recorder.waited_number(), 0u);
  recorder.leave_wait();
  EXPECT_TRUE(moved());
  EXPECT_EQ(recorder.waiting_threads(), 0);
  recorder.finish(index);
  EXPECT_TRUE(moved());
  (void)recorder.read();
  EXPECT_FALSE(moved());
  recorder.set_activity(std::string(500, 'x'));
  EXPECT_EQ(recorder.activity().size(), 119u);
}

// A reader beside the writer never sees the fields of two operations in one entry (also a check for ThreadSanitizer).
TEST(FlightRecorder, ReadersSeeWholeEntries) {
  FlightRecorder recorder;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::mt19937 random(3);
    std::vector<uint64_t> open;
    for (uint32_t i = 0; !stop.load(); ++i) {
      open.push_back(recorder.begin(note(i, static_cast<int>(i % 4))));
      recorder.posted(open.back(), i % 100, static_cast<int>(i % 4));
      if (open.size() > 8) {
        const size_t pick = random() % open.size();
        recorder.finish(open[pick]);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      recorder.set_activity("step " + std::to_string(i));
    }
  });
  while (recorder.signs_of_life() < 1000) std::this_thread::yield();  // the writer is at it
  uint64_t seen = 0;
  for (int reads = 0; reads < 3000; ++reads) {
    uint64_t last = 0;
    for (const FlightEntry& e : recorder.read()) {
      ASSERT_EQ(e.bytes, 8 * static_cast<int64_t>(e.sequence));
      ASSERT_EQ(e.number, e.sequence);
      ASSERT_EQ(e.peer, static_cast<int>(e.sequence % 4));
      ASSERT_TRUE(seen == 0 || e.number >= last);
      last = e.number;
      ++seen;
    }
    (void)recorder.activity();
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace thinwire::flight_recorder_test
