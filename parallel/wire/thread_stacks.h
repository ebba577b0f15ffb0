// Where every thread of this process stands: addresses, which scripts/resolve_stacks turns into names and lines.
#pragma once

#include <signal.h>

#include <string>

namespace thinwire {

// While one lives, threads that the calling thread starts leave all other signals to the main thread.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();

 private:
  sigset_t before_;
};

// From the first call of this on threads can be asked. Takes a handler and what the unwinder needs; no cost after that.
void prepare_thread_stacks();

// One paragraph per thread: its number, name, state and the place in the kernel where it sleeps, then its frames,
// innermost first, as "MODULE+0xOFFSET build ID". A thread that does not answer within `seconds` - it sleeps where no
// signal wakes it - has no frames. Empty where another thread is at it.
std::string thread_stacks(double seconds);

}  // namespace thinwire
