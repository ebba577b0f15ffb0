// A queue and a detached thread that owns it together with its user.
#include "parallel/wire/file_lane.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "parallel/wire/thread_stacks.h"

namespace thinwire {
namespace {

constexpr size_t kMostTasks = 64;  // behind one that hangs nothing is worth more

}  // namespace

// The lock is held for a few moves, never during a task.
struct FileLane::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  uint64_t given = 0, over = 0;
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
      } catch (...) {  // whoever wants to know looks at what the task has left
      }
      task = nullptr;
      lock.lock();
      ++over;
      changed.notify_all();
    }
  }
};

FileLane::FileLane(const char* name) : state_(std::make_shared<State>()) {
  const sigset_t before = block_signals();  // they are the main thread's
  std::thread([state = state_, name = std::string(name)] {
    pthread_setname_np(pthread_self(), name.c_str());
    state->run();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
  const uint64_t mine = ++state_->given;
  state_->changed.notify_all();
  return state_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state_->over >= mine; });
}

bool FileLane::idle() const {
  std::lock_guard lock(state_->mutex);
  return state_->over == state_->given;
}

}  // namespace thinwire
