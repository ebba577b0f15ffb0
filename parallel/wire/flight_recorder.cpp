// The ring of the last operations: entries are replaced under a version number, so that a reader never mixes two.
#include "parallel/wire/flight_recorder.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "parallel/wire/progress.h"

namespace thinwire {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

int64_t in_ns(FlightRecorder::Clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
}

// There is one writer at a time: no read-modify-write is needed, and none is paid for.
template <typename T>
void add(std::atomic<T>& value, int delta) {
  value.store(static_cast<T>(value.load(kRelaxed) + delta), kRelaxed);
}

}  // namespace

// --- OpenTransfers ----------------------------------------------------------------------------------------------

void OpenTransfers::set(uint32_t token, uint64_t cell) {
  const Table* table = table_.load(kRelaxed);
  if (token >= table->size) table = grow(std::bit_ceil(size_t{token} + 1));
  table->cells[token].store(cell, kRelaxed);
}

std::vector<int> OpenTransfers::peers(uint64_t operation) const {
  const Table* table = table_.load(kAcquire);
  std::vector<int> list;
  for (size_t i = 0; i < table->size; ++i) {
    const uint64_t cell = table->cells[i].load(kAcquire);
    if (cell >> kPeerBits == operation + 1) list.push_back(static_cast<int>(cell & ((1 << kPeerBits) - 1)));
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

const OpenTransfers::Table* OpenTransfers::grow(size_t size) {
  auto larger = std::make_unique<Table>(Table{size, std::make_unique<std::atomic<uint64_t>[]>(size)});
  if (const Table* table = table_.load(kRelaxed); table != nullptr)
    for (size_t i = 0; i < table->size; ++i) larger->cells[i].store(table->cells[i].load(kRelaxed), kRelaxed);
  table_.store(larger.get(), kRelease);
  tables_.push_back(std::move(larger));
  return tables_.back().get();
}

// --- FlightRecorder ---------------------------------------------------------------------------------------------

FlightRecorder::Entry* FlightRecorder::entry_of(uint64_t index) {
  Entry& entry = entries_[index % kEntries];
  return entry.number.load(kRelaxed) == index / kEntries ? &entry : nullptr;
}

uint64_t FlightRecorder::begin(const OperationNote& note, Clock::time_point now) {
  // The oldest place whose operation is over; with 256 open ones the oldest of all.
  int place = place_;
  for (int tries = 0; tries < kEntries && entries_[place].state.load(kRelaxed) == FlightEntry::State::kIssued; ++tries)
    place = (place + 1) % kEntries;
  place_ = (place + 1) % kEntries;
  Entry& e = entries_[place];
  // A reader that sees any of the values stored below (release) and then looks at the version sees that it changed.
  const uint32_t version = e.version.load(kRelaxed);
  e.version.store(version + 1, kRelaxed);
  e.number.store(next_, kRelease);
  e.verb.store(note.verb, kRelease);
  e.bytes.store(note.bytes, kRelease);
  e.issued_ns.store(in_ns(now), kRelease);
  e.done_ns.store(0, kRelease);
  e.sequence.store(note.sequence, kRelease);
  e.group.store(note.group, kRelease);
  e.peer.store(note.peer, kRelease);
  e.label.store(note.label.name, kRelease);
  e.state.store(FlightEntry::State::kIssued, kRelease);
  e.version.store(version + 2, kRelease);
  add(open_, 1);
  sign();
  return next_++ * kEntries + static_cast<uint64_t>(place);
}

void FlightRecorder::posted(uint64_t index, uint32_t token, int peer) {
  sign();
  transfers_.open(token, index / kEntries, peer);
}

void FlightRecorder::over(uint32_t token) {
  sign();
  transfers_.close(token);
}

void FlightRecorder::finish(uint64_t index, bool failed, Clock::time_point now) {
  sign();
  add(open_, -1);
  Entry* entry = entry_of(index);
  if (entry == nullptr) return;
  entry->done_ns.store(in_ns(now), kRelaxed);
  entry->state.store(failed ? FlightEntry::State::kError : FlightEntry::State::kDone, kRelaxed);
}

void FlightRecorder::enter_wait(uint64_t index) {
  waited_.store(index, kRelaxed);
  add(waiters_, 1);
  sign();
}

void FlightRecorder::leave_wait() {
  add(waiters_, -1);
  sign();
}

void FlightRecorder::set_activity(const std::string& text) {
  std::lock_guard lock(activity_mutex_);
  const size_t n = std::min(text.size(), activity_.size() - 1);
  std::memcpy(activity_.data(), text.data(), n);
  activity_[n] = '\0';
}

std::string FlightRecorder::activity() const {
  const std::unique_lock lock(activity_mutex_, std::try_to_lock);
  return lock ? activity_.data() : "";  // the watchdog waits for no lock
}

std::vector<FlightEntry> FlightRecorder::read() const {
  std::vector<FlightEntry> list;
  list.reserve(kEntries);
  for (int place = 0; place < kEntries; ++place) {
    const Entry& e = entries_[place];
    const uint32_t version = e.version.load(kAcquire);
    if (version == 0 || version % 2 != 0) continue;
    FlightEntry out;
    out.number = e.number.load(kAcquire);
    out.verb = e.verb.load(kAcquire);
    out.bytes = e.bytes.load(kAcquire);
    out.issued_ns = e.issued_ns.load(kAcquire);
    out.done_ns = e.done_ns.load(kAcquire);
    out.sequence = e.sequence.load(kAcquire);
    out.group = e.group.load(kAcquire);
    out.peer = e.peer.load(kAcquire);
    out.label = e.label.load(kAcquire);
    out.state = e.state.load(kAcquire);
    if (out.state == FlightEntry::State::kIssued) out.missing = transfers_.peers(out.number);
    if (e.version.load(kRelaxed) == version) list.push_back(std::move(out));
  }
  std::sort(list.begin(), list.end(), [](const FlightEntry& a, const FlightEntry& b) { return a.number < b.number; });
  return list;
}

}  // namespace thinwire
