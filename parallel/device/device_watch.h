// Notices that communication on a device stands still: what runs on a stream has no transfers of ours that the watchdog
// of the host could look at, only events.
//
// One thread, asleep nearly always. Silence is: the event behind the oldest operation under way has not been reached,
// and none before it was, for `seconds`; or a communicator reports a fault. Then it prints what is under way and ends
// the process with code 71. Nothing is aborted before: another thread may be inside NCCL, which crashes then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/device/stream.h"
#include "parallel/wire/progress.h"

namespace thinwire {

class DeviceWatch {
 public:
  struct Options {
    double seconds = 0.0;                                             // 0: faults alone are noticed
    std::function<void(const std::string& message)> on_verdict = {};  // leaves the reason where the next job looks
    // Tests: what ends the process (default: _exit) and what prints (default: stderr and the log file).
    std::function<void(int code)> end = {};
    std::function<void(const std::string& message)> print = {};
  };
  // fault: asked of all communicators by the watch's thread; empty: none.
  DeviceWatch(Options options, std::function<std::string()> fault);
  ~DeviceWatch();  // nothing is under way, or an exception unwinds
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // event: behind the operation, which is queued. Operations are added in the order of the stream.
  void add(const OperationNote& note, Ticket event);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    OperationNote note;
    Clock::time_point issued;
    Ticket event;
  };
  void run();
  void drop_passed();
  std::string report(const std::string& reason) const;
  void end_job(const std::string& message);

  Options options_;
  std::function<std::string()> fault_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> under_way_;
  std::deque<OperationNote> passed_;  // the last ones
  Clock::time_point moved_ = Clock::now();
  bool leaves_ = false;
  std::thread thread_;
};

}  // namespace thinwire
