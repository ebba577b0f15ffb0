// Inside of Progress, for the coroutines of parallel/collective: how a transfer is posted and awaited.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/wire/flight_recorder.h"
#include "parallel/wire/progress.h"
#include "parallel/wire/scratch.h"
#include "parallel/wire/watchdog.h"

namespace thinwire {

class RehearsalWatch;  // parallel/collective/rehearsal.h

// What a coroutine of this folder is handed first: where its transfers go, under which tag, and who counts them. The
// pool makes its frame cheap (task.h).
struct Lane {
  Progress::Core* core = nullptr;
  int tag = 0;
  WireCounters* counters = nullptr;
  BlockPool& pool() const;
};

// A task under way, or a single transfer, as the ticket sees it. The ticket is its only owner: one that is dropped in
// an error takes its transfers back.
class RunningOperation final : public Operation {
 public:
  RunningOperation(Progress::Core& core, Task task, const OperationNote& note, WireCounters* counters);
  ~RunningOperation() override;
  State state() const override { return state_.load(std::memory_order_acquire); }
  void wait_on(Stream& stream) override;
  void wait_on_host() override;

 private:
  friend struct Progress::Core;
  friend class Exchange;
  bool open() const { return state_.load(std::memory_order_acquire) == State::kIssued; }

  Progress::Core* core_;
  Task task_;
  OperationNote note_;
  WireCounters* counters_;
  std::exception_ptr error_;
  std::atomic<State> state_{State::kIssued};  // stored last: whoever sees the end may drop the operation
  bool started_ = false;
  SequencePlace place_;  // of the transfer
  int slot_ = -1;        // of the transfer, where there is no task; -1: over
  int last_peer_ = -1;   // whose message came last
  uint64_t flight_ = 0;  // number in the flight recorder
  OperationSink::Clock::time_point issued_, done_;
  OperationSink::Clock::time_point handed_;  // where large: when the issuer, with its part of the copying, went on
  RunningOperation *previous_ = nullptr, *next_ = nullptr;  // open ones, in order of issue
};

// A coroutine that waits for something under the progress lock.
class Waiter {
 protected:
  friend struct Progress::Core;
  RunningOperation* operation_ = nullptr;
  std::coroutine_handle<> waiter_;
  Waiter* next_ready_ = nullptr;
  bool ready_ = false;  // in the list of those that go on with the next poll
};

// A world rank, and whether messages from and to it carry a checksum: CRC-32C of their bytes, which the receiver proves
// before whoever awaits them goes on. Both ends have to say the same. Messages without bytes carry none.
struct Peer {
  int rank = -1;
  bool checked = false;
  Peer() = default;
  Peer(int rank, bool checked = false) : rank(rank), checked(checked) {}
};
inline constexpr size_t kChecksumOfMessage = 4;  // bytes, little endian
// A checked message of so many bytes travels as a copy with its checksum behind it. A longer one goes from and to its
// own memory, and its checksum is a message of its own behind it: a second message costs less than two more copies.
inline constexpr size_t kCheckedCopy = 16 << 10;

// The checksum of a message under way; drop(): a part of it is over, or given up.
struct MessageCheck;
void drop(MessageCheck& check);

// Transfers that are awaited together (all_of). Each is posted when it is named; co_await continues when all are over,
// at once if they are. Lives in the frame of a coroutine; used under the progress lock, as all coroutine code is. May
// be used again after it was awaited.
class Exchange : private Waiter {
 public:
  explicit Exchange(const Lane& lane) : lane_(lane) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();

  // A receive must bring exactly `bytes`. A checksum that does not match is Error(kHungPeer) where the exchange is
  // awaited; what was received is then worth nothing.
  void send(const void* data, size_t bytes, Peer peer) { send(data, bytes, peer, lane_.tag); }
  void receive(void* data, size_t bytes, Peer peer) { receive(data, bytes, peer, lane_.tag); }
  void send(const void* data, size_t bytes, Peer peer, int tag);
  void receive(void* data, size_t bytes, Peer peer, int tag);
  int pending() const { return pending_; }

  bool await_ready() const noexcept { return pending_ == 0; }
  void await_suspend(std::coroutine_handle<> awaiting) noexcept { waiter_ = awaiting; }
  void await_resume();

 private:
  friend struct Progress::Core;
  void post_send(const void* data, size_t bytes, int peer, int tag, MessageCheck* check = nullptr);
  void post_receive(void* data, size_t bytes, int peer, int tag, MessageCheck* check = nullptr);
  template <typename Posting>
  void post(size_t bytes, int peer, bool is_send, MessageCheck* check, const Posting& posting);
  void part_over(MessageCheck& check, int peer);
  std::exception_ptr damaged(int peer, size_t bytes) const;

  Lane lane_;
  int pending_ = 0;
  std::exception_ptr error_;  // thrown where it is awaited: a wrong length before a wrong checksum
};

// A send queue. The operations in it send one after the other, in the order of issue: what is needed first arrives
// first, instead of sharing the wire with everything behind it.
class QueuedSend;
struct SendQueue {
  QueuedSend *first = nullptr, *last = nullptr;
};

// A place in a queue, taken where it is made: before the first suspension of an operation, so that all ranks have the
// same order. Lives in the frame of a coroutine; co_await continues when all before it have passed on. What an
// operation receives does not wait for its turn.
class QueuedSend : private Waiter {
 public:
  QueuedSend(const Lane& lane, SendQueue& queue);
  QueuedSend(const QueuedSend&) = delete;
  QueuedSend& operator=(const QueuedSend&) = delete;
  ~QueuedSend() { release(); }

  // The last message was posted: the next may begin. May be called again.
  void release();

  bool await_ready() const noexcept { return queue_->first == this; }
  void await_suspend(std::coroutine_handle<> awaiting) noexcept { waiter_ = awaiting; }
  void await_resume() const noexcept {}

 private:
  Progress::Core* core_;
  SendQueue* queue_;
  QueuedSend *before_ = nullptr, *behind_ = nullptr;
  bool passed_ = false;
};

// The largest single message: MPI counts are int.
inline constexpr size_t kLargestMessage = size_t{1} << 30;

// One message: an operation that needs no coroutine.
struct Transfer {
  bool is_send = false;
  void* data = nullptr;  // only read where it is sent
  size_t bytes = 0;      // at most kLargestMessage
  int peer = 0;          // world rank
  int tag = 0;
  SequencePlace place{};  // of a message that may start (sequence_window.h)
};

// The shortest nap, where a rank that wakes up takes the core from one that works.
inline constexpr std::chrono::microseconds kCrowdedSleep{250};
// An operation of so many bytes does not wait for the end of the thread's nap.
inline constexpr int64_t kWorthWaking = 8 << 20;

struct Progress::Core {
  using Clock = OperationSink::Clock;
  Core(Transport& transport, ProgressOptions options);
  ~Core();

  std::mutex mutex;  // the progress lock; all below is used under it, unless said otherwise
  Transport* transport;
  ProgressOptions options;
  BlockPool* pool;
  FlightRecorder recorder;
  OperationSink* sink = nullptr;
  RehearsalWatch* rehearsal_watch = nullptr;

  // A posted transfer; its place is the token. Without an owner it is all there is to its operation; without an
  // operation it was given up, or is free.
  struct Slot {
    Exchange* owner = nullptr;
    RunningOperation* operation = nullptr;
    size_t bytes = 0;
    int peer = -1;
    bool is_send = false;
    int next_free = -1;
    MessageCheck* check = nullptr;  // of a checked message, or of the part of it that this is
  };
  static constexpr size_t kPollBatch = 32;  // completions per poll: others get the progress lock in between
  std::array<Completion, kPollBatch> done;  // what the transport reports; here so that a poll need not clear it
  std::vector<Slot> slots;
  int free_slot = -1;
  RunningOperation *first_open = nullptr, *last_open = nullptr;
  RunningOperation* running = nullptr;  // whose coroutine runs now
  Waiter *first_ready = nullptr, *last_ready = nullptr;
  // By the communicator's number (and slot); here because operations may outlive it in an error.
  std::map<int, SendQueue> gathers;
  std::map<std::pair<int, uint32_t>, SendQueue> packing;
  StartQueue held;                     // tasks whose tags may still be in use
  std::exception_ptr failure;          // of the transport: nothing works any more
  std::vector<int64_t> waited_for_ns;  // by world rank; this and the next: Progress::take_waits
  int64_t waited_ns = 0;

  // Written under the progress lock, read by anybody.
  std::atomic<int> open{0}, waiters{0};
  std::atomic<int> wanted{0};  // threads that wait for the lock with an operation to issue: pollers make way
  std::atomic<uint64_t> issued{0};

  void start(RunningOperation& operation);
  // These two take the lock themselves.
  Ticket start(const Transfer& transfer, const OperationNote& note, WireCounters* counters);
  void drive(RunningOperation& operation);
  void give_up(RunningOperation& operation);
  bool poll();  // true: something moved
  void withdraw(Exchange& exchange);
  void make_ready(Waiter& waiter);    // goes on with the next poll
  void forget_ready(Waiter& waiter);  // it is going away
  void end_job(int code);             // the watchdog's end, without the progress lock
  int take_slot(const Slot& content);
  void free_up(int slot);

  // The thread that polls while nobody waits.
  enum class Rest : int { kAwake, kShort, kLong };
  std::atomic<Rest> rest{Rest::kAwake};
  std::atomic<bool> awaited_at_once{false};  // the last large operation: the thread was not needed
  std::mutex rest_mutex;
  std::condition_variable rest_wake;
  bool nudged = false, stop = false;
  std::thread thread;
  void run_thread();
  bool rest_for(Rest how, std::chrono::microseconds limit);
  void nudge();                                // any thread
  void wake_for(RunningOperation& operation);  // it was issued, and stayed open
  std::unique_ptr<Watchdog> watchdog;

 private:
  void enlist(RunningOperation& operation, Clock::time_point now);
  void run(RunningOperation& operation, std::coroutine_handle<> frame);
  void finish(RunningOperation& operation, std::exception_ptr error);
  void fail_all(std::exception_ptr error);
};

// Takes the progress lock to issue an operation: a thread that polls at full speed would hardly ever let go of it.
class IssueLock {
 public:
  explicit IssueLock(Progress::Core& core) : lock_(core.mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    core.wanted.fetch_add(1);
    lock_.lock();
    core.wanted.fetch_sub(1);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

inline BlockPool& Lane::pool() const {
  return *core->pool;
}

}  // namespace thinwire
