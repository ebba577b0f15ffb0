// A queue of tasks that a detached thread and the FileLane own together: a task that hangs may outlive the lane.
#include "parallel/wire/file_lane.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "parallel/wire/thread_stacks.h"

namespace thinwire {
namespace {

constexpr size_t kMostTasks = 64;  // so many wait only behind one that hangs, and more would wait for ever

}  // namespace

// The lock is never held during a task.
struct FileLane::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  uint64_t queued = 0, done = 0;  // tasks so far
  bool stop = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stop || !tasks.empty(); });
      if (tasks.empty()) return;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      try {
        task();
      } catch (...) {  // dropped: what a task has to say, it leaves in what it captured
      }
      task = nullptr;  // destroys its captures outside of the lock
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
};

FileLane::FileLane(const char* name) : state_(std::make_shared<State>()) {
  const SignalsBlocked blocked;
  std::thread([state = state_, name = std::string(name)] {
    pthread_setname_np(pthread_self(), name.c_str());
    state->run();
  }).detach();
}

FileLane::~FileLane() {
  std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

bool FileLane::within(double seconds, std::function<void()> task) {
  std::unique_lock lock(state_->mutex);
  if (state_->tasks.size() >= kMostTasks) return false;
  state_->tasks.push_back(std::move(task));
  const uint64_t number = ++state_->queued;
  state_->changed.notify_all();
  return state_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state_->done >= number; });
}

bool FileLane::idle() const {
  std::lock_guard lock(state_->mutex);
  return state_->done == state_->queued;
}

}  // namespace thinwire
