// The parent process of a rank: what it passes on, when it ends the rank, and what cannot keep it from that.
#include "parallel/wire/keeper.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "engine/base/core/error.h"

namespace thinwire::keeper_test {
namespace {

using Clock = std::chrono::steady_clock;
using Note = Keeper::Note;

constexpr double kLong = 60.0;  // seconds in which everything is over that ends, however busy the machine

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class KeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/keeper_test_XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override {
    for (const char* file : {"/writer", "/child"}) {
      if (const std::string pid = file_of(file); !pid.empty()) ::kill(std::stoi(pid), SIGKILL);
    }
    std::filesystem::remove_all(directory_);
  }
  std::string file_of(const std::string& name) const {
    std::ifstream in(directory_ + name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write_pid(const std::string& name) const { std::ofstream(directory_ + name) << ::getpid(); }

  // Starts what a launcher would: a process that becomes a keeper, whose rank runs body.
  void start(Keeper::Options options, const std::function<int(Keeper&)>& body) {
    int out[2];
    ASSERT_EQ(::pipe(out), 0);
    options.rank = 5;
    started_ = Clock::now();
    launched_ = ::fork();
    if (launched_ == 0) {
      ::close(out[0]);
      ::dup2(out[1], 1), ::dup2(out[1], 2), ::close(out[1]);
      const std::unique_ptr<Keeper> keeper = Keeper::fork_rank(options);
      write_pid("/rank");
      ::_exit(keeper == nullptr ? 1 : body(*keeper));
    }
    ::close(out[1]);
    said_ = out[0];
  }
  // Reads until nobody can say anything any more, then waits for the process, as launchers do.
  int finish(double limit) {
    for (bool open = true; open;) {
      pollfd wish{said_, POLLIN, 0};
      const double left = limit - std::chrono::duration<double>(Clock::now() - started_).count();
      if (left < 0.0 || ::poll(&wish, 1, static_cast<int>(left * 1000.0)) <= 0) {
        ADD_FAILURE() << "not over after " << limit << " s; said: " << text_;
        ::kill(launched_, SIGKILL);
        break;
      }
      char buffer[65536];
      const ssize_t n = ::read(said_, buffer, sizeof buffer);
      open = n > 0;
      if (open) text_.append(buffer, static_cast<size_t>(n));
    }
    int state = 0;
    ::waitpid(launched_, &state, 0);
    ::close(said_);
    took_ = std::chrono::duration<double>(Clock::now() - started_).count();
    return state;
  }
  // Another process writes it, at a time of its own: also one that the keeper has started and waits a second for.
  bool is_written(const std::string& name) const {
    for (const auto start = Clock::now(); file_of(name).empty(); sleep_for(0.01))
      if (Clock::now() - start > std::chrono::duration<double>(kLong)) return false;
    return true;
  }

  std::string directory_, text_;
  pid_t launched_ = 0;
  int said_ = -1;
  Clock::time_point started_;
  double took_ = 0.0;
};

TEST_F(KeeperTest, PassesOnWhatIsPrintedAndTheCode) {
  constexpr size_t kBytes = 3 << 20;  // many times what a pipe holds
  start({}, [](Keeper&) {
    const std::string all(kBytes, 'x');
    for (size_t done = 0; done < kBytes;) {
      const ssize_t n = ::write(done % 2 == 0 ? 1 : 2, all.data(), std::min<size_t>(kBytes - done, 70001));
      if (n > 0) done += static_cast<size_t>(n);
    }
    return 7;
  });
  const int state = finish(kLong);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 7) << state;
  EXPECT_EQ(text_.size(), kBytes);
}

TEST_F(KeeperTest, PassesOnSignalsBothWays) {
  start({}, [this](Keeper&) {
    std::signal(SIGTERM, [](int) { ::_exit(75); });
    write_pid("/ready");
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(is_written("/ready"));
  ::kill(launched_, SIGTERM);
  int state = finish(kLong);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 75) << state;
  start({}, [](Keeper&) { return ::raise(SIGKILL); });
  state = finish(kLong);
  EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << state;
  EXPECT_NE(text_.find(" was ended by signal 9 (Killed)\n"), std::string::npos) << text_;
}

TEST_F(KeeperTest, SaysThatTheKernelTookTheRankForItsMemory) {
  for (const bool memory : {true, false}) {  // or somebody else did
    SCOPED_TRACE(memory);
    text_.clear();
    Keeper::Options options;
    options.on_end = [this](const std::string& message, Note note, int code) {
      std::ofstream(directory_ + "/note") << static_cast<int>(note) << " " << code << " " << message;
    };
    options.lost_memory = [memory](const std::string& planned, int64_t peak) {
      return memory ? "wanted " + planned + (peak > 64 << 20 ? ", had more than 64 MiB" : "") : "";
    };
    start(options, [](Keeper& keeper) {
      keeper.plans("a lot");
      const std::string used(80 << 20, 'x');
      return used.back() == 'x' ? ::raise(SIGKILL) : 0;
    });
    const int state = finish(kLong);
    if (memory) {
      EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 74) << state;
      EXPECT_NE(text_.find("): wanted a lot, had more than 64 MiB\n"), std::string::npos) << text_;
      ASSERT_TRUE(is_written("/note"));
      EXPECT_EQ(file_of("/note").substr(0, 18), "1 74 rank 5 (host ");
    } else {
      EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << state;
      EXPECT_NE(text_.find(" was ended by signal 9 (Killed)\n"), std::string::npos) << text_;
      EXPECT_EQ(text_.find("wanted"), std::string::npos) << text_;
    }
  }
}

TEST_F(KeeperTest, TheRankGoesWithItsKeeper) {
  start({}, [](Keeper&) {
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(is_written("/rank"));
  const int rank = std::stoi(file_of("/rank"));
  ::kill(launched_, SIGKILL);
  finish(kLong);
  for (int tries = 0; tries < 2000 && ::kill(rank, 0) == 0; ++tries) sleep_for(0.01);
  EXPECT_NE(::kill(rank, 0), 0) << "process " << rank << " is left over";
}

TEST_F(KeeperTest, EndsARankThatDoesNotSpeakAgain) {
  const auto on_end = [this](const std::string& message, Note note, int) {
    std::ofstream(directory_ + "/note") << static_cast<int>(note) << " " << message;
  };
  start({.on_end = on_end}, [](Keeper& keeper) {
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    for (int i = 0; i < 5; ++i) keeper.expect(kLong, "too early", Note::kNone), sleep_for(0.1);
    keeper.expect(0.3, "nothing more to be heard", Note::kRunning);
    for (;;) ::pause();
    return 0;
  });
  const int state = finish(kLong);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 71) << state;
  EXPECT_GE(took_, 0.8);
  EXPECT_NE(text_.find("error: rank 5 (host "), std::string::npos) << text_;
  EXPECT_NE(text_.find("): nothing more to be heard; ending all ranks with code 71\n"), std::string::npos) << text_;
  ASSERT_TRUE(is_written("/note"));
  EXPECT_EQ(file_of("/note"), "1 nothing more to be heard");
}

TEST_F(KeeperTest, PhasesHaveOneTimeTogether) {
  start({.start_seconds = 3.5}, [](Keeper& keeper) {
    keeper.phase("the first", Note::kNone), sleep_for(0.8);
    keeper.rest(), sleep_for(3.0);
    for (const char* name : {"the second", "the third", "the last"}) keeper.phase(name, Note::kNone), sleep_for(0.1);
    for (;;) ::pause();
    return 0;
  });
  const int state = finish(kLong);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 71) << state;
  EXPECT_NE(text_.find("the last after start_timeout_s (3.5 s)"), std::string::npos) << text_;
  EXPECT_EQ(text_.find("second"), std::string::npos) << text_;
}

// As a rank does that cannot be ended, with a file system that nothing can be written to.
TEST_F(KeeperTest, NothingThatHangsKeepsItFromTheEnd) {
  const auto on_end = [this](const std::string&, Note, int) {
    write_pid("/writer");
    for (;;) ::pause();
  };
  start({.on_end = on_end}, [this](Keeper& keeper) {
    if (::fork() == 0) {  // holds what the rank prints into
      write_pid("/child");
      for (;;) ::pause();
    }
    keeper.end_within(0.3, "said by the rank", Note::kRunning);
    for (;;) ::pause();
    return 0;
  });
  const int state = finish(kLong);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 71) << state;
  EXPECT_EQ(text_, "") << "the rank has said it by itself";
  ASSERT_TRUE(is_written("/writer"));
  EXPECT_EQ(::kill(std::stoi(file_of("/writer")), 0), 0) << "goes on when it can";
}

TEST_F(KeeperTest, TimeInWhichTheRankIsStoppedDoesNotCount) {
  start({}, [this](Keeper& keeper) {
    keeper.expect(4.0, "late", Note::kNone);
    write_pid("/expects");
    while (file_of("/rests").empty()) sleep_for(0.01);
    keeper.rest();
    return 3;
  });
  ASSERT_TRUE(is_written("/expects"));
  const int rank = std::stoi(file_of("/expects"));
  ::kill(rank, SIGSTOP);
  pollfd told{said_, POLLIN, 0};  // that it is stopped, when those seconds are over
  EXPECT_EQ(::poll(&told, 1, static_cast<int>(kLong * 1000.0)), 1);
  write_pid("/rests");
  ::kill(rank, SIGCONT);
  const int state = finish(kLong);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 3) << state << " " << text_;
  EXPECT_NE(text_.find("its process " + std::to_string(rank) + " is stopped"), std::string::npos) << text_;
}

}  // namespace
}  // namespace thinwire::keeper_test
