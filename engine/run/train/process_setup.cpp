// Process start-up, signal handlers, and how ranks leave with one exit code.
#include "engine/run/train/process_setup.h"

#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>

#include "engine/base/core/error.h"
#include "engine/base/core/program.h"
#include "engine/run/train/job.h"
#include "parallel/wire/launcher.h"
#include "parallel/wire/transport_mpi.h"

namespace thinwire {
namespace {

// A signal handler has nowhere else to put its news.
volatile std::sig_atomic_t received = 0;

volatile std::sig_atomic_t received_at = 0;  // by monotonic_ms()

// Batch systems signal the script, the launcher and the ranks alike, and the first two, and the keeper, hand it on: one
// wish arrives several times. Nobody presses Ctrl-C twice in a quarter of a second.
constexpr int kOneWishMs = 2000, kOneCtrlCMs = 250;

int monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // allowed in a handler
  return static_cast<int>((now.tv_sec * 1000 + now.tv_nsec / 1000000) & 0x7fffffff);
}

extern "C" void on_signal(int signal) {
  const int now = monotonic_ms();
  // USR1 warns of a limit and is in no hurry: a save may still be under way when TERM says that the limit has come.
  if (received == 0 || (received == SIGUSR1 && signal != SIGUSR1)) {
    received_at = now;
    received = signal;
    return;
  }
  // A person's second Ctrl-C is in a hurry.
  const int since = (now - received_at) & 0x7fffffff;
  if (signal == SIGUSR1 || since <= (signal == SIGTERM ? kOneWishMs : kOneCtrlCMs)) return;
  constexpr char kUnsaved[] = "warning: asked to stop once more: leaving at once, without the save of this step\n";
  [[maybe_unused]] const ssize_t said = write(STDERR_FILENO, kUnsaved, sizeof kUnsaved - 1);
  _exit(static_cast<int>(ExitCode::kPreempted));
}

}  // namespace

void ensure_passive_waiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  // Threads that sleep at once lose to a short spin inside one parallel region after another.
  if (std::getenv("GOMP_SPINCOUNT") == nullptr) setenv("GOMP_SPINCOUNT", "10000", 1);
  // By its real path, which gives the process its name (/proc/PID/comm, top). Where the path is gone, through /proc.
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length > 0) {
    path[length] = '\0';
    execv(path, argv);
  }
  execv("/proc/self/exe", argv);
  // Where the program cannot be executed again it still runs, only less politely.
}

int run_job(const std::string& name, const std::function<int(Job&)>& body, const Keeper::Options& keeping) {
  const Launch launched = launch_of_environment();
  Keeper::Options options = keeping;
  options.rank = static_cast<int>(launched.rank);
  const std::unique_ptr<Keeper> keeper = launched.count > 1 ? Keeper::fork_rank(options) : nullptr;
  const auto run = [&]() -> int {
    std::optional<Job> opened;
    try {
      opened.emplace(keeper.get());
    } catch (const Error& e) {
      if (e.code() != ExitCode::kBadConfig) end_mpi(static_cast<int>(e.code()), e.what());
      if (launched.rank > 0) return static_cast<int>(e.code());  // rank 0 speaks for all
      throw;
    }
    Job& job = *opened;
    try {
      const int code = body(job);
      if (code != 0) job.leave_together(static_cast<ExitCode>(code));
      return code;
    } catch (const AgreedError& e) {
      if (job.size() == 1) throw;
      if (job.first()) std::fprintf(stderr, "error: %s\n", e.what());
      job.leave_together(e.code());
      return static_cast<int>(e.code());
    } catch (...) {
      const Failure failure = failure_of([] { throw; }, name + ": out of memory" + kMemoryHint);
      job.end_all(static_cast<ExitCode>(failure.code), failure.message);
      throw;
    }
  };
  return run_program(name, run, kMemoryHint);
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int stop_signal() {
  return received;
}

const char* signal_name(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : signal == SIGUSR1 ? "SIGUSR1" : "signal";
}

}  // namespace thinwire
