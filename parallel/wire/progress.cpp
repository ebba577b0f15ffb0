// Runs the coroutines of operations under the progress lock, and waits for their end.
#include "parallel/wire/progress.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "parallel/wire/progress_core.h"
#include "parallel/wire/thread_stacks.h"

namespace thinwire {
namespace {

using Clock = OperationSink::Clock;
using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr int kResumes = 32;  // coroutines continued per poll
constexpr microseconds kShortestSleep{20}, kLongestSleep{1000}, kSilentSleep{5000};
constexpr microseconds kRungSleep{2000};  // shortest, where the transport ends a sleep when anything arrives
constexpr int kPollsInARow = 16;          // before a waiter gives up the progress lock and looks at the clock
constexpr int kYieldsToIssuer = 100;
constexpr microseconds kYieldEvery{100};  // a yield costs as much as ten polls: more of them would slow large messages
constexpr int64_t kBytesPerUs = 1000, kLongestSpinUs = 20000;
constexpr microseconds kAtOnce{100};  // between issue and wait: less means that no compute overlaps the operation

int64_t since_ns(Clock::time_point from, Clock::time_point to) {
  return duration_cast<nanoseconds>(to - from).count();
}

std::exception_ptr wrong_length(int peer, size_t bytes, size_t expected) {
  try {
    TW_CHECK(bytes == expected, "rank ", peer, " sent ", bytes, " bytes where ", expected, " were expected");
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// What a waiting thread does between two polls: nothing, yield, or sleep. A sleep is a small share of the time in which
// nothing has moved, so it delays what is awaited by a few percent at most.
class Patience {
 public:
  // A transport may need a poll for every piece of a large message: nobody sleeps for as long as that may take.
  Patience(Clock::time_point now, int spin_us, int64_t bytes)
      : quiet_since_(now),
        yielded_(now),
        spin_(spin_us > 0 ? spin_us + std::min(bytes / kBytesPerUs, kLongestSpinUs) : 0) {}
  void moved(Clock::time_point now) { quiet_since_ = now; }
  // Whether to sleep if the next poll finds nothing, either.
  bool sleepy(Clock::time_point now) const { return now - quiet_since_ >= spin_; }
  void yield(Clock::time_point now) {
    if (now - yielded_ < kYieldEvery) return;
    ::sched_yield();
    yielded_ = now;
  }
  // rung: the transport ends the sleep when anything arrives.
  microseconds nap(Clock::time_point now, bool rung) {
    if (!slept_) {
      slept_ = true;
      ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // otherwise a nap of 20 us takes 70
    }
    // Later half a percent of the wait, up to kSilentSleep: a poll per millisecond makes waits of minutes costly.
    const auto whole = duration_cast<microseconds>(now - quiet_since_);
    const microseconds shortest = spin_ == spin_.zero() ? kCrowdedSleep : kShortestSleep;
    const microseconds usual = std::clamp(whole / 32, shortest, kLongestSleep);
    return std::max(rung ? kRungSleep : usual, std::min(whole / 200, kSilentSleep));
  }

 private:
  Clock::time_point quiet_since_, yielded_;
  microseconds spin_;
  bool slept_ = false;
};

// Listens for the transport's bell from before a poll until after it.
class BellListener {
 public:
  BellListener(Transport& transport, bool open) : transport_(open ? &transport : nullptr) {
    if (open) heard_ = transport.listen();
  }
  BellListener(const BellListener&) = delete;
  BellListener& operator=(const BellListener&) = delete;
  ~BellListener() {
    if (open()) transport_->stop_listening();
  }
  bool open() const { return transport_ != nullptr; }
  void sleep(microseconds limit) { transport_->sleep(heard_, limit); }

 private:
  Transport* transport_;
  uint32_t heard_ = 0;
};

}  // namespace

// --- QueuedSend ------------------------------------------------------------------------------------------------------

QueuedSend::QueuedSend(const Lane& lane, SendQueue& queue) : core_(lane.core), queue_(&queue), before_(queue.last) {
  operation_ = core_->running;
  (before_ != nullptr ? before_->behind_ : queue.first) = this;
  queue.last = this;
}

void QueuedSend::release() {
  if (passed_) return;
  passed_ = true;
  if (ready_) core_->forget_ready(*this);
  const bool was_first = before_ == nullptr;
  (before_ != nullptr ? before_->behind_ : queue_->first) = behind_;
  (behind_ != nullptr ? behind_->before_ : queue_->last) = before_;
  if (was_first && behind_ != nullptr && behind_->waiter_) core_->make_ready(*behind_);
}

// --- Core -------------------------------------------------------------------------------------------------------

Progress::Core::Core(Transport& transport_, ProgressOptions options_)
    : transport(&transport_), options(std::move(options_)), pool(BlockPool::create()) {
  slots.reserve(64);
  waited_for_ns.resize(static_cast<size_t>(transport_.size()));
  if (options.watchdog_seconds > 0.0 && transport->size() > 1) {
    watchdog = std::make_unique<Watchdog>(
        *transport, recorder,
        WatchdogOptions{.seconds = options.watchdog_seconds,
                        .directory = options.report_directory,
                        .net = options.watch_net,
                        .hosts = options.hosts,
                        .answer_seconds = 1.0 + transport->size() / 1024,  // one thread asks, or serves, them all
                        .on_verdict = options.on_hang,
                        .keeper = options.keeper,
                        .note = options.starting ? Keeper::Note::kStarting : Keeper::Note::kRunning,
                        .end = [this](int code) { end_job(code); }});
  }
  if (options.thread && transport->size() > 1) {  // last: an exception behind it would end the process
    // Signals are the main thread's: they must not end a poll in the middle of somebody's handler.
    const SignalsBlocked blocked;
    thread = std::thread([this] { run_thread(); });
  }
}

Progress::Core::~Core() {
  watchdog.reset();
  if (thread.joinable()) {
    {
      std::lock_guard lock(rest_mutex);
      stop = true;
    }
    rest_wake.notify_all();
    thread.join();
  }
  {
    std::lock_guard lock(mutex);
    // A ticket that is still open learns it here, and says so where it is dropped.
    if (first_open != nullptr) {
      fail_all(std::make_exception_ptr(
          Error(ExitCode::kInternal, "the engine of communication went while operations were open")));
    }
  }
  pool->retire();
}

// MPI allows one call at a time, so this takes the progress lock. After 200 ms it goes on without: the holder may hang
// in MPI.
void Progress::Core::end_job(int code) {
  std::unique_lock lock(mutex, std::defer_lock);
  for (int tries = 0; tries < 20 && !lock.try_lock(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  transport->abort(code);
}

int Progress::Core::take_slot(const Slot& content) {
  if (free_slot < 0) {
    slots.push_back(content);
    return static_cast<int>(slots.size()) - 1;
  }
  const int slot = free_slot;
  free_slot = slots[static_cast<size_t>(slot)].next_free;
  slots[static_cast<size_t>(slot)] = content;
  return slot;
}

void Progress::Core::free_up(int slot) {
  slots[static_cast<size_t>(slot)] = Slot{.next_free = free_slot};
  free_slot = slot;
}

void Progress::Core::start(RunningOperation& operation) {
  if (failure) std::rethrow_exception(failure);
  enlist(operation, Clock::now());
  run(operation, operation.task_.start());
}

// A send is posted first, since a peer waits for it; its operation is made while it travels.
Ticket Progress::Core::start(const Transfer& transfer, const OperationNote& note, WireCounters* counters) {
  std::shared_ptr<RunningOperation> operation;
  const auto make = [&] {
    return std::allocate_shared<RunningOperation>(PoolAllocator<RunningOperation>(*pool), *this, Task(), note,
                                                  counters);
  };
  if (!transfer.is_send) operation = make();
  {
    IssueLock lock(*this);
    if (failure) std::rethrow_exception(failure);
    const Clock::time_point now = Clock::now();
    const int slot = take_slot({nullptr, operation.get(), transfer.bytes, transfer.peer, transfer.is_send});
    const auto token = static_cast<uint32_t>(slot);
    bool over = false;
    std::exception_ptr error;
    try {
      over = transfer.is_send
                 ? transport->post_send(transfer.data, transfer.bytes, transfer.peer, transfer.tag, token)
                 : transport->post_receive(transfer.data, transfer.bytes, transfer.peer, transfer.tag, token);
    } catch (...) {
      error = std::current_exception();
    }
    if (transfer.is_send) count_sent(counters, transfer.bytes);
    if (operation == nullptr) operation = make();
    operation->place_ = transfer.place;
    enlist(*operation, now);
    if (over || error) {
      free_up(slot);
      finish(*operation, error);
      if (!error) return Ticket::finished();
      return Ticket(std::move(operation));
    }
    slots[static_cast<size_t>(slot)].operation = operation.get();
    operation->slot_ = slot;
    recorder.posted(operation->flight_, token, transfer.peer);
  }
  wake_for(*operation);
  return Ticket(std::move(operation));
}

void Progress::Core::enlist(RunningOperation& operation, Clock::time_point now) {
  operation.issued_ = now;
  operation.flight_ = recorder.begin(operation.note_, now);
  if (WireCounters* counters = operation.counters_; counters != nullptr) {
    ++counters->operations;
    if (counters->open++ == 0) counters->opened_at = operation.issued_.time_since_epoch().count();
  }
  operation.started_ = true;
  operation.previous_ = last_open;
  (last_open != nullptr ? last_open->next_ : first_open) = &operation;
  last_open = &operation;
  open.fetch_add(1);
  issued.fetch_add(1, std::memory_order_relaxed);
}

void Progress::Core::run(RunningOperation& operation, std::coroutine_handle<> frame) {
  running = &operation;
  frame.resume();
  running = nullptr;
  for (size_t i = held.size(); i > 0 && held[i - 1].operation == nullptr; --i) held[i - 1].operation = &operation;
  if (operation.task_.returned()) finish(operation, operation.task_.error());
}

// Stores the state last: from then on another thread may destroy the operation.
void Progress::Core::finish(RunningOperation& operation, std::exception_ptr error) {
  if (held.size() > 0) held.drop(&operation);
  operation.task_.clear();
  if (error == nullptr) operation.place_.over();
  if (operation.slot_ >= 0) {  // still under way: given up
    slots[static_cast<size_t>(operation.slot_)].operation = nullptr;
    if (transport->withdraw(static_cast<uint32_t>(operation.slot_))) free_up(operation.slot_);
    operation.slot_ = -1;
  }
  const Clock::time_point now = Clock::now();
  operation.done_ = now;
  if (WireCounters* counters = operation.counters_; counters != nullptr && --counters->open == 0)
    counters->busy_ns += now.time_since_epoch().count() - counters->opened_at;
  recorder.finish(operation.flight_, error != nullptr, now);
  if (sink != nullptr) sink->operation(operation.note_, operation.issued_, now);
  (operation.previous_ != nullptr ? operation.previous_->next_ : first_open) = operation.next_;
  (operation.next_ != nullptr ? operation.next_->previous_ : last_open) = operation.previous_;
  open.store(open.load(std::memory_order_relaxed) - 1, std::memory_order_release);  // written under the lock alone
  const bool awaited_elsewhere = waiters.load(std::memory_order_relaxed) > 1;
  operation.error_ = error;
  operation.state_.store(error ? Operation::State::kError : Operation::State::kDone, std::memory_order_release);
  if (awaited_elsewhere) transport->wake();  // another thread may sleep until this operation is over
}

void Progress::Core::fail_all(std::exception_ptr error) {
  failure = error;
  while (first_open != nullptr) finish(*first_open, error);
}

void Progress::Core::give_up(RunningOperation& operation) {
  if (operation.open()) finish(operation, std::make_exception_ptr(Error(ExitCode::kInternal, "given up")));
}

void Progress::Core::withdraw(Exchange& exchange) {
  for (size_t i = 0; i < slots.size() && exchange.pending_ > 0; ++i) {
    Slot& slot = slots[i];
    if (slot.owner != &exchange) continue;
    recorder.over(static_cast<uint32_t>(i));
    --exchange.pending_;
    slot.owner = nullptr;
    slot.operation = nullptr;
    if (!transport->withdraw(static_cast<uint32_t>(i))) continue;
    if (slot.check != nullptr) drop(*slot.check);
    free_up(static_cast<int>(i));
  }
  if (exchange.ready_) forget_ready(exchange);
}

void Progress::Core::make_ready(Waiter& waiter) {
  waiter.ready_ = true;
  waiter.next_ready_ = nullptr;
  (last_ready != nullptr ? last_ready->next_ready_ : first_ready) = &waiter;
  last_ready = &waiter;
}

void Progress::Core::forget_ready(Waiter& waiter) {
  Waiter* before = nullptr;
  for (Waiter* w = first_ready; w != &waiter; w = w->next_ready_) before = w;
  (before != nullptr ? before->next_ready_ : first_ready) = waiter.next_ready_;
  if (last_ready == &waiter) last_ready = before;
  waiter.ready_ = false;
}

bool Progress::Core::poll() {
  size_t n = 0;
  try {
    n = transport->poll(done);
    recorder.polled();
  } catch (...) {
    fail_all(std::current_exception());
    return true;
  }
  for (size_t i = 0; i < n; ++i) {
    const int token = static_cast<int>(done[i].token);
    const Slot slot = slots[static_cast<size_t>(token)];
    free_up(token);
    if (slot.operation == nullptr) {
      if (slot.check != nullptr) drop(*slot.check);
      continue;
    }
    Exchange* exchange = slot.owner;
    if (!slot.is_send) slot.operation->last_peer_ = slot.peer;
    recorder.over(done[i].token);
    const bool wrong = !slot.is_send && done[i].bytes != slot.bytes;
    if (exchange == nullptr) {
      slot.operation->slot_ = -1;
      finish(*slot.operation, wrong ? wrong_length(slot.peer, done[i].bytes, slot.bytes) : nullptr);
      continue;
    }
    if (wrong) exchange->error_ = wrong_length(slot.peer, done[i].bytes, slot.bytes);
    if (slot.check != nullptr) exchange->part_over(*slot.check, slot.peer);
    if (--exchange->pending_ > 0 || !exchange->waiter_) continue;
    make_ready(*exchange);
  }
  int resumed = 0;
  for (; first_ready != nullptr && resumed < kResumes; ++resumed) {
    Waiter* waiter = first_ready;
    first_ready = waiter->next_ready_;
    if (first_ready == nullptr) last_ready = nullptr;
    waiter->ready_ = false;
    run(*waiter->operation_, waiter->waiter_);
  }
  for (StartQueue::Held next; resumed < kResumes && held.size() > 0 && held.take(next); ++resumed)
    run(*static_cast<RunningOperation*>(next.operation), next.frame);
  return n > 0 || resumed > 0;
}

void Progress::Core::drive(RunningOperation& operation) {
  const Clock::time_point from = Clock::now();
  Patience patience(from, options.spin_us, operation.note_.bytes);
  const int polls = options.spin_us > 0 ? kPollsInARow : 1;
  Clock::time_point now = from;
  if (operation.note_.bytes >= kWorthWaking) awaited_at_once.store(from - operation.handed_ < kAtOnce);
  waiters.fetch_add(1);
  for (bool first = true;; first = false) {
    bool moved = false, rung = false;
    BellListener bell(*transport, patience.sleepy(now));
    {
      std::lock_guard lock(mutex);
      if (first) recorder.enter_wait(operation.flight_);
      for (int i = 0; i < polls && operation.open() && !moved; ++i) {
        moved = poll();
        if (wanted.load(std::memory_order_relaxed) > 0) break;
      }
      if (!operation.open()) {
        const Clock::time_point to = std::max(from, operation.done_);
        if (operation.counters_ != nullptr) operation.counters_->exposed_ns += since_ns(from, to);
        waited_ns += since_ns(from, to);
        if (operation.last_peer_ >= 0) waited_for_ns[static_cast<size_t>(operation.last_peer_)] += since_ns(from, to);
        recorder.leave_wait();
        if (sink != nullptr) sink->waited(operation.note_, from, to);
        break;
      }
      rung = transport->all_wake();
    }
    now = Clock::now();
    if (moved) {
      patience.moved(now);
    } else if (bell.open()) {
      bell.sleep(patience.nap(now, rung));
    } else {
      patience.yield(now);
    }
    // A thread that sleeps on the progress lock wakes up slower than this one would take it again: let it go first.
    for (int i = 0; i < kYieldsToIssuer && wanted.load(std::memory_order_relaxed) > 0; ++i) ::sched_yield();
  }
  if (waiters.fetch_sub(1) == 1 && open.load() > 0 && rest.load() == Rest::kLong) nudge();
}

// --- RunningOperation -------------------------------------------------------------------------------------------

RunningOperation::RunningOperation(Progress::Core& core, Task task, const OperationNote& note, WireCounters* counters)
    : core_(&core), task_(std::move(task)), note_(note), counters_(counters) {}

RunningOperation::~RunningOperation() {
  if (!started_ || !open()) return;
  std::lock_guard lock(core_->mutex);
  core_->give_up(*this);
}

void RunningOperation::wait_on(Stream&) {
  wait_on_host();  // host memory: later work of the calling thread follows by itself
}

void RunningOperation::wait_on_host() {
  if (open()) core_->drive(*this);
  if (state() != State::kError) return;
  state_.store(State::kDone);  // it was told; dropping the ticket is fine now
  std::rethrow_exception(error_);
}

// --- Progress ---------------------------------------------------------------------------------------------------

Progress::Progress(Transport& transport, ProgressOptions options)
    : core_(std::make_unique<Core>(transport, std::move(options))) {}

Progress::~Progress() = default;

Transport& Progress::transport() {
  return *core_->transport;
}

BlockPool& Progress::pool() {
  return *core_->pool;
}

Ticket Progress::start(Task task, const OperationNote& note, WireCounters* counters) {
  Core& core = *core_;
  auto operation = std::allocate_shared<RunningOperation>(PoolAllocator<RunningOperation>(*core.pool), core,
                                                          std::move(task), note, counters);
  bool finished = false;
  {
    IssueLock lock(core);
    core.start(*operation);
    finished = operation->state() == Operation::State::kDone;
  }
  if (finished) return Ticket::finished();
  core.wake_for(*operation);
  return Ticket(std::move(operation));
}

bool Progress::poll() {
  std::lock_guard lock(core_->mutex);
  return core_->poll();
}

void Progress::set_sink(OperationSink* sink) {
  std::lock_guard lock(core_->mutex);
  core_->sink = sink;
}

int64_t Progress::take_waits(std::vector<int64_t>& for_ns) {
  std::lock_guard lock(core_->mutex);
  for_ns.assign(core_->waited_for_ns.begin(), core_->waited_for_ns.end());
  std::fill(core_->waited_for_ns.begin(), core_->waited_for_ns.end(), 0);
  return std::exchange(core_->waited_ns, 0);
}

void Progress::set_activity(const std::string& text) {
  core_->recorder.set_activity(text);
}

}  // namespace thinwire
