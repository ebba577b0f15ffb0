// The handler only sets a flag; the second signal ends the process at once with the code for "preempted".
#include "engine/run/train/signals.h"

#include <unistd.h>

#include <csignal>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

// A signal handler has nowhere else to put its news.
volatile std::sig_atomic_t received = 0;

extern "C" void on_signal(int signal) {
  if (received != 0) _exit(static_cast<int>(ExitCode::kPreempted));
  received = signal;
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
