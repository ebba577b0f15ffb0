// Tags wrap: which operation of a group may use the network while another with the same tag may still be on its way.
//
// A tag has 15 bits, as the MPI standard grants: 5 for the group (31: handshakes, before there are groups), 1 for
// collective or message, 9 for a sequence number. Operations of a group and kind are numbered 0, 1, 2 ... on each of
// its ranks alike (messages: per peer and direction); the tag holds the lowest bits. So operation s shares its tag with
// s + w, s + 2 w ..., w being the number of different tags (512, or 256 where an operation has two).
//
// The rule: operation s posts nothing before s - w, and with it all before that, is over on this rank. Why that is
// enough: between two ranks p and q, operation s has as many sends at p as receives at q under one tag, in the same
// order. By the rule p posts all its sends of s before the first of s + w, and q all its receives of s before the first
// of s + w. A transport matches the n-th send of a (peer, tag) with the n-th receive, as MPI promises. Hence the sends
// of s meet the receives of s, whatever is delayed.
// Nobody waits for ever: an operation waits for earlier ones of its own group and kind only, and these for still
// earlier ones, on this rank and, since they are the same operations, on the others.
#pragma once

#include <algorithm>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/core/check.h"

namespace thinwire {

class SequenceWindow;

// An operation's number. Default: of none, which may start at any time.
struct SequencePlace {
  SequenceWindow* window = nullptr;
  uint32_t sequence = 0;
  inline void begin() const;  // under the progress lock, once: a number is one operation's
  inline bool may_start() const;
  inline void hold(std::coroutine_handle<> frame) const;  // until it may; under the progress lock
  inline void over() const;                               // under the progress lock; may be told twice
};

// Tasks that may not start yet, in the order in which they were to. One per engine, used under the progress lock.
class StartQueue {
 public:
  struct Held {
    SequencePlace place;
    std::coroutine_handle<> frame;
    void* operation = nullptr;  // whose task it is; set by the engine
  };
  inline void hold(const SequencePlace& place, std::coroutine_handle<> frame);
  // Takes the first that may start by now; false: there is none.
  inline bool take(Held& out);
  inline void drop(const void* operation);
  size_t size() const { return held_.size(); }
  Held& operator[](size_t i) { return held_[i]; }

 private:
  inline void erase(size_t i);
  std::vector<Held> held_;
};

// The numbers of one group and kind. Taken by the thread that issues; told under the progress lock what is over.
// Outlives the operations.
class SequenceWindow {
 public:
  SequenceWindow(StartQueue& queue, uint32_t tags) : queue_(&queue), tags_(tags) {}
  SequenceWindow(const SequenceWindow&) = delete;
  SequenceWindow& operator=(const SequenceWindow&) = delete;
  SequencePlace take() { return {this, next_++}; }
  uint32_t next() const { return next_; }
  uint32_t open() const { return next_ - all_over_below_.load(std::memory_order_acquire); }

 private:
  friend struct SequencePlace;
  friend class StartQueue;
  void begin(uint32_t sequence) {
    const bool past = static_cast<int32_t>(sequence - all_over_below_.load(std::memory_order_relaxed)) < 0;
    TW_CHECK(!past && std::find(begun_.begin(), begun_.end(), sequence) == begun_.end(), "operation ", sequence,
             " of its group was begun before: a lane is for one operation");
    begun_.push_back(sequence);
  }
  bool reached(uint32_t sequence) const { return sequence - all_over_below_.load(std::memory_order_acquire) < tags_; }
  void over(uint32_t sequence) {
    std::erase(begun_, sequence);
    uint32_t below = all_over_below_.load(std::memory_order_relaxed);
    if (sequence - below >= tags_) return;
    if (sequence != below) return early_.push_back(sequence);
    for (++below; !early_.empty() && std::erase(early_, below) > 0;) ++below;
    all_over_below_.store(below, std::memory_order_release);
  }

  StartQueue* queue_;
  uint32_t tags_, next_ = 0;
  std::atomic<uint32_t> all_over_below_{0}, held_{0};
  std::vector<uint32_t> early_;  // over before an earlier one is
  std::vector<uint32_t> begun_;  // and not over
};

void SequencePlace::begin() const {
  if (window != nullptr) window->begin(sequence);
}

// Those of one window start in the order in which they were to: all ranks then see the same order of turns.
bool SequencePlace::may_start() const {
  return window == nullptr || (window->held_.load(std::memory_order_acquire) == 0 && window->reached(sequence));
}

void SequencePlace::over() const {
  if (window != nullptr) window->over(sequence);
}

void SequencePlace::hold(std::coroutine_handle<> frame) const {
  window->queue_->hold(*this, frame);
}

void StartQueue::hold(const SequencePlace& place, std::coroutine_handle<> frame) {
  place.window->held_.fetch_add(1);
  held_.push_back({place, frame});
}

bool StartQueue::take(Held& out) {
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!held_[i].place.window->reached(held_[i].place.sequence)) continue;
    out = held_[i];
    erase(i);
    return true;
  }
  return false;
}

void StartQueue::drop(const void* operation) {
  for (size_t i = held_.size(); i-- > 0;)
    if (held_[i].operation == operation) erase(i);
}

void StartQueue::erase(size_t i) {
  held_[i].place.window->held_.fetch_sub(1);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
}

}  // namespace thinwire
