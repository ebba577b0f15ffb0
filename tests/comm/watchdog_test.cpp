// The watchdog's reasoning on made-up reports, and its thread on recorders and with a clock that a test plays with.
#include "parallel/wire/watchdog.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <thread>

#include "parallel/wire/progress.h"

namespace thinwire::watchdog_test {
namespace {

using State = WaitReport::State;
using Kind = Verdict::Kind;

WaitReport waiting(int rank, std::vector<int> missing, const std::string& operation = "control all_reduce #1") {
  WaitReport r;
  r.rank = rank, r.state = State::kWaiting, r.operation = operation, r.missing = std::move(missing), r.silent_s = 6.0;
  r.host = "node" + std::to_string(rank);
  return r;
}
WaitReport outside(int rank) {
  WaitReport r;
  r.rank = rank, r.state = State::kOutside, r.activity = "reading batch 7", r.host = "node" + std::to_string(rank);
  return r;
}
WaitReport absent(int rank) {
  WaitReport r;
  r.rank = rank, r.host = "node" + std::to_string(rank);
  return r;
}

TEST(Judge, NamesWhoeverGivesNoSign) {
  const std::vector<WaitReport> reports = {waiting(0, {1, 2}), waiting(1, {0, 2}), absent(2), outside(3)};
  const Verdict v = judge(reports);
  EXPECT_EQ(v.kind, Kind::kAbsent);
  EXPECT_EQ(v.culprits, std::vector<int>{2});
  const std::string text = verdict_text(v, reports, 6.0, "runs/a");
  EXPECT_NE(text.find("Culprit: rank 2 (host node2) gives no sign of life"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1 (host node1) waits for rank 0, 2 in control all_reduce #1"), std::string::npos) << text;
  EXPECT_NE(text.find("code 71"), std::string::npos);
  EXPECT_NE(text.find("runs/a/watchdog/"), std::string::npos);
}

TEST(Judge, NamesWhoeverIsAwaitedAndWaitsForNobody) {
  // Rank 3 computes too, but nobody waits for it.
  const std::vector<WaitReport> reports = {waiting(0, {1}), waiting(1, {2}), outside(2), outside(3)};
  const Verdict v = judge(reports);
  EXPECT_EQ(v.kind, Kind::kOutside);
  EXPECT_EQ(v.culprits, std::vector<int>{2});
  EXPECT_NE(verdict_text(v, reports, 6.0, "").find("[reading batch 7]"), std::string::npos);
  EXPECT_EQ(judge({waiting(0, {}), outside(1), outside(2)}).culprits, (std::vector<int>{1, 2}));
}

TEST(Judge, FindsTheCycle) {
  std::vector<WaitReport> reports = {waiting(0, {3}), waiting(1, {2}), waiting(2, {3}), waiting(3, {1})};
  const Verdict v = judge(reports);
  EXPECT_EQ(v.kind, Kind::kCycle);
  EXPECT_EQ(v.culprits, (std::vector<int>{1, 2, 3}));
  EXPECT_NE(verdict_text(v, reports, 6.0, "").find("carries nothing"), std::string::npos);
  reports[2].operation = "control broadcast #9";
  EXPECT_NE(verdict_text(v, reports, 6.0, "").find("do not agree on the order"), std::string::npos);
}

// As reported behind a pulled cable: operations differ, since ranks are a few asynchronous ones apart.
TEST(Judge, NamesTheRankWhoseConnectionsCarryNothing) {
  const std::vector<WaitReport> reports = {waiting(0, {3}), waiting(1, {3}),
                                           waiting(2, {3}, "dp.gradient reduce #1002"), waiting(3, {0, 1, 2})};
  const Verdict v = judge(reports);
  EXPECT_EQ(v.kind, Kind::kCutOff);
  EXPECT_EQ(v.culprits, std::vector<int>{3});
  EXPECT_NE(verdict_text(v, reports, 6.0, "").find("rank 3 (host node3): none of its connections"), std::string::npos);
  // Pairs that share nobody: the first of them is named, as one pair is.
  EXPECT_EQ(judge({waiting(0, {1}), waiting(1, {0}), waiting(2, {3}), waiting(3, {2})}).culprits,
            (std::vector<int>{0, 1}));
}

TEST(Judge, NamesWhoeverHangsInTheTransport) {
  std::vector<WaitReport> reports = {waiting(0, {1}), waiting(1, {0})};
  reports[1].stuck = true;
  EXPECT_EQ(judge(reports).kind, Kind::kStuck);
  EXPECT_EQ(judge(reports).culprits, std::vector<int>{1});
  EXPECT_NE(verdict_text(judge(reports), reports, 6.0, "").find("inside the transport"), std::string::npos);
}

TEST(Judge, SaysWhenItDoesNotKnow) {
  const Verdict v = judge({waiting(0, {1}), waiting(1, {})});
  EXPECT_EQ(v.kind, Kind::kUnknown);
  EXPECT_EQ(v.culprits, std::vector<int>{1});
}

// What took a time that grows with the cube, or the square, of the ranks, and lines as long as the job is wide.
TEST(Judge, IsQuickAndBriefWithThousandsOfRanks) {
  constexpr int kRanks = 8192;
  const auto start = std::chrono::steady_clock::now();
  std::vector<WaitReport> chain;
  for (int r = 0; r + 1 < kRanks; ++r) chain.push_back(waiting(r, {r + 1}));
  chain.push_back(waiting(kRanks - 1, {}));
  const Verdict end = judge(chain);
  EXPECT_EQ(end.kind, Kind::kUnknown);
  EXPECT_EQ(end.culprits, std::vector<int>{kRanks - 1});

  std::vector<WaitReport> wide;
  for (int r = 0; r < kRanks; ++r) {
    std::vector<int> missing;
    for (int other = r % 32; other < kRanks; other += 32)
      if (other != r) missing.push_back(other);
    wide.push_back(waiting(r, missing));
  }
  const Verdict all = judge(wide);
  EXPECT_EQ(all.kind, Kind::kCycle);
  EXPECT_EQ(all.culprits, (std::vector<int>{0, 32}));
  const std::string text = verdict_text(all, wide, 6.0, "");
  EXPECT_NE(text.find("rank 0 (host node0) waits for rank 32, 64, 96"), std::string::npos) << text;
  EXPECT_NE(text.find(" and 239 more in control all_reduce #1"), std::string::npos) << text;
  EXPECT_LT(text.size(), 4096u);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10.0);
}

TEST(Report, SurvivesTheFile) {
  FlightRecorder recorder;
  const uint64_t index = recorder.begin(
      {.label = {"pp.forward"}, .verb = "receive", .group = 5, .peer = 3, .sequence = 41, .bytes = 1024});
  recorder.posted(index, 0, 3);
  recorder.enter_wait(index);
  recorder.set_activity("step 12\nforward");
  WaitReport r = make_report(2, recorder, 5.5);
  r.host = "node b", r.pid = 4711, r.answers = "123.0";
  const std::string text = to_text(r, recorder);
  const WaitReport back = parse_report(text);
  EXPECT_EQ(back.rank, 2);
  EXPECT_EQ(back.state, State::kWaiting);
  EXPECT_EQ(back.host, "node b");
  EXPECT_EQ(back.pid, 4711);
  EXPECT_EQ(back.answers, "123.0");
  EXPECT_EQ(back.silent_s, 5.5);
  EXPECT_EQ(back.operation, "pp.forward receive with rank 3 #41 (group 5, 1024 bytes)");
  EXPECT_EQ(back.missing, std::vector<int>{3});
  EXPECT_EQ(back.activity, "step 12 forward");
  // Whatever else may lie there is not a report, nor is one that was cut off.
  for (const char* other : {"", "x", "thinwire watchdog report", "thinwire watchdog report\nrank 3\n"})
    EXPECT_EQ(parse_report(other).state, State::kAbsent);
  for (size_t n = 0; n < text.find("\nactivity"); ++n) EXPECT_EQ(parse_report(text.substr(0, n)).state, State::kAbsent);
}

// --- the thread ---------------------------------------------------------------------------------------------------

class FakeTransport final : public Transport {
 public:
  FakeTransport(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool post_send(const void*, size_t, int, int, uint32_t) override { return true; }
  bool post_receive(void*, size_t, int, int, uint32_t) override { return true; }
  bool withdraw(uint32_t) noexcept override { return true; }
  size_t poll(std::span<Completion>) override { return 0; }
  void abort(int) override { std::abort(); }

 private:
  int rank_, size_;
};

// The time of all watchdogs of a test and of the test itself. It stands still while any of them does something, and
// goes on to whatever is due next once all of them have looked for news, and found none, for a moment: a thread that
// gets no core delays the others instead of missing its moment.
class HeldTime final : public WatchClock {
 public:
  void join() {
    std::lock_guard lock(mutex_);
    ++threads_, ++moves_;
  }
  void leave() {
    std::lock_guard lock(mutex_);
    --threads_, ++moves_;
  }
  Time now() override {
    std::lock_guard lock(mutex_);
    return now_;
  }
  void poll(std::span<pollfd> wishes, double seconds) override {
    std::unique_lock lock(mutex_);
    const Time due = now_ + std::chrono::ceil<Time::duration>(std::chrono::duration<double>(std::max(seconds, 0.0)));
    const auto me = sleepers_.insert(sleepers_.end(), Sleeper{due, 0, 0});
    ++moves_;  // what this thread has done so far may be news to the others
    for (;;) {
      const uint64_t moves = moves_;
      lock.unlock();
      const bool news = ::poll(wishes.data(), wishes.size(), 0) > 0;
      lock.lock();
      if (news || now_ >= due) break;
      me->looks = me->moves == moves ? me->looks + 1 : 1;
      me->moves = moves;
      if (everybody_is_idle()) {
        now_ =
            std::min_element(sleepers_.begin(), sleepers_.end(), [](auto& a, auto& b) { return a.due < b.due; })->due;
        ++moves_;
        continue;
      }
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      lock.lock();
    }
    sleepers_.erase(me);
    ++moves_;
  }
  // A file that takes longer than this hangs, whatever else the machine has to do.
  bool within(FileLane& lane, double seconds, std::function<void()> task) override {
    if (lane.within(seconds > 0.0 ? 3.0 : 0.0, std::move(task))) return true;
    poll({}, seconds);
    return false;
  }

 private:
  static constexpr int kLooks = 3;  // a message between two sockets of a machine may take a moment
  struct Sleeper {
    Time due;
    uint64_t moves;  // when it looked last
    int looks;       // since then
  };
  bool everybody_is_idle() const {
    return static_cast<int>(sleepers_.size()) == threads_ &&
           std::all_of(sleepers_.begin(), sleepers_.end(),
                       [this](auto& s) { return s.moves == moves_ && s.looks >= kLooks; });
  }

  std::mutex mutex_;
  Time now_{std::chrono::hours(1000)};
  std::list<Sleeper> sleepers_;
  int threads_ = 0;
  uint64_t moves_ = 1;  // counts what may have made news
};

// `size` ranks with a recorder and a watchdog each, in one directory.
class WatchdogThread : public testing::Test {
 protected:
  // As in a run. From silence to the end at most: a nap more, the time to answer, and twice the grace.
  static constexpr double kLimit = 60.0, kAnswer = 1.0, kGrace = 1.0, kNap = kLimit / 16.0;
  static constexpr double kLatest = kLimit + kNap + kAnswer + 2.0 * kGrace + 0.5;
  struct Rank {
    std::unique_ptr<WatchNet> net;
    std::unique_ptr<FakeTransport> transport;
    std::unique_ptr<FlightRecorder> recorder;
    std::unique_ptr<Watchdog> watchdog;
    std::atomic<int> code{0};
    std::atomic<int> messages{0};
    std::string message;
    WatchClock::Time ended;
  };
  // Its own thread, too, keeps time.
  WatchdogThread() { time_.join(); }

  void SetUp() override {
    char name[] = "/tmp/watchdog_test_XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override {
    ranks_.clear();
    std::filesystem::remove_all(directory_);
  }
  // Ranks in cut_off have no network.
  void join_net(int size, std::vector<int> cut_off = {}) {
    std::vector<std::string> addresses(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<Rank>());
      if (std::find(cut_off.begin(), cut_off.end(), r) != cut_off.end()) continue;
      ranks_.back()->net = std::make_unique<WatchNet>();
      addresses[static_cast<size_t>(r)] = ranks_.back()->net->address();
      ASSERT_NE(addresses[static_cast<size_t>(r)], "");
    }
    const std::string secret = WatchNet::new_secret();
    for (int r = 0; r < size; ++r)
      if (ranks_[static_cast<size_t>(r)]->net) ranks_[static_cast<size_t>(r)]->net->join(r, addresses, secret);
  }
  void start(int size, bool with_directory = true, int without_watchdog = -1) {
    ranks_.resize(static_cast<size_t>(size));
    start_ = time_.now();
    for (int r = 0; r < size; ++r) {
      if (ranks_[static_cast<size_t>(r)] == nullptr) ranks_[static_cast<size_t>(r)] = std::make_unique<Rank>();
      Rank& rank = *ranks_[static_cast<size_t>(r)];
      rank.transport = std::make_unique<FakeTransport>(r, size);
      rank.recorder = std::make_unique<FlightRecorder>();
      if (r == without_watchdog) continue;
      time_.join();
      rank.watchdog = std::make_unique<Watchdog>(
          *rank.transport, *rank.recorder,
          WatchdogOptions{.seconds = kLimit,
                          .directory = with_directory ? directory_ : "",
                          .net = rank.net.get(),
                          .hosts = std::vector<std::string>(static_cast<size_t>(size), "somehost"),
                          .answer_seconds = kAnswer,
                          .grace_seconds = kGrace,
                          .end =
                              [this, &rank](int code) {
                                rank.ended = time_.now();
                                rank.code = code;
                                time_.leave();
                              },
                          .print =
                              [&rank](const std::string& text) {
                                rank.message = text;
                                ++rank.messages;
                              },
                          .clock = &time_});
    }
  }
  // Rank r issues an operation that misses `peer`, and stands still for it.
  uint64_t block(int r, int peer, uint32_t sequence = 1) {
    FlightRecorder& recorder = *ranks_[static_cast<size_t>(r)]->recorder;
    const uint64_t index =
        recorder.begin({.label = {"tp.forward"}, .verb = "all_reduce", .group = 1, .sequence = sequence, .bytes = 64});
    recorder.posted(index, 0, peer);
    recorder.enter_wait(index);
    return index;
  }
  void unblock(int r, uint64_t index) {
    FlightRecorder& recorder = *ranks_[static_cast<size_t>(r)]->recorder;
    recorder.over(0);
    recorder.finish(index);
    recorder.leave_wait();
  }
  void sleep_for(double seconds) { time_.poll({}, seconds); }
  // Waits until all ranks but `except` have ended; the seconds from the start to the last end, or -1.
  double wait_for_end(int except = -1) {
    for (int naps = 0; naps < 32; ++naps) {
      sleep_for(kNap);
      WatchClock::Time last = start_;
      bool all = true;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (static_cast<int>(r) == except) continue;
        all = all && ranks_[r]->code != 0;
        if (ranks_[r]->code != 0) last = std::max(last, ranks_[r]->ended);
      }
      if (all) return std::chrono::duration<double>(last - start_).count();
    }
    return -1.0;
  }
  std::string file(const std::string& name) const {
    std::ifstream in(directory_ + "/" + name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void expect_one_message(int reporter) {
    for (size_t r = 0; r < ranks_.size(); ++r)
      EXPECT_EQ(ranks_[r]->messages, static_cast<int>(r) == reporter ? 1 : 0) << "rank " << r;
  }

  HeldTime time_;
  WatchClock::Time start_;
  std::string directory_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(WatchdogThread, NamesTheRankThatIsGone) {
  start(4, true, 2);  // rank 2 has no watchdog: as good as dead
  block(0, 2), block(1, 2), block(3, 2);
  const double took = wait_for_end(2);
  EXPECT_GE(took, kLimit);
  EXPECT_LT(took, kLatest);
  expect_one_message(0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 2 (host somehost) gives no sign of life"), std::string::npos)
      << ranks_[0]->message;
  EXPECT_NE(file("watchdog.json").find("{\"code\":71,\"culprits\":[2],\"reporter\":0,\"silence_s\":"),
            std::string::npos)
      << file("watchdog.json");
  for (int r : {0, 1, 3}) {
    EXPECT_EQ(ranks_[static_cast<size_t>(r)]->code, 71);
    EXPECT_NE(file("watchdog/rank" + std::to_string(r) + ".txt").find("OPEN"), std::string::npos);
  }
}

TEST_F(WatchdogThread, TheLowestRankThatAnswersPrints) {
  start(3, true, 0);
  block(1, 0), block(2, 0);
  ASSERT_GT(wait_for_end(0), 0.0);
  expect_one_message(1);
}

TEST_F(WatchdogThread, NamesTheRankThatIsBusyElsewhere) {
  start(4);
  ranks_[3]->recorder->set_activity("reading batch 7");
  block(0, 3), block(1, 3), block(2, 3);
  ASSERT_GT(wait_for_end(), 0.0);
  expect_one_message(0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 3 (host somehost) waits for nobody"), std::string::npos)
      << ranks_[0]->message;
  EXPECT_NE(ranks_[0]->message.find("[reading batch 7]"), std::string::npos);
  EXPECT_EQ(ranks_[3]->code, 71) << "the busy rank ends too";
}

// Its own receive is open, but it does not stand still for it: it is still the one that is late.
TEST_F(WatchdogThread, BusyElsewhereWithAnOpenOperation) {
  start(2);
  FlightRecorder& recorder = *ranks_[1]->recorder;
  recorder.posted(recorder.begin({.verb = "receive", .peer = 0}), 0, 0);
  block(0, 1);
  ASSERT_GT(wait_for_end(), 0.0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 1"), std::string::npos) << ranks_[0]->message;
}

TEST_F(WatchdogThread, NamesTheCycle) {
  start(3);
  block(0, 1, 5), block(1, 2, 6), block(2, 1, 7);
  ASSERT_GT(wait_for_end(), 0.0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 1 (host somehost) and rank 2 (host somehost) wait for each other, "
                                    "in different operations"),
            std::string::npos)
      << ranks_[0]->message;
}

TEST_F(WatchdogThread, AShorterStallIsForgiven) {
  start(2);
  for (int round = 0; round < 2; ++round) {
    const uint64_t index = block(0, 1);
    sleep_for(kLimit * 0.95);
    unblock(0, index);
    sleep_for(kLimit * 0.5);
  }
  // Nothing open, nobody waits: silence for longer than the limit is no fault.
  sleep_for(kLimit * 1.5);
  EXPECT_EQ(ranks_[0]->code, 0);
  EXPECT_EQ(ranks_[1]->code, 0);
  EXPECT_EQ(file("watchdog.json"), "");
  ranks_.clear();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/watchdog")) << "a clean end leaves nothing";
}

TEST_F(WatchdogThread, SlowTransfersAreSignsOfLife) {
  start(2);
  const uint64_t index = block(0, 1);
  for (int i = 0; i < 4; ++i) {  // one operation of many messages, several times as long as the limit
    sleep_for(kLimit * 0.95);
    ranks_[0]->recorder->posted(index, 1, 1);
    ranks_[0]->recorder->over(1);
  }
  EXPECT_EQ(ranks_[0]->code, 0);
  unblock(0, index);
}

// What an earlier run left must not end this one, nor speak for a rank that is dead now.
TEST_F(WatchdogThread, LeftoversAreNotBelieved) {
  std::filesystem::create_directories(directory_ + "/watchdog");
  std::ofstream(directory_ + "/watchdog/verdict") << "1.0";
  std::ofstream(directory_ + "/watchdog/alarm") << "1.0";
  std::ofstream(directory_ + "/watchdog.json") << "{}";
  {
    FlightRecorder recorder;
    WaitReport old = make_report(1, recorder, 3.0);
    old.answers = "1.0", old.host = "oldhost";
    std::ofstream(directory_ + "/watchdog/rank1.txt") << to_text(old, recorder);
  }
  start(2, true, 1);
  sleep_for(kLimit * 0.5);
  EXPECT_EQ(ranks_[0]->code, 0);
  EXPECT_EQ(file("watchdog.json"), "");
  block(0, 1);
  ASSERT_GT(wait_for_end(1), 0.0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 1"), std::string::npos) << ranks_[0]->message;
}

TEST_F(WatchdogThread, WithoutDirectoryEachSaysWhatItKnows) {
  start(2, false);
  block(0, 1);
  ASSERT_GT(wait_for_end(1), 0.0);
  EXPECT_NE(ranks_[0]->message.find("rank 0 (host somehost) waits for rank 1 in tp.forward all_reduce #1"),
            std::string::npos)
      << ranks_[0]->message;
  EXPECT_EQ(ranks_[0]->code, 71);
  EXPECT_EQ(ranks_[1]->code, 0);
}

// --- over the network, without any file ---------------------------------------------------------------------------

TEST_F(WatchdogThread, TheNetNamesTheRankThatIsGone) {
  join_net(4);
  start(4, false, 2);  // its machine takes questions, and nobody answers, as that of a stopped process
  block(0, 2), block(1, 2), block(3, 2);
  const double took = wait_for_end(2);
  EXPECT_GE(took, kLimit);
  EXPECT_LT(took, kLatest);
  expect_one_message(0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 2 (host somehost) gives no sign of life"), std::string::npos)
      << ranks_[0]->message;
  EXPECT_NE(ranks_[0]->message.find("rank 3 (host somehost) waits for rank 2"), std::string::npos);
}

TEST_F(WatchdogThread, OverTheNetTheLowestRankThatAnswersPrints) {
  join_net(4);
  start(4, false, 0);
  block(1, 0), block(2, 1), block(3, 0);
  ASSERT_GT(wait_for_end(0), 0.0);
  expect_one_message(1);
  EXPECT_NE(ranks_[1]->message.find("Culprit: rank 0 (host somehost) gives no sign"), std::string::npos)
      << ranks_[1]->message;
}

TEST_F(WatchdogThread, TheNetEndsTheRankThatIsBusyElsewhere) {
  join_net(3);
  start(3, false);
  ranks_[0]->recorder->set_activity("saving");
  block(1, 0), block(2, 0);
  ASSERT_GT(wait_for_end(), 0.0);
  expect_one_message(0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 0 (host somehost) waits for nobody"), std::string::npos)
      << ranks_[0]->message;
}

TEST_F(WatchdogThread, WhomTheNetDoesNotReachAnswersInFiles) {
  join_net(3, {2});
  start(3);
  ranks_[2]->recorder->set_activity("evaluating");
  block(0, 2), block(1, 2);
  ASSERT_GT(wait_for_end(), 0.0);
  expect_one_message(0);
  EXPECT_NE(ranks_[0]->message.find("Culprit: rank 2 (host somehost) waits for nobody"), std::string::npos)
      << ranks_[0]->message;
}

TEST_F(WatchdogThread, StrangersAreNeitherAnsweredNorBelieved) {
  join_net(2);
  start(2, false);
  std::istringstream words(ranks_[1]->net->address());
  int port = 0;
  words >> port;
  for (const std::string& text : {std::string(32, '0') + "0 1\n", std::string("0 1\n"), std::string(4096, 'x')}) {
    const Descriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(static_cast<uint16_t>(port)),
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    ASSERT_GT(::send(stranger.get(), text.data(), text.size(), MSG_NOSIGNAL), 0);
    char answer[64];
    EXPECT_LE(::recv(stranger.get(), answer, sizeof answer, 0), 0);
  }
  sleep_for(0.5);
  EXPECT_EQ(ranks_[1]->code, 0);
}

// Reading one report never ends, as it does on a file system that hangs.
TEST_F(WatchdogThread, FilesThatHangDelayTheEndByAMomentOnly) {
  start(2, true, 1);
  const std::string pipe = directory_ + "/watchdog/rank1.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  block(0, 1);
  const double took = wait_for_end(1);
  EXPECT_GE(took, kLimit);
  EXPECT_LT(took, kLatest);
  EXPECT_EQ(ranks_[0]->messages, 1);
  EXPECT_NE(ranks_[0]->message.find("rank 0 (host somehost) waits for rank 1"), std::string::npos)
      << ranks_[0]->message;
  const Descriptor writer(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));  // lets the thread go
}

TEST_F(WatchdogThread, ADirectoryThatGoesBadStillEndsTheJob) {
  start(2);
  block(0, 1), block(1, 0);
  std::filesystem::remove_all(directory_);
  std::ofstream(directory_) << "a file now";
  EXPECT_GT(wait_for_end(), 0.0);
  EXPECT_EQ(ranks_[0]->messages, 1);
  std::filesystem::remove(directory_);
}

}  // namespace
}  // namespace thinwire::watchdog_test
