// A bounded queue between one reader, several workers and one writer, which takes the results in the reader's order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace thinwire {

// Every method may be called from any thread; after stop() all of them return at once with false or nothing.
// Jobs count against the bounds from push() until their result is taken, so nothing piles up behind a slow first job.
template <typename Job, typename Result>
class OrderedQueue {
 public:
  OrderedQueue(size_t most_jobs, size_t most_bytes) : most_jobs_(most_jobs), most_bytes_(most_bytes) {}

  // Blocks while full; a single job may be larger than the bound on bytes.
  bool push(Job job, size_t bytes) {
    std::unique_lock lock(mutex_);
    room_.wait(lock,
               [&] { return stopped_ || (open_ < most_jobs_ && (open_ == 0 || open_bytes_ + bytes <= most_bytes_)); });
    if (stopped_) return false;
    jobs_.push_back({pushed_++, bytes, std::move(job)});
    ++open_;
    open_bytes_ += bytes;
    work_.notify_one();
    return true;
  }
  void close() {  // no more push()
    const std::lock_guard lock(mutex_);
    closed_ = true;
    work_.notify_all();
    done_.notify_all();
  }

  struct Ticketed {
    uint64_t number;
    size_t bytes;
    Job job;
  };
  std::optional<Ticketed> pop() {  // nothing: the worker may leave
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] { return stopped_ || closed_ || !jobs_.empty(); });
    if (stopped_ || jobs_.empty()) return std::nullopt;
    Ticketed next = std::move(jobs_.front());
    jobs_.pop_front();
    return next;
  }
  void finish(uint64_t number, size_t bytes, Result result) {
    const std::lock_guard lock(mutex_);
    results_.emplace(number, std::pair(bytes, std::move(result)));
    if (number == taken_) done_.notify_all();
  }

  std::optional<Result> take() {  // the next in order; nothing: all were taken
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return stopped_ || results_.contains(taken_) || (closed_ && taken_ == pushed_); });
    const auto found = results_.find(taken_);
    if (stopped_ || found == results_.end()) return std::nullopt;
    Result result = std::move(found->second.second);
    --open_;
    open_bytes_ -= found->second.first;
    results_.erase(found);
    ++taken_;
    room_.notify_all();
    return result;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    room_.notify_all();
    work_.notify_all();
    done_.notify_all();
  }

 private:
  const size_t most_jobs_, most_bytes_;
  std::mutex mutex_;
  std::condition_variable room_, work_, done_;
  std::deque<Ticketed> jobs_;
  std::map<uint64_t, std::pair<size_t, Result>> results_;
  uint64_t pushed_ = 0, taken_ = 0;
  size_t open_ = 0, open_bytes_ = 0;
  bool closed_ = false, stopped_ = false;
};

}  // namespace thinwire
