// The thread that polls while nobody waits, and how it stays out of the way of whoever computes.
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

#include "parallel/wire/progress_core.h"

namespace thinwire {
namespace {

using Clock = OperationSink::Clock;
using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kThreadShortest{50}, kThreadLongest{4000};
constexpr milliseconds kLinger{100};  // the thread rests in short naps for so long after the last activity

// The poll interval: how long the thread sleeps after a poll that moved something. It is half of the usual time between
// two such polls. Every wake-up takes the core from the compute thread, and between the pieces of a message on a slow
// link there is nothing to do; the kernel's buffers go on sending and receiving meanwhile.
class PollInterval {
 public:
  explicit PollInterval(microseconds shortest) : shortest_(shortest) {}
  microseconds nap(Clock::time_point now, bool moved) {
    if (moved) {
      const auto gap = std::min(duration_cast<microseconds>(now - last_), 4 * kThreadLongest);
      usual_ = (usual_ + gap) / 2;
      last_ = now;
    }
    return std::clamp(usual_ / 2, shortest_, kThreadLongest);
  }
  void not_asked(Clock::time_point now) { last_ = now; }  // nothing was open, or somebody else polled

 private:
  microseconds shortest_, usual_{0};
  Clock::time_point last_ = Clock::now();
};

}  // namespace

void Progress::Core::nudge() {
  {
    std::lock_guard lock(rest_mutex);
    nudged = true;
  }
  rest_wake.notify_one();
}

// Waking the thread costs microseconds of the caller's core, so only what the thread would not notice is worth it, or
// what is large and, as the last one of its kind, not waited for at once.
void Progress::Core::wake_for(RunningOperation& operation) {
  if (waiters.load(std::memory_order_relaxed) > 0) transport->wake();  // it sleeps, and may have something to do now
  const bool large = operation.note_.bytes >= kWorthWaking;
  if (large) operation.handed_ = Clock::now();
  const Rest now = rest.load();
  if (now == Rest::kLong || (now == Rest::kShort && large && !awaited_at_once.load())) nudge();
}

// False: the thread has to end.
bool Progress::Core::rest_for(Rest how, microseconds limit) {
  std::unique_lock lock(rest_mutex);
  rest.store(how);
  // Whoever made work before it could see `how` is seen here.
  const bool work = how == Rest::kLong && open.load() > 0 && waiters.load() == 0;
  if (!work && !nudged && !stop) {
    const auto called = [this] { return nudged || stop; };
    if (how == Rest::kLong) {
      rest_wake.wait(lock, called);
    } else {
      rest_wake.wait_for(lock, limit, called);
    }
  }
  nudged = false;
  rest.store(Rest::kAwake);
  return !stop;
}

void Progress::Core::run_thread() {
  pthread_setname_np(pthread_self(), "tw-progress");
  ::prctl(PR_SET_TIMERSLACK, 5000UL, 0UL, 0UL, 0UL);
  PollInterval interval(options.spin_us > 0 ? kThreadShortest : kCrowdedSleep);
  microseconds nap = kThreadLongest;
  uint64_t seen = 0;
  Clock::time_point active = Clock::now();
  Rest how = Rest::kShort;
  while (rest_for(how, nap)) {
    const Clock::time_point now = Clock::now();
    const uint64_t count = issued.load(std::memory_order_relaxed);
    const bool fresh = count != seen;
    seen = count;
    if (open.load() == 0 || waiters.load() > 0) {
      // In a run of short operations this branch is all the thread does.
      nap = kThreadLongest;
      interval.not_asked(now);
      if (fresh) active = now;
      how = now - active > kLinger ? Rest::kLong : Rest::kShort;
      continue;
    }
    how = Rest::kShort;
    active = now;
    std::unique_lock lock(mutex, std::try_to_lock);
    // Somebody is at it, most likely issuing what he is about to wait for. To come back soon would only take his core
    // away: that cost up to a fifth of a large transfer's time.
    if (!lock.owns_lock()) continue;
    // The last operation ended meanwhile: whoever waited for it may be calling the transport's library himself.
    if (open.load() == 0) continue;
    const bool moved = poll();
    lock.unlock();
    nap = moved || fresh ? interval.nap(now, moved) : std::min(nap * 3 / 2, kThreadLongest);
  }
}

}  // namespace thinwire
