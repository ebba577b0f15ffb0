// Task: a coroutine that starts when it is awaited (or given to Progress::start), and whose frame comes from a pool.
//
// The pool is that of the first argument of the coroutine that has a `pool()`; a coroutine without such an argument
// takes its frame from the heap. A coroutine that is handed a `place` (sequence_window.h) takes it out of its argument:
// it starts when it may, and its end is the operation's. Arguments are kept in the frame: pass what dies with the
// caller by value. A Task that is dropped before it was started does nothing.
#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <new>
#include <utility>

#include "parallel/wire/scratch.h"
#include "parallel/wire/sequence_window.h"

namespace thinwire {

namespace detail {

template <typename T>
BlockPool* pool_from(T& argument) {
  if constexpr (requires {
                  { argument.pool() } -> std::same_as<BlockPool&>;
                }) {
    return &argument.pool();
  } else {
    return nullptr;
  }
}

template <typename T>
SequencePlace place_from(T& argument) {
  if constexpr (requires {
                  { (argument.place) } -> std::same_as<SequencePlace&>;
                }) {
    return std::exchange(argument.place, SequencePlace());
  } else {
    return {};
  }
}

// What stands in front of a frame. Keeps the frame on the alignment that operator new promises.
struct alignas(__STDCPP_DEFAULT_NEW_ALIGNMENT__) FrameHead {
  BlockPool* pool;
};

// Not inlined: GCC 12 would take the two for a mismatched pair.
[[gnu::noinline]] inline void* allocate_frame(BlockPool* pool, size_t bytes) {
  const size_t whole = bytes + sizeof(FrameHead);
  auto* head = static_cast<FrameHead*>(pool != nullptr ? pool->allocate(whole) : ::operator new(whole));
  head->pool = pool;
  return head + 1;
}
[[gnu::noinline]] inline void release_frame(void* frame, size_t bytes) noexcept {
  FrameHead* head = static_cast<FrameHead*>(frame) - 1;
  if (head->pool != nullptr) {
    head->pool->release(head, bytes + sizeof(FrameHead));
  } else {
    ::operator delete(head);
  }
}

}  // namespace detail

class [[nodiscard]] Task {
 public:
  struct promise_type {
    template <typename... Args>
    static void* operator new(size_t bytes, Args&... args) {
      BlockPool* pool = nullptr;
      ((pool = pool != nullptr ? pool : detail::pool_from(args)), ...);
      return detail::allocate_frame(pool, bytes);
    }
    static void operator delete(void* frame, size_t bytes) noexcept { detail::release_frame(frame, bytes); }

    // The arguments are the frame's own copies: what the coroutine hands on has no place any more.
    template <typename... Args>
    explicit promise_type(Args&... args) {
      ((place = place.window != nullptr ? place : detail::place_from(args)), ...);
    }
    promise_type() = default;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> frame) noexcept {
        frame.promise().place.over();
        std::coroutine_handle<> next = frame.promise().continuation;
        return next ? next : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }

    std::coroutine_handle<> continuation;
    std::exception_ptr error;
    SequencePlace place;
  };
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle frame) : frame_(frame) {}
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      clear();
      frame_ = std::exchange(other.frame_, {});
    }
    return *this;
  }
  ~Task() { clear(); }

  // Of the outermost task, for Progress.
  explicit operator bool() const { return static_cast<bool>(frame_); }
  std::coroutine_handle<> start() const { return start(frame_); }  // what is to be resumed now
  bool returned() const { return frame_.done(); }
  std::exception_ptr error() const { return frame_.promise().error; }
  const SequencePlace& place() const { return frame_.promise().place; }  // none: it waits for tasks that have one
  void clear() {
    if (frame_) std::exchange(frame_, {}).destroy();
  }

  // co_await: runs the task to its end inside the awaiting one; its exception is thrown there.
  struct Awaiter {
    Handle frame;
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
      frame.promise().continuation = awaiting;
      return start(frame);
    }
    void await_resume() const {
      if (frame.promise().error) std::rethrow_exception(frame.promise().error);
    }
  };
  Awaiter operator co_await() && { return Awaiter{frame_}; }
  Awaiter operator co_await() & { return Awaiter{frame_}; }

 private:
  static std::coroutine_handle<> start(Handle frame) {
    const SequencePlace& place = frame.promise().place;
    place.begin();
    if (place.may_start()) return frame;
    place.hold(frame);
    return std::noop_coroutine();
  }
  Handle frame_;
};

}  // namespace thinwire
