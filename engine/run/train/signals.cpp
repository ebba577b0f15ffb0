// The handler only sets a flag; a second wish ends the process at once with the code for "preempted".
#include "engine/run/train/signals.h"

#include <time.h>
#include <unistd.h>

#include <csignal>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

// A signal handler has nowhere else to put its news.
volatile std::sig_atomic_t received = 0;

volatile std::sig_atomic_t received_at = 0;  // seconds of the monotonic clock

// Batch systems signal the script, the launcher and the ranks alike, and the first two hand it on: one wish arrives
// several times.
constexpr int kOneWishSeconds = 2;

int monotonic_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // allowed in a handler
  return static_cast<int>(now.tv_sec);
}

extern "C" void on_signal(int signal) {
  const int now = monotonic_seconds();
  if (received == 0) {
    received_at = now;
    received = signal;
    return;
  }
  // USR1 warns of a limit and is in no hurry. A person's second Ctrl-C is, however soon.
  if (signal == SIGUSR1 || (signal == SIGTERM && now - received_at <= kOneWishSeconds)) return;
  _exit(static_cast<int>(ExitCode::kPreempted));
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

int stop_signal() {
  return received;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "signal";
  }
}

}  // namespace thinwire
