// The ring of the last operations: entries are replaced under a version number, so that a reader never mixes two.
#include "parallel/wire/flight_recorder.h"

#include <algorithm>
#include <cstring>

#include "engine/base/core/check.h"
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

constexpr uint64_t kCountMask = 0xffffffff;

uint32_t key_in(uint64_t cell) {
  return static_cast<uint32_t>(cell >> 32);
}

size_t home_of(uint32_t key, size_t mask) {
  return (key * 0x9E3779B97F4A7C15u >> 32) & mask;
}

}  // namespace

// --- OpenTransfers ----------------------------------------------------------------------------------------------

std::atomic<uint64_t>& OpenTransfers::Table::find(uint32_t key) const {
  for (size_t i = home_of(key, mask);; i = (i + 1) & mask) {
    const uint64_t cell = cells[i].load(kRelaxed);
    if (cell == 0 || key_in(cell) == key) return cells[i];
  }
}

void OpenTransfers::add(int entry, int peer) {
  const Table* table = table_.load(kRelaxed);
  std::atomic<uint64_t>* cell = &table->find(key_of(entry, peer));
  if (const uint64_t value = cell->load(kRelaxed); value != 0) return cell->store(value + 1, kRelaxed);
  if (2 * (used_ + 1) > table->mask) {
    grow(2 * (table->mask + 1));
    cell = &table_.load(kRelaxed)->find(key_of(entry, peer));
  }
  cell->store(uint64_t{key_of(entry, peer)} << 32 | 1, kRelaxed);
  ++used_;
}

bool OpenTransfers::remove(int entry, int peer) {
  const Table* table = table_.load(kRelaxed);
  std::atomic<uint64_t>& cell = table->find(key_of(entry, peer));
  const uint64_t value = cell.load(kRelaxed);
  if (value == 0) return false;
  if ((value & kCountMask) > 1) {
    cell.store(value - 1, kRelaxed);
  } else {
    erase(*table, static_cast<size_t>(&cell - table->cells.get()));
  }
  return true;
}

// Cells behind the hole move up as long as a search for them would otherwise end in it.
void OpenTransfers::erase(const Table& table, size_t hole) {
  for (size_t i = (hole + 1) & table.mask;; i = (i + 1) & table.mask) {
    const uint64_t cell = table.cells[i].load(kRelaxed);
    if (cell == 0) break;
    if (((i - home_of(key_in(cell), table.mask)) & table.mask) < ((i - hole) & table.mask)) continue;
    table.cells[hole].store(cell, kRelaxed);
    hole = i;
  }
  table.cells[hole].store(0, kRelaxed);
  --used_;
}

void OpenTransfers::clear(int entry) {
  const Table* table = table_.load(kRelaxed);
  for (size_t i = 0; i <= table->mask;) {
    const uint64_t cell = table->cells[i].load(kRelaxed);
    if (cell != 0 && key_in(cell) >> 24 == static_cast<uint32_t>(entry)) {
      erase(*table, i);  // something else may stand here now
    } else {
      ++i;
    }
  }
}

std::vector<int> OpenTransfers::peers(int entry) const {
  const Table* table = table_.load(kAcquire);
  std::vector<int> list;
  for (size_t i = 0; i <= table->mask; ++i) {
    const uint64_t cell = table->cells[i].load(kAcquire);
    if (cell != 0 && key_in(cell) >> 24 == static_cast<uint32_t>(entry))
      list.push_back(static_cast<int>(key_in(cell) & 0xffffff));
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());  // a cell that moved is seen twice
  return list;
}

void OpenTransfers::grow(size_t cells) {
  auto larger = std::make_unique<Table>(Table{cells - 1, std::make_unique<std::atomic<uint64_t>[]>(cells)});
  if (const Table* table = table_.load(kRelaxed); table != nullptr) {
    for (size_t i = 0; i <= table->mask; ++i) {
      const uint64_t cell = table->cells[i].load(kRelaxed);
      if (cell != 0) larger->find(key_in(cell)).store(cell, kRelaxed);
    }
  }
  table_.store(larger.get(), kRelease);
  tables_.push_back(std::move(larger));
}

size_t OpenTransfers::bytes() const {
  size_t total = 0;
  for (const auto& table : tables_) total += (table->mask + 1) * sizeof(uint64_t);
  return total;
}

// --- FlightRecorder ---------------------------------------------------------------------------------------------

FlightRecorder::FlightRecorder(int world_size) : world_size_(world_size) {
  TW_CHECK(world_size > 0 && world_size <= 1 << 24);
}

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
  if (e.transfers.load(kRelaxed) != 0) {
    transfers_.clear(place);
    e.transfers.store(0, kRelaxed);
  }
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

void FlightRecorder::waiting_for(uint64_t index, int peer, bool waiting) {
  sign();
  Entry* entry = entry_of(index);
  if (entry == nullptr || peer < 0 || peer >= world_size_) return;
  const int place = static_cast<int>(index % kEntries);
  if (waiting) {
    transfers_.add(place, peer);
  } else if (!transfers_.remove(place, peer)) {
    return;
  }
  add(entry->transfers, waiting ? 1 : -1);
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
    if (out.state == FlightEntry::State::kIssued && e.transfers.load(kAcquire) != 0)
      out.missing = transfers_.peers(place);
    if (e.version.load(kRelaxed) == version) list.push_back(std::move(out));
  }
  std::sort(list.begin(), list.end(), [](const FlightEntry& a, const FlightEntry& b) { return a.number < b.number; });
  return list;
}

}  // namespace thinwire
