// Exchange: messages of a coroutine, posted, counted, and proved by their checksums where they carry one.
#include <bit>
#include <cstring>
#include <span>
#include <string>

#include "engine/base/core/crc32c.h"
#include "engine/base/core/error.h"
#include "parallel/wire/progress_core.h"

namespace thinwire {

// The checksum of a message under way, in a block of the pool; with room for the message behind it where that is
// copied.
struct MessageCheck {
  BlockPool* pool;
  char* data;    // where it is received; nullptr: it is sent
  size_t bytes;  // of the message
  int parts;     // messages under way: two where the checksum arrives by itself
  bool copied;   // the message and its checksum are one message, from and to copy()
  uint32_t sum;  // beside a message that is not copied

  static MessageCheck* make(BlockPool& pool, char* data, size_t bytes) {
    const bool copied = bytes <= kCheckedCopy;
    return new (pool.allocate(room(bytes, copied)))
        MessageCheck{&pool, data, bytes, data != nullptr && !copied ? 2 : 1, copied, 0};
  }
  static size_t room(size_t bytes, bool copied) {
    return sizeof(MessageCheck) + (copied ? bytes + kChecksumOfMessage : 0);
  }
  char* copy() { return reinterpret_cast<char*>(this + 1); }
  static uint32_t sum_of(const char* data, size_t bytes) { return crc32c(std::as_bytes(std::span(data, bytes))); }
  void seal(const void* message) {
    std::memcpy(copy(), message, bytes);
    sum = sum_of(copy(), bytes);
    std::memcpy(copy() + bytes, &sum, sizeof sum);
  }
  // Of a message that is here: whether it is what was sent. It is stored only then, where it was copied.
  bool take() {
    if (!copied) return sum_of(data, bytes) == sum;
    std::memcpy(&sum, copy() + bytes, sizeof sum);
    if (sum_of(copy(), bytes) != sum) return false;
    std::memcpy(data, copy(), bytes);
    return true;
  }
  // A part is over; the last one takes the block.
  void drop() {
    if (--parts == 0) pool->release(this, room(bytes, copied));
  }
};
static_assert(sizeof(MessageCheck::sum) == kChecksumOfMessage && std::endian::native == std::endian::little);

void drop(MessageCheck& check) {
  check.drop();
}

template <typename Posting>
void Exchange::post(size_t bytes, int peer, bool is_send, MessageCheck* check, const Posting& posting) {
  Progress::Core& core = *lane_.core;
  operation_ = core.running;
  const int slot = core.take_slot({this, operation_, bytes, peer, is_send, -1, check});
  bool over = false;
  try {
    over = posting(static_cast<uint32_t>(slot));
  } catch (...) {
    core.free_up(slot);  // or a slot that was never posted is taken for one that was
    if (check != nullptr) check->drop();
    throw;
  }
  if (over) {
    core.free_up(slot);
    if (check != nullptr) part_over(*check, peer);
    return;
  }
  ++pending_;
  core.recorder.posted(operation_->flight_, static_cast<uint32_t>(slot), peer);
}

void Exchange::post_send(const void* data, size_t bytes, int peer, int tag, MessageCheck* check) {
  post(bytes, peer, true, check,
       [&](uint32_t token) { return lane_.core->transport->post_send(data, bytes, peer, tag, token); });
}

void Exchange::post_receive(void* data, size_t bytes, int peer, int tag, MessageCheck* check) {
  post(bytes, peer, false, check,
       [&](uint32_t token) { return lane_.core->transport->post_receive(data, bytes, peer, tag, token); });
}

void Exchange::send(const void* data, size_t bytes, Peer peer, int tag) {
  const bool checked = peer.checked && bytes > 0;
  count_sent(lane_.counters, bytes, checked ? kChecksumOfMessage : 0);
  if (!checked) return post_send(data, bytes, peer.rank, tag);
  MessageCheck& check = *MessageCheck::make(*lane_.core->pool, nullptr, bytes);
  if (check.copied) {
    check.seal(data);
    return post_send(check.copy(), bytes + kChecksumOfMessage, peer.rank, tag, &check);
  }
  try {
    post_send(data, bytes, peer.rank, tag);  // travels while the checksum is taken
  } catch (...) {
    check.drop();
    throw;
  }
  check.sum = MessageCheck::sum_of(static_cast<const char*>(data), bytes);
  post_send(&check.sum, kChecksumOfMessage, peer.rank, tag, &check);
}

void Exchange::receive(void* data, size_t bytes, Peer peer, int tag) {
  if (!peer.checked || bytes == 0) return post_receive(data, bytes, peer.rank, tag);
  MessageCheck& check = *MessageCheck::make(*lane_.core->pool, static_cast<char*>(data), bytes);
  if (check.copied) return post_receive(check.copy(), bytes + kChecksumOfMessage, peer.rank, tag, &check);
  try {
    post_receive(data, bytes, peer.rank, tag, &check);
  } catch (...) {
    check.drop();  // the checksum's part
    throw;
  }
  post_receive(&check.sum, kChecksumOfMessage, peer.rank, tag, &check);
}

// The last part of a message brings the verdict.
void Exchange::part_over(MessageCheck& check, int peer) {
  if (check.parts == 1 && check.data != nullptr && error_ == nullptr && !check.take())
    error_ = damaged(peer, check.bytes);
  check.drop();
}

std::exception_ptr Exchange::damaged(int peer, size_t bytes) const {
  const OperationNote& note = operation_->note_;
  const std::vector<std::string>& hosts = lane_.core->options.hosts;
  const auto of_hosts = static_cast<size_t>(peer);
  return std::make_exception_ptr(Error(
      ExitCode::kHungPeer,
      "rank " + std::to_string(peer) + (of_hosts < hosts.size() ? " (" + hosts[of_hosts] + ")" : "") + " sent " +
          std::to_string(bytes) + " bytes that were damaged on their way: site " + note.label.name + ", " + note.verb +
          " " + std::to_string(note.sequence) + " of group " + std::to_string(note.group) +
          ", a message of which does not match its checksum; start the job again, and should the same rank be named, "
          "look at memory and network card of both ends"));
}

void Exchange::await_resume() {
  waiter_ = {};
  if (error_ != nullptr) std::rethrow_exception(error_);
}

Exchange::~Exchange() {
  if (pending_ > 0 || ready_) lane_.core->withdraw(*this);
}

}  // namespace thinwire
