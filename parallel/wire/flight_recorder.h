// The last 256 operations of a rank, written under the progress lock and readable at any time by another thread.
//
// How Progress uses it, always under the progress lock. None of these calls locks or reads a clock twice, and memory is
// taken only when more transfers are open than ever before:
//   index = recorder.begin(note);                  an operation was issued
//   recorder.posted(index, token, peer);           a transfer of it with world rank `peer` was posted and is not over
//   recorder.over(token);                          ... it is over, and its token may be another's
//   recorder.finish(index) / finish(index, true);  the operation is over / has failed
//   recorder.enter_wait(index); recorder.leave_wait();  a thread of the program stands still for it
//   recorder.polled();                             the transport came back from a poll
// Every one of these calls but the last is a sign of life to the watchdog.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace thinwire {

struct OperationNote;

// One operation as the reader sees it.
struct FlightEntry {
  enum class State : uint8_t { kIssued, kDone, kError };
  uint64_t number = 0;     // counts the operations of this rank from 0
  const char* label = "";  // who issued it: "dp.gradient"
  const char* verb = "";
  int group = 0;
  int peer = -1;  // world rank for send / receive, -1 for collectives
  uint32_t sequence = 0;
  int64_t bytes = 0;
  State state = State::kIssued;
  int64_t issued_ns = 0, done_ns = 0;  // steady clock; done_ns 0 while open
  std::vector<int> missing;            // world ranks with which a transfer is still open, ascending
};

// Open transfers by their tokens, which are small numbers. One writer at a time; read by any thread at any time.
class OpenTransfers {
 public:
  OpenTransfers() { grow(64); }
  void open(uint32_t token, uint64_t operation, int peer) {
    set(token, (operation + 1) << kPeerBits | static_cast<uint64_t>(peer));
  }
  void close(uint32_t token) { set(token, 0); }
  std::vector<int> peers(uint64_t operation) const;  // ascending, each once

 private:
  // A cell: number of the operation + 1 | peer; 0: nothing is open.
  static constexpr int kPeerBits = 24;
  struct Table {
    size_t size;
    std::unique_ptr<std::atomic<uint64_t>[]> cells;
  };
  void set(uint32_t token, uint64_t cell);
  const Table* grow(size_t size);

  std::vector<std::unique_ptr<Table>> tables_;  // the last is in use; a reader may still be in an older one
  std::atomic<const Table*> table_{nullptr};
};

class FlightRecorder {
 public:
  static constexpr int kEntries = 256;
  FlightRecorder() = default;
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // The writer's side: under the progress lock.
  // `now`: from callers that have just read the clock, since a reading costs as much as everything else here.
  using Clock = std::chrono::steady_clock;
  uint64_t begin(const OperationNote& note, Clock::time_point now = Clock::now());
  void posted(uint64_t index, uint32_t token, int peer);
  void over(uint32_t token);
  void finish(uint64_t index, bool failed = false, Clock::time_point now = Clock::now());
  void enter_wait(uint64_t index);
  void leave_wait();
  void polled() { polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  // What the rank does outside communication; cut at 119 bytes. Any thread, no lock.
  void set_activity(const std::string& text);
  std::string activity() const;

  // The reader's side: any thread, at any time.
  uint64_t signs_of_life() const { return signs_.load(std::memory_order_relaxed); }
  uint64_t polls() const { return polls_.load(std::memory_order_relaxed); }
  int open_operations() const { return open_.load(std::memory_order_relaxed); }
  int waiting_threads() const { return waiters_.load(std::memory_order_relaxed); }
  // Number of the operation that a thread entered its wait for last.
  uint64_t waited_number() const { return waited_.load(std::memory_order_relaxed) / kEntries; }
  // In order of issue. An entry that is overwritten while it is read is left out. Open operations stay in the record
  // while no more than 256 are open.
  std::vector<FlightEntry> read() const;

 private:
  struct Entry {
    std::atomic<uint32_t> version{0};  // odd while begin() fills the entry, 0 before its first use
    std::atomic<uint64_t> number{0};
    std::atomic<const char*> label{""}, verb{nullptr};
    std::atomic<int64_t> bytes{0}, issued_ns{0}, done_ns{0};
    std::atomic<uint32_t> sequence{0};
    std::atomic<int> group{0}, peer{-1};
    std::atomic<FlightEntry::State> state{FlightEntry::State::kDone};
  };
  Entry* entry_of(uint64_t index);  // nullptr when its place was given away
  void sign() { signs_.store(signs_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  std::array<Entry, kEntries> entries_;
  OpenTransfers transfers_;
  uint64_t next_ = 0;  // number of the next operation
  int place_ = 0;      // of the entry where the search for a free one starts
  std::atomic<uint64_t> signs_{0}, waited_{0}, polls_{0};
  std::atomic<int> open_{0}, waiters_{0};
  mutable std::mutex activity_mutex_;
  std::array<char, 120> activity_{};
};

}  // namespace thinwire
