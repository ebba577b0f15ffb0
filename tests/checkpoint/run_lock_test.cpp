// One writer: the second is told who the first is, a dead one is succeeded, an orphan that lost the directory commits
// nothing.
#include "engine/run/checkpoint/run_lock.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/checkpoint/checkpoint_test_support.h"

// Every flush of this program comes by here.
static std::atomic<int> flushes = 0;
extern "C" int fdatasync(int fd) {
  ++flushes;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace thinwire::run_lock_test {
namespace {

using namespace checkpoint_test;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool within_a_minute(const std::function<bool()>& condition) {
  for (const auto start = Clock::now(); seconds_since(start) < 60.0;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

LockOptions options_of(const std::string& job, double heartbeat = 0, double stale = 0.3) {
  return {job, heartbeat, stale};
}

// A child that takes the lock, says so through a pipe and sleeps.
class Holder {
 public:
  Holder(const std::string& dir, const LockOptions& options) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        const RunLock lock(dir, options);
        (void)!::write(ends[1], "x", 1);
        for (;;) ::pause();
      } catch (...) {
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
  }
  void kill9() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int status;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
  }
  ~Holder() { kill9(); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(RunLock, SecondProcessIsToldWhoHoldsIt) {
  const Scratch scratch;
  const Holder holder(scratch.path(), options_of("first-job"));
  const Error e = error_of([&] { const RunLock lock(scratch.path(), options_of("second")); });
  EXPECT_EQ(e.code(), ExitCode::kBusy);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string what = e.what();
  for (const std::string& part :
       {std::string("first-job"), "pid " + std::to_string(holder.pid()), std::string(host), std::string("s ago")}) {
    EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  EXPECT_EQ(error_of([&] { CheckpointStore store(scratch.path(), quick_options()); }).code(), ExitCode::kBusy);
}

TEST(RunLock, DeadHolderIsSucceededAtOnce) {
  const Scratch scratch;
  Holder holder(scratch.path(), options_of("dead", 0, 60));
  holder.kill9();
  EXPECT_TRUE(fs::exists(scratch / "lease.json"));
  const auto start = Clock::now();
  const RunLock lock(scratch.path(), options_of("heir", 0, 60));
  EXPECT_LT(seconds_since(start), 5.0) << "its process is gone: no waiting for the lease to age";
  EXPECT_NO_THROW(lock.check());
}

TEST(RunLock, GivenBackInOrder) {
  const Scratch scratch;
  { const RunLock lock(scratch.path(), options_of("a")); }
  EXPECT_FALSE(fs::exists(scratch / "lease.json"));
  EXPECT_NO_THROW(RunLock(scratch.path(), options_of("b")));
}

// A lease of another host, where flock may not reach: a beating heart is respected, a silent one is succeeded after the
// wait.
TEST(RunLock, ForeignLeaseIsWatched) {
  const Scratch scratch;
  const auto lease = [](double heartbeat) {
    return "{\"host\": \"elsewhere\", \"pid\": 1, \"job\": \"far\", \"token\": \"t\", \"heartbeat\": " +
           std::to_string(heartbeat) + "}";
  };
  spill(scratch / "lease.json", lease(1000));
  const auto start = Clock::now();
  { const RunLock lock(scratch.path(), options_of("here")); }
  EXPECT_GE(seconds_since(start), 0.3);

  // It goes on beating: whoever looks late for the first time sees another beat.
  spill(scratch / "lease.json", lease(1000));
  std::atomic<bool> over = false;
  std::thread heart([&] {
    for (double beat = 1001; !over; ++beat) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      spill(scratch / "lease.tmp", lease(beat));
      fs::rename(scratch / "lease.tmp", scratch / "lease.json");
    }
  });
  const Error e = error_of([&] { const RunLock lock(scratch.path(), options_of("here", 0, 20.0)); });
  over = true;
  heart.join();
  EXPECT_EQ(e.code(), ExitCode::kBusy);
  EXPECT_NE(std::string(e.what()).find("elsewhere"), std::string::npos);
}

TEST(RunLock, TornOrHostileLeaseDoesNotBlockOrCrash) {
  const Scratch scratch;
  for (const char* text : {"", "{", "[]", "{\"host\": 1}", "\xff\xff",
                           "{\"host\":\"h\",\"pid\":1e99,\"job\":\"j\",\"token\":\"t\",\"heartbeat\":0}"}) {
    spill(scratch / "lease.json", text);
    EXPECT_NO_THROW(RunLock(scratch.path(), options_of("a"))) << text;
  }
}

TEST(RunLock, HeartBeats) {
  const Scratch scratch;
  const RunLock lock(scratch.path(), options_of("a", 0.05));
  const std::string first = slurp(scratch / "lease.json");
  EXPECT_TRUE(within_a_minute([&] { return slurp(scratch / "lease.json") != first; }));
  EXPECT_EQ(first.size(), slurp(scratch / "lease.json").size());
  EXPECT_NO_THROW(lock.check());
  // Other nodes may see a beat only when it is flushed.
  const int flushed = flushes;
  EXPECT_TRUE(within_a_minute([&] { return flushes > flushed; }));
}

// Fencing: the orphan of a killed launcher whose .lock was removed must not commit over its successor.
TEST(RunLock, OrphanThatLostTheDirectoryCommitsNothing) {
  const Scratch scratch;
  RandomState state(1);
  auto orphan = std::make_unique<CheckpointStore>(scratch.path(), quick_options());
  orphan->save(1, state.visitor(), {});
  fs::remove(scratch / ".lock");  // an administrator's hand
  CheckpointStore successor(scratch.path(), quick_options());
  const Error e = error_of([&] { orphan->save(2, state.visitor(), {}); });
  EXPECT_EQ(e.code(), ExitCode::kBusy);
  EXPECT_NE(std::string(e.what()).find("nothing was committed"), std::string::npos) << e.what();
  successor.save(3, state.visitor(), {});
  orphan.reset();  // leaves the successor's lease alone
  EXPECT_NO_THROW(successor.lock().check());
  EXPECT_EQ(successor.newest()->manifest.step, 3);
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 2u);
}

// Taken over in the middle of a save: the check right before the rename stops it, whatever is allowed to fail.
TEST(RunLock, TakeOverDuringASaveIsCaughtBeforeTheRename) {
  const Scratch scratch;
  RandomState state(1);
  StoreOptions options = quick_options(true);
  options.failed_saves_allowed = 100;
  std::unique_ptr<CheckpointStore> successor;
  options.fault = [&](std::string_view point) {
    if (point != "save.before_rename") return;
    fs::remove(scratch / ".lock");
    successor = std::make_unique<CheckpointStore>(scratch.path(), quick_options());
  };
  CheckpointStore orphan(scratch.path(), options);
  const Error e = error_of([&] {
    orphan.save(1, state.visitor(), {});
    orphan.wait();
  });
  EXPECT_EQ(e.code(), ExitCode::kBusy);
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
}

}  // namespace
}  // namespace thinwire::run_lock_test
