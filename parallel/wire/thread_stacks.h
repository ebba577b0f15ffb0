// Where every thread of this process stands: addresses, which scripts/resolve_stacks turns into names and lines.
#pragma once

#include <signal.h>

#include <string>

namespace thinwire {

// Asks a thread for its stack. Threads that leave signals to the main thread leave this one open.
int stack_signal();
// Blocks all others for the calling thread; returns what was blocked before.
sigset_t block_signals();

// From the first call of this on threads can be asked. Takes a handler and what the unwinder needs; no cost after that.
void prepare_thread_stacks();

// One paragraph per thread: its number, name, state and the place in the kernel where it sleeps, then its frames,
// innermost first, as "MODULE+0xOFFSET build ID". A thread that does not answer within `seconds` - it sleeps where no
// signal wakes it - has no frames. Empty where another
// thread is at it.
std::string thread_stacks(double seconds);

}  // namespace thinwire
