// Receives that are kept until a latency is over, and the messages that tell when their payloads were sent.
#include "parallel/wire/transport_delayed.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kStamp = uint32_t{1} << 31;  // of a stamp's token; the caller's are below
constexpr long kLongestDelay = 10'000'000;

class DelayedTransport final : public Transport {
 public:
  DelayedTransport(std::unique_ptr<Transport> beneath, std::vector<int> nodes, std::chrono::microseconds delay)
      : beneath_(std::move(beneath)), nodes_(std::move(nodes)), delay_(delay) {}

  int rank() const override { return beneath_->rank(); }
  int size() const override { return beneath_->size(); }

  bool post_send(const void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    if (!is_far(peer)) return beneath_->post_send(data, bytes, peer, tag, token);
    const uint32_t number = take();
    Stamped& s = at(number);
    s.is_send = true, s.token = token, s.bytes = bytes;
    s.sent = Clock::now();
    s.stamped = beneath_->post_send(&s.sent, sizeof s.sent, peer, tag, number | kStamp);
    s.here = beneath_->post_send(data, bytes, peer, tag, token);
    (s.stamped && s.here ? free_ : open_).push_back(number);  // done with its stamp, which lies here
    return s.stamped && s.here;
  }

  bool post_receive(void* data, size_t bytes, int peer, int tag, uint32_t token) override {
    if (!is_far(peer)) return beneath_->post_receive(data, bytes, peer, tag, token);
    const uint32_t number = take();
    Stamped& s = at(number);
    s.token = token, s.bytes = bytes;
    s.stamped = beneath_->post_receive(&s.sent, sizeof s.sent, peer, tag, number | kStamp);
    s.here = beneath_->post_receive(data, bytes, peer, tag, token);
    s.posted = polls_;
    open_.push_back(number);
    return false;
  }

  size_t poll(std::span<Completion> done) override {
    const Clock::time_point now = Clock::now();
    ++polls_;
    const size_t n = beneath_->poll(done);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
      const Completion c = done[i];
      if ((c.token & kStamp) != 0) {
        at(c.token & ~kStamp).stamped = true;
      } else if (const auto it = find(c.token); it != open_.end()) {
        Stamped& s = at(*it);
        s.here = true, s.bytes = c.bytes;
        if (polls_ > s.posted + 1) s.not_yet = before_;  // else it may have been here long before
      } else {
        done[kept++] = c;
      }
    }
    before_ = now;
    std::erase_if(open_, [&](uint32_t number) {
      const Stamped& s = at(number);
      if (kept == done.size() || !s.here || !s.stamped) return false;
      if (!s.is_send && std::max(s.sent, s.not_yet) + delay_ > now) return false;
      done[kept++] = {s.token, s.bytes};
      free_.push_back(number);
      return true;
    });
    return kept;
  }

  bool withdraw(uint32_t token) noexcept override {
    const auto it = find(token);
    if (it == open_.end()) return beneath_->withdraw(token);
    const Stamped& s = at(*it);
    const bool gone = s.here || beneath_->withdraw(token);
    if (gone && !s.stamped) beneath_->withdraw(*it | kStamp);  // its memory stays until the end
    if (gone) open_.erase(it);
    return gone;
  }

  uint32_t listen() override { return beneath_->listen(); }
  void sleep(uint32_t heard, std::chrono::microseconds limit) override { beneath_->sleep(heard, limit); }
  void stop_listening() override { beneath_->stop_listening(); }
  void wake() override { beneath_->wake(); }
  bool all_wake() const override {
    return std::ranges::all_of(open_, [&](uint32_t number) { return stamps_[number].is_send; }) && beneath_->all_wake();
  }
  [[noreturn]] void abort(int code) override {
    beneath_->abort(code);
    std::terminate();
  }

 private:
  struct Stamped {
    Clock::time_point sent{}, not_yet{};  // not_yet: a poll that looked for it and did not find it
    uint64_t posted = 0;                  // behind so many polls
    uint32_t token = 0;
    size_t bytes = 0;
    bool is_send = false, stamped = false, here = false;  // here: also a send's payload that has gone
  };

  bool is_far(int peer) const { return nodes_[static_cast<size_t>(peer)] != nodes_[static_cast<size_t>(rank())]; }
  Stamped& at(uint32_t number) { return stamps_[number]; }
  uint32_t take() {
    if (free_.empty()) {
      stamps_.emplace_back();
      return static_cast<uint32_t>(stamps_.size()) - 1;
    }
    const uint32_t number = free_.back();
    free_.pop_back();
    at(number) = {};
    return number;
  }
  std::vector<uint32_t>::iterator find(uint32_t token) {
    return std::find_if(open_.begin(), open_.end(), [&](uint32_t number) { return at(number).token == token; });
  }

  std::unique_ptr<Transport> beneath_;
  std::vector<int> nodes_;
  std::chrono::microseconds delay_;
  Clock::time_point before_{};  // the last poll
  uint64_t polls_ = 0;
  std::deque<Stamped> stamps_;  // stays where it is: messages are received into it
  std::vector<uint32_t> free_;
  std::vector<uint32_t> open_;  // from and to other nodes, in the order of posting
};

}  // namespace

std::unique_ptr<Transport> delayed_transport(std::unique_ptr<Transport> beneath, std::vector<int> nodes,
                                             std::chrono::microseconds delay) {
  return std::make_unique<DelayedTransport>(std::move(beneath), std::move(nodes), delay);
}

std::chrono::microseconds wished_delay() {
  const char* const wish = std::getenv("THINWIRE_DELAY_US");
  if (wish == nullptr || *wish == '\0') return {};
  char* end = nullptr;
  const long us = std::strtol(wish, &end, 10);
  if (*end != '\0' || us < 0 || us > kLongestDelay)
    throw_bad_config(std::string("THINWIRE_DELAY_US=") + wish + ": a whole number of microseconds is needed, at most " +
                     std::to_string(kLongestDelay));
  return std::chrono::microseconds(us);
}

}  // namespace thinwire
