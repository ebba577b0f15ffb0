// Rings of cells: who fills, who empties, what waits for its receive, and who is woken.
#include "parallel/wire/transport_node.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cstring>
#include <new>
#include <optional>

#include "engine/base/core/check.h"

namespace thinwire {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free);

constexpr size_t kCellBytes = 16384, kSmallCellBytes = 2048;
constexpr int kFewRanks = 16;            // up to here cells are large
constexpr size_t kAllQueues = 32 << 20;  // bytes, where that leaves a queue its smallest size
constexpr int kMostCells = 32, kFewestCells = 4;
constexpr int kRounds = 8;               // of one poll over all queues, while nothing comes
constexpr uint32_t kPollsBeneath = 512;  // so many polls of the queues for one of the transport beneath
constexpr size_t kSpareBytes = 64 << 20;

// Where a rank's threads sleep. The bell is a futex word: every ring changes it.
struct alignas(64) Seat {
  std::atomic<uint32_t> sleepers, bell;
};

// taken: cells that the receiver has emptied since the start; blocked: the sender found no room. A line each: they are
// written by different ranks.
struct QueueState {
  alignas(64) std::atomic<uint32_t> taken;
  alignas(64) std::atomic<uint32_t> blocked;
};

// Full, and the receiver's, when turn is its position in the stream of cells + 1. tag and total stand in the first cell
// of a message; a message that fits lies in `small` and costs one line of cache.
struct alignas(64) Header {
  std::atomic<uint32_t> turn;
  int32_t tag;
  uint64_t total;
  char small[48];
};
static_assert(sizeof(Header) == 64);

struct Geometry {
  explicit Geometry(int ranks_) : ranks(ranks_) {
    TW_CHECK(ranks >= 2 && ranks <= kMostNodeRanks, ranks, " ranks on a node");
    const size_t pairs = static_cast<size_t>(ranks) * static_cast<size_t>(ranks - 1);
    cell_bytes = ranks <= kFewRanks ? kCellBytes : kSmallCellBytes;
    cells = std::clamp(static_cast<int>(std::bit_floor(kAllQueues / pairs / cell_bytes)), kFewestCells, kMostCells);
  }
  int ranks, cells;
  size_t cell_bytes;
  size_t queue_bytes() const { return sizeof(QueueState) + static_cast<size_t>(cells) * (sizeof(Header) + cell_bytes); }
  size_t seats() const { return static_cast<size_t>(ranks) * sizeof(Seat); }
  // The queue of the messages from one to another.
  size_t queue_at(int from, int to) const {
    const int place = from * (ranks - 1) + (to < from ? to : to - 1);
    return seats() + static_cast<size_t>(place) * queue_bytes();
  }
  size_t bytes() const { return queue_at(ranks - 1, ranks - 2) + queue_bytes(); }
};

struct CellQueue {
  QueueState* state = nullptr;
  Header* headers = nullptr;
  char* cells = nullptr;
  uint32_t mask = 0;
  size_t cell_bytes = 0;

  CellQueue(char* memory, const Geometry& geometry, int from, int to) {
    char* at = memory + geometry.queue_at(from, to);
    state = reinterpret_cast<QueueState*>(at);
    headers = reinterpret_cast<Header*>(at + sizeof(QueueState));
    cells = at + sizeof(QueueState) + static_cast<size_t>(geometry.cells) * sizeof(Header);
    mask = static_cast<uint32_t>(geometry.cells) - 1;
    cell_bytes = geometry.cell_bytes;
  }
  uint32_t size() const { return mask + 1; }
  Header& header(uint32_t position) const { return headers[position & mask]; }
  // Where the bytes of a cell lie, in a message of so many.
  char* bytes(uint32_t position, size_t total) const {
    return total <= sizeof(Header::small) ? header(position).small : cells + (position & mask) * cell_bytes;
  }
};

// A message on its way out.
struct Sending {
  const char* data;
  size_t total, sent;
  int tag;
  uint32_t token;
  std::unique_ptr<char[]> own;  // the bytes of one that was given up when half of it was gone
  bool given_up = false;
};

struct Receiving {
  char* data;
  size_t bytes;
  int tag;
  uint32_t token;
};

struct Bytes {
  std::unique_ptr<char[]> start;
  size_t size = 0;
};

// A message on its way in, or in and not asked for yet.
struct Arrival {
  enum class For { kReceive, kNobodyYet, kDropped };  // dropped: its receive was given up
  For whom;
  int tag;
  size_t total, got;
  char* to;
  uint32_t token;
  Bytes kept;
};

struct Outbox {
  Outbox(CellQueue queue_, Seat* seat_) : queue(queue_), seat(seat_) {}
  CellQueue queue;
  Seat* seat;                    // of the receiver
  uint32_t next = 0, taken = 0;  // positions: to fill; emptied, as last seen
  std::vector<Sending> waiting;
};

struct Inbox {
  Inbox(CellQueue queue_, Seat* seat_) : queue(queue_), seat(seat_) {}
  CellQueue queue;
  Seat* seat;  // of the sender
  uint32_t next = 0;
  std::vector<Receiving> receives;
  std::optional<Arrival> current;
  std::vector<Arrival> unasked;  // whole, in order of arrival
};

void ring_bell(Seat& seat) {
  if (seat.sleepers.load() == 0) return;
  seat.bell.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&seat.bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

class NodeTransport final : public Transport {
 public:
  NodeTransport(std::unique_ptr<Transport> beneath, const std::vector<int>& ranks, std::shared_ptr<void> memory)
      : beneath_(std::move(beneath)), memory_(std::move(memory)), seat_of_(static_cast<size_t>(beneath_->size()), -1) {
    const Geometry geometry(static_cast<int>(ranks.size()));
    auto* start = static_cast<char*>(memory_.get());
    auto* seats = reinterpret_cast<Seat*>(start);
    int me = -1;
    for (int i = 0; i < geometry.ranks; ++i) {
      seat_of_.at(static_cast<size_t>(ranks[static_cast<size_t>(i)])) = i;
      if (ranks[static_cast<size_t>(i)] == beneath_->rank()) me = i;
    }
    TW_CHECK(me >= 0, "rank ", beneath_->rank(), " is not on its node");
    seat_of_[static_cast<size_t>(beneath_->rank())] = -1;  // a message to itself: beneath refuses it
    my_seat_ = &seats[me];
    for (int i = 0; i < geometry.ranks; ++i) {
      const int other = i == me ? (me == 0 ? 1 : 0) : i;  // a rank has no queue to itself: its own place is never used
      out_.emplace_back(CellQueue(start, geometry, me, other), &seats[other]);
      in_.emplace_back(CellQueue(start, geometry, other, me), &seats[other]);
    }
  }

  int rank() const override { return beneath_->rank(); }
  int size() const override { return beneath_->size(); }

  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    const int seat = seat_of(peer);
    if (seat < 0) return count_beneath(beneath_->post_send(data, bytes, peer, tag, token));
    TW_CHECK(tag >= 0 && tag < kTags, "tag ", tag);
    Outbox& box = out_[static_cast<size_t>(seat)];
    Sending message{static_cast<const char*>(data), bytes, 0, tag, token, nullptr};
    if (box.waiting.empty() && fill(box, message)) return true;
    box.waiting.push_back(std::move(message));
    sending_ |= uint64_t{1} << seat;
    return false;
  }

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    const int seat = seat_of(peer);
    if (seat < 0) return count_beneath(beneath_->post_receive(data, bytes, peer, tag, token));
    TW_CHECK(tag >= 0 && tag < kTags, "tag ", tag);
    Inbox& box = in_[static_cast<size_t>(seat)];
    const Receiving receive{static_cast<char*>(data), bytes, tag, token};
    const auto kept = std::find_if(box.unasked.begin(), box.unasked.end(), [&](auto& a) { return a.tag == tag; });
    if (kept != box.unasked.end()) {
      check_fits(*kept, receive, peer);
      const size_t total = kept->total;
      if (total > 0) std::memcpy(data, kept->kept.start.get(), total);
      give_back(std::move(kept->kept));
      box.unasked.erase(kept);
      if (total == bytes) return true;
      finished_.push_back({token, total});  // shorter than it might be: only a completion can say so
      return false;
    }
    if (box.current && box.current->whom == Arrival::For::kNobodyYet && box.current->tag == tag) {
      Arrival& arrival = *box.current;
      check_fits(arrival, receive, peer);
      std::memcpy(data, arrival.to, arrival.got);
      give_back(std::move(arrival.kept));
      arrival.whom = Arrival::For::kReceive;
      arrival.to = receive.data;
      arrival.token = token;
      return false;
    }
    box.receives.push_back(receive);
    expecting_ |= uint64_t{1} << seat;
    return false;
  }

  size_t poll(std::span<Completion> done) override {
    size_t n = 0;
    for (; n < done.size() && !finished_.empty(); finished_.pop_back()) done[n++] = finished_.back();
    const int rounds = open_beneath_ > 0 ? 1 : kRounds;  // the transport beneath has rounds of its own
    for (int round = 0; round < rounds && n == 0; ++round) {
      for (uint64_t left = sending_; left != 0 && n < done.size(); left &= left - 1)
        n += send_on(std::countr_zero(left), done.subspan(n));
      for (uint64_t left = expecting_; left != 0 && n < done.size(); left &= left - 1)
        n += empty(std::countr_zero(left), done.subspan(n));
      if (n == done.size() || !is_beneath_due()) continue;
      const size_t more = beneath_->poll(done.subspan(n));
      open_beneath_ -= static_cast<int>(more);
      n += more;
    }
    return n;
  }

  bool withdraw(uint32_t token) noexcept override {
    if (std::erase_if(finished_, [token](const Completion& c) { return c.token == token; }) > 0) return true;
    for (Inbox& box : in_) {
      if (std::erase_if(box.receives, [token](const Receiving& r) { return r.token == token; }) > 0) return true;
      if (!box.current || box.current->whom != Arrival::For::kReceive || box.current->token != token) continue;
      box.current->whom = Arrival::For::kDropped;
      return true;
    }
    for (Outbox& box : out_) {
      const auto found = std::find_if(box.waiting.begin(), box.waiting.end(),
                                      [token](const Sending& s) { return s.token == token && !s.given_up; });
      if (found == box.waiting.end()) continue;
      if (found->sent == 0) {
        box.waiting.erase(found);
        return true;
      }
      // The receiver was promised the rest.
      found->own.reset(new (std::nothrow) char[found->total]);
      if (found->own == nullptr) return false;  // its memory is read on
      std::memcpy(found->own.get(), found->data, found->total);
      found->data = found->own.get();
      found->given_up = true;
      return true;
    }
    const bool gone = beneath_->withdraw(token);
    if (gone) --open_beneath_;
    return gone;
  }

  uint32_t listen() override {
    poll_beneath_.store(true, std::memory_order_relaxed);
    my_seat_->sleepers.fetch_add(1);
    return my_seat_->bell.load();
  }
  void sleep(uint32_t heard, std::chrono::microseconds limit) override {
    const timespec request{limit.count() / 1000000, (limit.count() % 1000000) * 1000};
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&my_seat_->bell), FUTEX_WAIT, heard, &request, nullptr, 0);
  }
  void stop_listening() override { my_seat_->sleepers.fetch_sub(1); }
  void wake() override { ring_bell(*my_seat_); }
  bool all_wake() const override { return open_beneath_ == 0; }

  [[noreturn]] void abort(int code) override {
    beneath_->abort(code);
    std::terminate();  // abort() does not return
  }

 private:
  int seat_of(int peer) const {
    TW_CHECK(peer >= 0 && peer < size() && peer != rank(), "rank ", rank(), " of ", size(), " and its peer ", peer);
    return seat_of_[static_cast<size_t>(peer)];
  }
  bool count_beneath(bool over) {
    open_beneath_ += over ? 0 : 1;
    return over;
  }
  static void check_fits(const Arrival& arrival, const Receiving& receive, int peer) {
    TW_CHECK(arrival.total <= receive.bytes, "rank ", peer, " sent ", arrival.total, " bytes into a receive of ",
             receive.bytes);
  }

  // The transport beneath is polled now and then, and before every sleep, with nothing of its own open, too: it may
  // still have to send on what it has called sent, and it tells of failures.
  bool is_beneath_due() {
    if (open_beneath_ > 0) return true;
    if (++polls_ % kPollsBeneath != 0 && !poll_beneath_.load(std::memory_order_relaxed)) return false;
    poll_beneath_.store(false, std::memory_order_relaxed);
    return true;
  }

  // Writes as many cells of a message as there is room for, one queue's length at most: a rank that sends a long
  // message has to empty its own queues in between. True when all of the message lies in the queue.
  bool fill(Outbox& box, Sending& message) {
    bool over = false;
    const uint32_t before = box.next, end = before + box.queue.size();
    while (!over && box.next != end) {
      if (box.next - box.taken == box.queue.size()) {
        box.taken = box.queue.state->taken.load(std::memory_order_acquire);
        if (box.next - box.taken == box.queue.size()) {
          // Asks for a bell when there is room, and reads once more. A receiver that emptied its cell just before may
          // not see the request; then the limit of the sleep ends it.
          box.queue.state->blocked.store(1);
          box.taken = box.queue.state->taken.load();
          if (box.next - box.taken == box.queue.size()) break;
        }
      }
      Header& header = box.queue.header(box.next);
      const size_t bytes = std::min(message.total - message.sent, box.queue.cell_bytes);
      if (message.sent == 0) {
        header.tag = message.tag;
        header.total = message.total;
      }
      if (bytes > 0) std::memcpy(box.queue.bytes(box.next, message.total), message.data + message.sent, bytes);
      message.sent += bytes;
      over = message.sent == message.total;
      // The last cell is written before the sleepers are read, in that order for all: a receiver that falls asleep has
      // seen the cell, or is seen as a sleeper.
      ++box.next;
      header.turn.store(box.next, over || box.next == end ? std::memory_order_seq_cst : std::memory_order_release);
    }
    if (box.next != before) ring_bell(*box.seat);
    // The call ends at its limit and has asked nobody for a bell: this rank rings its own, so that no sleep begins.
    if (!over && box.next == end) my_seat_->bell.fetch_add(1);
    return over;
  }

  size_t send_on(int seat, std::span<Completion> done) {
    Outbox& box = out_[static_cast<size_t>(seat)];
    size_t n = 0;
    while (!box.waiting.empty() && n < done.size() && fill(box, box.waiting.front())) {
      const Sending& message = box.waiting.front();
      if (!message.given_up) done[n++] = {message.token, message.total};
      box.waiting.erase(box.waiting.begin());
    }
    if (box.waiting.empty()) sending_ &= ~(uint64_t{1} << seat);
    return n;
  }

  // A queue's length at most, so that a sender who never stops does not keep the others waiting.
  size_t empty(int seat, std::span<Completion> done) {
    Inbox& box = in_[static_cast<size_t>(seat)];
    size_t n = 0;
    const uint32_t before = box.next;
    while (n < done.size() && box.next - before < box.queue.size()) {
      // Without a posted receive what has come may wait in its queue.
      if (!box.current && box.receives.empty()) {
        expecting_ &= ~(uint64_t{1} << seat);
        break;
      }
      Header& header = box.queue.header(box.next);
      if (header.turn.load() != box.next + 1) break;
      if (!box.current) begin(box, header, world_rank(seat));
      Arrival& arrival = *box.current;
      const size_t bytes = std::min(arrival.total - arrival.got, box.queue.cell_bytes);
      if (arrival.whom != Arrival::For::kDropped && bytes > 0)
        std::memcpy(arrival.to + arrival.got, box.queue.bytes(box.next, arrival.total), bytes);
      arrival.got += bytes;
      box.queue.state->taken.store(++box.next, std::memory_order_release);
      if (arrival.got < arrival.total) continue;
      if (arrival.whom == Arrival::For::kReceive) done[n++] = {arrival.token, arrival.total};
      if (arrival.whom == Arrival::For::kNobodyYet) box.unasked.push_back(std::move(arrival));
      box.current.reset();
    }
    if (box.next != before && box.queue.state->blocked.load(std::memory_order_relaxed) != 0) {
      box.queue.state->blocked.store(0, std::memory_order_relaxed);
      ring_bell(*box.seat);
    }
    return n;
  }

  void begin(Inbox& box, const Header& header, int peer) {
    Arrival arrival{Arrival::For::kReceive, header.tag, header.total, 0, nullptr, 0, {}};
    const auto asked =
        std::find_if(box.receives.begin(), box.receives.end(), [&](auto& r) { return r.tag == header.tag; });
    if (asked == box.receives.end()) {
      arrival.whom = Arrival::For::kNobodyYet;
      arrival.kept = take(arrival.total);
      arrival.to = arrival.kept.start.get();
    } else {
      check_fits(arrival, *asked, peer);
      arrival.to = asked->data;
      arrival.token = asked->token;
      box.receives.erase(asked);
    }
    box.current = std::move(arrival);
  }

  // Memory for what nobody has asked for yet is used again: in the steady state of a run the same messages come early.
  Bytes take(size_t size) {
    for (auto bytes = spare_.begin(); bytes != spare_.end(); ++bytes) {
      if (bytes->size < size || bytes->size > 4 * size + kCellBytes) continue;
      Bytes taken = std::move(*bytes);
      spare_bytes_ -= taken.size;
      spare_.erase(bytes);
      return taken;
    }
    const size_t whole = std::bit_ceil(std::max<size_t>(size, 64));
    return {std::make_unique_for_overwrite<char[]>(whole), whole};
  }
  void give_back(Bytes bytes) {
    if (bytes.size > kSpareBytes) return;
    for (; spare_bytes_ + bytes.size > kSpareBytes; spare_.erase(spare_.begin())) spare_bytes_ -= spare_.front().size;
    spare_bytes_ += bytes.size;
    spare_.push_back(std::move(bytes));
  }

  int world_rank(int seat) const {
    return static_cast<int>(std::find(seat_of_.begin(), seat_of_.end(), seat) - seat_of_.begin());
  }

  std::unique_ptr<Transport> beneath_;
  std::shared_ptr<void> memory_;
  std::vector<int> seat_of_;  // per world rank: place on this node, -1: not there, or this rank itself
  Seat* my_seat_ = nullptr;
  std::vector<Outbox> out_;  // by place on the node
  std::vector<Inbox> in_;
  uint64_t sending_ = 0, expecting_ = 0;  // bit per place: boxes that a poll visits
  std::vector<Completion> finished_;      // over when they were posted
  std::vector<Bytes> spare_;
  size_t spare_bytes_ = 0;
  int open_beneath_ = 0;
  uint32_t polls_ = 0;
  std::atomic<bool> poll_beneath_{false};
};

}  // namespace

size_t node_memory_bytes(int ranks) {
  return Geometry(ranks).bytes();
}

std::unique_ptr<Transport> node_transport(std::unique_ptr<Transport> beneath, const std::vector<int>& ranks,
                                          std::shared_ptr<void> memory) {
  return std::make_unique<NodeTransport>(std::move(beneath), ranks, std::move(memory));
}

}  // namespace thinwire
